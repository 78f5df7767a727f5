//! The sequencer's decisions, without the world: queued commands in, one record and its answers out.
//!
//! [`Core::decide`] takes commands from a queue, decides them one by one on its own state, applies each one's events
//! at once so that the next sees them, and adds their commits to the open group; [`Core::close`] makes one record of it.
//! Nothing is durable then: the caller appends exactly these bytes, and gives the answers away only after that
//! succeeded. If it does not, the core is ahead of the ledger and is dropped, with whatever it has decided since. Cloning
//! the state to be able to go back was rejected: dropping is simpler to get right and a leader that cannot append has no
//! use for its state.
//!
//! Invariants: a commit that does not fit a record is refused before it touches the state. Time handed to decisions never
//! decreases, and is one time for a group. A group is bounded in bytes and in commands. After a breach of an invariant
//! the core decides nothing more.

use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

use tidemill_domain::command::{Command, Context, Envelope};
use tidemill_domain::commit::{Actor, Address, Cause, Commit, CommitHeader, TraceContext};
use tidemill_domain::decide::decide;
use tidemill_domain::events::Event;
use tidemill_domain::events::cell::{EpochStarted, LedgerCreated, StateSealed};
use tidemill_domain::id::{CommandId, LedgerId};
use tidemill_domain::invariants::{self, Breach};
use tidemill_domain::rejection::Rejection;
use tidemill_domain::state::seal::Sealer;
use tidemill_domain::state::{Entity, EventMeta, STATE_VERSION, State, Touched};
use tidemill_domain::time::Timestamp;

use super::dedupe::Dedupe;
use super::leases::Leases;
use crate::digest::Anchor;
use crate::fold::Fold;
use crate::identity::Genesis;
use crate::ledger::Hints;
use crate::record::{MAX_COMMIT_BYTES, MAX_RECORD_BYTES, RecordBuilder, RecordHeader, SealedRecord};

/// Encoded size at which a group is closed: what one more ordinary commit and a seal need is left free.
pub const GROUP_BYTES: usize = 200 * 1024;

/// Most commands looked at for one group: bounds the time to the answers when most of them write nothing.
pub const GROUP_COMMANDS: usize = 4096;

/// Events between two seals of the state.
pub const SEAL_EVERY: u64 = 10_000;

/// The clocks of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Wall clock; may jump, the core clamps it.
    pub wall: Timestamp,
    /// Monotonic clock, since any fixed point.
    pub elapsed: Duration,
}

/// A command that waits, with the way back to who asked.
#[derive(Debug)]
pub struct Pending<R> {
    /// What is asked. Boxed: it passes through three queues, and commands are large.
    pub envelope: Box<Envelope>,
    /// [`Envelope::body_hash`], worked out by whoever queued it.
    pub body_hash: [u8; 16],
    /// Where the answer goes.
    pub reply: R,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// These events follow; they are in the group's record.
    Accepted(Vec<Event>),
    /// The wish is already true.
    Unchanged,
    /// No.
    Rejected(Rejection),
    /// Carried out before: the first answer stands in this record and commit.
    Repeated {
        /// Record.
        sequence: u64,
        /// Commit in it.
        commit: u32,
    },
    /// The id was used for another command.
    Conflict {
        /// Record of that one.
        sequence: u64,
    },
}

/// A record to append.
#[derive(Debug)]
pub struct Planned {
    /// Its bytes and place.
    pub record: SealedRecord,
    /// What it is about, for tools.
    pub hints: Hints,
    /// Events in it.
    pub events: u64,
    /// Commits in it.
    pub commits: u64,
}

/// A decided group.
#[derive(Debug)]
pub struct Group<R> {
    /// The record to append first; none if no command wrote anything.
    pub planned: Option<Planned>,
    /// The answers to give once it is durable.
    pub answers: Vec<(R, Outcome)>,
}

