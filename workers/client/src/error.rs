//! What can go wrong between a client and the control plane.
//!
//! Three cases that call for three reactions: nobody answered (try later, exit code 7), the answer was a refusal (its
//! [`Problem`] says what to do), or what answered is not a Tidemill server of a release we understand.

use tidemill_protocol::Problem;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server answered. Whether the request arrived is not known; with an `Idempotency-Key` it may be repeated.
    #[error(
        "no control-plane server answers ({tried}): {reason} [unreachable]\n  next: check that one runs and that TIDEMILL_SERVER names it"
    )]
    Unreachable {
        /// The servers tried, separated by commas.
        tried: String,
        /// What the last of them did.
        reason: String,
    },
    /// The server refused or failed, and said why.
    #[error(transparent)]
    Problem(Box<Problem>),
    /// Something answered, but not as this release of the protocol has it.
    #[error(
        "{server} gave an answer that cannot be understood: {reason} [protocol]\n  next: check that it is a tidemill server, not older or newer by more than two releases"
    )]
    Protocol {
        /// The server.
        server: String,
        /// What was wrong.
        reason: String,
    },
}

impl ClientError {
    /// The stable code: the problem's own, or `unreachable`, or `protocol`.
    pub fn code(&self) -> &str {
        match self {
            Self::Unreachable { .. } => "unreachable",
            Self::Problem(problem) => &problem.code,
            Self::Protocol { .. } => "protocol",
        }
    }

    /// The refusal, if it is one.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }
}

impl From<Problem> for ClientError {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}
