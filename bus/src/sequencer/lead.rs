//! The leader's loop: one group after another, one record in flight.
//!
//! While a record is being made durable, commands queue; the next group is decided after the ack and takes all that came
//! meanwhile, so the number of commands per fsync follows the load by itself. Decisions run on the thread of this loop
//! and nothing else does, so a large group stalls no other task of the process.
//!
//! Invariants: answers leave after the ack of their group's record; where a group wrote nothing, after the store has
//! confirmed that this is still its last writer. Whatever fails, each waiting caller is told, and told `Unknown` only if
//! its commit may be stored.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tidemill_domain::commit::Commit;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::append::{self, Lost};
use super::core::{Core, Group, Outcome, Pending};
use super::reserve::Watch;
use super::shared::Shared;
use super::status::Counters;
use super::trouble::Trouble;
use crate::commands::{Answer, SubmitError};
use crate::ledger::Ledger;
use crate::record::Record;
use crate::snapshots::EncodedSnapshot;

/// The way back to a caller.
pub(super) type Reply = oneshot::Sender<Result<Answer, SubmitError>>;

/// A queued command.
pub(super) type Item = Pending<Reply>;

/// Most commands taken off the intake before they are decided: with the intake itself this bounds what waits.
const QUEUE: usize = 4096;

/// Earlier answers being read back at the same time.
const REREADS: usize = 64;

/// Least time between two snapshots: encoding one holds the loop up.
const SNAPSHOT_PAUSE: Duration = Duration::from_secs(10);

/// How a leadership ended.
pub(super) enum End {
    /// The process is shutting down.
    Shutdown,
    /// Another may lead, or something is to be mended first.
    SteppedDown(Trouble),
}

pub(super) struct Leader<'a> {
    core: Core<Reply>,
    shared: &'a Arc<Shared>,
    intake: &'a mut mpsc::Receiver<Item>,
    queue: VecDeque<Item>,
    fresh: Vec<Item>,
    deposed: CancellationToken,
    reserve: &'a mut Watch,
    rereads: Arc<tokio::sync::Semaphore>,
    snapshot_events: u64,
    snapshot_at: Instant,
}

impl<'a> Leader<'a> {
    pub(super) fn new(
        core: Core<Reply>,
        shared: &'a Arc<Shared>,
        intake: &'a mut mpsc::Receiver<Item>,
        deposed: CancellationToken,
        reserve: &'a mut Watch,
        snapshot_events: u64,
    ) -> Self {
        Self {
            core,
            shared,
            intake,
            queue: VecDeque::new(),
            fresh: Vec::with_capacity(QUEUE),
            deposed,
            reserve,
            rereads: Arc::new(tokio::sync::Semaphore::new(REREADS)),
            snapshot_events,
            snapshot_at: Instant::now(),
        }
    }

    pub(super) async fn run(mut self) -> End {
        let end = loop {
            if let Some(end) = self.gather().await {
                break end;
            }
            if let Some(low) = self.reserve.low(&*self.shared.ledger).await {
                let error = low.submit_error();
                self.shared.set_role(low.role());
                self.queue
                    .drain(..)
                    .map(|item| item.reply)
                    .chain(self.core.take_carried())
                    .for_each(|reply| answer(reply, Err(error.clone())));
                continue;
            }
            self.shared.set_leader();
            if self.queue.is_empty() && !self.core.has_carried() {
                continue;
            }
            if let Err(trouble) = self.group().await {
                break End::SteppedDown(trouble);
            }
            self.snapshot_if_due();
        };
        self.finish(&end);
        end
    }

