//! The way in: commands to the leader, be it this process or another.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tidemill_domain::command::Envelope;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::core::Pending;
use super::lead::Item;
use super::status::{CandidateStatus, Counters, Role, SequencerMetrics};
use crate::commands::{Answer, Commands, SubmitError};
use crate::remote::{RemoteCommands, Tries};

/// How long a command waits for this process to become, or find, a leader.
const PATIENCE: Duration = Duration::from_secs(15);

/// The sequencer of this process.
#[derive(Clone)]
pub(super) struct Local {
    pub(super) intake: mpsc::Sender<Item>,
    pub(super) status: watch::Receiver<CandidateStatus>,
    pub(super) counters: Arc<Counters>,
    pub(super) shutdown: CancellationToken,
}

impl Local {
    /// Queues, if this process leads, and waits for the answer.
    pub(super) async fn submit(&self, envelope: Envelope, body_hash: [u8; 16]) -> Result<Answer, SubmitError> {
        if self.shutdown.is_cancelled() {
            return Err(SubmitError::ShuttingDown);
        }
        match &self.status.borrow().role {
            Role::Leader => {}
            Role::ReadOnly { code, reason, next } => {
                return Err(SubmitError::ReadOnly {
                    code: code.clone(),
                    reason: reason.clone(),
                    next: next.clone(),
                });
            }
            Role::Stopped => return Err(SubmitError::ShuttingDown),
            Role::Starting | Role::Standby => {
                return Err(SubmitError::NoLeader {
                    reason: "this process does not lead".to_owned(),
                });
            }
        }
        let (reply, answered) = oneshot::channel();
        let item = Pending {
            envelope: Box::new(envelope),
            body_hash,
            reply,
        };
        match self.intake.try_send(item) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                Counters::add(&self.counters.overloaded, 1);
                return Err(SubmitError::Overloaded {
                    waiting: self.intake.max_capacity(),
                });
            }
            Err(TrySendError::Closed(_)) => return Err(SubmitError::ShuttingDown),
        }
        answered.await.unwrap_or_else(|_| {
            Err(SubmitError::Unknown {
                reason: "the sequencer of this process ended".to_owned(),
            })
        })
    }
}

/// A running candidate. Cloning is cheap.
#[derive(Clone)]
pub struct CandidateHandle {
    local: Local,
    remote: Option<RemoteCommands>,
    ended: CancellationToken,
}

impl CandidateHandle {
    pub(super) fn new(local: Local, remote: Option<RemoteCommands>, ended: CancellationToken) -> Self {
        Self { local, remote, ended }
    }

    /// How the candidate is doing.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<CandidateStatus> {
        self.local.status.clone()
    }

    /// Commands that wait to be decided here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.local.intake.max_capacity() - self.local.intake.capacity()
    }

    /// Counters since the process started.
    #[must_use]
    pub fn metrics(&self) -> SequencerMetrics {
        self.local.counters.now()
    }

    /// Waits until this process leads. False if that takes longer than `timeout`.
    pub async fn wait_until_leading(&self, timeout: Duration) -> bool {
        let mut status = self.status();
        let leading = status.wait_for(CandidateStatus::is_leader);
        matches!(tokio::time::timeout(timeout, leading).await, Ok(Ok(_)))
    }

    /// Waits until the candidate has ended, its answers given and its checkpoint written.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Without other processes: waits for this one to come to lead.
    async fn submit_here(&self, envelope: Envelope, body_hash: [u8; 16]) -> Result<Answer, SubmitError> {
        if !self.local.status.borrow().is_leader() {
            let mut status = self.status();
            let decided = status.wait_for(|s| !matches!(s.role, Role::Starting | Role::Standby));
            tokio::select! {
                () = self.local.shutdown.cancelled() => {}
                _ = tokio::time::timeout(PATIENCE, decided) => {}
            }
        }
        self.local.submit(envelope, body_hash).await
    }

    /// Asks here if this process leads, else whoever does, and again elsewhere if the leader goes.
    async fn submit_anywhere(
        &self,
        remote: &RemoteCommands,
        envelope: &Envelope,
        body_hash: [u8; 16],
    ) -> Result<Answer, SubmitError> {
        let mut tries = Tries::new(PATIENCE);
        loop {
            let here = self.local.submit(envelope.clone(), body_hash).await;
            let error = match here {
                // This one does not lead; whether another does is not its to say.
                Err(own @ (SubmitError::NoLeader { .. } | SubmitError::ReadOnly { .. })) => {
                    match (remote.ask(envelope, &body_hash).await, own) {
                        (Err(SubmitError::NoLeader { .. }), own @ SubmitError::ReadOnly { .. }) => return Err(own),
                        (Err(error), _) => error,
                        (Ok(answer), _) => return Ok(answer),
                    }
                }
                Err(SubmitError::ShuttingDown) if self.local.shutdown.is_cancelled() => {
                    return Err(SubmitError::ShuttingDown);
                }
                Err(error) => error,
                Ok(answer) => return Ok(answer),
            };
            tries.after(error).await?;
        }
    }
}

impl std::fmt::Debug for CandidateHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CandidateHandle")
            .field("status", &*self.local.status.borrow())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Commands for CandidateHandle {
    async fn submit(&self, envelope: Envelope) -> Result<Answer, SubmitError> {
        let body_hash = envelope.body_hash();
        match &self.remote {
            None => self.submit_here(envelope, body_hash).await,
            Some(remote) => self.submit_anywhere(remote, &envelope, body_hash).await,
        }
    }
}
