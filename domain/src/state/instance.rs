//! An instance.

use serde::{Deserialize, Serialize};

use crate::commit::{Address, TraceContext};
use crate::events::instance::{Hold, StopReason};
use crate::id::{InstanceId, NodeId, ServiceId};
use crate::time::{Span, Timestamp};

use super::State;
use super::node::NodeState;

/// One running copy of a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    /// Its id.
    pub id: InstanceId,
    /// Of which service.
    pub service: ServiceId,
    /// Of which generation.
    pub generation: u64,
    /// Its stage.
    pub state: InstanceState,
    /// Why it is in that stage; never empty.
    pub reason: String,
    /// Where it was placed.
    pub node: Option<NodeId>,
    /// Kept warm and out of rotation.
    pub standby: bool,
    /// When it came into rotation from standing by.
    pub promoted_at: Option<Timestamp>,
    /// What it was given.
    pub holds: Vec<Hold>,
    /// Something of it may be left on its node: the holds are still counted.
    pub holding: bool,
    /// `HOST:PORT` once ready.
    pub endpoint: Option<String>,
    /// Process id on its node.
    pub pid: Option<u32>,
    /// Port on its node.
    pub port: Option<u16>,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// When it was placed.
    pub placed_at: Option<Timestamp>,
    /// When it became ready last.
    pub ready_at: Option<Timestamp>,
    /// When the last thing about it happened.
    pub occurred_at: Timestamp,
    /// How long each step of the start-up chain took.
    pub timings: Timings,
    /// Why it is to be replaced elsewhere, where somebody asked for that.
    pub moving: Option<String>,
    /// Last change.
    pub changed: Address,
    /// Trace of what made it.
    pub trace: Option<TraceContext>,
}

impl Instance {
    /// Whether it is a replica that answers.
    pub fn serves(&self) -> bool {
        self.state == InstanceState::Ready && !self.standby
    }

    /// Since when it could have been sent requests: since it answers and is a replica. None while it does not answer.
    pub fn available_at(&self) -> Option<Timestamp> {
        Some(self.ready_at?.max(self.promoted_at.unwrap_or(self.ready_at?)))
    }

    /// Since when a gateway has sent it requests, as far as that is recorded.
    pub fn in_rotation_at(&self) -> Option<Timestamp> {
        Some(self.available_at()? + self.timings.in_rotation?)
    }

    /// The word for its state: a standby that answers stands by.
    pub fn state_name(&self) -> &'static str {
        match self.state {
            InstanceState::Ready if self.standby => "standby",
            state => state.name(),
        }
    }
}

/// The start-up chain, step by step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    /// From the change of what is wanted to the request for this instance.
    pub decide: Option<Span>,
    /// From request to placement.
    pub place: Option<Span>,
    /// Fetching, on the node.
    pub fetch: Option<Span>,
    /// From order to running process, on the node.
    pub start: Option<Span>,
    /// From running process to ready, on the node.
    pub load: Option<Span>,
    /// From placement to ready, as recorded.
    pub ready: Option<Span>,
    /// From ready to a gateway sending requests.
    pub in_rotation: Option<Span>,
}

/// An instance's stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// Waits for devices.
    Pending,
    /// Has devices; its node is to start it.
    Placed,
    /// Its process runs.
    Starting,
    /// Answers.
    Ready,
    /// Gets no new requests; gateways are leaving it.
    Draining(StopReason),
    /// Its node is to stop it.
    Stopping(StopReason),
    /// Ended as asked.
    Stopped,
    /// Ended by itself.
    Failed,
    /// Went with its node.
    Lost,
}

impl InstanceState {
    /// Whether it has ended.
    pub fn ended(self) -> bool {
        matches!(
            self,
            InstanceState::Stopped | InstanceState::Failed | InstanceState::Lost
        )
    }

    /// Whether it is being left or stopped.
    pub fn leaving(self) -> bool {
        matches!(self, InstanceState::Draining(_) | InstanceState::Stopping(_))
    }

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            InstanceState::Pending => "pending",
            InstanceState::Placed => "placed",
            InstanceState::Starting => "starting",
            InstanceState::Ready => "ready",
            InstanceState::Draining(_) | InstanceState::Stopping(_) => "draining",
            InstanceState::Stopped => "stopped",
            InstanceState::Failed => "failed",
            InstanceState::Lost => "lost",
        }
    }
}

/// Why an instance that runs is not counted on where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Displaced {
    /// Its node is doubted: whether it serves is not known, and it counts again once its node is back.
    Doubted,
    /// Its node is being emptied, by the deadline if there is one.
    Draining {
        /// Since when.
        since: Timestamp,
        /// By when.
        deadline: Option<Timestamp>,
    },
    /// It was asked to move.
    Moving,
}

impl State {
    /// Why `instance` is not counted on where it is, if that is so.
    pub fn displaced(&self, instance: &Instance) -> Option<Displaced> {
        let node = instance.node.and_then(|id| self.nodes.get(&id))?;
        if matches!(node.state, NodeState::Suspect | NodeState::Lost) {
            return Some(Displaced::Doubted);
        }
        if let Some(drain) = node.intake.draining() {
            return Some(Displaced::Draining {
                since: drain.since,
                deadline: drain.deadline,
            });
        }
        instance.moving.as_ref().map(|_| Displaced::Moving)
    }
}

impl StopReason {
    /// As a sentence for `reason`.
    pub fn sentence(self) -> &'static str {
        match self {
            StopReason::ScaledDown => "more replicas than wanted",
            StopReason::Replaced => "replaced by a newer generation",
            StopReason::ServiceStopped => "its service was stopped",
            StopReason::ServiceDeleted => "its service was deleted",
            StopReason::NodeDraining => "its node is being emptied",
            StopReason::Moved => "it was asked to move",
            StopReason::NodeDoubted => "its node is doubted and it never served there",
        }
    }
}
