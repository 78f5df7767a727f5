//! `devices`.

use serde::{Deserialize, Serialize};
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::id::{DeviceId, InstanceId, NodeId};
use tidemill_domain::state::State;
use tidemill_domain::state::device::{Device, HoldPhase};
use tidemill_domain::state::node::NodeState;

use super::count;
use super::node::with_findings;

/// One device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// Vendor UUID.
    pub uuid: String,
    /// Its id, derived from the UUID.
    pub id: DeviceId,
    /// Where it is.
    pub node: NodeId,
    /// Name of that node.
    pub node_name: String,
    /// Supply kind of that node.
    pub supply: Supply,
    /// Provider of that node.
    pub provider: String,
    /// Kind.
    pub kind: DeviceKind,
    /// Model.
    pub model: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Measured over nominal speed; 1.0 is nominal.
    pub speed: f64,
    /// No hardware behind it.
    pub simulated: bool,
    /// The worst class that is not empty: free, held, draining, dirty, quarantined, lost.
    pub state: String,
    /// Thousandths that can be placed on.
    pub free_milli: u32,
    /// The first instance that holds of it.
    pub instance: Option<InstanceId>,
    /// Every hold.
    pub holds: Vec<HoldRow>,
    /// Why it is in its state; never empty.
    pub reason: String,
}

/// A share of a device in somebody's hands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldRow {
    /// By whom.
    pub instance: InstanceId,
    /// How much, in thousandths.
    pub share_milli: u32,
    /// In what stage.
    pub phase: HoldPhase,
}

/// The row of a device.
pub fn device_row(state: &State, id: DeviceId) -> Option<DeviceRow> {
    let device = state.devices.get(&id)?;
    let node = state.nodes.get(&device.node)?;
    let word = device.state_name();
    Some(DeviceRow {
        uuid: device.uuid.clone(),
        id,
        node: device.node,
        node_name: node.name.to_string(),
        supply: node.supply,
        provider: node.provider.clone(),
        kind: device.kind,
        model: device.model.clone(),
        memory_bytes: device.memory_bytes,
        speed: f64::from(device.speed_milli) / 1000.0,
        simulated: device.simulated,
        state: word.to_owned(),
        free_milli: device.free().0,
        instance: device.holds.first().map(|h| h.instance),
        holds: device
            .holds
            .iter()
            .map(|h| HoldRow {
                instance: h.instance,
                share_milli: h.share.0,
                phase: h.phase,
            })
            .collect(),
        // The node enters or leaves `lost` and `left` only together with all its devices, so its stage may be named.
        reason: match word {
            "lost" => match node.state {
                NodeState::Lost => format!("its node {} is lost", node.name),
                NodeState::Left => format!("its node {} left the pool", node.name),
                _ => format!("its node {} no longer lists it", node.name),
            },
            _ => with_findings(&holders(state, device), node.findings(Some(id))),
        },
    })
}

fn holders(state: &State, device: &Device) -> String {
    let worst = |phase: HoldPhase| device.holds.iter().find(|h| h.phase == phase);
    let hold = worst(HoldPhase::Dirty)
        .or_else(|| worst(HoldPhase::Draining))
        .or_else(|| device.holds.first());
    let Some(hold) = hold else {
        return "nothing is placed on it".to_owned();
    };
    let workload = state
        .instances
        .get(&hold.instance)
        .and_then(|i| state.services.get(&i.service))
        .map_or_else(String::new, |s| format!(" of {}", s.full_name()));
    let more = match device.holds.len() {
        1 => String::new(),
        n => format!(" and {}", count(n - 1, "other")),
    };
    let instance = hold.instance;
    match hold.phase {
        HoldPhase::Held => format!("held by {instance}{workload}{more}"),
        HoldPhase::Draining => format!("{instance}{workload} is leaving it{more}"),
        HoldPhase::Dirty => format!("its node has not confirmed that {instance}{workload} left nothing behind{more}"),
    }
}

impl DeviceRow {
    /// The key that lists are ordered and paged by. By node, then UUID.
    pub fn sort_key(&self) -> String {
        format!("{}/{}", self.node_name, self.uuid)
    }
}
