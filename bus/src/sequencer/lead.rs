//! The leader's loop: one group after another, one record in flight.
//!
//! While a record is being made durable, what has queued up by then is decided into the next group; what comes later is
//! added when the ack is there, and the group is appended. So the number of commands per fsync follows the load by
//! itself, and deciding costs no time of its own while the disk is busy. Decisions run on the thread of this loop and
//! nothing else does, so a large group stalls no other task of the process.
//!
//! Deciding ahead is safe because nothing of it leaves: it rests on a record that may yet fail, but its own record is
//! appended and its answers given only behind that one's ack, and if that does not come the core is dropped with all of
//! it. Two records in flight were rejected: JetStream compares a number only, and would let the second follow a stranger.
//!
//! Invariants: answers leave after the ack of their group's record; where a group wrote nothing, after the store has
//! confirmed that this is still its last writer. Whatever fails, each waiting caller is told, and told `Unknown` only if
//! its commit may be stored. Snapshots are taken only of a state that is on the ledger.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::poll;
use tidemill_domain::commit::Commit;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::append::{self, Lost};
use super::core::{Broken, Core, Group, Outcome, Pending, Planned};
use super::reserve::Watch;
use super::shared::Shared;
use super::status::{APPEND_MICROS, Counters, GROUP_COMMITS};
use super::trouble::Trouble;
use crate::commands::{Answer, SubmitError};
use crate::digest::Anchor;
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

/// Answers that are given on the spot.
const FEW: usize = 8;

/// How long a group decided ahead takes more commands in.
const LONG_OPEN: Duration = Duration::from_millis(50);

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
    rereads: Arc<Semaphore>,
    /// Answers being given outside of this thread.
    answering: TaskTracker,
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
            rereads: Arc::new(Semaphore::new(REREADS)),
            answering: TaskTracker::new(),
            snapshot_events,
            snapshot_at: Instant::now(),
        }
    }

    pub(super) async fn run(mut self) -> End {
        let end = loop {
            if self.core.open_since().is_none() {
                if let Some(end) = self.gather().await {
                    break end;
                }
                if let Some(low) = self.reserve.low(&*self.shared.ledger).await {
                    let error = low.submit_error();
                    self.shared.set_role(low.role());
                    self.queue
                        .drain(..)
                        .map(|item| item.reply)
                        .chain(self.core.take_waiting())
                        .for_each(|reply| answer(reply, Err(error.clone())));
                    continue;
                }
                self.shared.set_leader();
                if self.queue.is_empty() && !self.core.has_carried() {
                    continue;
                }
            }
            if let Err(trouble) = self.group().await {
                break End::SteppedDown(trouble);
            }
            if self.snapshot_due() && self.core.open_since().is_none() {
                self.snapshot();
            }
        };
        self.finish(&end);
        self.answering.close();
        self.answering.wait().await;
        end
    }

    /// Takes what has come; waits if nothing is there.
    async fn gather(&mut self) -> Option<End> {
        if self.shared.shutdown.is_cancelled() {
            return Some(End::Shutdown);
        }
        if self.queue.is_empty() && !self.core.has_carried() {
            let next_look = self.reserve.next();
            tokio::select! {
                biased;
                () = self.shared.shutdown.cancelled() => return Some(End::Shutdown),
                () = self.deposed.cancelled() => {
                    return Some(End::SteppedDown(Trouble::deposed("another server began a later epoch")));
                }
                taken = self.intake.recv_many(&mut self.fresh, QUEUE) => {
                    if taken == 0 {
                        return Some(End::Shutdown);
                    }
                }
                () = tokio::time::sleep_until(next_look) => {}
            }
        }
        self.take_queued();
        None
    }

    /// Takes what has come, without waiting.
    fn take_queued(&mut self) {
        let room = QUEUE.saturating_sub(self.queue.len());
        while self.fresh.len() < room {
            match self.intake.try_recv() {
                Ok(item) => self.fresh.push(item),
                Err(_) => break,
            }
        }
        self.queue.extend(self.fresh.drain(..));
    }

    /// Decides what is left to decide of a group, appends, answers.
    async fn group(&mut self) -> Result<(), Trouble> {
        let shared = self.shared;
        let group = match self.complete() {
            Ok(group) => group,
            Err(broken) => return Err(self.broken(&broken)),
        };
        let (Group { planned, answers }, head) = (group, self.core.head());
        let began = Instant::now();
        let (durable, ahead) = {
            let mut durable = pin!(make_durable(shared, planned.as_ref(), head));
            match poll!(durable.as_mut()) {
                Poll::Ready(outcome) => (outcome, Ok(())),
                // The record is on its way.
                Poll::Pending => {
                    let ahead = self.decide_ahead();
                    (durable.await, ahead)
                }
            }
        };
        if let Err((error, trouble)) = durable {
            let trouble = shared.judge(trouble);
            shared.show(&trouble);
            answers
                .into_iter()
                .for_each(|(reply, _)| answer(reply, Err(error.clone())));
            return Err(trouble);
        }
        let counters = &shared.counters;
        Counters::add(&counters.commands, answers.len() as u64);
        if let Some(planned) = &planned {
            let took = micros(began.elapsed());
            Counters::add(&counters.append_micros, took);
            counters.append_times.note(&APPEND_MICROS, took);
            counters.group_commits.note(&GROUP_COMMITS, planned.commits);
            Counters::add(&counters.records, 1);
            Counters::add(&counters.commits, planned.commits);
            Counters::add(&counters.events, planned.events);
            Counters::add(&counters.bytes, planned.record.bytes.len() as u64);
            self.snapshot_events += planned.events;
            shared.set_sequence(self.core.epoch(), planned.record.anchor);
        }
        self.give(answers, head.sequence);
        ahead.map_err(|broken| self.broken(&broken))
    }

    /// Closes the group that is open, or one of what has queued up. One that has been open for long is closed as it is:
    /// what came since is to be recorded under its own time.
    fn complete(&mut self) -> Result<Group<Reply>, Broken> {
        let began = Instant::now();
        let now = self.shared.now();
        if self
            .core
            .open_since()
            .is_none_or(|since| now.elapsed - since < LONG_OPEN)
        {
            self.take_queued();
            self.core.decide(&mut self.queue, now)?;
        }
        let group = self.core.close();
        Counters::add(&self.shared.counters.decide_micros, micros(began.elapsed()));
        group
    }

    /// Decides what has queued up while a record is in flight, unless something is to be looked after before the next.
    fn decide_ahead(&mut self) -> Result<(), Broken> {
        let began = Instant::now();
        if self.shared.shutdown.is_cancelled() || self.snapshot_due() || began >= self.reserve.next() {
            return Ok(());
        }
        self.take_queued();
        if self.queue.is_empty() && !self.core.has_carried() {
            return Ok(());
        }
        let decided = self.core.decide(&mut self.queue, self.shared.now());
        Counters::add(&self.shared.counters.decide_micros, micros(began.elapsed()));
        decided
    }

    /// Tells those whose decisions broke the state. Nothing of the group was written.
    fn broken(&mut self, broken: &Broken) -> Trouble {
        let trouble = Trouble::from(broken);
        tracing::error!(code = trouble.code, %broken, "a decision broke the state; nothing of it was written");
        let error = trouble.submit_error();
        for reply in self.core.take_waiting() {
            answer(reply, Err(error.clone()));
        }
        trouble
    }

    /// Gives a group's answers. Waking a task from outside of its runtime costs a lock and often a system call, so many
    /// answers are given by a task in there, beside the next group.
    fn give(&self, answers: Vec<(Reply, Outcome)>, sequence: u64) {
        let few = answers.len() <= FEW;
        let (shared, rereads) = (Arc::clone(self.shared), Arc::clone(&self.rereads));
        let give = move || {
            for (reply, outcome) in answers {
                give_one(&shared, &rereads, reply, outcome, sequence);
            }
        };
        match few {
            true => give(),
            false => drop(self.answering.spawn_on(async move { give() }, &self.shared.outside)),
        }
    }

    fn snapshot_due(&self) -> bool {
        self.snapshot_events >= self.shared.config.snapshot_every
            && (self.snapshot_at.elapsed() >= self.shared.config.snapshot_pause.unwrap_or(SNAPSHOT_PAUSE))
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
        self.queue
            .drain(..)
            .map(|item| item.reply)
            .chain(self.core.take_waiting())
            .for_each(|reply| answer(reply, Err(error.clone())));
        const WORTH_SAVING: u64 = 1000;
        if matches!(end, End::Shutdown) && self.snapshot_events >= WORTH_SAVING {
            self.snapshot();
        }
    }
}

