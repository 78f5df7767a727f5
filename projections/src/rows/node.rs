//! `nodes`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidemill_domain::events::node::{InspectionFinding, Supply};
use tidemill_domain::id::NodeId;
use tidemill_domain::state::State;
use tidemill_domain::state::device::DeviceCondition;
use tidemill_domain::time::{Span, Timestamp};
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
    /// What was found wrong with it or its devices when it joined.
    pub findings: Vec<FindingRow>,
    /// What it measured of itself then; null where it could not.
    pub inspection: Option<InspectionRow>,
    /// Why it is in its state; never empty.
    pub reason: String,
}

/// Something wrong with a node or device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingRow {
    /// UUID of the device; null for the node as a whole.
    pub device: Option<String>,
    /// Stable code.
    pub code: String,
    /// What was seen.
    pub detail: String,
    /// What to do.
    pub next: String,
}

/// What a node measured of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectionRow {
    /// How long it took.
    pub took_ms: u64,
    /// Bytes a second one core copies in memory.
    pub memory_bps: Option<u64>,
    /// Bytes a second written to its disk and synced.
    pub disk_write_bps: Option<u64>,
    /// One small synced write, microseconds.
    pub disk_sync_us: Option<u64>,
    /// The shortest time to connect to a server, microseconds.
    pub round_trip_us: Option<u64>,
}

/// Tells of what is not known, which is nothing wrong.
const NOT_KNOWN: &str = "not_known";

/// What was found, after why it is in its state.
pub(super) fn with_findings<'a>(reason: &str, findings: impl Iterator<Item = &'a InspectionFinding>) -> String {
    let mut wrong = findings.filter(|finding| finding.code != NOT_KNOWN);
    match (wrong.next(), wrong.count()) {
        (None, _) => reason.to_owned(),
        (Some(first), 0) => format!("{reason}; {}: {}", first.code, first.detail),
        (Some(first), more) => format!("{reason}; {}: {} (and {more} more)", first.code, first.detail),
    }
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
        state: node.state_name().to_owned(),
        devices: 0,
        free_devices: 0,
        lost_devices: 0,
        free_milli: 0,
        models: BTreeMap::new(),
        instances: node.instances.len() as u32,
        address: node.address.clone(),
        joined_at: node.joined_at,
        changed_seq: node.changed.sequence,
        findings: node
            .inspection
            .iter()
            .flat_map(|inspection| &inspection.findings)
            .map(|finding| FindingRow {
                device: finding.device.map(|id| {
                    state
                        .devices
                        .get(&id)
                        .map_or_else(|| id.to_string(), |d| d.uuid.clone())
                }),
                code: finding.code.clone(),
                detail: finding.detail.clone(),
                next: finding.next.clone(),
            })
            .collect(),
        inspection: node.inspection.as_ref().map(|inspection| InspectionRow {
            took_ms: inspection.took.millis(),
            memory_bps: inspection.memory_bps,
            disk_write_bps: inspection.disk_write_bps,
            disk_sync_us: inspection.disk_sync.map(Span::micros),
            round_trip_us: inspection.round_trip.map(Span::micros),
        }),
        reason: with_findings(node.state_reason(), node.inspection.iter().flat_map(|i| &i.findings)),
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
