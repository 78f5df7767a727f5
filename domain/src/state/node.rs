//! A node.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use crate::commit::Address;
use crate::events::node::{DrainCause, InspectionFinding, NodeInspected, Supply};
use crate::events::service::Runtime;
use crate::id::{CredentialId, DeviceId, InstanceId, NodeId};
use crate::time::{Span, Timestamp};
use crate::unit::Name;

/// A host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Name.
    pub name: Name,
    /// Supply kind.
    pub supply: Supply,
    /// Provider.
    pub provider: String,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Where gateways reach its instances.
    pub address: Option<String>,
    /// Kernel boot.
    pub boot_id: String,
    /// Installation.
    pub machine_id: String,
    /// Start of its agent process.
    pub agent_id: String,
    /// Token it enrolled with.
    pub credential: Option<CredentialId>,
    /// Its stage.
    pub state: NodeState,
    /// Why it is in that stage; never empty.
    pub reason: String,
    /// First joined.
    pub joined_at: Timestamp,
    /// Inventory, devices it no longer lists but on which holds remain included.
    pub devices: BTreeSet<DeviceId>,
    /// How it can run instances, in order.
    pub runtimes: Vec<Runtime>,
    /// Instances placed here that live or of which something may be left.
    pub instances: BTreeSet<InstanceId>,
    /// What it measured of itself when it joined last.
    pub inspection: Option<NodeInspected>,
    /// Whether it takes new work, as operators and owners want it.
    pub intake: Intake,
    /// When it was doubted lately, oldest first, at most [`DOUBTS_KEPT`].
    pub doubts: VecDeque<Timestamp>,
    /// Last change of stage or inventory.
    pub changed: Address,
    /// Last change of what the node is to run: its desired state is new since here.
    pub work_changed: Address,
}

/// Doubts of a node that are remembered.
pub const DOUBTS_KEPT: usize = 8;
/// Doubts within this time count together.
const DOUBTS_WITHIN: Span = Span::from_secs(600);
/// A node that was doubted this often within that time is unsteady.
const UNSTEADY_AFTER: usize = 3;
/// How long it must not be doubted then before it gets work again; doubles with each further doubt.
const STEADY_FOR: Span = Span::from_secs(30);
/// The longest such time.
const STEADY_AT_MOST: Span = Span::from_secs(600);

impl Node {
    /// From when on a node that was doubted several times gets new work again; none for one that was not. What runs there
    /// meanwhile stays: moving it would be one more disturbance.
    pub fn steady_at(&self) -> Option<Timestamp> {
        let last = *self.doubts.back()?;
        let close = self
            .doubts
            .iter()
            .filter(|at| last.since(**at) <= DOUBTS_WITHIN)
            .count();
        let beyond = close.checked_sub(UNSTEADY_AFTER)?;
        let wait = STEADY_FOR.micros() << beyond.min(DOUBTS_KEPT);
        Some(last + Span::from_micros(wait).min(STEADY_AT_MOST))
    }

    /// What was found wrong when it joined: with the node itself, or with one of its devices.
    pub fn findings(&self, device: Option<DeviceId>) -> impl Iterator<Item = &InspectionFinding> {
        let all = self.inspection.iter().flat_map(|inspection| &inspection.findings);
        all.filter(move |finding| finding.device == device)
    }

    /// Whether new work may be placed on it.
    pub fn takes_work(&self) -> bool {
        self.state == NodeState::Ready && self.intake == Intake::Open
    }

    /// The word for its state: what was asked of it, unless it is out of reach.
    pub fn state_name(&self) -> &'static str {
        match (self.state, &self.intake) {
            (NodeState::Ready, Intake::Cordoned { .. }) => "cordoned",
            (NodeState::Ready, Intake::Draining(_)) => "draining",
            (NodeState::Ready, Intake::Drained(_)) => "drained",
            (state, _) => state.name(),
        }
    }

    /// Why it is in that state.
    pub fn state_reason(&self) -> &str {
        match (self.state, &self.intake) {
            (NodeState::Ready, Intake::Cordoned { reason }) => reason,
            (NodeState::Ready, Intake::Draining(drain) | Intake::Drained(drain)) => &drain.reason,
            _ => &self.reason,
        }
    }
}

/// Whether a node takes new work, as operators and owners want it: another question than whether it is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intake {
    /// It does.
    Open,
    /// It does not; what runs there stays.
    Cordoned {
        /// Why.
        reason: String,
    },
    /// It is being emptied.
    Draining(Drain),
    /// Everything on it was confirmed stopped.
    Drained(Drain),
}

/// A node being emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Who wants that.
    pub cause: DrainCause,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: Timestamp,
    /// When it has to be empty.
    pub deadline: Option<Timestamp>,
}

impl Intake {
    /// The drain under way, if one is.
    pub fn draining(&self) -> Option<&Drain> {
        match self {
            Intake::Draining(drain) => Some(drain),
            Intake::Open | Intake::Cordoned { .. } | Intake::Drained(_) => None,
        }
    }
}

/// A node's stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Enrolled, inventory not accepted yet.
    Joining,
    /// Takes work.
    Ready,
    /// Silent; takes no new work.
    Suspect,
    /// Given up until it returns.
    Lost,
    /// Out of the pool.
    Left,
}

impl NodeState {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            NodeState::Joining => "joining",
            NodeState::Ready => "ready",
            NodeState::Suspect => "suspect",
            NodeState::Lost => "lost",
            NodeState::Left => "left",
        }
    }
}
