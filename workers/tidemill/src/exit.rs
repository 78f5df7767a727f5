//! How a command ends: the exit code scripts rely on, and the error a person reads.
//!
//! A failure is one [`CliError`]: a stable `code`, what happened, what to do next, and the [`Exit`] it maps to. The
//! mapping from what the door answered (its `code` first, then its HTTP status) stands here and nowhere else, so that a
//! verb never picks an exit code of its own for something the server said.
//!
//! Kept: codes 0-9 mean what the contract says and are never reused; a reader that went away (`| head`) is not an
//! error. Rejected: `anyhow`-style errors, because a chain of contexts has neither a code to match nor a next step.

use std::io;

use tidemill_protocol::Problem;

/// Exit codes of the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// It failed; the message says why.
    Error = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// Accepted, but not (fully) placed within `--wait`.
    NotPlaced = 3,
    /// No such thing.
    NotFound = 4,
    /// Against the current state, or another body under the same command id.
    Conflict = 5,
    /// Not logged in, or not allowed to.
    NotAuthorised = 6,
    /// No server answered.
    Unreachable = 7,
    /// A check was run and it failed.
    CheckFailed = 8,
    /// Refused because it could lose data or stop work.
    Refused = 9,
}

/// Codes which mean "refused for safety", whatever the HTTP status they come with.
const SAFETY_CODES: [&str; 5] = [
    "refused_for_safety",
    "breaker_open",
    "ledger_forked",
    "ledger_went_backwards",
    "disk_reserve",
];

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// Exit code.
    pub exit: Exit,
    /// Stable snake_case code.
    pub code: String,
    /// What happened and why.
    pub detail: String,
    /// What to do about it; may be empty.
    pub next: String,
}

impl CliError {
    /// An error with everything spelled out.
    pub fn new(exit: Exit, code: &str, detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            exit,
            code: code.to_owned(),
            detail: detail.into(),
            next: next.into(),
        }
    }

    /// The command line makes no sense (exit 2).
    pub fn usage(detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(Exit::Usage, "usage", detail, next)
    }

    /// Part of the contract that this release does not do (exit 1, `not_yet`).
    pub fn not_yet(detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(Exit::Error, "not_yet", detail, next)
    }

    /// An error of another crate, whose text follows the house form: `what [code]`, then `next: what to do` on a line of
    /// its own.
    pub fn told(exit: Exit, error: &dyn std::fmt::Display) -> Self {
        let text = error.to_string();
        let (what, next) = text.split_once("\n  next: ").unwrap_or((&text, ""));
        let (detail, code) = what
            .strip_suffix(']')
            .and_then(|what| what.rsplit_once(" ["))
            .unwrap_or((what, "failed"));
        Self::new(exit, code, detail, next)
    }

    /// The output's reader went away: nothing to say, nothing failed.
    pub fn reader_gone() -> Self {
        Self::new(Exit::Ok, READER_GONE, "", "")
    }

    /// Whether this is [`CliError::reader_gone`].
    pub fn is_reader_gone(&self) -> bool {
        self.code == READER_GONE
    }
}

const READER_GONE: &str = "reader_gone";

impl std::fmt::Display for CliError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} [{}]", self.detail, self.code)?;
        if !self.next.is_empty() {
            write!(f, "\n  next: {}", self.next)?;
        }
        Ok(())
    }
}

impl std::error::Error for CliError {}

impl From<io::Error> for CliError {
    /// For writes to stdout only; errors of named files carry their path and are made by hand.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::reader_gone();
        }
        Self::new(
            Exit::Error,
            "output_failed",
            format!("the output could not be written: {error}"),
            "check the disk or the reader of the pipe",
        )
    }
}

impl From<Problem> for CliError {
    fn from(problem: Problem) -> Self {
        let trace = match problem.trace_id.as_str() {
            "" => String::new(),
            id => format!(" (trace {id})"),
        };
        Self {
            exit: exit_of(problem.status, &problem.code),
            detail: if problem.detail.is_empty() {
                format!("the server answered {}{trace}", problem.status)
            } else {
                format!("{}{trace}", problem.detail)
            },
            code: problem.code,
            next: problem.next,
        }
    }
}

/// The exit code for a refusal with this HTTP status and stable code.
pub fn exit_of(status: u16, code: &str) -> Exit {
    if SAFETY_CODES.contains(&code) {
        return Exit::Refused;
    }
    match (status, code) {
        // Busy is not gone, nor is a control plane that one node is not connected to: the server answered, and the same command may pass in a moment.
        (_, "overloaded" | "not_yet" | "node_not_connected") => Exit::Error,
        // The command line said something that no state of the pool makes sense of.
        (_, "bad_parameter") => Exit::Usage,
        (401 | 403, _) => Exit::NotAuthorised,
        (404, _) => Exit::NotFound,
        (409, _) => Exit::Conflict,
        (412 | 423, _) => Exit::Refused,
        (502..=504, _) => Exit::Unreachable,
        _ => Exit::Error,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn statuses_and_codes_map_to_the_contracts_exit_codes() {
        let cases = [
            (400, "invalid_document"),
            (400, "bad_parameter"),
            (401, "unauthenticated"),
            (403, "forbidden"),
            (404, "not_found"),
            (409, "command_id_conflict"),
            (412, "anything"),
            (422, "invalid_document"),
            (429, "overloaded"),
            (501, "not_yet"),
            (503, "no_leader"),
            (503, "overloaded"),
            (503, "disk_reserve"),
            (409, "ledger_went_backwards"),
        ];
        let table: String = cases
            .iter()
            .map(|(status, code)| format!("{status} {code} -> {:?}\n", exit_of(*status, code)))
            .collect();
        insta::assert_snapshot!(table, @r"
        400 invalid_document -> Error
        400 bad_parameter -> Usage
        401 unauthenticated -> NotAuthorised
        403 forbidden -> NotAuthorised
        404 not_found -> NotFound
        409 command_id_conflict -> Conflict
        412 anything -> Refused
        422 invalid_document -> Error
        429 overloaded -> Error
        501 not_yet -> Error
        503 no_leader -> Unreachable
        503 overloaded -> Error
        503 disk_reserve -> Refused
        409 ledger_went_backwards -> Refused
        ");
    }

    #[test]
    fn the_numbers_are_the_contracts() {
        let numbers: Vec<u8> = [
            Exit::Ok,
            Exit::Error,
            Exit::Usage,
            Exit::NotPlaced,
            Exit::NotFound,
            Exit::Conflict,
            Exit::NotAuthorised,
            Exit::Unreachable,
            Exit::CheckFailed,
            Exit::Refused,
        ]
        .into_iter()
        .map(|exit| exit as u8)
        .collect();
        assert_eq!(numbers, (0..=9).collect::<Vec<u8>>());
    }

    #[test]
    fn errors_of_other_crates_keep_their_parts() {
        let error = CliError::told(
            Exit::Error,
            &"cannot listen on [::1]:80: denied [listen_failed]\n  next: free it",
        );
        assert_eq!(
            (error.code.as_str(), error.detail.as_str(), error.next.as_str()),
            ("listen_failed", "cannot listen on [::1]:80: denied", "free it")
        );
        assert_eq!(CliError::told(Exit::Error, &"plain").code, "failed");
    }

    #[test]
    fn a_gone_reader_is_no_error() {
        let error = CliError::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(error.is_reader_gone());
        assert_eq!(error.exit, Exit::Ok);
    }
}
