//! Which devices suit a request, and why the others do not.

use crate::events::placement::{Filter, FilterCount};
use crate::events::service::ServiceSpec;
use crate::state::device::Device;
use crate::state::node::{Node, NodeState};
use crate::unit::Milli;

use super::pool::{Pool, PoolDevice, PoolNode};

/// Every filter, by its number.
pub const FILTERS: [Filter; 15] = [
    Filter::NodeNotReady,
    Filter::SupplyNotAllowed,
    Filter::RegionNotAllowed,
    Filter::WrongKind,
    Filter::WrongModel,
    Filter::TooLittleMemory,
    Filter::DeviceNotHealthy,
    Filter::Busy,
    Filter::TooFewOnNode,
    Filter::TokenRevoked,
    Filter::NodeUnsteady,
    Filter::NodeOverloaded,
    Filter::RuntimeMissing,
    Filter::NoRoomToFetch,
    Filter::DeviceQuarantined,
];

/// What a look over the whole pool found for one request shape.
pub(super) struct Survey {
    /// Devices out, by the position of their reason in [`FILTERS`].
    pub(super) out: [u32; FILTERS.len()],
    /// Devices that could take one more instance.
    pub(super) fitting: u32,
    /// Nodes that could take one more instance, and the positions of their devices that suit and are free.
    pub(super) suitable: Vec<(usize, Vec<usize>)>,
    /// Devices of nodes that are not ready which would suit otherwise.
    pub(super) unreachable: u32,
    /// Devices of nodes that were doubted too often lately which would suit otherwise.
    pub(super) unsteady: u32,
    /// Devices of nodes whose token was revoked which would suit otherwise.
    pub(super) revoked: u32,
    /// Most free suitable devices on one node that has too few, and that node's position.
    pub(super) most_together: Option<(u32, usize)>,
}

/// Looks at every device of the pool once.
pub(super) fn survey(pool: &Pool<'_>, spec: &ServiceSpec) -> Survey {
    let mut survey = Survey {
        out: [0; FILTERS.len()],
        fitting: 0,
        suitable: Vec::new(),
        unreachable: 0,
        unsteady: 0,
        revoked: 0,
        most_together: None,
    };
    survey.count(Filter::NodeNotReady, pool.stray);
    for (at, entry) in pool.nodes.iter().enumerate() {
        if let Some(filter) = node_filter(entry, spec) {
            survey.count(filter, entry.devices.len() as u32);
            if elsewhere_allowed(entry.node, spec) {
                let suits = |d: &&PoolDevice<'_>| device_filter(d.device, spec).is_none();
                let suiting = || entry.devices.iter().filter(suits).count() as u32;
                match filter {
                    Filter::NodeNotReady => survey.unreachable += suiting(),
                    Filter::NodeUnsteady => survey.unsteady += suiting(),
                    Filter::TokenRevoked => survey.revoked += suiting(),
                    _ => {}
                }
            }
            continue;
        }
        let mut suitable = Vec::new();
        let mut free = 0;
        for (position, device) in entry.devices.iter().enumerate() {
            if let Some(filter) = device_filter(device.device, spec) {
                survey.count(filter, 1);
            } else if device.free >= spec.devices.share {
                free += 1;
                suitable.push(position);
            } else if device.healthy {
                survey.count(Filter::Busy, 1);
            } else {
                survey.count(Filter::DeviceNotHealthy, 1);
            }
        }
        if free >= spec.devices.count {
            survey.fitting += free;
            survey.suitable.push((at, suitable));
        } else if free > 0 {
            survey.count(Filter::TooFewOnNode, free);
            if survey.most_together.is_none_or(|(most, _)| free > most) {
                survey.most_together = Some((free, at));
            }
        }
    }
    survey
}

impl Survey {
    fn count(&mut self, filter: Filter, devices: u32) {
        self.out[filter as usize] += devices;
    }

    /// Devices out for this reason.
    pub(super) fn out_for(&self, filter: Filter) -> u32 {
        self.out[filter as usize]
    }

    /// The counts as recorded: reasons that apply to no device are left out.
    pub(super) fn filtered(&self) -> Vec<FilterCount> {
        FILTERS
            .into_iter()
            .map(|filter| FilterCount {
                filter,
                devices: self.out_for(filter),
            })
            .filter(|count| count.devices > 0)
            .collect()
    }
}

/// Why nothing on the node is usable.
fn node_filter(entry: &PoolNode<'_>, spec: &ServiceSpec) -> Option<Filter> {
    let node = entry.node;
    if entry.revoked {
        Some(Filter::TokenRevoked)
    } else if !node.takes_work() {
        Some(Filter::NodeNotReady)
    } else if entry.unsteady {
        Some(Filter::NodeUnsteady)
    } else if !spec.placement.supply.contains(&node.supply) {
        Some(Filter::SupplyNotAllowed)
    } else if !region_allowed(node, spec) {
        Some(Filter::RegionNotAllowed)
    } else if !node.runtimes.contains(&spec.run.runtime) {
        Some(Filter::RuntimeMissing)
    } else {
        None
    }
}

fn region_allowed(node: &Node, spec: &ServiceSpec) -> bool {
    spec.placement.regions.is_empty() || spec.placement.regions.contains(&node.region)
}

fn elsewhere_allowed(node: &Node, spec: &ServiceSpec) -> bool {
    node.state != NodeState::Left && spec.placement.supply.contains(&node.supply) && region_allowed(node, spec)
}

/// Why the device would not suit even if it were free.
fn device_filter(device: &Device, spec: &ServiceSpec) -> Option<Filter> {
    let request = &spec.devices;
    if !request.kinds.is_empty() && !request.kinds.contains(&device.kind) {
        Some(Filter::WrongKind)
    } else if !request.models.is_empty() && !request.models.contains(&device.model) {
        Some(Filter::WrongModel)
    } else if memory_of_share(device.memory_bytes, request.share) < request.memory_bytes {
        Some(Filter::TooLittleMemory)
    } else {
        None
    }
}

/// Memory that goes with a share, rounded down: shares that fill a device never get more memory than it has.
pub(super) fn memory_of_share(bytes: u64, share: Milli) -> u64 {
    (u128::from(bytes) * u128::from(share.0) / u128::from(Milli::WHOLE.0)) as u64
}
