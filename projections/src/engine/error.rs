//! Why the tables are stale, why a batch failed, why the engine does not advance.

use tidemill_bus::chain::ChainError;
use tidemill_bus::fold::FoldError;
use tidemill_bus::ledger::ReadError;
use tidemill_domain::state::ApplyError;

/// Why the tables are not those of this ledger, or not of this build.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// They were built from another ledger.
    #[error("they were built from ledger {found} of cell {cell}")]
    OtherLedger {
        /// That ledger's id.
        found: String,
        /// Its cell.
        cell: String,
    },
    /// The ledger ends before them: an older copy was put back.
    #[error("they stand at record {sequence}, and the ledger ends at {last}")]
    Shorter {
        /// Where they stand.
        sequence: u64,
        /// Where the ledger ends.
        last: u64,
    },
    /// The ledger has another record where they stand.
    #[error("the ledger's history was replaced at or before record {sequence}")]
    Forked {
        /// First record that does not fit.
        sequence: u64,
    },
    /// Another build wrote them.
    #[error("they were written by another release")]
    OtherVersion,
    /// Their file was damaged.
    #[error("their file was damaged: {reason}")]
    Damaged {
        /// SQLite's words.
        reason: String,
    },
}

/// Why a batch failed. The projection is to be dropped and opened again: its tables stand before the batch.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// The tables are of another history; see [`Projection::reset`].
    #[error("the read models are stale: {0}")]
    Stale(#[from] Stale),
    /// The ledger does not hold.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A record's commits cannot be read by this build.
    #[error(transparent)]
    Decode(FoldError),
    /// An event that does not fit the state.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The file cannot be read or written.
    #[error("the read models' file: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A test broke it off.
    #[error("interrupted")]
    Interrupted,
    /// The writer panicked.
    #[error("the writer panicked")]
    Panicked,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the writer's thread cannot be started: {0}")]
    Thread(std::io::Error),
}

impl SessionError {
    pub(super) fn code(&self) -> &'static str {
        match self {
            SessionError::Read(error) => error.code(),
            SessionError::Thread(_) => "read_models_thread",
            SessionError::Project(error) => match error {
                ProjectError::Stale(_) => "read_models_stale",
                ProjectError::Chain(error) => error.code(),
                ProjectError::Decode(_) => "event_unreadable",
                ProjectError::Apply(_) => "event_does_not_fit",
                ProjectError::Sqlite(_) => "read_models_file",
                ProjectError::Interrupted => "interrupted",
                ProjectError::Panicked => "read_models_panicked",
            },
        }
    }

    pub(super) fn next(&self) -> &'static str {
        match self {
            SessionError::Read(error) if error.is_transient() => "wait: it goes on by itself once the store answers",
            SessionError::Read(_) | SessionError::Project(ProjectError::Chain(_) | ProjectError::Stale(_)) => {
                "run `tidemill verify`; if the ledger is damaged, restore it from a copy that verifies"
            }
            SessionError::Project(ProjectError::Decode(_) | ProjectError::Apply(_)) => {
                "upgrade this server: the ledger was written by a newer release"
            }
            SessionError::Project(ProjectError::Sqlite(_) | ProjectError::Interrupted) => {
                "check the disk's space and health; the file may be deleted, it is built again from the ledger"
            }
            SessionError::Project(ProjectError::Panicked) => "report the panic in the log; it is tried again",
            SessionError::Thread(_) => "raise the limit on threads (`ulimit -u`)",
        }
    }
}
