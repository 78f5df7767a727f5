//! Bodies of nodes as releases before runtime docker wrote them. Read only.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{JoinedDevice, Supply};
use crate::events::service::Runtime;
use crate::id::{CredentialId, NodeId};
use crate::unit::Name;

/// Version 1 of [`super::NodeJoined`].
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
    /// Its whole inventory.
    pub devices: Vec<JoinedDevice>,
}

impl From<NodeJoined> for super::NodeJoined {
    fn from(old: NodeJoined) -> Self {
        Self {
            node: old.node,
            name: old.name,
            supply: old.supply,
            provider: old.provider,
            region: old.region,
            zone: old.zone,
            address: old.address,
            boot_id: old.boot_id,
            machine_id: old.machine_id,
            agent_id: old.agent_id,
            credential: old.credential,
            devices: old.devices,
            runtimes: Runtime::unsaid(),
        }
    }
}
