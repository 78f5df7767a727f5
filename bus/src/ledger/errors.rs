//! What can go wrong with a ledger: one enum an operation, each case with a stable code and what to do next.

use std::path::PathBuf;

use crate::identity::{CellName, LedgerId};

/// An append that did not answer "stored".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Another record is last: another writer is at work, or an earlier append of one's own was stored after all.
    /// Nothing was stored.
    #[error("the ledger does not end where the writer thought; it ends at {}", .last.map_or("an unknown sequence".to_owned(), |last| format!("sequence {last}")))]
    Conflict {
        /// The last sequence, where the store said.
        last: Option<u64>,
    },
    /// The size limit or the disk is reached. Nothing was stored.
    #[error("the ledger is full")]
    Full,
    /// The record is larger than may be stored. Nothing was stored.
    #[error("a record of {bytes} bytes is larger than {limit} bytes")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// No answer: the record may be stored or not, or may be stored a little later. Read the tail before anything else.
    #[error("the outcome of the append is not known: {reason}")]
    Unknown {
        /// What happened instead of an answer.
        reason: String,
    },
    /// The store cannot be reached or does not serve now. Nothing was stored.
    #[error("the ledger's store is not available: {reason}")]
    Unavailable {
        /// What the store or the network said.
        reason: String,
    },
    /// The ledger is gone from the store. It is never created again by itself.
    #[error("the ledger no longer exists in its store")]
    Missing,
    /// Opened for reading.
    #[error("the ledger is open for reading only")]
    ReadOnly,
    /// The store refused for a reason this build does not know. Nothing was stored.
    #[error("the store refused the record with error {store_code}: {reason}")]
    Refused {
        /// The store's own error code.
        store_code: u64,
        /// Its words.
        reason: String,
    },
}

impl AppendError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "ledger_conflict",
            Self::Full => "ledger_full",
            Self::TooLarge { .. } => "ledger_record_too_large",
            Self::Unknown { .. } => "ledger_outcome_unknown",
            Self::Unavailable { .. } => "ledger_unavailable",
            Self::Missing => "ledger_missing",
            Self::ReadOnly => "ledger_read_only",
            Self::Refused { .. } => "ledger_refused",
        }
    }

    /// True if the record certainly is not, and will not become, part of the ledger through this append.
    #[must_use]
    pub fn is_certainly_not_stored(&self) -> bool {
        !matches!(self, Self::Unknown { .. })
    }
}

/// A read that gave no records.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The store cannot be reached or does not serve now.
    #[error("the ledger's store is not available: {reason}")]
    Unavailable {
        /// What the store or the network said.
        reason: String,
    },
    /// The ledger is gone from the store.
    #[error("the ledger no longer exists in its store")]
    Missing,
    /// The ledger ends before what was already read from it: an older copy was put back.
    #[error("the ledger ends at sequence {last}, but {seen} was already read from it")]
    Shorter {
        /// Its last sequence now.
        last: u64,
        /// A sequence it had before.
        seen: u64,
    },
    /// The store cannot give this record back.
    #[error("ledger record {sequence} cannot be read: {reason}")]
    Corrupt {
        /// First sequence that cannot be read.
        sequence: u64,
        /// Why.
        reason: String,
    },
    /// The store holds another ledger than the one that was opened.
    #[error("the store now holds ledger {found}, not {expected}")]
    OtherLedger {
        /// The id that was opened.
        expected: LedgerId,
        /// The id found.
        found: LedgerId,
    },
}

impl ReadError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "ledger_unavailable",
            Self::Missing => "ledger_missing",
            Self::Shorter { .. } => "ledger_shorter",
            Self::Corrupt { .. } => "ledger_corrupt",
            Self::OtherLedger { .. } => "ledger_other_id",
        }
    }

    /// True if waiting and trying again can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// A ledger that could not be opened or created.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is none, and opening never creates one.
    #[error("there is no ledger at {place}")]
    Missing {
        /// File or stream.
        place: String,
    },
    /// Creating found one already there.
    #[error("there already is a ledger at {place}")]
    Exists {
        /// File or stream.
        place: String,
    },
    /// Another process has the ledger open for writing.
    #[error("{} is in use by another process", path.display())]
    DataInUse {
        /// The ledger file.
        path: PathBuf,
    },
    /// The store holds the ledger of another cell.
    #[error("the ledger at {place} belongs to cell {found}, not {expected}")]
    OtherCell {
        /// File or stream.
        place: String,
        /// The cell asked for.
        expected: CellName,
        /// The cell found.
        found: CellName,
    },
    /// What is there was not written by this product, or by a newer version of it.
    #[error("{place} is not a ledger this build can open: {reason}")]
    Unreadable {
        /// File or stream.
        place: String,
        /// Why.
        reason: String,
    },
    /// The server is too old to keep the settings a ledger needs.
    #[error("nats-server {found} is older than {needed}, which the ledger needs")]
    ServerTooOld {
        /// Version the server announced.
        found: String,
        /// Oldest version that will do.
        needed: &'static str,
    },
    /// The store cannot be reached or does not serve now.
    #[error("the ledger's store at {place} is not available: {reason}")]
    Unavailable {
        /// File or server.
        place: String,
        /// What it said.
        reason: String,
    },
}

impl OpenError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "ledger_missing",
            Self::Exists { .. } => "ledger_exists",
            Self::DataInUse { .. } => "data_in_use",
            Self::OtherCell { .. } => "ledger_other_cell",
            Self::Unreadable { .. } => "ledger_unreadable",
            Self::ServerTooOld { .. } => "nats_too_old",
            Self::Unavailable { .. } => "ledger_unavailable",
        }
    }

    /// What to do next.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::Missing { .. } => {
                "check the data directory or NATS URL; if the ledger was lost, restore a backup: it is never created anew by itself"
            }
            Self::Exists { .. } => "open it instead, or choose another cell name or data directory",
            Self::DataInUse { .. } => "stop the other process, or use another --data directory",
            Self::OtherCell { .. } => "check the cell name and the data directory or NATS URL",
            Self::Unreadable { .. } => "use the version that wrote it, or restore a backup",
            Self::ServerTooOld { .. } => "upgrade nats-server",
            Self::Unavailable { .. } => "check that the store is up and reachable, then try again",
        }
    }
}
