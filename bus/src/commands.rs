//! Asking the cell for something: one trait, whoever leads and wherever.
//!
//! Doors and workers hold a [`Commands`] and submit envelopes; whether the leader is in this process or behind NATS is
//! not theirs to know. An answer says at which sequence the asked-for state is durable, so that who wrote can read its
//! write. A failure says whether asking again helps, and asking again under the same id is always safe: the command is
//! carried out once.
//!
//! Invariants: an answer, refusals included, is given only after everything it rests on is durable. The only failure
//! after which a command may have been carried out is [`SubmitError::Unknown`]. Rejected: a queue that accepts and
//! reports later, which would make every caller build its own correlation.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tidemill_domain::command::Envelope;
use tidemill_domain::events::Event;
use tidemill_domain::rejection::Rejection;

/// Takes commands.
#[async_trait]
pub trait Commands: Send + Sync {
    /// Asks, and waits for the durable answer. Dropping the future does not take the command back.
    async fn submit(&self, envelope: Envelope) -> Result<Answer, SubmitError>;
}

/// What came of a command that was not refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The record that holds its events; where there are none, the last record at the time of the answer.
    pub sequence: u64,
    /// What happened. Empty: the wish was already true.
    pub events: Vec<Event>,
    /// The command had been carried out before, under the same id: this is the first answer again.
    pub repeated: bool,
}

/// Why a command was not carried out, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum SubmitError {
    /// The decision was no. Nothing was written.
    #[error("{rejection}")]
    Rejected {
        /// Why.
        rejection: Rejection,
        /// The last record that the decision rests on.
        sequence: u64,
    },
    /// The id was used before for another command. Nothing was written.
    #[error("this command id was used for another command, recorded at sequence {sequence}")]
    Conflict {
        /// Where that one is recorded.
        sequence: u64,
    },
    /// Too many commands wait already. Nothing was written.
    #[error("{waiting} commands wait already")]
    Overloaded {
        /// How many the leader lets wait.
        waiting: usize,
    },
    /// No leader took the command in time. Nothing was written.
    #[error("no leader takes commands now: {reason}")]
    NoLeader {
        /// What was tried.
        reason: String,
    },
    /// The leader was lost with the command on its way: it may have been carried out.
    #[error("the outcome of the command is not known: {reason}")]
    Unknown {
        /// What happened instead of an answer.
        reason: String,
    },
    /// The cell takes no commands until something is mended. Nothing was written.
    #[error("the cell is read-only: {reason}")]
    ReadOnly {
        /// Stable code of the cause.
        code: String,
        /// What happened.
        reason: String,
        /// What to do about it.
        next: String,
    },
    /// This process is ending. Nothing was written.
    #[error("this process is shutting down")]
    ShuttingDown,
}

impl SubmitError {
    /// Stable code that scripts may match.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Rejected { rejection, .. } => rejection.code(),
            Self::Conflict { .. } => "command_conflict",
            Self::Overloaded { .. } => "overloaded",
            Self::NoLeader { .. } => "no_leader",
            Self::Unknown { .. } => "outcome_unknown",
            Self::ReadOnly { code, .. } => code,
            Self::ShuttingDown => "shutting_down",
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn next(&self) -> &str {
        match self {
            Self::Rejected { rejection, .. } => rejection.next(),
            Self::Conflict { .. } => "give the new command an id of its own",
            Self::Overloaded { .. } => "ask again later, under the same id",
            Self::NoLeader { .. } => "ask again under the same id; a standby takes over within seconds",
            Self::Unknown { .. } => "ask again under the same id: it is carried out once",
            Self::ReadOnly { next, .. } => next,
            Self::ShuttingDown => "ask another server, under the same id",
        }
    }

    /// True if asking again under the same id, here or elsewhere, may bring an answer by itself.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Overloaded { .. } | Self::NoLeader { .. } | Self::Unknown { .. } | Self::ShuttingDown => true,
            Self::Rejected { .. } | Self::Conflict { .. } | Self::ReadOnly { .. } => false,
        }
    }
}
