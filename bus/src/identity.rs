//! Which ledger this is: the cell it belongs to and the id it was born with.
//!
//! A cell's name says what an operator means; the ledger id says which physical history it is. Both stand in every
//! record, so bytes that wandered in from another cell, or from an earlier life of the same cell, never fold.
//!
//! Invariant: both are fixed at genesis. The hash chain starts from a hash over them, so even an empty ledger can be
//! told from another one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::digest::{Anchor, Digest};

/// Longest cell name, as for a DNS label (RFC 1035 §2.3.4).
pub const MAX_CELL_NAME_BYTES: usize = 63;

/// A cell's name: a DNS label (`a`-`z`, `0`-`9`, `-`, neither first nor last), so that it can stand in host names,
/// stream names and subjects unescaped.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CellName(Arc<str>);

/// Text that cannot name a cell.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot name a cell: use 1 to 63 of a-z, 0-9 and -, not starting or ending with -")]
pub struct InvalidCellName(String);

impl CellName {
    /// Checks and takes a name.
    pub fn new(name: &str) -> Result<Self, InvalidCellName> {
        let bytes = name.as_bytes();
        let label = (1..=MAX_CELL_NAME_BYTES).contains(&bytes.len())
            && bytes.iter().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && bytes.first() != Some(&b'-')
            && bytes.last() != Some(&b'-');
        if label {
            Ok(Self(name.into()))
        } else {
            Err(InvalidCellName(name.to_owned()))
        }
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellName({})", self.0)
    }
}

impl FromStr for CellName {
    type Err = InvalidCellName;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl TryFrom<String> for CellName {
    type Error = InvalidCellName;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::new(&text)
    }
}

impl From<CellName> for String {
    fn from(name: CellName) -> Self {
        name.0.as_ref().to_owned()
    }
}

/// The id a ledger is born with (a UUID). Two ledgers of the same cell name differ in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LedgerId(pub uuid::Uuid);

impl LedgerId {
    /// A fresh id (UUID version 7). Only for genesis; tests and simulation pass fixed ids instead.
    #[must_use]
    pub fn generate() -> Self {
        Self(uuid::Uuid::now_v7())
    }
}

impl fmt::Display for LedgerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl FromStr for LedgerId {
    type Err = uuid::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        uuid::Uuid::try_parse(text).map(Self)
    }
}

/// What is fixed when a ledger is created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Genesis {
    /// The cell.
    pub cell: CellName,
    /// The ledger's id.
    pub ledger_id: LedgerId,
}

impl Genesis {
    /// A ledger for `cell` under an id chosen by the caller.
    #[must_use]
    pub fn new(cell: CellName, ledger_id: LedgerId) -> Self {
        Self { cell, ledger_id }
    }

    /// The predecessor hash of record 1: BLAKE3 over a fixed label, the ledger id and the cell name.
    #[must_use]
    pub fn hash(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"tidemill ledger genesis v1");
        hasher.update(self.ledger_id.0.as_bytes());
        hasher.update(self.cell.as_str().as_bytes());
        hasher.finalize().into()
    }

    /// The place before the first record.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        Anchor {
            sequence: 0,
            hash: self.hash(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_names_are_dns_labels() {
        for good in ["a", "main", "eu-west-1", &"a".repeat(63)] {
            assert!(CellName::new(good).is_ok(), "{good:?}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a b", "é", &"a".repeat(64)] {
            assert!(CellName::new(bad).is_err(), "{bad:?}");
        }
    }
}
