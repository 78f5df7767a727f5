//! Reading ahead of a fold: records are fetched, hashed and decoded on other threads while earlier ones are applied.
//!
//! Applying is the only part of a fold that must happen in order. [`Ahead`] does the rest for whoever has much to catch up
//! with: a task reads, hands pieces of about half a mebibyte to the blocking threads, and passes the results on in order.
//! What arrives one small record at a time is prepared on the spot, since a change of threads would cost more. A thread of
//! its own per reader was rejected: views mostly wait.
//!
//! Invariants: order is the source's. What is read and not yet taken is bounded: a source's batch and [`PIECES`] pieces.
//! The reading ends with its `Ahead`.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::fold::Prepared;
use crate::ledger::{Follow, Ledger, RawRecord, ReadError};

/// Most records taken from the source at once.
const BATCH: usize = 256;

/// Most bytes taken from a ledger at once.
const BATCH_BYTES: usize = 4 << 20;

/// Bytes after which a piece is closed.
const PIECE_BYTES: usize = 512 << 10;

/// Pieces on their way at a time.
const PIECES: usize = 4;

/// A piece of at most this many bytes is prepared where it was read: it takes some 0.1 ms.
const SMALL_BYTES: usize = 32 << 10;

/// Where records come from, in order.
#[async_trait]
pub trait Source: Send + 'static {
    /// The next records; none means that there are no more.
    async fn next(&mut self) -> Result<Vec<RawRecord>, ReadError>;
}

#[async_trait]
impl Source for Box<dyn Follow> {
    async fn next(&mut self) -> Result<Vec<RawRecord>, ReadError> {
        self.next_batch(BATCH).await
    }
}

/// The records of a ledger from one sequence through another.
pub struct Stretch {
    ledger: Arc<dyn Ledger>,
    next: u64,
    last: u64,
}

impl Stretch {
    /// Records `from` through `last`, which the ledger has been seen to have.
    #[must_use]
    pub fn new(ledger: Arc<dyn Ledger>, from: u64, last: u64) -> Self {
        Self {
            ledger,
            next: from,
            last,
        }
    }
}

#[async_trait]
impl Source for Stretch {
    async fn next(&mut self) -> Result<Vec<RawRecord>, ReadError> {
        if self.next > self.last {
            return Ok(Vec::new());
        }
        let batch = self.ledger.read(self.next, BATCH, BATCH_BYTES).await?;
        if batch.is_empty() {
            return Err(ReadError::Shorter {
                last: self.next - 1,
                seen: self.last,
            });
        }
        self.next += batch.len() as u64;
        Ok(batch)
    }
}

enum Piece {
    Ready(Vec<Prepared>),
    Coming(JoinHandle<Vec<Prepared>>),
    Failed(ReadError),
}

/// Records of a source, prepared ahead of whoever takes them.
pub struct Ahead {
    pieces: mpsc::Receiver<Piece>,
    coming: Option<JoinHandle<Vec<Prepared>>>,
    _reader: AbortOnDropHandle<()>,
}

impl Ahead {
    /// Begins to read. Call from within a tokio runtime.
    #[must_use]
    pub fn start(source: impl Source) -> Self {
        let (sender, pieces) = mpsc::channel(PIECES);
        Self {
            pieces,
            coming: None,
            _reader: AbortOnDropHandle::new(tokio::spawn(read(source, sender))),
        }
    }

    /// The next records, at least one; an error of the source ends it. Cancel-safe.
    pub async fn next(&mut self) -> Result<Vec<Prepared>, ReadError> {
        let ended = || ReadError::Unavailable {
            reason: "the reading task ended".to_owned(),
        };
        loop {
            if let Some(coming) = &mut self.coming {
                let prepared = coming.await;
                self.coming = None;
                return prepared.map_err(|_| ended());
            }
            match self.pieces.recv().await {
                Some(Piece::Ready(prepared)) => return Ok(prepared),
                Some(Piece::Coming(coming)) => self.coming = Some(coming),
                Some(Piece::Failed(error)) => return Err(error),
                None => return Err(ended()),
            }
        }
    }
}

