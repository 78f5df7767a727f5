//! A node.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::commit::Address;
use crate::events::node::{InspectionFinding, NodeInspected, Supply};
use crate::id::{CredentialId, DeviceId, InstanceId, NodeId};
use crate::time::Timestamp;
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
    /// Instances placed here that live or of which something may be left.
    pub instances: BTreeSet<InstanceId>,
    /// What it measured of itself when it joined last.
    pub inspection: Option<NodeInspected>,
    /// Last change of stage or inventory.
    pub changed: Address,
    /// Last change of what the node is to run: its desired state is new since here.
    pub work_changed: Address,
}

impl Node {
    /// What was found wrong when it joined: with the node itself, or with one of its devices.
    pub fn findings(&self, device: Option<DeviceId>) -> impl Iterator<Item = &InspectionFinding> {
        let all = self.inspection.iter().flat_map(|inspection| &inspection.findings);
        all.filter(move |finding| finding.device == device)
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
