//! Where the read models stand, and what holds them up.

use serde::Serialize;
use tidemill_bus::digest::{Anchor, Digest};
use tidemill_domain::time::Timestamp;

/// Where the read models stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Sequence of the last record in the tables.
    pub sequence: u64,
    /// Its hash.
    pub hash: Digest,
    /// Its time.
    pub recorded_at: Timestamp,
    /// Last sequence of the ledger, as seen last.
    pub ledger_last: u64,
    /// How it goes.
    pub condition: Condition,
}

/// How it goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "condition", rename_all = "snake_case")]
pub enum Condition {
    /// Takes what the ledger holds.
    Following,
    /// Everything was dropped and is built again; rows are as of `sequence`.
    Rebuilding {
        /// Why.
        reason: String,
    },
    /// Cannot go on by itself; tries again with back-off.
    Stalled {
        /// Stable code.
        code: &'static str,
        /// What happened.
        reason: String,
        /// What to do.
        next: &'static str,
    },
}

impl Progress {
    /// Records that the ledger has and the tables do not.
    pub fn lag(&self) -> u64 {
        self.ledger_last.saturating_sub(self.sequence)
    }

    /// Place and hash of the last record in the tables.
    pub fn anchor(&self) -> Anchor {
        Anchor {
            sequence: self.sequence,
            hash: self.hash,
        }
    }
}
