//! The sequencer: the cell's one writer.
//!
//! It folds the ledger into the cell's state, takes commands, decides them in groups, appends each group as one record,
//! and answers. The parts: `core` decides, without the world; `append` gets one record into the ledger for certain or not
//! at all; `lead` is the loop around both; `candidate` is the life around that: fold along, take over by appending, lead,
//! step down. Every `server` runs a candidate; at most one of them leads, and which one is decided by the ledger: the
//! record that begins an epoch is appended behind the tail just folded, and fences whoever wrote before.
//!
//! Invariants: one record in flight. A decided group is appended byte for byte, or the state it was decided on is dropped
//! and the candidate steps down. A new leader reads its own marker back before its first decision. Nothing is decided on
//! a ledger that contradicts the local checkpoint. Queues are bounded: who comes too much is told so at once.

mod append;
mod candidate;
mod core;
mod dedupe;
mod handle;
mod lead;
mod leases;
mod replica;
mod reserve;
mod shared;
mod status;
mod trouble;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidemill_domain::time::Timestamp;

pub use self::core::{Broken, Core, GROUP_BYTES, GROUP_COMMANDS, Group, Now, Outcome, Pending, Planned, SEAL_EVERY};
pub use candidate::{Candidate, StartError};
pub use dedupe::{Dedupe, KEEP, Known, MOST};
pub use handle::CandidateHandle;
pub use leases::LEASE;
pub use reserve::DiskReserve;
pub use status::{APPEND_MICROS, CandidateStatus, GROUP_COMMITS, Role, SequencerMetrics};

use crate::identity::Genesis;
use crate::snapshots::{SnapshotError, SnapshotStore};

/// Commands that may wait; one more is turned away.
pub const INTAKE: usize = 16_384;

/// Events between two snapshots.
pub const SNAPSHOT_EVERY: u64 = 50_000;

/// How long the outcome of an append is pursued before the leader steps down.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Where the sequencer's time comes from.
#[derive(Clone, Default)]
pub enum Clock {
    /// The system's wall clock.
    #[default]
    System,
    /// Whatever this says: for tests of clocks that jump.
    Manual(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Manual(_) => "Manual",
        })
    }
}

/// How a candidate is set up.
#[derive(Debug, Clone)]
pub struct SequencerConfig {
    /// The process's name: recorded with each epoch it begins, shown to operators. Unique in the cell.
    pub name: String,
    /// Release of the build.
    pub version: String,
    /// Where the checkpoint is kept; none only in tests.
    pub checkpoint: Option<PathBuf>,
    /// Where snapshots are kept.
    pub snapshots: Option<SnapshotStore>,
    /// Free space to keep on the data disk.
    pub disk: Option<DiskReserve>,
    /// Commands that may wait.
    pub intake: usize,
    /// How long the outcome of an append is pursued.
    pub patience: Duration,
    /// Events between two snapshots.
    pub snapshot_every: u64,
    /// Least time between two snapshots; 10 s if none.
    pub snapshot_pause: Option<Duration>,
    /// Where time comes from.
    pub clock: Clock,
}

impl SequencerConfig {
    /// Nothing kept on disk: for tests and simulation.
    #[must_use]
    pub fn in_memory(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            checkpoint: None,
            snapshots: None,
            disk: None,
            intake: INTAKE,
            patience: PATIENCE,
            snapshot_every: SNAPSHOT_EVERY,
            snapshot_pause: None,
            clock: Clock::System,
        }
    }

    /// Checkpoint, snapshots and disk reserve in the data directory `dir`, which must exist.
    pub fn in_directory(name: &str, dir: &Path, genesis: &Genesis) -> Result<Self, SnapshotError> {
        Ok(Self {
            checkpoint: Some(checkpoint_path(dir)),
            snapshots: Some(SnapshotStore::open(&snapshots_path(dir), genesis)?),
            disk: Some(DiskReserve::of(dir)),
            ..Self::in_memory(name)
        })
    }
}

/// Where a data directory's checkpoint lies.
#[must_use]
pub fn checkpoint_path(dir: &Path) -> PathBuf {
    dir.join("checkpoint.json")
}

/// Where a data directory's snapshots lie.
#[must_use]
pub fn snapshots_path(dir: &Path) -> PathBuf {
    dir.join("snapshots")
}