    /// Takes what has come; waits if nothing is there.
    async fn gather(&mut self) -> Option<End> {
        if self.shared.shutdown.is_cancelled() {
            return Some(End::Shutdown);
        }
        if let Some(trouble) = self.shared.damaged() {
            return Some(End::SteppedDown(trouble));
        }
        let room = QUEUE.saturating_sub(self.queue.len());
        if self.queue.is_empty() && !self.core.has_carried() {
            let next_look = self.reserve.next();
            let mut damage = self.shared.damage.subscribe();
            tokio::select! {
                biased;
                () = self.shared.shutdown.cancelled() => return Some(End::Shutdown),
                () = self.deposed.cancelled() => {
                    return Some(End::SteppedDown(Trouble::deposed("another server began a later epoch")));
                }
                _ = damage.wait_for(Option::is_some) => return self.shared.damaged().map(End::SteppedDown),
                taken = self.intake.recv_many(&mut self.fresh, room) => {
                    if taken == 0 {
                        return Some(End::Shutdown);
                    }
                }
                () = tokio::time::sleep_until(next_look) => {}
            }
        }
        while self.fresh.len() < room {
            match self.intake.try_recv() {
                Ok(item) => self.fresh.push(item),
                Err(_) => break,
            }
        }
        self.queue.extend(self.fresh.drain(..));
        None
    }

    /// Decides, appends, answers.
    async fn group(&mut self) -> Result<(), Trouble> {
        let began = Instant::now();
        let Group { planned, answers } = match self.core.decide_group(&mut self.queue, self.shared.now()) {
            Ok(group) => group,
            Err((broken, waiting)) => {
                let trouble = Trouble::from(&broken);
                tracing::error!(code = %trouble.code, %broken, "a decision broke the state; nothing of it was written");
                let error = trouble.submit_error();
                waiting
                    .into_iter()
                    .for_each(|(reply, _)| answer(reply, Err(error.clone())));
                return Err(trouble);
            }
        };
        let decided = Instant::now();
        let durable = match &planned {
            Some(planned) => append::append(&*self.shared.ledger, planned, self.shared.config.patience)
                .await
                .map_err(|lost| (lost.submit_error(), Trouble::from(&lost))),
            None => self.confirm().await,
        };
        if let Err((error, trouble)) = durable {
            let trouble = self.shared.judge(trouble);
            self.shared.show(&trouble);
            answers
                .into_iter()
                .for_each(|(reply, _)| answer(reply, Err(error.clone())));
            return Err(trouble);
        }
        let counters = &self.shared.counters;
        Counters::add(&counters.decide_micros, micros(decided - began));
        Counters::add(&counters.append_micros, micros(decided.elapsed()));
        Counters::add(&counters.commands, answers.len() as u64);
        if let Some(planned) = &planned {
            Counters::add(&counters.records, 1);
            Counters::add(&counters.events, planned.events);
            Counters::add(&counters.bytes, planned.record.bytes.len() as u64);
            self.snapshot_events += planned.events;
            self.shared.set_sequence(self.core.epoch(), planned.record.anchor);
        }
        let sequence = self.core.head().sequence;
        for (reply, outcome) in answers {
            self.answer(reply, outcome, sequence);
        }
        Ok(())
    }

    /// Asks the store whether this is still its last writer.
    async fn confirm(&self) -> Result<(), (SubmitError, Trouble)> {
        let head = self.core.head();
        let no_leader = |reason: String| SubmitError::NoLeader { reason };
        match self.shared.ledger.tail().await {
            Ok(tail) if tail.anchor() == head => Ok(()),
            Ok(tail) if tail.sequence < head.sequence => {
                let lost = Lost {
                    cause: append::Cause::Shorter {
                        last: tail.sequence,
                        known: head.sequence,
                    },
                    maybe_stored: false,
                };
                Err((lost.submit_error(), Trouble::from(&lost)))
            }
            Ok(tail) => {
                let trouble = Trouble::deposed(format!("the ledger has moved on to record {}", tail.sequence));
                Err((no_leader(trouble.reason.clone()), trouble))
            }
            Err(error) => {
                let trouble = Trouble::from(&crate::fold::FoldError::from(error));
                Err((no_leader(trouble.reason.clone()), trouble))
            }
        }
    }

