//! Records: the unit that is appended, hashed, stored and shipped.
//!
//! A record is a group of commits that were decided together and became durable together: one message, one row, one
//! fsync. Its bytes are a format byte and a postcard body whose types live in the private module `v1` and never change;
//! another layout gets another format byte. Commits are opaque here: this crate hashes and carries exact bytes, and
//! what they mean is the domain's business. The alternative, one message per event, was rejected: no mirror, archive or
//! export could then cut between events of one decision without tearing it.
//!
//! Invariants: `hash = BLAKE3(previous ‖ format byte ‖ header ‖ commit hashes)`, each commit hash over the commit's
//! exact bytes, so a commit may be replaced by its hash (a stand-in) without changing the record's hash. Encoding is
//! canonical: bytes that decode are the only bytes that decode to that record. A stored record has no stand-ins.

mod builder;
mod v1;

use bytes::Bytes;

pub use builder::{DoesNotFit, RecordBuilder, SealedRecord};

use crate::digest::{Anchor, Digest};
use crate::identity::{CellName, LedgerId};

/// Largest encoded record. Well under NATS's default `max_payload` (1 MiB) with headers, and large enough that an
/// fsync per record is paid by some two thousand small commits.
pub const MAX_RECORD_BYTES: usize = 256 * 1024;

/// Room kept for everything in a record that is not commits: format byte, header with the longest cell name, two
/// digests, the commit count.
pub const RECORD_OVERHEAD_BYTES: usize = 256;

/// Largest commit that fits a record of its own.
pub const MAX_COMMIT_BYTES: usize = MAX_RECORD_BYTES - RECORD_OVERHEAD_BYTES - builder::SLOT_OVERHEAD_BYTES;

/// The only record format this build writes; the first byte of each record.
pub const RECORD_FORMAT: u8 = 1;

/// What a record says about itself, apart from its commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordHeader {
    /// The cell whose history this is.
    pub cell: CellName,
    /// The ledger's id.
    pub ledger_id: LedgerId,
    /// Place in the ledger, counted from 1, dense.
    pub sequence: u64,
    /// The writer's epoch; never decreases along the ledger.
    pub epoch: u64,
    /// When the record was decided, in microseconds since the Unix epoch, by the writer's clamped clock; never decreases
    /// along the ledger.
    pub recorded_at: i64,
}

/// One commit of a record: its bytes, or, in an exported slice, the hash that stands in for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitSlot {
    /// The commit's exact bytes.
    Full(Bytes),
    /// The commit's hash, where its content was left out of an export.
    StandIn(Digest),
}

impl CommitSlot {
    /// BLAKE3 over the commit's exact bytes.
    #[must_use]
    pub fn hash(&self) -> Digest {
        match self {
            Self::Full(bytes) => Digest::of(bytes),
            Self::StandIn(digest) => *digest,
        }
    }

    /// The commit's bytes, unless a hash stands in for them.
    #[must_use]
    pub fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Full(bytes) => Some(bytes),
            Self::StandIn(_) => None,
        }
    }
}

/// A decoded record. Commits are slices of the buffer it was decoded from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Cell, ledger, place, epoch, time.
    pub header: RecordHeader,
    /// Hash of the record before it (the genesis hash for record 1).
    pub previous: Digest,
    /// The commits, in decision order.
    pub commits: Vec<CommitSlot>,
    /// The hash the record claims for itself; [`Record::computed_hash`] says what it should be.
    pub hash: Digest,
}

impl Record {
    /// Decodes a record without copying its commits. The hash is not checked here: [`crate::chain::ChainReader`] does.
    pub fn decode(bytes: &Bytes) -> Result<Self, DecodeError> {
        match bytes.first() {
            None => Err(DecodeError::Empty),
            Some(&RECORD_FORMAT) => v1::decode(bytes),
            Some(&found) => Err(DecodeError::UnknownFormat { found }),
        }
    }

    /// Encodes the record as it stands, stand-ins included. Writers of new records use [`RecordBuilder`].
    #[must_use]
    pub fn encode(&self) -> Bytes {
        v1::encode(self)
    }

    /// What the record's hash should be, from its predecessor's hash, header and commits.
    #[must_use]
    pub fn computed_hash(&self) -> Digest {
        v1::record_hash(&self.previous, &self.header, self.commits.iter().map(CommitSlot::hash))
    }

    /// The record's place and claimed hash.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        Anchor {
            sequence: self.header.sequence,
            hash: self.hash,
        }
    }

    /// The same record with hashes standing in for the commits `keep` refuses; its hash still verifies.
    #[must_use]
    pub fn redacted(&self, mut keep: impl FnMut(usize, &Bytes) -> bool) -> Self {
        let slots = self.commits.iter().enumerate().map(|(index, slot)| match slot {
            CommitSlot::Full(bytes) if keep(index, bytes) => slot.clone(),
            other => CommitSlot::StandIn(other.hash()),
        });
        Self {
            commits: slots.collect(),
            ..self.clone()
        }
    }
}

/// Bytes that are not a record this build can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// No bytes at all.
    #[error("the record is empty")]
    Empty,
    /// Written by a newer build, or damaged in its first byte.
    #[error(
        "record format {found} is unknown to this build (it reads format {RECORD_FORMAT}); upgrade before reading on"
    )]
    UnknownFormat {
        /// The first byte found.
        found: u8,
    },
    /// The body does not parse.
    #[error("the record's bytes do not decode: {reason}")]
    Malformed {
        /// What the decoder said.
        reason: String,
    },
}

impl DecodeError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownFormat { .. } => "record_format_unknown",
            Self::Empty | Self::Malformed { .. } => "record_malformed",
        }
    }
}

#[cfg(test)]
mod tests;