/// Why a core decides nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A standing invariant does not hold after a decision.
    #[error(transparent)]
    Invariant(#[from] Breach),
    /// The state does not take an event that was decided on it.
    #[error(transparent)]
    Apply(#[from] tidemill_domain::state::ApplyError),
}

/// A commit decided but not yet in a record: it did not fit the last one.
struct Carried<R> {
    header: CommitHeader,
    events: Vec<Event>,
    lease: Option<String>,
    reply: R,
}

/// The deciding half of a leading sequencer.
pub struct Core<R> {
    genesis: Genesis,
    epoch: u64,
    state: State,
    sealer: Sealer,
    dedupe: Dedupe,
    leases: Leases,
    head: Anchor,
    recorded_at: Timestamp,
    commits: u64,
    since_seal: u64,
    carried: Option<Carried<R>>,
    /// When the open group was begun, on the monotonic clock.
    opened: Option<Duration>,
    /// What came of the open group's commands.
    answers: Answers<R>,
    builder: RecordBuilder,
    scratch: Vec<u8>,
    touched: Touched,
    index: u32,
    hints: Hints,
}

/// Who waits for what came of it.
type Answers<R> = Vec<(R, Outcome)>;

impl<R> Core<R> {
    /// Takes over: the core, and the record that makes it the writer once it is appended.
    pub fn take_over(
        genesis: &Genesis,
        fold: Fold,
        dedupe: Dedupe,
        leader: &str,
        version: &str,
        now: Now,
    ) -> Result<(Self, Planned), Broken> {
        let (chain, state) = fold.into_parts();
        let head = chain.head();
        let epoch = state.cell.epoch + 1;
        let recorded_at = now.wall.max(state.recorded_at).max(Timestamp(chain.recorded_at()));
        let mut core = Self {
            genesis: genesis.clone(),
            epoch,
            sealer: Sealer::of(&state),
            state,
            dedupe,
            leases: Leases::new(now.elapsed),
            head,
            recorded_at,
            commits: 0,
            since_seal: 0,
            carried: None,
            opened: None,
            answers: Vec::new(),
            builder: RecordBuilder::new(),
            scratch: Vec::new(),
            touched: Touched::new(),
            index: 0,
            hints: Hints::default(),
        };
        let mut events: Vec<Event> = Vec::with_capacity(2);
        if head.sequence == 0 {
            let cell = genesis.cell.as_str().to_owned();
            let ledger = LedgerId(*genesis.ledger_id.0.as_bytes());
            events.push(LedgerCreated { cell, ledger }.into());
        }
        let (leader, version) = (leader.to_owned(), version.to_owned());
        events.push(EpochStarted { epoch, leader, version }.into());
        core.own_commit(&events)?;
        core.seal_state()?;
        let planned = core.record();
        Ok((core, planned))
    }

    /// The writer's epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The last record decided.
    #[must_use]
    pub fn head(&self) -> Anchor {
        self.head
    }

    /// The state behind it.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The command ids remembered.
    #[must_use]
    pub fn dedupe(&self) -> &Dedupe {
        &self.dedupe
    }

    /// True if a commit waits for the next record.
    #[must_use]
    pub fn has_carried(&self) -> bool {
        self.carried.is_some()
    }

    /// When the open group was begun, on the monotonic clock; none if there is none.
    #[must_use]
    pub fn open_since(&self) -> Option<Duration> {
        self.opened
    }

    /// The ways back to who waits for what was decided and is in no record yet, given up together with the core.
    pub fn take_waiting(&mut self) -> Vec<R> {
        let carried = self.carried.take().map(|carried| carried.reply);
        let decided = mem::take(&mut self.answers).into_iter().map(|(reply, _)| reply);
        decided.chain(carried).collect()
    }

    /// Decides queued commands, oldest first, into the open group, beginning one if there is none, until the group is full
    /// or the queue empty.
    ///
    /// On [`Broken`] nothing of the group may be appended; [`Core::take_waiting`] says who waits for it.
    pub fn decide(&mut self, queue: &mut VecDeque<Pending<R>>, now: Now) -> Result<(), Broken> {
        if self.opened.is_none() {
            self.opened = Some(now.elapsed);
            self.recorded_at = self.recorded_at.max(now.wall);
            self.answers.reserve(queue.len().min(GROUP_COMMANDS));
            if let Some(carried) = self.carried.take() {
                self.commit(carried, now)?;
            }
        }
        while self.used() < GROUP_BYTES && self.answers.len() < GROUP_COMMANDS && self.carried.is_none() {
            let Some(pending) = queue.pop_front() else { break };
            self.decide_one(pending, now)?;
        }
        Ok(())
    }

    /// Closes the open group.
    pub fn close(&mut self) -> Result<Group<R>, Broken> {
        if self.since_seal >= SEAL_EVERY && !self.builder.is_empty() {
            self.seal_state()?;
        }
        self.opened = None;
        let planned = (!self.builder.is_empty()).then(|| self.record());
        let answers = mem::take(&mut self.answers);
        Ok(Group { planned, answers })
    }

    fn used(&self) -> usize {
        MAX_RECORD_BYTES - self.builder.left_bytes()
    }

    fn decide_one(&mut self, pending: Pending<R>, now: Now) -> Result<(), Broken> {
        let Pending {
            envelope,
            body_hash,
            reply,
        } = pending;
        let Envelope {
            id,
            actor,
            cause,
            trace,
            command,
        } = *envelope;
        if let Some(known) = self.dedupe.get(&id) {
            let (sequence, commit) = (known.sequence, known.commit);
            let outcome = match known.body_hash == body_hash {
                true => Outcome::Repeated { sequence, commit },
                false => Outcome::Conflict { sequence },
            };
            self.answers.push((reply, outcome));
            return Ok(());
        }
        let lease = match &command {
            Command::AcquireTerm { role, .. } => Some(role.clone()),
            _ => None,
        };
        let context = Context {
            now: self.recorded_at,
            command: id,
            actor: &actor,
            term_lapsed: lease.as_ref().is_some_and(|role| self.leases.lapsed(role, now.elapsed)),
        };
        match decide(&self.state, &context, command) {
            Err(rejection) => self.answers.push((reply, Outcome::Rejected(rejection))),
            Ok(events) if events.is_empty() => {
                if let Some(role) = lease {
                    self.leases.grant(role, now.elapsed);
                }
                self.answers.push((reply, Outcome::Unchanged));
            }
            Ok(events) => {
                let header = self.header(id, body_hash, actor, cause, trace);
                let decided = Carried {
                    header,
                    events,
                    lease,
                    reply,
                };
                self.commit(decided, now)?;
            }
        }
        Ok(())
    }

    fn header(
        &self,
        command: CommandId,
        body_hash: [u8; 16],
        actor: Actor,
        cause: Cause,
        trace: Option<TraceContext>,
    ) -> CommitHeader {
        CommitHeader {
            id: self.commit_id(),
            command,
            body_hash,
            actor,
            cause,
            trace,
            recorded_at: self.recorded_at,
        }
    }

    fn commit_id(&self) -> [u8; 16] {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.epoch.to_be_bytes());
        id[8..].copy_from_slice(&self.commits.to_be_bytes());
        id
    }

    /// Puts a decided commit into the record and its events into the state; carries it over if the record is full.
    fn commit(&mut self, mut decided: Carried<R>, now: Now) -> Result<(), Broken> {
        // A carried commit belongs to the record it gets into.
        decided.header.id = self.commit_id();
        decided.header.recorded_at = self.recorded_at;
        if let Err(bytes) = self.encode(&decided.header, &decided.events) {
            if self.builder.is_empty() || bytes > MAX_COMMIT_BYTES {
                let rejection = Rejection::TooMany {
                    what: "bytes of events".to_owned(),
                    asked: bytes as u64,
                    limit: MAX_COMMIT_BYTES as u64,
                };
                self.answers.push((decided.reply, Outcome::Rejected(rejection)));
            } else {
                self.carried = Some(decided);
            }
            return Ok(());
        }
        let Carried {
            header,
            events,
            lease,
            reply,
        } = decided;
        let number = self.builder.len() as u32 - 1;
        let sequence = self.head.sequence + 1;
        self.commits += 1;
        self.dedupe
            .insert(header.command, header.body_hash, sequence, number, header.recorded_at);
        let applied = self.apply(&events, header.trace);
        if let Some(role) = lease {
            self.leases.grant(role, now.elapsed);
        }
        self.answers.push((reply, Outcome::Accepted(events)));
        applied
    }

    /// Encodes into the record; `Err` is the size of a commit that does not fit.
    fn encode(&mut self, header: &CommitHeader, events: &[Event]) -> Result<(), usize> {
        let scratch = &mut self.scratch;
        self.builder
            .push_with(|out| *out = Commit::encode_into(header, events, mem::take(out), scratch))
            .map(drop)
            .map_err(|refused| refused.commit_bytes)
    }

    fn apply(&mut self, events: &[Event], trace: Option<TraceContext>) -> Result<(), Broken> {
        self.touched.clear();
        for event in events {
            let address = Address {
                sequence: self.head.sequence + 1,
                index: self.index,
            };
            let meta = EventMeta {
                address,
                recorded_at: self.recorded_at,
                trace,
            };
            self.state.apply(event, &meta, &mut self.touched)?;
            self.hints.add_kind(event.name());
            self.index += 1;
        }
        self.since_seal += events.len() as u64;
        if self.touched.len() > 1 {
            self.touched.sort_unstable();
            self.touched.dedup();
        }
        invariants::check(&self.state, &self.touched)?;
        self.sealer.touch(&self.touched);
        if self.hints_wanted() {
            self.touched.iter().for_each(|entity| hint(&mut self.hints, entity));
        }
        Ok(())
    }

    /// Targets cost a text each: only the first few of a record are noted.
    fn hints_wanted(&self) -> bool {
        self.index as usize <= crate::ledger::MAX_HINTS
    }

    /// A commit of the sequencer itself.
    fn own_commit(&mut self, events: &[Event]) -> Result<(), Broken> {
        let command = CommandId::derived(&[b"sequencer", &self.epoch.to_be_bytes(), &self.commits.to_be_bytes()]);
        let header = self.header(command, [0; 16], Actor::Sequencer, Cause::Request, None);
        if self.encode(&header, events).is_ok() {
            self.commits += 1;
            self.apply(events, None)?;
        }
        Ok(())
    }

    /// Seals the state; left for the next record if this one has no room.
    fn seal_state(&mut self) -> Result<(), Broken> {
        let before = self.commits;
        let hash = self.sealer.seal(&self.state);
        let sealed = StateSealed {
            state_version: STATE_VERSION,
            hash,
            entities: self.sealer.entities(),
            events: self.state.events,
        };
        self.own_commit(&[sealed.into()])?;
        if self.commits > before {
            self.since_seal = 0;
        }
        Ok(())
    }

    /// The commits of the open group as a record.
    fn record(&mut self) -> Planned {
        let header = RecordHeader {
            cell: self.genesis.cell.clone(),
            ledger_id: self.genesis.ledger_id,
            sequence: self.head.sequence + 1,
            epoch: self.epoch,
            recorded_at: self.recorded_at.0,
        };
        let commits = self.builder.len() as u64;
        let record = self.builder.seal(&header, &self.head.hash);
        self.head = record.anchor;
        let events = u64::from(mem::take(&mut self.index));
        Planned {
            record,
            hints: mem::take(&mut self.hints),
            events,
            commits,
        }
    }
}

fn hint(hints: &mut Hints, entity: &Entity) {
    match entity {
        Entity::Cell => {}
        Entity::Term(role) => hints.add_target(role),
        Entity::Credential(id) => hints.add_target(&id.to_string()),
        Entity::Node(id) => hints.add_target(&id.to_string()),
        Entity::Device(id) => hints.add_target(&id.to_string()),
        Entity::Service(id) => hints.add_target(&id.to_string()),
        Entity::Instance(id) => hints.add_target(&id.to_string()),
        Entity::Switch(id) => hints.add_target(&id.to_string()),
    }
}
