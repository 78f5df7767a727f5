//! Errors as `application/problem+json` (RFC 9457), the same on the API and on connections.

use serde::{Deserialize, Serialize};

/// A refusal or failure with a stable code. `detail` says what happened and why, `next` what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Always `about:blank#CODE`; kept for RFC 9457 readers.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Short human title.
    #[serde(default)]
    pub title: String,
    /// HTTP status.
    #[serde(default)]
    pub status: u16,
    /// Stable snake_case code that scripts may match.
    pub code: String,
    /// What happened and why.
    #[serde(default)]
    pub detail: String,
    /// What to do about it. May be empty.
    #[serde(default)]
    pub next: String,
    /// Trace id of the request, 32 hex digits.
    #[serde(default)]
    pub trace_id: String,
}

impl Problem {
    /// A problem with the given HTTP status, code, detail and next step.
    pub fn new(status: u16, code: &str, detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            kind: format!("about:blank#{code}"),
            title: code.replace('_', " "),
            status,
            code: code.to_owned(),
            detail: detail.into(),
            next: next.into(),
            trace_id: String::new(),
        }
    }
}

/// A problem as one field of a message: its own `type` must not meet the message's.
pub(crate) mod nested {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Problem;

    #[derive(Serialize)]
    struct Lent<'a> {
        problem: &'a Problem,
    }

    #[derive(Deserialize)]
    struct Owned {
        problem: Problem,
    }

    pub(crate) fn serialize<S: Serializer>(problem: &Problem, serializer: S) -> Result<S::Ok, S::Error> {
        Lent { problem }.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Problem, D::Error> {
        Owned::deserialize(deserializer).map(|owned| owned.problem)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} [{}]", self.detail, self.code)?;
        if !self.next.is_empty() {
            write!(f, "\n  next: {}", self.next)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::agent::DoorMessage;
    use crate::gateway::DoorToGateway;

    #[test]
    fn a_refusal_survives_the_wire() {
        let problem = Problem::new(409, "superseded", "another one speaks", "rename one");
        let message = DoorMessage::Refused(problem.clone());
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<DoorMessage>(&text).unwrap(), message, "{text}");
        let message = DoorToGateway::Refused(problem);
        let text = serde_json::to_string(&message).unwrap();
        assert_eq!(serde_json::from_str::<DoorToGateway>(&text).unwrap(), message, "{text}");
    }
}
