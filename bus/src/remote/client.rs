//! Asking a leader in another process.

use std::time::Duration;

use async_nats::RequestErrorKind;
use async_nats::client::Request;
use async_trait::async_trait;
use tidemill_domain::command::Envelope;
use tidemill_domain::rejection::Rejection;
use tokio::time::Instant;

use super::NatsTransport;
use super::wire::{Ask, decode_reply};
use crate::backoff::Backoff;
use crate::commands::{Answer, Commands, SubmitError};

/// How long one try waits for its answer. A leader that dies with a request gives no sign of it, so this bounds what a
/// change of leader costs a caller; a leader that is only slow meets the same id again and carries it out once.
const TRY: Duration = Duration::from_secs(2);

/// How long a command is tried in all: longer than a standby needs to notice, take over and answer.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Commands to whoever leads, over NATS. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct RemoteCommands {
    transport: NatsTransport,
    patience: Duration,
}

impl RemoteCommands {
    /// Tries each command for [`PATIENCE`].
    #[must_use]
    pub fn new(transport: &NatsTransport) -> Self {
        Self::with_patience(transport, PATIENCE)
    }

    /// Tries each command for `patience`.
    #[must_use]
    pub fn with_patience(transport: &NatsTransport, patience: Duration) -> Self {
        Self {
            transport: transport.clone(),
            patience,
        }
    }

    /// Asks once.
    pub(crate) async fn ask(&self, envelope: &Envelope, body_hash: &[u8; 16]) -> Result<Answer, SubmitError> {
        let no_leader = |reason: &str| SubmitError::NoLeader {
            reason: reason.to_owned(),
        };
        // What is published while the connection is down would be sent later, out of its time.
        if !self.transport.nats.is_connected() {
            return Err(no_leader("not connected to NATS"));
        }
        let payload = Ask::encode(envelope, body_hash).map_err(|error| SubmitError::Rejected {
            rejection: Rejection::Invalid {
                key: "command".to_owned(),
                reason: error.to_string(),
            },
            sequence: 0,
        })?;
        let client = self.transport.nats.client();
        let limit = client.max_payload();
        if payload.len() > limit {
            let rejection = Rejection::TooMany {
                what: "bytes of a command".to_owned(),
                asked: payload.len() as u64,
                limit: limit as u64,
            };
            return Err(SubmitError::Rejected { rejection, sequence: 0 });
        }
        let request = Request::new().payload(payload.into()).timeout(Some(TRY));
        match client.send_request(self.transport.commands_subject(), request).await {
            Ok(message) => decode_reply(&message.payload),
            Err(error) => Err(match error.kind() {
                RequestErrorKind::NoResponders => no_leader("no server leads"),
                RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                    no_leader(&error.to_string())
                }
                RequestErrorKind::TimedOut => SubmitError::Unknown {
                    reason: "the leader did not answer in time".to_owned(),
                },
                RequestErrorKind::Other => SubmitError::Unknown {
                    reason: error.to_string(),
                },
            }),
        }
    }
}

#[async_trait]
impl Commands for RemoteCommands {
    async fn submit(&self, envelope: Envelope) -> Result<Answer, SubmitError> {
        let body_hash = envelope.body_hash();
        let mut tries = Tries::new(self.patience);
        loop {
            match self.ask(&envelope, &body_hash).await {
                Ok(answer) => return Ok(answer),
                Err(error) => tries.after(error).await?,
            }
        }
    }
}

/// Decides whether a failed try is followed by another.
pub(crate) struct Tries {
    deadline: Instant,
    backoff: Backoff,
    /// An earlier try may have been carried out.
    unknown: Option<SubmitError>,
}

impl Tries {
    pub(crate) fn new(patience: Duration) -> Self {
        Self {
            deadline: Instant::now() + patience,
            backoff: Backoff::new(),
            unknown: None,
        }
    }

    /// Pauses before the next try, or gives the error to report.
    pub(crate) async fn after(&mut self, error: SubmitError) -> Result<(), SubmitError> {
        let again = match &error {
            SubmitError::Unknown { .. } => {
                self.unknown = Some(error.clone());
                true
            }
            SubmitError::NoLeader { .. } | SubmitError::ShuttingDown => true,
            // The leader is alive and says no to the load: more of it from here would not help.
            _ => false,
        };
        if again && Instant::now() < self.deadline {
            self.backoff.pause().await;
            return Ok(());
        }
        match self.unknown.take() {
            // What one try left open, the certain "not stored" of a later one does not close.
            Some(unknown) if error.is_transient() => Err(unknown),
            _ => Err(error),
        }
    }
}
