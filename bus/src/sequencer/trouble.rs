//! Why a candidate does not lead: a code, what happened, what to do, and what to tell those who wait.

use super::append::{Cause, Lost};
use super::core::Broken;
use super::status::Role;
use crate::checkpoint::{CheckpointError, Standing};
use crate::commands::SubmitError;
use crate::damage::{self, Damage, NoteError};
use crate::fold::FoldError;

/// What keeps a candidate from leading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) code: String,
    pub(super) reason: String,
    pub(super) next: &'static str,
    /// Only a restart ends it.
    pub(super) terminal: bool,
    /// Part of ordinary life, such as another candidate having been quicker: no alarm.
    pub(super) ordinary: bool,
    /// Trying again costs a fold of the whole ledger: seldom.
    pub(super) slow: bool,
    /// Where the ledger itself is at fault.
    pub(super) damage: Option<Damage>,
}

impl Trouble {
    fn new(code: impl Into<String>, reason: impl ToString, next: &'static str) -> Self {
        Self {
            code: code.into(),
            reason: reason.to_string(),
            next,
            terminal: false,
            ordinary: false,
            slow: false,
            damage: None,
        }
    }

    /// Something before the snapshot this process started from, or behind what it once read, is not what was written.
    pub(super) fn damaged(damage: Damage) -> Self {
        Self {
            terminal: true,
            damage: Some(damage.clone()),
            ..Self::new(damage.code, damage.reason, damage::NEXT)
        }
    }

    /// Where no transport tells candidates of each other, a second writer is a mistake of the operator's, and two that
    /// take over from each other in turn would make it worse.
    pub(super) fn second_writer(reason: impl ToString) -> Self {
        Self {
            terminal: true,
            ..Self::new(
                "second_writer",
                reason,
                "another process writes to this ledger: stop one of them, then start this one again",
            )
        }
    }

    pub(super) fn deposed(reason: impl ToString) -> Self {
        Self {
            ordinary: true,
            ..Self::new("deposed", reason, "nothing: another server leads")
        }
    }

    pub(super) fn marker_not_read_back(sequence: u64) -> Self {
        let reason = format!("the record {sequence} that began this epoch is not what the ledger gives back");
        Self::new(
            "ledger_forked",
            reason,
            "run `tidemill verify`; two stores may answer under one name",
        )
    }

    pub(super) fn disk_reserve(available: u64, reserve: u64) -> Self {
        let reason = format!(
            "{} MiB are free on the data disk, under the reserve of {} MiB",
            available >> 20,
            reserve >> 20
        );
        Self::new(
            "disk_reserve",
            reason,
            "free space on the data disk; commands are taken again by themselves then",
        )
    }

    pub(super) fn ledger_nearly_full(used: u64, capacity: u64) -> Self {
        let reason = format!(
            "the ledger uses {} of {} MiB, less than its reserve is left",
            used >> 20,
            capacity >> 20
        );
        Self::new("ledger_full", reason, FULL_NEXT)
    }

    pub(super) fn role(&self) -> Role {
        Role::ReadOnly {
            code: self.code.clone(),
            reason: self.reason.clone(),
            next: self.next.to_owned(),
        }
    }

    pub(super) fn submit_error(&self) -> SubmitError {
        if self.ordinary {
            return SubmitError::NoLeader {
                reason: self.reason.clone(),
            };
        }
        SubmitError::ReadOnly {
            code: self.code.clone(),
            reason: self.reason.clone(),
            next: self.next.to_owned(),
        }
    }
}

const FULL_NEXT: &str = "raise the ledger's size limit or free disk space; commands are taken again by themselves then";
const RESTORE_NEXT: &str =
    "point the server at the right store or restore a backup: it is never created anew by itself";

impl Lost {
    /// What to tell a caller whose command is in the record.
    pub(super) fn submit_error(&self) -> SubmitError {
        let reason = self.cause.to_string();
        match &self.cause {
            _ if self.maybe_stored => SubmitError::Unknown { reason },
            Cause::Foreign { .. } | Cause::Unresolved { .. } => SubmitError::NoLeader { reason },
            _ => Trouble::from(self).submit_error(),
        }
    }
}

impl From<&Lost> for Trouble {
    fn from(lost: &Lost) -> Self {
        let cause = &lost.cause;
        match cause {
            Cause::Foreign { .. } => Self::deposed(cause),
            Cause::Full => Self::new("ledger_full", cause, FULL_NEXT),
            Cause::Missing => Self::new("ledger_missing", cause, RESTORE_NEXT),
            Cause::Shorter { .. } => Self::new("ledger_shorter", cause, RESTORE_NEXT),
            Cause::Refused(error) => Self::new(error.code(), cause, "see the store's log; run `tidemill doctor`"),
            Cause::Unresolved { .. } => Self::new(
                "ledger_unavailable",
                cause,
                "check that the ledger's store is up and reachable",
            ),
        }
    }
}

impl From<&Broken> for Trouble {
    fn from(broken: &Broken) -> Self {
        Self {
            terminal: true,
            ..Self::new(
                "invariant_broken",
                broken,
                "writing has stopped so that it cannot spread: keep the ledger, report this, and restart with a build that mends it",
            )
        }
    }
}

impl From<&FoldError> for Trouble {
    fn from(error: &FoldError) -> Self {
        Self {
            slow: !matches!(error, FoldError::Read(error) if error.is_transient()),
            damage: Damage::of_fold(error),
            ..Self::new(error.code(), error, error.next_step())
        }
    }
}

impl From<&CheckpointError> for Trouble {
    fn from(error: &CheckpointError) -> Self {
        Self::new(
            error.code(),
            error,
            "restore the checkpoint file, or remove it if the ledger is known to be whole",
        )
    }
}

impl From<&NoteError> for Trouble {
    fn from(error: &NoteError) -> Self {
        Self::new(error.code(), error, error.next_step())
    }
}

impl Trouble {
    /// The ledger contradicts what this server knew of it.
    pub(super) fn from_standing(standing: &Standing) -> Self {
        let code = match standing {
            Standing::Vanished { .. } => "ledger_missing",
            other => other.code(),
        };
        Self::new(code, standing, standing.next_step())
    }
}
