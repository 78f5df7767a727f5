//! `nodes`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidemill_domain::events::node::Supply;
use tidemill_domain::id::NodeId;
use tidemill_domain::state::State;
use tidemill_domain::state::device::DeviceCondition;
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::{Milli, Name};

/// One node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
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
    /// Stage, in the contract's words.
    pub state: String,
    /// Devices of its inventory, lost ones included.
    pub devices: u32,
    /// Devices on which nothing is placed.
    pub free_devices: u32,
    /// Devices that cannot be used.
    pub lost_devices: u32,
    /// Thousandths of devices that can be placed on.
    pub free_milli: u64,
    /// Devices by model.
    pub models: BTreeMap<String, u32>,
    /// Instances placed here that live or of which something may be left.
    pub instances: u32,
    /// Where gateways reach its instances; by tunnel if none.
    pub address: Option<String>,
    /// First joined.
    pub joined_at: Timestamp,
    /// Sequence of its last change of stage or inventory.
    pub changed_seq: u64,
    /// Why it is in its state; never empty.
    pub reason: String,
}

/// The row of a node.
pub fn node_row(state: &State, id: NodeId) -> Option<NodeRow> {
    let node = state.nodes.get(&id)?;
    let mut row = NodeRow {
        id,
        name: node.name.clone(),
        supply: node.supply,
        provider: node.provider.clone(),
        region: node.region.clone(),
        zone: node.zone.clone(),
        state: node.state.name().to_owned(),
        devices: 0,
        free_devices: 0,
        lost_devices: 0,
        free_milli: 0,
        models: BTreeMap::new(),
        instances: node.instances.len() as u32,
        address: node.address.clone(),
        joined_at: node.joined_at,
        changed_seq: node.changed.sequence,
        reason: node.reason.clone(),
    };
    for device in node.devices.iter().filter_map(|id| state.devices.get(id)) {
        let free = device.free();
        row.devices += 1;
        row.free_devices += u32::from(free == Milli::WHOLE);
        row.lost_devices += u32::from(device.condition == DeviceCondition::Lost);
        row.free_milli += u64::from(free.0);
        match row.models.get_mut(&device.model) {
            Some(count) => *count += 1,
            None => {
                row.models.insert(device.model.clone(), 1);
            }
        }
    }
    Some(row)
}

impl NodeRow {
    /// The key that lists are ordered and paged by. By name.
    pub fn sort_key(&self) -> String {
        self.name.to_string()
    }
}
