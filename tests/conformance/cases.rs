//! What every ledger promises.

use std::sync::Arc;
use std::time::Duration;

use tidemill_bus::chain::ChainReader;
use tidemill_bus::ledger::{AppendError, Hints, Ledger, ReadError};
use tidemill_bus::record::MAX_RECORD_BYTES;

use crate::fixture::{Fixture, genesis};
use crate::writer::{PATIENCE, append, append_surely, check, fill, note, read_slowly, record};

pub async fn order_density_and_chain(fixture: &mut dyn Fixture) {
    let ledger = fixture.open().await.unwrap();
    assert_eq!(ledger.genesis(), &genesis());
    let empty = ledger.tail().await.unwrap();
    assert_eq!((empty.anchor(), empty.epoch), (genesis().anchor(), 0));
    assert!(ledger.read(1, 10, usize::MAX).await.unwrap().is_empty());

    let head = fill(&*ledger, 205).await;
    let tail = ledger.tail().await.unwrap();
    assert_eq!((tail.anchor(), tail.epoch, tail.recorded_at), (head, 1, 205));
    assert!(tail.bytes_used > 200 * 100);
    assert_eq!(check(&*ledger).await.unwrap(), head);

    // The same records however they are read.
    let mut reader = ChainReader::new(&genesis());
    while reader.head().sequence < 205 {
        let batch = ledger.read(reader.next_sequence(), 7, 70_000).await.unwrap();
        assert!((1..=7).contains(&batch.len()));
        batch
            .iter()
            .for_each(|raw| drop(reader.check(raw.sequence, &raw.body).unwrap()));
    }
    assert_eq!(reader.head(), head);
    assert_eq!(read_slowly(Arc::clone(&ledger), 205, 64, Duration::ZERO).await, head);
    let middle = ledger.follow(100).await.unwrap().next_batch(1).await.unwrap();
    assert_eq!((middle.len(), middle[0].sequence), (1, 100));
    assert!(ledger.read(206, 10, usize::MAX).await.unwrap().is_empty());
    let beyond = ledger.follow(207).await.err().unwrap();
    assert_eq!(beyond, ReadError::Shorter { last: 205, seen: 206 });
}