async fn read(mut source: impl Source, pieces: mpsc::Sender<Piece>) {
    loop {
        let mut batch = match source.next().await {
            Ok(batch) if batch.is_empty() => return,
            Ok(batch) => batch,
            Err(error) => {
                // Nobody takes pieces any more if this fails.
                let _ = pieces.send(Piece::Failed(error)).await;
                return;
            }
        };
        while !batch.is_empty() {
            // Room first: what is being prepared counts.
            let Ok(room) = pieces.reserve().await else { return };
            let mut bytes = 0;
            let full = batch.iter().position(|raw| {
                bytes += raw.body.len();
                bytes >= PIECE_BYTES
            });
            let rest = batch.split_off(full.map_or(batch.len(), |last| last + 1));
            let piece = std::mem::replace(&mut batch, rest);
            let prepare = move || piece.iter().map(Prepared::of).collect();
            room.send(match bytes <= SMALL_BYTES {
                true => Piece::Ready(prepare()),
                false => Piece::Coming(tokio::task::spawn_blocking(prepare)),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::identity::{CellName, Genesis, LedgerId};
    use crate::ledger::Hints;
    use crate::memory::MemoryLedger;
    use crate::record::{RecordBuilder, RecordHeader};

    /// A ledger of records with opaque commits of the given sizes.
    async fn ledger(sizes: &[usize]) -> Arc<dyn Ledger> {
        let genesis = Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(7)));
        let ledger = MemoryLedger::create(genesis.clone());
        let (mut builder, mut previous) = (RecordBuilder::new(), genesis.hash());
        for (sequence, size) in (1..).zip(sizes) {
            builder.push(&vec![0xff; *size]).unwrap();
            let header = RecordHeader {
                cell: genesis.cell.clone(),
                ledger_id: genesis.ledger_id,
                sequence,
                epoch: 1,
                recorded_at: 0,
            };
            let sealed = builder.seal(&header, &previous);
            previous = sealed.anchor.hash;
            ledger
                .append(sequence - 1, sealed.bytes, &Hints::default())
                .await
                .unwrap();
        }
        Arc::new(ledger)
    }

    #[tokio::test]
    async fn order_is_kept_whatever_the_sizes_and_the_end_is_told() {
        let sizes: Vec<usize> = (0..300).map(|n| [10, 200_000, 3_000, 90_000][n % 4]).collect();
        let ledger = ledger(&sizes).await;
        let mut ahead = Ahead::start(Stretch::new(Arc::clone(&ledger), 1, 300));
        let mut seen = Vec::new();
        while seen.len() < sizes.len() {
            // Given up and taken up again: nothing may be lost.
            if let Ok(prepared) = tokio::time::timeout(Duration::from_micros(50), ahead.next()).await {
                seen.extend(prepared.unwrap().iter().map(Prepared::sequence));
            }
        }
        assert!(seen.into_iter().eq(1..=300));
        let mut short = Ahead::start(Stretch::new(ledger, 300, 301));
        assert_eq!(short.next().await.unwrap()[0].sequence(), 300);
        assert_eq!(
            short.next().await.unwrap_err(),
            ReadError::Shorter { last: 300, seen: 301 }
        );
    }

    #[tokio::test]
    async fn a_reader_that_waits_ends_with_its_taker() {
        let ledger = ledger(&[10]).await;
        let follow = ledger.follow(2).await.unwrap();
        let status = follow.status();
        let ahead = Ahead::start(follow);
        drop(ahead);
        // tidy: waits for the aborted task to let go of its follower
        let gone = tokio::time::timeout(Duration::from_secs(30), async {
            let mut status = status;
            while status.changed().await.is_ok() {}
        });
        assert!(gone.await.is_ok());
    }
}
