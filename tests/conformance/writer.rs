//! A plain writer of records: what the sequencer does, without commands.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidemill_bus::chain::ChainReader;
use tidemill_bus::digest::Anchor;
use tidemill_bus::ledger::{AppendError, Hints, Ledger, ReadError};
use tidemill_bus::record::{Record, RecordBuilder, RecordHeader, SealedRecord};
use tidemill_bus::verify::{WalkError, walk};

use crate::fixture::genesis;

/// Longest wait for anything.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A record with these commits behind `tail`.
pub fn record(tail: Anchor, commits: &[Vec<u8>]) -> SealedRecord {
    let mut builder = RecordBuilder::new();
    for commit in commits {
        builder.push(commit).unwrap();
    }
    let sequence = tail.sequence + 1;
    let (cell, ledger_id) = (genesis().cell, genesis().ledger_id);
    let header = RecordHeader {
        cell,
        ledger_id,
        sequence,
        epoch: 1,
        recorded_at: sequence.cast_signed(),
    };
    builder.seal(&header, &tail.hash)
}

/// A record with one commit of text.
pub fn note(tail: Anchor, text: &str) -> SealedRecord {
    record(tail, &[text.as_bytes().to_vec()])
}

/// Appends behind the tail. In a cluster a stream just made has no listeners for a moment: that is waited out.
pub async fn append(ledger: &dyn Ledger, text: &str) -> Result<Anchor, AppendError> {
    let tail = tail_when_back(ledger).await;
    let sealed = note(tail, text);
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ledger
            .append(tail.sequence, sealed.bytes.clone(), &Hints::default())
            .await
        {
            Err(AppendError::Unavailable { .. }) if Instant::now() < deadline => {
                // tidy: waits for another process to serve
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcome => return outcome.map(|()| sealed.anchor),
        }
    }
}

/// Appends `count` records, some large, most small.
pub async fn fill(ledger: &dyn Ledger, count: u64) -> Anchor {
    let mut tail = tail_when_back(ledger).await;
    for _ in 0..count {
        let number = tail.sequence + 1;
        let size = if number.is_multiple_of(50) { 60_000 } else { 100 };
        let commits: Vec<_> = (0..=number % 3).map(|_| vec![b'x'; size]).collect();
        let sealed = record(tail, &commits);
        append_surely(ledger, tail, &sealed).await;
        tail = sealed.anchor;
    }
    tail
}

/// Checks the whole ledger; the head if all is well.
pub async fn check(ledger: &dyn Ledger) -> Result<Anchor, WalkError> {
    let until = ledger.tail().await?.sequence;
    let mut reader = ChainReader::new(ledger.genesis());
    walk(ledger, &mut reader, until, |_| ()).await?;
    Ok(reader.head())
}

/// Asks for the tail until the store answers.
pub async fn tail_when_back(ledger: &dyn Ledger) -> Anchor {
    let ask = async {
        loop {
            match ledger.tail().await {
                Ok(tail) => return tail.anchor(),
                // tidy: waits for another process to serve
                Err(ReadError::Unavailable { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, ask)
        .await
        .expect("the store did not come back")
}

/// Appends one record for certain, whatever happens to the store meanwhile: an unknown outcome is resolved by appending
/// the same bytes again and by the tail.
pub async fn append_surely(ledger: &dyn Ledger, tail: Anchor, sealed: &SealedRecord) {
    let mut hints = Hints::default();
    hints.add_kind("ThingHappened");
    hints.add_target("thing-1");
    loop {
        match ledger.append(tail.sequence, sealed.bytes.clone(), &hints).await {
            Ok(()) => return,
            Err(error @ (AppendError::Missing | AppendError::TooLarge { .. } | AppendError::Full)) => panic!("{error}"),
            Err(_) => {
                let now = tail_when_back(ledger).await;
                if now == sealed.anchor {
                    return;
                }
                assert_eq!(now, tail, "somebody else wrote");
                // tidy: waits for another process to serve
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Follows from the start until `until`, checking each record; sleeps a little after every batch.
pub async fn read_slowly(ledger: Arc<dyn Ledger>, until: u64, batch: usize, pause: Duration) -> Anchor {
    let mut reader = ChainReader::new(ledger.genesis());
    let mut follow = ledger.follow(1).await.unwrap();
    while reader.head().sequence < until {
        let records = tokio::time::timeout(PATIENCE, follow.next_batch(batch))
            .await
            .expect("the follower stalled");
        for raw in records.unwrap() {
            let _: Record = reader.check(raw.sequence, &raw.body).unwrap();
        }
        // tidy: waits for its next turn: a slow reader is what is tested
        tokio::time::sleep(pause).await;
    }
    assert_eq!(follow.next_sequence(), reader.next_sequence());
    reader.head()
}
