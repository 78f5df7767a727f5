//! Builds records on the writer's hot path: commits are encoded straight into a buffer that is kept between records.

use std::ops::Range;

use bytes::Bytes;

use super::{MAX_RECORD_BYTES, RECORD_OVERHEAD_BYTES, RecordHeader, v1};
use crate::digest::{Anchor, Digest};

/// Tag byte and length of a commit inside a record (a length under 256 KiB takes at most three bytes).
pub(super) const SLOT_OVERHEAD_BYTES: usize = 4;

/// The commit does not fit what is left of the record. Nothing was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a commit of {commit_bytes} bytes does not fit: {left_bytes} bytes are left in the record")]
pub struct DoesNotFit {
    /// Size of the refused commit.
    pub commit_bytes: usize,
    /// What was left for it.
    pub left_bytes: usize,
}

/// A finished record, ready to append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedRecord {
    /// Its exact bytes; what is appended, byte for byte, also on a retry.
    pub bytes: Bytes,
    /// Its place and hash: the next record's predecessor.
    pub anchor: Anchor,
}

/// Collects commits and seals them into a record. Reuse one builder for all records of a writer: its buffers stay.
#[derive(Debug, Default)]
pub struct RecordBuilder {
    arena: Vec<u8>,
    commits: Vec<(Range<usize>, Digest)>,
}

impl RecordBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a commit that `encode` writes at the end of the buffer it is given (which holds earlier commits: append
    /// only). Returns the commit's hash; refuses, and adds nothing, when the record would grow too large.
    pub fn push_with(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Digest, DoesNotFit> {
        let start = self.arena.len();
        let left_bytes = self.left_bytes();
        encode(&mut self.arena);
        debug_assert!(self.arena.len() >= start, "the encoder removed earlier commits");
        let commit_bytes = self.arena.len() - start;
        if commit_bytes > left_bytes {
            self.arena.truncate(start);
            return Err(DoesNotFit {
                commit_bytes,
                left_bytes,
            });
        }
        let hash = Digest::of(&self.arena[start..]);
        self.commits.push((start..self.arena.len(), hash));
        Ok(hash)
    }

    /// Adds a commit's bytes.
    pub fn push(&mut self, commit: &[u8]) -> Result<Digest, DoesNotFit> {
        self.push_with(|buffer| buffer.extend_from_slice(commit))
    }

    /// Takes the last commit back, if there is one.
    pub fn pop(&mut self) {
        if let Some((range, _)) = self.commits.pop() {
            self.arena.truncate(range.start);
        }
    }

    /// Number of commits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.commits.len()
    }

    /// True without commits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }

    /// The bytes of the commit at `index`.
    #[must_use]
    pub fn commit(&self, index: usize) -> Option<&[u8]> {
        self.commits.get(index).map(|(range, _)| &self.arena[range.clone()])
    }

    /// Bytes left for the next commit.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        let used = RECORD_OVERHEAD_BYTES + self.arena.len() + (self.commits.len() + 1) * SLOT_OVERHEAD_BYTES;
        MAX_RECORD_BYTES.saturating_sub(used)
    }

    /// Drops all commits, keeping the buffers.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.commits.clear();
    }

    /// Seals the commits into a record behind `previous` and empties the builder. A record without commits is allowed
    /// here; whether one makes sense is the caller's business.
    pub fn seal(&mut self, header: &RecordHeader, previous: &Digest) -> SealedRecord {
        let hash = v1::record_hash(previous, header, self.commits.iter().map(|(_, digest)| *digest));
        let capacity = RECORD_OVERHEAD_BYTES + self.arena.len() + self.commits.len() * SLOT_OVERHEAD_BYTES;
        let slices = self.commits.iter().map(|(range, _)| &self.arena[range.clone()]);
        let bytes = Bytes::from(v1::encode_slices(header, previous, slices, &hash, capacity));
        assert!(bytes.len() <= MAX_RECORD_BYTES, "push keeps records within bounds");
        self.clear();
        SealedRecord {
            bytes,
            anchor: Anchor {
                sequence: header.sequence,
                hash,
            },
        }
    }
}
