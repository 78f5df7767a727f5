//! A cell without a ledger: commands meet the state and events are folded, and after each commit the invariants, the
//! commit's encoding and the seal are checked. What every test of a decision is written with.
//!
//! Given/when/then: *given* earlier commands (or events), *when* a command, *then* exactly these events or this
//! rejection.

use tidemill_domain::command::{Command, Context};
use tidemill_domain::commit::{Actor, Address, Cause, Commit, CommitHeader};
use tidemill_domain::decide::decide;
use tidemill_domain::events::Event;
use tidemill_domain::events::cell::{EpochStarted, LedgerCreated};
use tidemill_domain::id::{CommandId, LedgerId};
use tidemill_domain::invariants;
use tidemill_domain::rejection::Rejection;
use tidemill_domain::state::seal::Sealer;
use tidemill_domain::state::{EventMeta, State};
use tidemill_domain::time::{Span, Timestamp};

/// A state, the commits that made it, and a clock that moves when told.
pub struct Cell {
    /// The folded state.
    pub state: State,
    /// Every commit so far; commit n is record n + 1.
    pub commits: Vec<Commit>,
    /// The sequencer's time.
    pub now: Timestamp,
    sealer: Sealer,
    asked: u64,
}

impl Default for Cell {
    fn default() -> Self {
        Self::new()
    }
}

impl Cell {
    /// A new cell in its first epoch, at 2026-01-01.
    pub fn new() -> Self {
        let mut cell = Self {
            state: State::default(),
            commits: Vec::new(),
            now: Timestamp(1_767_225_600_000_000),
            sealer: Sealer::default(),
            asked: 0,
        };
        let created = LedgerCreated {
            cell: "test".into(),
            ledger: LedgerId([7; 16]),
        };
        let epoch = EpochStarted {
            epoch: 1,
            leader: "test".into(),
            version: "0".into(),
        };
        cell.commit(
            CommandId::default(),
            Actor::Sequencer,
            vec![created.into(), epoch.into()],
        );
        cell
    }

    /// Lets time pass.
    pub fn wait(&mut self, span: Span) -> &mut Self {
        self.now = self.now + span;
        self
    }

    /// Asks as an operator at this machine.
    pub fn ask(&mut self, command: Command) -> Result<Vec<Event>, Rejection> {
        self.ask_as(Actor::Local, command)
    }

    /// Asks, and expects that it is not refused.
    pub fn given(&mut self, command: Command) -> Vec<Event> {
        let name = command.name();
        self.ask(command)
            .unwrap_or_else(|rejection| panic!("{name} was refused: {rejection}"))
    }

    /// Asks as `actor`.
    pub fn ask_as(&mut self, actor: Actor, command: Command) -> Result<Vec<Event>, Rejection> {
        self.ask_when(actor, command, false)
    }

    /// Asks as `actor`, with the present holder's lease of the role lapsed or not.
    pub fn ask_when(&mut self, actor: Actor, command: Command, term_lapsed: bool) -> Result<Vec<Event>, Rejection> {
        self.asked += 1;
        let id = CommandId::derived(&[&self.asked.to_le_bytes()]);
        let context = Context {
            now: self.now,
            command: id,
            actor: &actor,
            term_lapsed,
        };
        let events = decide(&self.state, &context, command)?;
        if !events.is_empty() {
            self.commit(id, actor, events.clone());
        }
        Ok(events)
    }

    fn commit(&mut self, command: CommandId, actor: Actor, events: Vec<Event>) {
        let sequence = self.commits.len() as u64 + 1;
        let mut id = [0; 16];
        id[8..].copy_from_slice(&sequence.to_be_bytes());
        let header = CommitHeader {
            id,
            command,
            body_hash: [0; 16],
            actor,
            cause: Cause::Request,
            trace: None,
            recorded_at: self.now,
        };
        let commit = Commit { header, events };
        let decoded = Commit::decode(&commit.encode()).expect("what was encoded decodes");
        assert_eq!(decoded, commit, "a commit survives its encoding");
        let mut touched = Vec::new();
        self.state
            .apply_record(sequence, [&commit], &mut touched)
            .unwrap_or_else(|e| panic!("apply refused what decide said: {e}"));
        if let Err(breach) = invariants::check(&self.state, &touched) {
            panic!("{breach}\nafter {:#?}", commit.events);
        }
        self.sealer.touch(&touched);
        self.commits.push(commit);
    }

    /// The seal, from hashes kept incrementally.
    pub fn seal(&mut self) -> [u8; 32] {
        self.sealer.seal(&self.state)
    }

    /// The state folded anew from the commits up to and including record `sequence`.
    pub fn replayed(&self, sequence: usize) -> State {
        let mut state = State::default();
        for (i, commit) in self.commits[..sequence].iter().enumerate() {
            state
                .apply_record(i as u64 + 1, [commit], &mut Vec::new())
                .expect("a ledger folds again as it folded before");
        }
        state
    }

    /// The meta of the last event.
    pub fn last_meta(&self) -> EventMeta {
        let address = Address {
            sequence: self.state.sequence,
            index: 0,
        };
        EventMeta {
            address,
            recorded_at: self.now,
            trace: None,
        }
    }
}
