//! Nodes and their devices.

pub mod v1;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::{CredentialId, DeviceId, InstanceId, NodeId};
use crate::time::{Span, Timestamp};
use crate::unit::Name;

use super::service::Runtime;

/// A node enrolled, or came back with a new agent, boot or inventory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeJoined {
    /// Its id; the same on every return under this name.
    pub node: NodeId,
    /// Name, unique in the cell.
    pub name: Name,
    /// Supply kind.
    pub supply: Supply,
    /// Provider.
    pub provider: String,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Where gateways reach its instances; only by tunnel if none.
    pub address: Option<String>,
    /// Kernel boot.
    pub boot_id: String,
    /// Installation.
    pub machine_id: String,
    /// Start of the agent process.
    pub agent_id: String,
    /// Token it enrolled with; none when it came over loopback.
    pub credential: Option<CredentialId>,
    /// Its whole inventory. A device it had and no longer lists is gone.
    pub devices: Vec<JoinedDevice>,
    /// How it can run instances.
    pub runtimes: Vec<Runtime>,
}

/// One device of an inventory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct JoinedDevice {
    /// Derived from the UUID.
    pub device: DeviceId,
    /// Vendor UUID.
    pub uuid: String,
    /// Kind of accelerator.
    pub kind: DeviceKind,
    /// Model name.
    pub model: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Measured over nominal speed in thousandths.
    pub speed_milli: u32,
    /// No hardware behind it.
    pub simulated: bool,
}

/// The node takes work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeReady {
    /// Which.
    pub node: NodeId,
}

/// What a joining node measured of itself, and what was found wrong with it. What was not measured is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeInspected {
    /// Which.
    pub node: NodeId,
    /// How long it took.
    pub took: Span,
    /// Bytes a second one core copies in memory.
    pub memory_bps: Option<u64>,
    /// Bytes a second written to its disk and synced.
    pub disk_write_bps: Option<u64>,
    /// One small synced write.
    pub disk_sync: Option<Span>,
    /// The shortest time to connect to a server.
    pub round_trip: Option<Span>,
    /// What is wrong.
    pub findings: Vec<InspectionFinding>,
}

/// Something wrong with a node or one of its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InspectionFinding {
    /// Which device; none for the node as a whole.
    pub device: Option<DeviceId>,
    /// Stable code.
    pub code: String,
    /// What was seen.
    pub detail: String,
    /// What to do.
    pub next: String,
}

/// The node was silent for long enough to doubt it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeSuspected {
    /// Which.
    pub node: NodeId,
    /// How long it had been silent, counted only while its door was heard.
    pub silent: Span,
    /// What was seen.
    pub reason: String,
}

/// A suspected or lost node was heard again and takes work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeRecovered {
    /// Which.
    pub node: NodeId,
    /// What was seen.
    pub reason: String,
}

/// The node is given up: its instances are lost and its devices out of the pool until it returns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeLost {
    /// Which.
    pub node: NodeId,
    /// How long it had been silent.
    pub silent: Span,
    /// What was seen.
    pub reason: String,
    /// Instances lost with it.
    pub instances: Vec<InstanceId>,
}

/// The node is out of the pool: its owner took it out, and instances that were not stopped before are lost with it; or,
/// if it had been given up already, an operator declared that it will not come back, and nothing waits for its word.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeLeft {
    /// Which.
    pub node: NodeId,
    /// Why.
    pub reason: String,
    /// Instances that had not been stopped.
    pub instances: Vec<InstanceId>,
}

/// The node gets no new work; what runs there stays.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeCordoned {
    /// Which.
    pub node: NodeId,
    /// Why.
    pub reason: String,
}

/// The node takes work again: a cordon, a drain or a reclaim is over or withdrawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeUncordoned {
    /// Which.
    pub node: NodeId,
    /// Why.
    pub reason: String,
}

/// The node is to be emptied: each of its instances is replaced elsewhere, then stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeDrainRequested {
    /// Which.
    pub node: NodeId,
    /// Who wants it back.
    pub cause: DrainCause,
    /// Why.
    pub reason: String,
    /// When it has to be empty, replacements or not; no hurry if none.
    pub deadline: Option<Timestamp>,
}

/// Who wants a node emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum DrainCause {
    /// An operator.
    Operator,
    /// Its provider takes it back.
    Reclaim,
    /// Its owner takes it out of the pool; it leaves once it is empty.
    Leave,
}

/// Everything on a draining node is confirmed stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeDrained {
    /// Which.
    pub node: NodeId,
}

/// Where a node comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Supply {
    /// Own data centre.
    Idc,
    /// Surplus of a public cloud.
    Cloud,
    /// Enterprise or government cluster.
    Enterprise,
    /// Internet café.
    Cafe,
    /// Personal computer.
    Pc,
    /// Bought from a partner pool.
    Partner,
}

impl Supply {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Idc,
        Self::Cloud,
        Self::Enterprise,
        Self::Cafe,
        Self::Pc,
        Self::Partner,
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idc => "idc",
            Self::Cloud => "cloud",
            Self::Enterprise => "enterprise",
            Self::Cafe => "cafe",
            Self::Pc => "pc",
            Self::Partner => "partner",
        }
    }
}

/// Kind of accelerator, by the runtime that drives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// NVIDIA.
    Cuda,
    /// AMD.
    Rocm,
    /// Huawei Ascend.
    Ascend,
    /// Plain CPU capacity.
    Cpu,
}
