//! Nodes and their devices.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::{CredentialId, DeviceId, InstanceId, NodeId};
use crate::time::Span;
use crate::unit::Name;

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

/// The node's owner took it out of the pool; its instances were stopped before or are lost with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct NodeLeft {
    /// Which.
    pub node: NodeId,
    /// Why.
    pub reason: String,
    /// Instances that had not been stopped.
    pub instances: Vec<InstanceId>,
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
