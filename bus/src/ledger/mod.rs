//! The ledger: one trait, whatever stores the log.
//!
//! A ledger is a dense sequence of opaque records with exactly one guarded way in: [`Ledger::append`] names the last
//! sequence its writer knows, and the store refuses if that is not the last one. Appending is also how a writer takes
//! over: the first record of an epoch, appended behind the tail just read, fences every older writer. Leases and
//! elections were rejected as fences, since a writer that is paused and wakes cannot know that it lost one.
//!
//! Invariants: one append in flight per writer (a number is compared, not a hash, so with two in flight a foreign record
//! would refuse one and let the next through). A ledger comes into being only through a backend's explicit `create`;
//! nothing here re-creates what vanished. What is acknowledged is on disk. Reads are dense: a missing sequence is an
//! error, never a shorter answer.

mod errors;
mod findings;

use std::fmt::Write as _;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

pub use errors::{AppendError, OpenError, ReadError};
pub use findings::{Description, Finding, FindingState};

use crate::digest::{Anchor, Digest};
use crate::identity::Genesis;
use crate::record::Record;

/// Where a ledger ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// Sequence of the last record; 0 if there is none.
    pub sequence: u64,
    /// Hash of the last record, or the genesis hash.
    pub hash: Digest,
    /// Epoch of the last record; 0 if there is none.
    pub epoch: u64,
    /// Time of the last record in microseconds since the Unix epoch; `i64::MIN` if there is none.
    pub recorded_at: i64,
    /// Bytes the store uses for the ledger.
    pub bytes_used: u64,
    /// Bytes it may use, where a limit is set.
    pub capacity: Option<u64>,
}

impl Tail {
    /// Place and hash of the last record.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        Anchor {
            sequence: self.sequence,
            hash: self.hash,
        }
    }

    /// The tail of a ledger whose last record is stored at `sequence` as `body`; `None` = no record yet.
    pub(crate) fn of(
        genesis: &Genesis,
        last: Option<(u64, &Bytes)>,
        bytes_used: u64,
        capacity: Option<u64>,
    ) -> Result<Self, ReadError> {
        let Some((sequence, body)) = last else {
            let hash = genesis.hash();
            return Ok(Self {
                sequence: 0,
                hash,
                epoch: 0,
                recorded_at: i64::MIN,
                bytes_used,
                capacity,
            });
        };
        let record = Record::decode(body).map_err(|error| ReadError::Corrupt {
            sequence,
            reason: error.to_string(),
        })?;
        let header = record.header;
        Ok(Self {
            sequence,
            hash: record.hash,
            epoch: header.epoch,
            recorded_at: header.recorded_at,
            bytes_used,
            capacity,
        })
    }
}

/// A stored record as bytes. [`crate::chain::ChainReader`] decodes and checks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawRecord {
    /// The sequence it is stored at.
    pub sequence: u64,
    /// Its exact bytes.
    pub body: Bytes,
}

/// Most names of one sort that hints carry.
pub const MAX_HINTS: usize = 16;

/// What a record is about, for people's tools that look at the raw log: written beside the record where the store has
/// room (JetStream headers), bounded, and never read back. Carries no authority.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hints {
    kinds: HintList,
    targets: HintList,
}

impl Hints {
    /// Notes an event kind.
    pub fn add_kind(&mut self, kind: &str) {
        self.kinds.add(kind);
    }

    /// Notes what an event is about.
    pub fn add_target(&mut self, target: &str) {
        self.targets.add(target);
    }

    /// Kinds as comma-separated text; ends in `+` if there were more than fit.
    #[must_use]
    pub fn kinds(&self) -> String {
        self.kinds.text()
    }

    /// Targets, likewise.
    #[must_use]
    pub fn targets(&self) -> String {
        self.targets.text()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct HintList {
    names: Vec<String>,
    more: bool,
}

impl HintList {
    const MAX_NAME_BYTES: usize = 64;

    fn add(&mut self, name: &str) {
        // On the hot path a thousand events share a handful of kinds: the full list answers without allocating.
        if self.more || self.names.iter().any(|known| known == name) {
            return;
        }
        if self.names.len() == MAX_HINTS {
            self.more = true;
            return;
        }
        // Header-safe: nothing that could end a header line or be taken for a separator.
        let safe = name.chars().filter(|c| c.is_ascii_graphic() && *c != ',');
        self.names.push(safe.take(Self::MAX_NAME_BYTES).collect());
    }

    fn text(&self) -> String {
        let mut text = self.names.join(",");
        if self.more {
            let _ = write!(text, ",+");
        }
        text
    }
}

/// How a [`Follow`] is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FollowStatus {
    /// Records arrive, or there are none to come.
    Live,
    /// The store cannot be reached or has gone quiet; the follower keeps trying by itself.
    Retrying {
        /// Stable code of what is in the way.
        code: &'static str,
    },
}

/// A dense reading position that waits for what comes next.
#[async_trait]
pub trait Follow: Send {
    /// Waits for at least one record and returns up to `max` (at least 1) in order, the first being the one after the
    /// last returned. Cancel-safe: a record is handed out by a call that returns, or by a later one.
    ///
    /// Connection loss, server restarts and lost consumers are handled inside, with back-off; only what waiting cannot
    /// mend is an error: the ledger is missing, shorter than the position, or does not read densely.
    async fn next_batch(&mut self, max: usize) -> Result<Vec<RawRecord>, ReadError>;

    /// The sequence the next call starts with.
    fn next_sequence(&self) -> u64;

    /// Whether it is being held up, and by what.
    fn status(&self) -> watch::Receiver<FollowStatus>;
}

/// A log of records, stored somewhere.
#[async_trait]
pub trait Ledger: Send + Sync + 'static {
    /// Cell and ledger id, as fixed at creation.
    fn genesis(&self) -> &Genesis;

    /// Where the ledger ends, as its authority says (for JetStream the stream's leader): every append acknowledged
    /// before the call is included.
    async fn tail(&self) -> Result<Tail, ReadError>;

    /// Appends `record` as sequence `expected_last + 1`, if `expected_last` is the last. Returns once it is durable.
    ///
    /// The store does not look into the record. Callers keep one append in flight. Dropping the future leaves the
    /// outcome unknown, as [`AppendError::Unknown`] does: the record may be stored, now or a little later, until another
    /// record takes its sequence.
    async fn append(&self, expected_last: u64, record: Bytes, hints: &Hints) -> Result<(), AppendError>;

    /// Reads records from sequence `from` on, in order and dense, until `max_records` or about `max_bytes` (at least one
    /// record). Empty if the ledger ends before `from`.
    async fn read(&self, from: u64, max_records: usize, max_bytes: usize) -> Result<Vec<RawRecord>, ReadError>;

    /// Follows the ledger from sequence `from` on. Fails if it is shorter than `from - 1`.
    async fn follow(&self, from: u64) -> Result<Box<dyn Follow>, ReadError>;

    /// The last sequence as this process last saw it, where the backend notices appends by itself. A hint to wake up
    /// by, not an answer: [`Ledger::tail`] is.
    fn watch_tail(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// What stores the ledger and whether its settings keep what this product promises.
    async fn describe(&self) -> Description;
}
