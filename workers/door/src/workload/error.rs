//! What is wrong with a workload file: one key, one line, one sentence.

use tidemill_protocol::Problem;

/// A file that is refused whole; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkloadError {
    /// `invalid`, or `not_yet` for what a later release will take.
    pub code: &'static str,
    /// Dotted key; empty when the file as a whole is meant.
    pub key: String,
    /// Line, from 1; 0 if none is known.
    pub line: u64,
    /// What is wrong and what would be right.
    pub reason: String,
}

impl WorkloadError {
    pub(super) fn invalid(key: impl Into<String>, line: u64, reason: impl Into<String>) -> Self {
        Self {
            code: "invalid",
            key: key.into(),
            line,
            reason: reason.into(),
        }
    }

    pub(super) fn not_yet(key: impl Into<String>, line: u64, reason: impl Into<String>) -> Self {
        Self {
            code: "not_yet",
            ..Self::invalid(key, line, reason)
        }
    }

    pub(super) fn file(reason: impl Into<String>) -> Self {
        Self::invalid("", 0, reason)
    }

    pub(super) fn syntax(line: u64, reason: impl Into<String>) -> Self {
        Self::invalid("", line, format!("this is not YAML: {}", reason.into()))
    }

    /// As an answer.
    pub fn to_problem(&self) -> Problem {
        let (status, next) = match self.code {
            "not_yet" => (501, "leave it out for now; nothing was changed"),
            _ => (422, "correct the file and apply it again; nothing was changed"),
        };
        Problem::new(status, self.code, self.to_string(), next)
    }
}

impl std::fmt::Display for WorkloadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.key.as_str(), self.line) {
            ("", 0) => write!(f, "the file: {}", self.reason),
            ("", line) => write!(f, "line {line}: {}", self.reason),
            (key, 0) => write!(f, "`{key}`: {}", self.reason),
            (key, line) => write!(f, "`{key}` at line {line}: {}", self.reason),
        }
    }
}

impl std::error::Error for WorkloadError {}
