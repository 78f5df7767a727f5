//! Each way an append can end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tidemill_bus::commands::{Commands, SubmitError};
use tidemill_bus::ledger::{Hints, Ledger};
use tidemill_bus::memory::{Fault, MemoryLedger};
use tidemill_bus::record::Record;
use tidemill_bus::sequencer::{DiskReserve, SequencerConfig};

use crate::support::{SOON, Seat, events_of, genesis, id, numbered, on_disk, read_all, times};

#[tokio::test]
async fn an_answer_names_the_record_that_holds_its_events() {
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::leading(&ledger).await;
    let answer = seat.submit(numbered(1)).await.unwrap();
    let (fold, commits) = read_all(&ledger).await;
    assert_eq!(events_of(&commits, id(1)), (answer.sequence, &answer.events[..]));
    let first: Vec<_> = commits
        .iter()
        .filter(|(s, _)| *s == 1)
        .flat_map(|(_, c)| &c.events)
        .map(|e| e.name())
        .collect();
    assert_eq!(first, ["LedgerCreated", "EpochStarted", "StateSealed"]);
    assert_eq!(fold.state().cell.name, "main");
    assert_eq!(fold.state().cell.leader, "one");
    seat.end().await;
}

#[tokio::test]
async fn whatever_the_store_fails_to_say_the_command_is_there_once() {
    for fault in [
        Fault::UnknownStored,
        Fault::UnknownLost,
        Fault::UnknownLate,
        Fault::Unavailable,
    ] {
        let ledger = MemoryLedger::create(genesis());
        let seat = Seat::leading(&ledger).await;
        ledger.inject(fault.clone());
        let answer = seat.submit(numbered(1)).await.unwrap();
        seat.submit(numbered(2)).await.unwrap();
        let (_, commits) = read_all(&ledger).await;
        assert_eq!(events_of(&commits, id(1)).0, answer.sequence, "{fault:?}");
        assert_eq!(times(&commits, id(2)), 1, "{fault:?}");
        seat.end().await;
    }
}

#[tokio::test]
async fn taking_over_survives_the_same_faults() {
    for fault in [
        Fault::UnknownStored,
        Fault::UnknownLost,
        Fault::UnknownLate,
        Fault::Unavailable,
        Fault::Full,
    ] {
        let ledger = MemoryLedger::create(genesis());
        ledger.inject(fault);
        let seat = Seat::leading(&ledger).await;
        seat.submit(numbered(1)).await.unwrap();
        read_all(&ledger).await;
        seat.end().await;
    }
}

#[tokio::test]
async fn an_outcome_that_stays_unknown_is_called_unknown() {
    let ledger = MemoryLedger::create(genesis());
    let config = SequencerConfig {
        patience: Duration::ZERO,
        ..SequencerConfig::in_memory("one")
    };
    let seat = Seat::start(&ledger, config);
    assert!(seat.handle.wait_until_leading(SOON).await);
    ledger.inject(Fault::UnknownLate);
    let error = seat.submit(numbered(1)).await.unwrap_err();
    assert!(matches!(error, SubmitError::Unknown { .. }), "{error}");
    // It leads again by itself; asked again, the command is there once, whether the late record came or not.
    assert!(seat.handle.wait_until_leading(SOON).await);
    let mut answer = seat.submit(numbered(1)).await;
    while answer.as_ref().is_err_and(SubmitError::is_transient) {
        tokio::task::yield_now().await;
        answer = seat.submit(numbered(1)).await;
    }
    answer.unwrap();
    assert_eq!(times(&read_all(&ledger).await.1, id(1)), 1);
    seat.end().await;
}

#[tokio::test]
async fn a_foreign_record_stops_the_writer_and_its_callers_are_told() {
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::leading(&ledger).await;
    seat.submit(numbered(1)).await.unwrap();
    ledger.inject(Fault::Foreign(Bytes::from_static(b"not one of ours")));
    let error = seat.submit(numbered(2)).await.unwrap_err();
    assert!(matches!(error, SubmitError::NoLeader { .. }), "{error}");
    assert_eq!(seat.read_only().await, "second_writer");
    let records = ledger.records().len();
    let error = seat.submit(numbered(3)).await.unwrap_err();
    assert_eq!(error.code(), "second_writer");
    assert_eq!(
        ledger.records().len(),
        records,
        "nothing was appended behind the foreign record"
    );
    seat.end().await;
}

#[tokio::test]
async fn what_was_decided_ahead_of_a_lost_record_is_lost_with_it() {
    // Several records' worth: while one is in flight, the next is decided.
    const CALLERS: u64 = 3000;
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::leading(&ledger).await;
    let (records, appends) = (ledger.records().len(), ledger.appends());
    for millis in [100, 2000] {
        ledger.inject(Fault::Delay(Duration::from_millis(millis)));
    }
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let handle = seat.handle.clone();
            tokio::spawn(async move { handle.submit(numbered(n)).await })
        })
        .collect();
    let second_in_flight = async {
        while ledger.appends() < appends + 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, second_in_flight).await.unwrap();
    let foreign = Bytes::from_static(b"not one of ours");
    let last = ledger.records().len() as u64;
    ledger.append(last, foreign.clone(), &Hints::default()).await.unwrap();
    let mut carried_out = 0;
    for caller in callers {
        match tokio::time::timeout(SOON, caller).await.unwrap().unwrap() {
            Ok(answer) => {
                assert!(answer.sequence <= last);
                carried_out += 1;
            }
            Err(SubmitError::Unknown { reason }) => panic!("nothing of it was written: {reason}"),
            Err(_) => {}
        }
    }
    assert_eq!(seat.read_only().await, "second_writer");
    seat.end().await;
    let stored = ledger.records();
    assert_eq!((stored.len() as u64, stored.last()), (last + 1, Some(&foreign)));
    let written: usize = stored[records..stored.len() - 1]
        .iter()
        .map(|body| Record::decode(body).unwrap().commits.len())
        .sum();
    assert_eq!(
        written, carried_out,
        "who was told yes is on the ledger, and nobody else"
    );
}

