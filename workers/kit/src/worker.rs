//! What a worker is: a sans-I/O core that answers a state with wishes.

use bytes::Bytes;
use tidemill_domain::command::Command;
use tidemill_domain::commit::{Address, Cause, TraceContext};
use tidemill_domain::id::InstanceId;
use tidemill_domain::state::State;
use tidemill_domain::state::instance::Instance;
use tidemill_domain::state::node::Node;
use tidemill_domain::state::service::Service;
use tidemill_domain::time::{Span, Timestamp};

use crate::observation::Seen;

/// A worker's core. The shell ([`crate::spawn`]) and the simulator drive the same one.
///
/// Everything a worker asks for follows from the folded state (and, for some, from what was observed lately), so a step
/// may be repeated, skipped or taken after a restart without harm. It keeps memory only for what makes it quicker.
pub trait Worker: Send + 'static {
    /// The role, as in terms, logs and metrics.
    const ROLE: &'static str;

    /// From where it reads observations, asked once when it starts.
    fn reads(&self, _state: &State) -> Reads {
        Reads::Nothing
    }

    /// Takes blocks of observations in, in order. Called also while another process holds the role, so that a standby
    /// knows what it needs to know when its turn comes.
    fn observe(&mut self, _blocks: &[ObservedBlock], _mono: Span) {}

    /// Blocks were dropped before they could be read.
    fn missed(&mut self) {}

    /// Looks at the state and says what it wants. Called only while the role is held, and only after the answers to the
    /// wishes of the last step are in the state.
    fn step(&mut self, input: StepInput<'_>) -> Step;
}

/// What of the observations a worker reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// None.
    Nothing,
    /// Those that come from now on.
    New,
    /// Those from this block on, or from the oldest kept if that is later.
    From(u64),
    /// The last so many there are, marked as past, and those that come.
    Lately(u64),
}

/// A block of observations as a worker sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedBlock {
    /// Its sequence.
    pub sequence: u64,
    /// Its exact bytes, for digests.
    pub body: Bytes,
    /// What of it this build understands.
    pub seen: Vec<Seen>,
    /// It was there before the worker began to read.
    pub past: bool,
}

/// What a step looks at.
#[derive(Debug, Clone, Copy)]
pub struct StepInput<'a> {
    /// The state.
    pub state: &'a State,
    /// The ledger's time, as well as it is known; never before the state's last record.
    pub now: Timestamp,
    /// The process's monotonic clock, since the worker began.
    pub mono: Span,
}

/// What a step wants.
#[derive(Debug, Default)]
pub struct Step {
    /// Commands to be asked.
    pub wishes: Vec<Wish>,
    /// Look again at this time even if nothing changes.
    pub wake_at: Option<Timestamp>,
    /// Look again at this point of the monotonic clock even if nothing changes.
    pub wake_mono: Option<Span>,
}

impl Step {
    /// Asks to look again at `at`, if that is earlier than asked so far.
    pub fn wake_at(&mut self, at: Option<Timestamp>) {
        self.wake_at = earliest(self.wake_at, at);
    }

    /// Asks to look again at `mono`, if that is earlier than asked so far.
    pub fn wake_mono(&mut self, mono: Option<Span>) {
        self.wake_mono = earliest(self.wake_mono, mono);
    }
}

/// The earlier of two times that may not be set.
pub(crate) fn earliest<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A command that a worker wants asked, with what makes asking it twice asking it once.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    /// The command.
    pub command: Command,
    /// What it is about.
    pub target: String,
    /// Where the target last changed: the same wish about the same version is the same command.
    pub version: Address,
    /// What it answers to.
    pub cause: Cause,
    /// Trace of what made it necessary.
    pub trace: Option<TraceContext>,
}

impl Wish {
    /// About a service, caused by its last change.
    pub fn about_service(service: &Service, command: Command) -> Self {
        Self {
            command,
            target: service.id.to_string(),
            version: service.changed,
            cause: Cause::Event(service.changed),
            trace: service.trace,
        }
    }

    /// About a node, caused by observations.
    pub fn about_node(node: &Node, command: Command, observations: (u64, u64)) -> Self {
        Self {
            command,
            target: node.id.to_string(),
            version: node.changed,
            cause: observed(observations),
            trace: None,
        }
    }

    /// About instances, of which `first` stands for all, caused by its last change.
    pub fn about_instances(first: &Instance, command: Command) -> Self {
        Self {
            command,
            target: first.id.to_string(),
            version: first.changed,
            cause: Cause::Event(first.changed),
            trace: first.trace,
        }
    }

    /// About something that has no last change of its own: `target` says it all.
    pub fn about(target: String, command: Command, observations: (u64, u64)) -> Self {
        Self {
            command,
            target,
            version: Address::default(),
            cause: observed(observations),
            trace: None,
        }
    }
}

fn observed((first, last): (u64, u64)) -> Cause {
    Cause::Observations { first, last }
}

/// Ids in chunks that one command takes, each with its first instance.
pub fn chunks(ids: &[InstanceId]) -> impl Iterator<Item = &[InstanceId]> {
    ids.chunks(tidemill_domain::command::CHUNK)
}
