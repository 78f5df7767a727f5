//! Keeping a role's term.
//!
//! The sequencer grants a role to one holder at a time for a lease that only its own clock ends; this side renews at a
//! third of it and stops believing in its term when a lease has passed, on its own monotonic clock, since it last *asked*
//! for a renewal that was granted. Believing too long would do no harm (commands carry the term, and the sequencer
//! refuses old ones), it would only waste work.

use std::sync::Arc;
use std::time::Duration;

use tidemill_bus::commands::{Answer, Commands, SubmitError};
use tidemill_bus::view::StateView;
use tidemill_domain::command::{Command, Envelope};
use tidemill_domain::commit::{Actor, Cause};
use tidemill_domain::events::Event;
use tidemill_domain::id::CommandId;
use tidemill_domain::rejection::Rejection;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backoff::{Backoff, jittered};
use crate::status::{WorkerState, WorkerStatus, enter};

/// A role's lease, as the sequencer grants it.
const LEASE: Duration = tidemill_bus::sequencer::LEASE;
/// How long to wait for the view to show a term that was granted.
const VIEW_PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct TermKeeper {
    pub(crate) role: &'static str,
    pub(crate) holder: String,
    pub(crate) view: Arc<StateView>,
    pub(crate) commands: Arc<dyn Commands>,
    pub(crate) status: watch::Sender<WorkerStatus>,
    /// The term held.
    pub(crate) term: watch::Sender<Option<u64>>,
    /// The worker was told that its term is over.
    pub(crate) stale: Arc<Notify>,
}

impl TermKeeper {
    /// Asks for the role and keeps it, for ever.
    pub(crate) async fn run(self) {
        let nonce = uuid::Uuid::now_v7();
        let mut number = 0u64;
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut good_until: Option<Instant> = None;
        loop {
            number += 1;
            let asked_at = Instant::now();
            let envelope = Envelope {
                id: CommandId::derived(&[b"term", self.role.as_bytes(), nonce.as_bytes(), &number.to_le_bytes()]),
                actor: Actor::Local,
                cause: Cause::Request,
                trace: None,
                command: Command::AcquireTerm {
                    role: self.role.to_owned(),
                    holder: self.holder.clone(),
                },
            };
            let pause = match self.commands.submit(envelope).await {
                Ok(answer) => {
                    backoff.reset();
                    match self.term_of(&answer).await {
                        Some(term) => {
                            good_until = Some(asked_at + LEASE);
                            self.hold(term);
                            jittered(LEASE / 3)
                        }
                        None => backoff.pause(),
                    }
                }
                Err(SubmitError::Rejected {
                    rejection: Rejection::TermHeld { holder, .. },
                    ..
                }) => {
                    good_until = None;
                    self.let_go(WorkerState::Waiting { holder });
                    jittered(LEASE / 6)
                }
                Err(error) => {
                    if good_until.is_none_or(|until| until <= Instant::now()) {
                        self.let_go(WorkerState::BackingOff {
                            code: error.code().to_owned(),
                            reason: format!("the role cannot be asked for: {error}"),
                        });
                    }
                    backoff.pause()
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stale.notified() => {
                    // Asking at once, and again and again, would be a loop between two that think they hold it.
                    good_until = None;
                    self.let_go(WorkerState::BackingOff {
                        code: "stale_term".to_owned(),
                        reason: "another holder has taken the role".to_owned(),
                    });
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// The number of the term that an answer grants or renews: in its event, or in the state that it rests on.
    async fn term_of(&self, answer: &Answer) -> Option<u64> {
        // Only what is in the state can be worked with, so the term counts from there on.
        if !self.view.wait_for(answer.sequence, VIEW_PATIENCE).await {
            self.let_go(WorkerState::BackingOff {
                code: "view_lags".to_owned(),
                reason: format!("the state has not come to record {}", answer.sequence),
            });
            return None;
        }
        let granted = answer.events.iter().find_map(|event| match event {
            Event::WorkerTermGranted(e) => Some(e.term),
            _ => None,
        });
        granted.or_else(|| {
            self.view.read(|state| {
                let term = state.terms.get(self.role)?;
                (term.holder == self.holder).then_some(term.term)
            })
        })
    }

    fn hold(&self, term: u64) {
        self.term.send_if_modified(|held| {
            let new = *held != Some(term);
            *held = Some(term);
            new
        });
    }

    fn let_go(&self, state: WorkerState) {
        self.term.send_if_modified(|held| held.take().is_some());
        enter(&self.status, state, None);
    }
}