/// Exactly one append wins each sequence.
pub async fn two_writers_race(fixture: &mut dyn Fixture) {
    const EACH: usize = 25;
    async fn writer(ledger: Arc<dyn Ledger>, name: &'static str) -> Vec<u64> {
        let mut won = Vec::new();
        let mut turn = 0;
        while won.len() < EACH {
            turn += 1;
            match append(&*ledger, &format!("{name} {turn}")).await {
                Ok(anchor) => won.push(anchor.sequence),
                Err(AppendError::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        won
    }
    let (one, other) = (fixture.open().await.unwrap(), fixture.open().await.unwrap());
    let (mut won, more) = tokio::join!(
        async { tokio::spawn(writer(Arc::clone(&one), "one")).await.unwrap() },
        async { tokio::spawn(writer(other, "other")).await.unwrap() },
    );
    won.extend(more);
    won.sort_unstable();
    assert_eq!(won, (1..=2 * EACH as u64).collect::<Vec<_>>());
    assert_eq!(check(&*one).await.unwrap().sequence, 2 * EACH as u64);
}

/// With one append in flight a foreign record is fail-stop: the writer is refused, and goes on being refused.
pub async fn a_foreign_record_stops_the_writer(fixture: &mut dyn Fixture) {
    let (ledger, foreign) = (fixture.open().await.unwrap(), fixture.open().await.unwrap());
    let mine = append(&*ledger, "mine").await.unwrap();
    let theirs = append(&*foreign, "theirs").await.unwrap();
    let next = note(mine, "mine too");
    for _ in 0..3 {
        let refused = ledger
            .append(mine.sequence, next.bytes.clone(), &Hints::default())
            .await;
        assert_eq!(refused, Err(AppendError::Conflict { last: Some(2) }));
    }
    assert_eq!(ledger.tail().await.unwrap().anchor(), theirs);
    // A number from the future is refused just as well.
    let early = ledger.append(5, next.bytes, &Hints::default()).await;
    assert!(matches!(early, Err(AppendError::Conflict { .. })), "{early:?}");
    assert_eq!(check(&*ledger).await.unwrap(), theirs);
}

pub async fn an_oversized_record_is_refused(fixture: &mut dyn Fixture) {
    let ledger = fixture.open().await.unwrap();
    let large = vec![1; MAX_RECORD_BYTES + 1];
    let refused = ledger.append(0, large.into(), &Hints::default()).await;
    assert_eq!(
        refused,
        Err(AppendError::TooLarge {
            bytes: MAX_RECORD_BYTES + 1,
            limit: MAX_RECORD_BYTES
        })
    );
    let largest = vec![1; tidemill_bus::record::MAX_COMMIT_BYTES];
    let sealed = record(genesis().anchor(), &[largest]);
    ledger.append(0, sealed.bytes, &Hints::default()).await.unwrap();
    assert_eq!(check(&*ledger).await.unwrap(), sealed.anchor);
}

/// A follower that waits gets the next record, none twice, also when its wait was given up in between.
pub async fn followers_wait_at_the_seam(fixture: &mut dyn Fixture) {
    let ledger = fixture.open().await.unwrap();
    let mut follow = ledger.follow(1).await.unwrap();
    for number in 1..=5 {
        // Given up at any point, a wait loses nothing.
        for micros in [0, 300, 3000] {
            let early = tokio::time::timeout(Duration::from_micros(micros), follow.next_batch(10)).await;
            assert!(early.is_err(), "there is nothing to read yet");
        }
        append(&*ledger, "next").await.unwrap();
        let batch = tokio::time::timeout(PATIENCE, follow.next_batch(10))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(batch.iter().map(|raw| raw.sequence).collect::<Vec<_>>(), [number]);
    }
}

pub async fn full_then_resumed(fixture: &mut dyn Fixture) {
    let ledger = fixture.open().await.unwrap();
    fill(&*ledger, 10).await;
    drop(ledger);
    fixture.limit(Some(300_000)).await;
    let ledger = fixture.open().await.unwrap();
    let capacity = ledger.tail().await.unwrap().capacity.unwrap();
    let mut tail = ledger.tail().await.unwrap().anchor();
    let full = loop {
        let sealed = record(tail, &[vec![7; 20_000]]);
        match ledger.append(tail.sequence, sealed.bytes, &Hints::default()).await {
            Ok(()) => tail = sealed.anchor,
            Err(error) => break error,
        }
        assert!(tail.sequence < 100, "the limit is not kept");
    };
    assert_eq!(full, AppendError::Full);
    assert!(ledger.tail().await.unwrap().bytes_used <= capacity);
    // Nothing broke: it reads, and refuses again.
    assert_eq!(check(&*ledger).await.unwrap(), tail);
    let again = record(tail, &[vec![7; 20_000]]);
    let refused = ledger
        .append(tail.sequence, again.bytes.clone(), &Hints::default())
        .await;
    assert_eq!(refused, Err(AppendError::Full));
    drop(ledger);
    fixture.limit(None).await;
    let ledger = fixture.open().await.unwrap();
    ledger
        .append(tail.sequence, again.bytes, &Hints::default())
        .await
        .unwrap();
    assert_eq!(check(&*ledger).await.unwrap(), again.anchor);
}

/// An append whose caller went away is stored or not; the tail, and the same bytes once more, tell which.
pub async fn a_dropped_append_is_resolved_by_the_tail(fixture: &mut dyn Fixture) {
    let ledger = fixture.open().await.unwrap();
    let mut tail = genesis().anchor();
    for round in 0..20 {
        let sealed = note(tail, &format!("round {round}"));
        let hints = Hints::default();
        let dropped = ledger.append(tail.sequence, sealed.bytes.clone(), &hints);
        let _ = tokio::time::timeout(Duration::from_micros(round * 50), dropped).await;
        append_surely(&*ledger, tail, &sealed).await;
        tail = sealed.anchor;
    }
    assert_eq!(check(&*ledger).await.unwrap(), tail);
}

/// Fifty commits a record while the store is killed again and again; a reader that lags sees every record once.
pub async fn a_slow_reader_is_dense_across_restarts(fixture: &mut dyn Fixture) {
    const RECORDS_A_ROUND: u64 = 150;
    const ROUNDS: u64 = 3;
    let mut tail = genesis().anchor();
    let mut slow = None;
    let commits: Vec<_> = (0..50).map(|n| vec![n; 120]).collect();
    for round in 1..=ROUNDS {
        let ledger = fixture.open().await.unwrap();
        let write = async {
            let mut tail = tail;
            for _ in 0..RECORDS_A_ROUND {
                let sealed = record(tail, &commits);
                append_surely(&*ledger, tail, &sealed).await;
                tail = sealed.anchor;
            }
            tail
        };
        if slow.is_none() {
            let reader = fixture.open_reader().await.unwrap();
            let reading = read_slowly(reader, RECORDS_A_ROUND * ROUNDS, 20, Duration::from_millis(10));
            slow = Some(tokio::spawn(reading));
        }
        // The last round is written through the restart itself.
        if round == ROUNDS {
            (tail, ()) = tokio::join!(write, fixture.restart());
        } else {
            tail = write.await;
            drop(ledger);
            fixture.restart().await;
        }
    }
    let read = slow.unwrap().await.unwrap();
    assert_eq!(read, tail);
    let ledger = fixture.open().await.unwrap();
    assert_eq!(check(&*ledger).await.unwrap(), tail);
}
