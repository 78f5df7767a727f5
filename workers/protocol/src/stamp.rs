//! The position of the ledger from which a snapshot was computed.

use serde::{Deserialize, Serialize};

/// Where in which ledger a snapshot was taken. Ordered by (epoch, sequence) within one ledger.
///
/// A receiver keeps the highest stamp it has acted on and ignores lower ones of the same ledger; a stamp of another
/// ledger, or a lower sequence in a *new connection's first snapshot*, means that the ledger went backwards: work goes
/// on untouched until an operator confirms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Name of the cell.
    pub cell: String,
    /// Identity of the ledger (a UUID).
    pub ledger: String,
    /// Epoch of the writer when the snapshot was taken.
    pub epoch: u64,
    /// Sequence of the last record folded into the snapshot.
    pub sequence: u64,
}

impl Stamp {
    /// Whether both stamps speak of the same ledger of the same cell.
    pub fn same_ledger(&self, other: &Stamp) -> bool {
        self.cell == other.cell && self.ledger == other.ledger
    }

    /// Whether `self` is at or after `other`, both of one ledger.
    pub fn covers(&self, other: &Stamp) -> bool {
        self.same_ledger(other) && (self.epoch, self.sequence) >= (other.epoch, other.sequence)
    }
}
