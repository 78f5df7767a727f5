//! Observations, from their log into the worker's loop.

use std::sync::Arc;
use std::time::Duration;

use tidemill_bus::observations::{Observations, ObservationsError, StoredBlock};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::observation::Seen;
use crate::worker::{ObservedBlock, Reads};

/// Most blocks handed over at once.
const BATCH: usize = 64;
/// Batches that may wait for the worker; then reading waits.
const WAITING: usize = 8;

/// What the pump hands over.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) blocks: Vec<ObservedBlock>,
    /// Blocks before these were dropped unread.
    pub(crate) missed: bool,
    /// Observations that could not be read.
    pub(crate) unreadable: u64,
}

/// Starts to read. `None` where the worker reads nothing.
pub(crate) fn start(
    role: &'static str,
    observations: Arc<dyn Observations>,
    reads: Reads,
    shutdown: CancellationToken,
) -> Option<mpsc::Receiver<Batch>> {
    if reads == Reads::Nothing {
        return None;
    }
    let (sender, receiver) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let work = pump(role, &*observations, reads, &sender);
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = sender.closed() => {}
            () = work => {}
        }
    });
    Some(receiver)
}

/// Where reading stands.
struct Cursor {
    reads: Reads,
    /// The next block; none before the first look.
    next: Option<u64>,
    /// The last block that was there at the first look.
    past: u64,
}

impl Cursor {
    async fn next(&mut self, observations: &dyn Observations) -> Result<u64, ObservationsError> {
        if let Some(next) = self.next {
            return Ok(next);
        }
        let bounds = observations.bounds().await?;
        self.past = bounds.last;
        let next = match self.reads {
            Reads::From(sequence) => sequence,
            Reads::Lately(blocks) => (bounds.last + 1).saturating_sub(blocks).max(bounds.first),
            Reads::New | Reads::Nothing => bounds.last + 1,
        };
        self.next = Some(next);
        Ok(next)
    }
}

async fn pump(role: &'static str, observations: &dyn Observations, reads: Reads, out: &mpsc::Sender<Batch>) {
    let mut cursor = Cursor {
        reads,
        next: None,
        past: 0,
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let mut failing = false;
    loop {
        let error = match follow(observations, &mut cursor, out, &mut backoff, &mut failing).await {
            Ok(()) => return,
            Err(error) => error,
        };
        if !failing {
            tracing::warn!(role, code = error.code(), %error, "observations cannot be read; trying again");
            failing = true;
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

/// Reads until the worker is gone or the log fails.
async fn follow(
    observations: &dyn Observations,
    cursor: &mut Cursor,
    out: &mpsc::Sender<Batch>,
    backoff: &mut Backoff,
    failing: &mut bool,
) -> Result<(), ObservationsError> {
    let begin = cursor.next(observations).await?;
    let mut follower = observations.follow(begin).await?;
    // A log that is shorter than what was read of it is another log: its positions mean nothing.
    let mut expected = follower.next_sequence();
    let mut replaced = expected < begin;
    loop {
        let stored = follower.next_batch(BATCH).await?;
        if std::mem::take(failing) {
            tracing::info!("observations can be read again");
        }
        backoff.reset();
        let Some(first) = stored.first() else { continue };
        let missed = first.sequence > expected || std::mem::take(&mut replaced);
        expected = stored.last().map_or(expected, |last| last.sequence + 1);
        cursor.next = Some(expected);
        if out.send(decode(stored, missed, cursor.past)).await.is_err() {
            return Ok(());
        }
    }
}

fn decode(stored: Vec<StoredBlock>, missed: bool, past: u64) -> Batch {
    let mut batch = Batch {
        blocks: Vec::with_capacity(stored.len()),
        missed,
        unreadable: 0,
    };
    for block in stored {
        let (seen, errors) = match block.decode() {
            Ok(decoded) => Seen::of_block(block.sequence, &decoded),
            Err(_) => {
                batch.unreadable += 1;
                (Vec::new(), Vec::new())
            }
        };
        batch.unreadable += errors.len() as u64;
        batch.blocks.push(ObservedBlock {
            sequence: block.sequence,
            past: block.sequence <= past,
            body: block.body,
            seen,
        });
    }
    batch
}
