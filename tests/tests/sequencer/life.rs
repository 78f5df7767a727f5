//! Load, shutdown, clocks, restarts from snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidemill_bus::checkpoint::Checkpoint;
use tidemill_bus::commands::{Commands, SubmitError};
use tidemill_bus::memory::{Fault, MemoryLedger};
use tidemill_bus::sequencer::{Clock, SequencerConfig, checkpoint_path};
use tidemill_bus::snapshots::SnapshotStore;
use tidemill_bus::view::StateView;
use tidemill_domain::time::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::support::{SOON, Seat, genesis, id, numbered, on_disk, read_all, times};

#[tokio::test]
async fn ten_times_the_callers_it_can_queue_are_told_so_at_once() {
    const QUEUE: usize = 1000;
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::start(
        &ledger,
        SequencerConfig {
            intake: QUEUE,
            ..SequencerConfig::in_memory("one")
        },
    );
    assert!(seat.handle.wait_until_leading(SOON).await);
    ledger.inject(Fault::Delay(Duration::from_millis(300)));
    let callers: Vec<_> = (0..10 * QUEUE as u64)
        .map(|n| {
            let handle = seat.handle.clone();
            tokio::spawn(async move { handle.submit(numbered(n)).await })
        })
        .collect();
    let (mut answered, mut overloaded) = (0, 0);
    for caller in callers {
        match caller.await.unwrap() {
            Ok(_) => answered += 1,
            Err(SubmitError::Overloaded { waiting }) => {
                assert_eq!(waiting, QUEUE);
                overloaded += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(
        overloaded > 0 && answered >= QUEUE as u64,
        "{answered} answered, {overloaded} overloaded"
    );
    assert_eq!(seat.handle.waiting(), 0);
    assert_eq!(read_all(&ledger).await.0.state().credentials.len() as u64, answered);
    assert_eq!(seat.handle.metrics().overloaded, overloaded);
    seat.end().await;
}

#[tokio::test]
async fn commands_that_come_while_a_record_is_in_flight_share_the_next() {
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::leading(&ledger).await;
    ledger.inject(Fault::Delay(Duration::from_millis(200)));
    let callers: Vec<_> = (0..100)
        .map(|n| {
            let handle = seat.handle.clone();
            tokio::spawn(async move { handle.submit(numbered(n)).await.unwrap().sequence })
        })
        .collect();
    let mut sequences = Vec::new();
    for caller in callers {
        sequences.push(caller.await.unwrap());
    }
    sequences.sort_unstable();
    sequences.dedup();
    assert!(sequences.len() <= 3, "{sequences:?}");
    seat.end().await;
}

#[tokio::test]
async fn shutting_down_finishes_what_is_in_flight_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::start(&ledger, on_disk(dir.path()));
    assert!(seat.handle.wait_until_leading(SOON).await);
    ledger.inject(Fault::Delay(Duration::from_millis(300)));
    let appends = ledger.appends();
    let in_flight = tokio::spawn({
        let handle = seat.handle.clone();
        async move { handle.submit(numbered(1)).await }
    });
    while ledger.appends() == appends {
        tokio::task::yield_now().await;
    }
    let queued = tokio::spawn({
        let handle = seat.handle.clone();
        async move { handle.submit(numbered(2)).await }
    });
    while seat.handle.waiting() == 0 {
        tokio::task::yield_now().await;
    }
    seat.shutdown.cancel();
    assert_eq!(seat.handle.submit(numbered(3)).await, Err(SubmitError::ShuttingDown));
    let answer = in_flight.await.unwrap().unwrap();
    assert_eq!(queued.await.unwrap(), Err(SubmitError::ShuttingDown));
    seat.end().await;
    let checkpoint = Checkpoint::load(&checkpoint_path(dir.path())).unwrap().unwrap();
    assert_eq!(checkpoint.anchor.sequence, answer.sequence);
    let (_, commits) = read_all(&ledger).await;
    assert_eq!([1, 2, 3].map(|n| times(&commits, id(n))), [1, 0, 0]);
}

#[tokio::test]
async fn a_clock_that_jumps_back_does_not_take_time_with_it() {
    let wall = Arc::new(AtomicI64::new(5_000_000));
    let clock = || {
        let wall = Arc::clone(&wall);
        Clock::Manual(Arc::new(move || Timestamp(wall.load(Ordering::Relaxed))))
    };
    let ledger = MemoryLedger::create(genesis());
    for (epoch, times) in [(1, [6_000_000, 2_000_000]), (2, [1_000_000, 7_000_000])] {
        wall.store(times[0], Ordering::Relaxed);
        let seat = Seat::start(
            &ledger,
            SequencerConfig {
                clock: clock(),
                ..SequencerConfig::in_memory("one")
            },
        );
        seat.submit(numbered(epoch * 10)).await.unwrap();
        wall.store(times[1], Ordering::Relaxed);
        seat.submit(numbered(epoch * 10 + 1)).await.unwrap();
        seat.end().await;
    }
    // `read_all` asserts that time is sorted.
    let (fold, _) = read_all(&ledger).await;
    assert_eq!(fold.state().recorded_at, Timestamp(7_000_000));
}

#[tokio::test]
async fn a_view_follows_and_starts_from_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::start(&ledger, on_disk(dir.path()));
    let shutdown = CancellationToken::new();
    let view = StateView::start(Arc::new(ledger.clone()), None, shutdown.clone())
        .await
        .unwrap();
    let mut last = 0;
    for n in 0..100 {
        last = seat.submit(numbered(n)).await.unwrap().sequence;
    }
    assert!(view.wait_for(last, SOON).await);
    assert_eq!(view.read(|state| state.credentials.len()), 100);
    assert!(!view.wait_for(last + 1, Duration::from_millis(10)).await);
    let progress = *view.progress().borrow();
    assert_eq!((progress.sequence, progress.lag()), (last, 0));
    seat.end().await;

    let snapshots = SnapshotStore::open(&dir.path().join("snapshots"), &genesis()).unwrap();
    let found = snapshots.nearest_at_or_before(last).expect("a snapshot was written");
    assert!(found.anchor.sequence > 10 && found.state.credentials.len() > 10);
    let late = StateView::start(Arc::new(ledger.clone()), Some(snapshots), shutdown.clone())
        .await
        .unwrap();
    assert!(
        late.progress().borrow().sequence >= found.anchor.sequence,
        "it began at the snapshot"
    );
    assert!(late.wait_for(last, SOON).await);
    assert_eq!(
        late.read(tidemill_domain::state::State::to_snapshot),
        view.read(tidemill_domain::state::State::to_snapshot)
    );
    shutdown.cancel();
}

#[tokio::test]
async fn a_view_of_a_damaged_ledger_stops_and_says_where() {
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::leading(&ledger).await;
    for n in 0..5 {
        seat.submit(numbered(n)).await.unwrap();
    }
    seat.end().await;
    let mut bytes = ledger.records()[3].to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    ledger.overwrite(4, bytes.into());
    let view = StateView::start(Arc::new(ledger.clone()), None, CancellationToken::new())
        .await
        .unwrap();
    assert!(!view.wait_for(5, SOON).await, "it does not wait for what cannot come");
    assert_eq!(view.progress().borrow().sequence, 3);
    let health = format!("{:?}", view.health().borrow().clone());
    assert!(health.contains("sequence: 4"), "{health}");
    // Nor does a sequencer decide on it.
    let seat = Seat::start(&ledger, SequencerConfig::in_memory("two"));
    assert_eq!(seat.read_only().await, "ledger_record_changed");
    seat.end().await;
}

#[tokio::test]
async fn damage_before_the_snapshot_takes_the_lead_away_until_it_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::start(&ledger, on_disk(dir.path()));
    for n in 0..100 {
        seat.submit(numbered(n)).await.unwrap();
    }
    seat.end().await;
    let sound = ledger.records()[3].clone();
    let mut bytes = sound.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    ledger.overwrite(4, bytes.into());

    // It starts from a snapshot behind the damage; what the audit finds makes it step down.
    let seat = Seat::start(&ledger, on_disk(dir.path()));
    assert_eq!(seat.read_only().await, "ledger_record_changed");
    let damage = seat.handle.status().borrow().damage.clone();
    assert_eq!(damage.map(|damage| damage.first_bad_seq), Some(4));
    let refused = seat.submit(numbered(200)).await;
    assert!(matches!(refused, Err(SubmitError::ReadOnly { .. })), "{refused:?}");
    seat.end().await;

    // After a restart it does not even begin an epoch.
    let before = ledger.appends();
    let seat = Seat::start(&ledger, on_disk(dir.path()));
    assert_eq!(seat.read_only().await, "ledger_record_changed");
    assert_eq!((ledger.appends(), seat.handle.metrics().takeovers), (before, 0));
    seat.end().await;

    // Whole again, it leads again by itself, and nothing is remembered.
    ledger.overwrite(4, sound);
    for _ in 0..2 {
        let seat = Seat::start(&ledger, on_disk(dir.path()));
        assert!(seat.handle.wait_until_leading(SOON).await, "{:?}", seat.handle);
        assert_eq!(seat.handle.status().borrow().damage, None);
        seat.end().await;
    }
    read_all(&ledger).await;
}
