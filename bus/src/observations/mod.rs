//! Observations: heartbeats and traffic samples, many, short-lived and bounded.
//!
//! Doors publish them in blocks, one block a message, so that a thousand nodes beating once a second cost a few messages
//! a second. Live detection reads them and an operator zooms into them; everything that must outlive them is sealed into
//! the ledger as evidence. Keeping them in the ledger was rejected: they are hundreds of times its volume and nobody
//! decides by a single one.
//!
//! Invariants: a block is dropped by age or size from the old end, never in the middle; sequences rise and are never
//! given twice. An observation carries the authenticated identity and the receive time its door stamped on it, never a
//! time of its sender. Losing some loses detail, not truth, so nothing here is synced to disk before it is acknowledged.

mod block;
mod embedded;
mod jetstream;
mod memory;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use block::{Block, BlockError, MAX_BLOCK_BYTES, Observation};
pub use embedded::EmbeddedObservations;
pub use jetstream::JetStreamObservations;
pub use memory::MemoryObservations;

use crate::digest::Digest;

/// How much is kept; whichever limit is met first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservationLimits {
    /// Age, measured against the newest block's receive time.
    pub max_age: Duration,
    /// Size of all blocks in bytes.
    pub max_bytes: u64,
}

impl Default for ObservationLimits {
    /// 24 hours or 4 GiB.
    fn default() -> Self {
        Self {
            max_age: Duration::from_secs(24 * 3600),
            max_bytes: 4 << 30,
        }
    }
}

impl ObservationLimits {
    /// The oldest receive time to keep when the newest is `newest`, both in microseconds since the Unix epoch.
    fn oldest_kept(&self, newest: i64) -> i64 {
        newest.saturating_sub(i64::try_from(self.max_age.as_micros()).unwrap_or(i64::MAX))
    }
}

/// What is stored now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Sequence of the oldest block kept; `last + 1` if there is none.
    pub first: u64,
    /// Sequence of the newest block ever stored; 0 if there was none.
    pub last: u64,
    /// Bytes used.
    pub bytes: u64,
}

/// A block as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// Its sequence.
    pub sequence: u64,
    /// Its exact bytes.
    pub body: Bytes,
}

impl StoredBlock {
    /// Decodes it.
    pub fn decode(&self) -> Result<Block, BlockError> {
        Block::decode(&self.body)
    }

    /// BLAKE3 over its exact bytes: what sealed windows are digests of.
    #[must_use]
    pub fn digest(&self) -> Digest {
        Digest::of(&self.body)
    }
}

/// Observations that could not be stored or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ObservationsError {
    /// The store cannot be reached or does not serve now. A published block may be stored all the same: publishing it
    /// again may store it twice, which readers must bear.
    #[error("the observations' store is not available: {reason}")]
    Unavailable {
        /// What the store or the network said.
        reason: String,
    },
    /// The store is gone or was replaced.
    #[error("the observations' store no longer exists")]
    Missing,
    /// The block is larger than may be stored.
    #[error("a block of {bytes} bytes is larger than {MAX_BLOCK_BYTES} bytes")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
}

impl ObservationsError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "observations_unavailable",
            Self::Missing => "observations_missing",
            Self::TooLarge { .. } => "observations_block_too_large",
        }
    }
}

/// A reading position that waits for what comes next.
#[async_trait]
pub trait FollowObservations: Send {
    /// Waits for at least one block and returns up to `max`, in order. Blocks that were pruned before they were read are
    /// skipped: the first sequence then is higher than expected. Cancel-safe.
    async fn next_batch(&mut self, max: usize) -> Result<Vec<StoredBlock>, ObservationsError>;

    /// The sequence the next call starts with, unless it is pruned by then.
    fn next_sequence(&self) -> u64;
}

/// A bounded log of observation blocks, stored somewhere.
#[async_trait]
pub trait Observations: Send + Sync + 'static {
    /// Stores a block and returns its sequence. Callers keep few in flight and bundle what comes meanwhile.
    async fn publish(&self, block: &Block) -> Result<u64, ObservationsError>;

    /// Reads blocks from sequence `from` on, or from the oldest kept if that is later, until `max_blocks` or about
    /// `max_bytes` (at least one block).
    async fn read(&self, from: u64, max_blocks: usize, max_bytes: usize)
    -> Result<Vec<StoredBlock>, ObservationsError>;

    /// Follows from sequence `from` on. A position beyond the end starts at the end.
    async fn follow(&self, from: u64) -> Result<Box<dyn FollowObservations>, ObservationsError>;

    /// What is stored now.
    async fn bounds(&self) -> Result<Bounds, ObservationsError>;
}

/// Encodes within the size limit.
fn encode_checked(block: &Block) -> Result<Bytes, ObservationsError> {
    let body = block.encode();
    if body.len() > MAX_BLOCK_BYTES {
        return Err(ObservationsError::TooLarge { bytes: body.len() });
    }
    Ok(body)
}

#[cfg(test)]
mod tests;
