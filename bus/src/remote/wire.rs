//! What travels: JSON, unknown fields ignored, so that neighbouring releases understand each other.

use serde::{Deserialize, Serialize};
use tidemill_domain::command::Envelope;
use tidemill_domain::commit::{from_hex, to_hex};
use tidemill_domain::events::Event;

use crate::commands::{Answer, SubmitError};

/// A command on its way.
#[derive(Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) envelope: Envelope,
    /// As the asker worked it out: JSON rounds spans to milliseconds, and the same command must hash the same whichever
    /// way it takes.
    body_hash: String,
}

#[derive(Serialize)]
struct AskRef<'a> {
    envelope: &'a Envelope,
    body_hash: String,
}

impl Ask {
    pub(super) fn encode(envelope: &Envelope, body_hash: &[u8; 16]) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&AskRef {
            envelope,
            body_hash: to_hex(body_hash),
        })
    }

    pub(super) fn body_hash(&self) -> [u8; 16] {
        let mut hash = [0; 16];
        match from_hex(&self.body_hash, &mut hash) {
            Some(()) => hash,
            None => self.envelope.body_hash(),
        }
    }
}

/// What comes back.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Answer {
        sequence: u64,
        repeated: bool,
        events: Vec<WireEvent>,
    },
    Error(SubmitError),
}

/// An event in its frozen encoding.
#[derive(Serialize, Deserialize)]
struct WireEvent {
    kind: u16,
    version: u16,
    body: String,
}

pub(super) fn encode_reply(result: Result<Answer, SubmitError>) -> Vec<u8> {
    let reply = match result {
        Ok(answer) => Reply::Answer {
            sequence: answer.sequence,
            repeated: answer.repeated,
            events: answer.events.iter().map(wire_event).collect(),
        },
        Err(error) => Reply::Error(error),
    };
    serde_json::to_vec(&reply).expect("a reply is plain data with text keys")
}

fn wire_event(event: &Event) -> WireEvent {
    let (kind, version) = event.kind();
    WireEvent {
        kind,
        version,
        body: to_hex(&event.encode_body(Vec::new())),
    }
}

pub(super) fn decode_reply(bytes: &[u8]) -> Result<Answer, SubmitError> {
    let unknown = |reason: String| SubmitError::Unknown {
        reason: format!("the leader's answer does not decode: {reason}"),
    };
    match serde_json::from_slice(bytes).map_err(|error| unknown(error.to_string()))? {
        Reply::Error(error) => Err(error),
        Reply::Answer {
            sequence,
            repeated,
            events,
        } => {
            let decode = |wire: &WireEvent| {
                let mut body = vec![0; wire.body.len() / 2];
                from_hex(&wire.body, &mut body).ok_or_else(|| unknown("an event is not hex".to_owned()))?;
                Event::decode(wire.kind, wire.version, &body).map_err(|error| unknown(error.to_string()))
            };
            Ok(Answer {
                sequence,
                events: events.iter().map(decode).collect::<Result<_, _>>()?,
                repeated,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tidemill_domain::events::worker::WorkerTermGranted;
    use tidemill_domain::rejection::Rejection;

    use super::*;

    #[test]
    fn answers_and_errors_arrive_as_they_were_given() {
        let granted = WorkerTermGranted {
            role: "scheduler".into(),
            holder: "a".into(),
            term: 3,
        };
        let answer = Answer {
            sequence: 7,
            events: vec![granted.into()],
            repeated: true,
        };
        assert_eq!(decode_reply(&encode_reply(Ok(answer.clone()))), Ok(answer));
        let rejection = Rejection::NotFound {
            what: "node".into(),
            id: "x".into(),
        };
        let errors = [
            SubmitError::Rejected { rejection, sequence: 4 },
            SubmitError::Overloaded { waiting: 3 },
            SubmitError::ShuttingDown,
        ];
        for error in errors {
            assert_eq!(decode_reply(&encode_reply(Err(error.clone()))), Err(error));
        }
        assert_eq!(decode_reply(b"{}").unwrap_err().code(), "outcome_unknown");
    }
}
