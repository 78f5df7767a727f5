//! The cell and its ledger: creation, epochs, seals, features.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::LedgerId;

/// The first event of every ledger.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct LedgerCreated {
    /// Name of the cell.
    pub cell: String,
    /// Identity of this ledger.
    pub ledger: LedgerId,
}

/// A sequencer took over. This append is the fence: whoever wrote before it cannot write after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct EpochStarted {
    /// One more than the epoch before.
    pub epoch: u64,
    /// Who leads now.
    pub leader: String,
    /// Release of the leader's build.
    pub version: String,
}

/// The state's hash at this point, before this event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct StateSealed {
    /// Version of the state's shape that the hash is over; other builds cannot check it.
    pub state_version: u32,
    /// BLAKE3 over the per-entity hashes in order of their entity.
    pub hash: [u8; 32],
    /// Entities in the state.
    pub entities: u64,
    /// Events on the ledger before this one.
    pub events: u64,
}

/// Event kinds that this feature names may be written from here on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct FeatureActivated {
    /// Name of the feature.
    pub feature: String,
}