#[tokio::test]
async fn of_two_writers_one_wins_and_the_other_stops() {
    let ledger = MemoryLedger::create(genesis());
    let first = Seat::leading(&ledger).await;
    first.submit(numbered(1)).await.unwrap();
    let second = Seat::start(&ledger, SequencerConfig::in_memory("two"));
    assert!(second.handle.wait_until_leading(SOON).await);
    // Neither a write nor the confirmation of a wish already true comes from the one that was fenced off.
    let error = first.submit(numbered(1)).await.unwrap_err();
    assert!(matches!(error, SubmitError::NoLeader { .. }), "{error}");
    assert_eq!(first.read_only().await, "second_writer");
    assert!(second.submit(numbered(1)).await.unwrap().repeated);
    second.submit(numbered(2)).await.unwrap();
    let (fold, commits) = read_all(&ledger).await;
    assert_eq!(fold.state().cell.epoch, 2);
    assert_eq!((times(&commits, id(1)), times(&commits, id(2))), (1, 1));
    first.end().await;
    second.end().await;
}

#[tokio::test]
async fn a_full_ledger_refuses_by_code_and_goes_on_by_itself() {
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::leading(&ledger).await;
    ledger.inject(Fault::Full);
    let error = seat.submit(numbered(1)).await.unwrap_err();
    assert_eq!(error.code(), "ledger_full");
    assert!(seat.handle.wait_until_leading(SOON).await);
    assert!(
        !seat.submit(numbered(1)).await.unwrap().repeated,
        "the refused one was not written"
    );
    // Near its limit the ledger is not even tried.
    ledger.set_capacity(Some(1));
    assert_eq!(seat.read_only().await, "ledger_full");
    let before = ledger.appends();
    assert_eq!(seat.submit(numbered(2)).await.unwrap_err().code(), "ledger_full");
    assert_eq!(ledger.appends(), before);
    ledger.set_capacity(None);
    assert!(seat.handle.wait_until_leading(SOON).await);
    seat.submit(numbered(2)).await.unwrap();
    assert_eq!(
        read_all(&ledger).await.0.state().cell.epoch,
        2,
        "the reserve costs no epoch"
    );
    seat.end().await;
}

#[tokio::test]
async fn the_disk_reserve_refuses_before_anything_breaks() {
    let ledger = MemoryLedger::create(genesis());
    let free = Arc::new(AtomicU64::new(1000));
    let probe = Arc::clone(&free);
    let disk = Some(DiskReserve::probing(move || Some(probe.load(Ordering::Relaxed)), 100));
    let seat = Seat::start(
        &ledger,
        SequencerConfig {
            disk,
            ..SequencerConfig::in_memory("one")
        },
    );
    assert!(seat.handle.wait_until_leading(SOON).await);
    seat.submit(numbered(1)).await.unwrap();
    free.store(99, Ordering::Relaxed);
    assert_eq!(seat.read_only().await, "disk_reserve");
    let appends = ledger.appends();
    let error = seat.submit(numbered(2)).await.unwrap_err();
    assert_eq!(error.code(), "disk_reserve");
    assert!(!error.next().is_empty());
    assert_eq!(ledger.appends(), appends);
    free.store(100, Ordering::Relaxed);
    assert!(seat.handle.wait_until_leading(SOON).await);
    seat.submit(numbered(2)).await.unwrap();
    seat.end().await;
}

#[tokio::test]
async fn a_vanished_ledger_raises_the_alarm_and_is_not_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::start(&ledger, on_disk(dir.path()));
    seat.submit(numbered(1)).await.unwrap();
    ledger.remove();
    assert_eq!(seat.submit(numbered(2)).await.unwrap_err().code(), "ledger_missing");
    assert_eq!(seat.read_only().await, "ledger_missing");
    seat.end().await;
    // An empty ledger in its place is no better.
    let empty = MemoryLedger::create(genesis());
    let seat = Seat::start(&empty, on_disk(dir.path()));
    assert_eq!(seat.read_only().await, "ledger_shorter");
    assert_eq!(empty.appends(), 0);
    seat.end().await;
}

#[tokio::test]
async fn an_older_copy_or_another_history_is_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::start(&ledger, on_disk(dir.path()));
    for n in 0..5 {
        seat.submit(numbered(n)).await.unwrap();
    }
    seat.end().await;
    let whole = ledger.records();
    let backup = MemoryLedger::with_records(genesis(), whole[..3].to_vec());
    let seat = Seat::start(&backup, on_disk(dir.path()));
    assert_eq!(seat.read_only().await, "ledger_shorter");
    assert_eq!(seat.submit(numbered(9)).await.unwrap_err().code(), "ledger_shorter");
    assert_eq!(backup.appends(), 0);
    seat.end().await;

    // Someone else wrote on from the backup: as long as ours, and not ours.
    let other = Seat::leading(&backup).await;
    for n in 10..20 {
        other.submit(numbered(n)).await.unwrap();
    }
    other.end().await;
    let seat = Seat::start(&backup, on_disk(dir.path()));
    assert_eq!(seat.read_only().await, "ledger_forked");
    seat.end().await;

    let seat = Seat::start(&MemoryLedger::with_records(genesis(), whole), on_disk(dir.path()));
    assert!(
        seat.submit(numbered(0)).await.unwrap().repeated,
        "with the right ledger all is well"
    );
    seat.end().await;
}
