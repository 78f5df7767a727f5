//! The breaker: what holds work where it is when many nodes seem to be gone at once.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::NodeId;

/// So many nodes of several providers are doubted at once that moving their work might do more harm than waiting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct BreakerTripped {
    /// The doubted nodes, in order of id.
    pub nodes: Vec<NodeId>,
    /// How many nodes there were before.
    pub of: u32,
    /// Of how many providers the doubted ones are.
    pub providers: u32,
}

/// An operator's word that the nodes are gone: their work moves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct BreakerConfirmed {
    /// Why.
    pub reason: String,
}

/// The breaker is closed again: too few nodes are still doubted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct BreakerReset {
    /// Why.
    pub reason: String,
}