/// Appends a group's record; where it has none, asks the store whether this is still its last writer, which stands at
/// `head`. An error is what to tell the callers, and what it means for the leader.
async fn make_durable(shared: &Shared, planned: Option<&Planned>, head: Anchor) -> Result<(), (SubmitError, Trouble)> {
    let lost = |lost: &Lost| (lost.submit_error(), Trouble::from(lost));
    if let Some(planned) = planned {
        let appended = append::append(&*shared.ledger, planned, shared.config.patience).await;
        return appended.map_err(|error| lost(&error));
    }
    let no_leader = |trouble: Trouble| {
        let reason = trouble.reason.clone();
        (SubmitError::NoLeader { reason }, trouble)
    };
    match shared.ledger.tail().await {
        Ok(tail) if tail.anchor() == head => Ok(()),
        Ok(tail) if tail.sequence < head.sequence => Err(lost(&Lost {
            cause: append::Cause::Shorter {
                last: tail.sequence,
                known: head.sequence,
            },
            maybe_stored: false,
        })),
        Ok(tail) => {
            let reason = format!("the ledger has moved on to record {}", tail.sequence);
            Err(no_leader(Trouble::deposed(reason)))
        }
        Err(error) => Err(no_leader(Trouble::from(&crate::fold::FoldError::from(error)))),
    }
}

/// Gives one answer; `sequence` is the last record it rests on.
fn give_one(shared: &Arc<Shared>, rereads: &Arc<Semaphore>, reply: Reply, outcome: Outcome, sequence: u64) {
    let accepted = |events| Answer {
        sequence,
        events,
        repeated: false,
    };
    match outcome {
        Outcome::Accepted(events) => answer(reply, Ok(accepted(events))),
        Outcome::Unchanged => answer(reply, Ok(accepted(Vec::new()))),
        Outcome::Rejected(rejection) => {
            Counters::add(&shared.counters.rejected, 1);
            answer(reply, Err(SubmitError::Rejected { rejection, sequence }));
        }
        Outcome::Conflict { sequence } => answer(reply, Err(SubmitError::Conflict { sequence })),
        Outcome::Repeated { sequence, commit } => {
            Counters::add(&shared.counters.repeated, 1);
            let Ok(permit) = Arc::clone(rereads).try_acquire_owned() else {
                return answer(reply, Err(SubmitError::Overloaded { waiting: REREADS }));
            };
            let ledger = Arc::clone(&shared.ledger);
            shared.outside.spawn(async move {
                answer(reply, first_answer(&*ledger, sequence, commit).await);
                drop(permit);
            });
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