    fn answer(&self, reply: Reply, outcome: Outcome, sequence: u64) {
        match outcome {
            Outcome::Accepted(events) => answer(
                reply,
                Ok(Answer {
                    sequence,
                    events,
                    repeated: false,
                }),
            ),
            Outcome::Unchanged => answer(
                reply,
                Ok(Answer {
                    sequence,
                    events: Vec::new(),
                    repeated: false,
                }),
            ),
            Outcome::Rejected(rejection) => {
                Counters::add(&self.shared.counters.rejected, 1);
                answer(reply, Err(SubmitError::Rejected { rejection, sequence }));
            }
            Outcome::Conflict { sequence } => answer(reply, Err(SubmitError::Conflict { sequence })),
            Outcome::Repeated { sequence, commit } => {
                Counters::add(&self.shared.counters.repeated, 1);
                let Ok(permit) = Arc::clone(&self.rereads).try_acquire_owned() else {
                    return answer(reply, Err(SubmitError::Overloaded { waiting: REREADS }));
                };
                let ledger = Arc::clone(&self.shared.ledger);
                self.shared.outside.spawn(async move {
                    answer(reply, first_answer(&*ledger, sequence, commit).await);
                    drop(permit);
                });
            }
        }
    }

    fn snapshot_if_due(&mut self) {
        let due = self.snapshot_events >= self.shared.config.snapshot_every
            && (self.snapshot_at.elapsed() >= self.shared.config.snapshot_pause.unwrap_or(SNAPSHOT_PAUSE));
        if due {
            self.snapshot();
        }
    }

    fn snapshot(&mut self) {
        let core = &self.core;
        let encode = || EncodedSnapshot::new(self.shared.ledger.genesis(), core.head(), core.state(), core.dedupe());
        if self.shared.save_snapshot(encode) {
            self.snapshot_events = 0;
            self.snapshot_at = Instant::now();
        }
    }

    /// Tells everyone who still waits; leaves a snapshot behind if the process ends with much unsaved.
    fn finish(&mut self, end: &End) {
        let error = match end {
            End::Shutdown => SubmitError::ShuttingDown,
            End::SteppedDown(trouble) => trouble.submit_error(),
        };
        if let Some(reply) = self.core.take_carried() {
            answer(reply, Err(error.clone()));
        }
        self.queue
            .drain(..)
            .for_each(|item| answer(item.reply, Err(error.clone())));
        const WORTH_SAVING: u64 = 1000;
        if matches!(end, End::Shutdown) && self.snapshot_events >= WORTH_SAVING {
            self.snapshot();
        }
    }
}

/// The caller may have gone; the outcome stands all the same.
pub(super) fn answer(reply: Reply, result: Result<Answer, SubmitError>) {
    let _ = reply.send(result);
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Reads an answer that was given once from the ledger.
async fn first_answer(ledger: &dyn Ledger, sequence: u64, commit: u32) -> Result<Answer, SubmitError> {
    let unknown = |reason: String| SubmitError::Unknown {
        reason: format!("it was carried out in record {sequence}, which cannot be read back: {reason}"),
    };
    let stored = ledger
        .read(sequence, 1, 1)
        .await
        .map_err(|error| unknown(error.to_string()))?;
    let raw = stored.first().ok_or_else(|| unknown("it is missing".to_owned()))?;
    let record = Record::decode(&raw.body).map_err(|error| unknown(error.to_string()))?;
    let slot = record.commits.get(commit as usize).and_then(|slot| slot.bytes());
    let bytes = slot.ok_or_else(|| unknown("it has no such commit".to_owned()))?;
    let commit = Commit::decode(bytes).map_err(|error| unknown(error.to_string()))?;
    Ok(Answer {
        sequence,
        events: commit.events,
        repeated: true,
    })
}
