//! The pool as one round sees it: devices by node, with what the round has given away so far.

use std::collections::BTreeMap;

use crate::events::instance::Hold;
use crate::id::NodeId;
use crate::state::State;
use crate::state::device::{Device, DeviceCondition, HoldPhase};
use crate::state::node::Node;
use crate::time::Timestamp;
use crate::unit::Milli;

/// All nodes in order of their id.
pub(super) struct Pool<'a> {
    pub(super) nodes: Vec<PoolNode<'a>>,
    /// Devices in the pool, whatever their condition.
    pub(super) devices: u32,
    /// Devices whose node the state does not have; none, as long as the state is whole.
    pub(super) stray: u32,
    /// Memory of the largest device, at least 1.
    pub(super) largest: u64,
}

/// One node.
pub(super) struct PoolNode<'a> {
    pub(super) node: &'a Node,
    /// The token it enrolled with was revoked: nobody vouches for it any more.
    pub(super) revoked: bool,
    /// It was doubted too often lately, and not for long enough since.
    pub(super) unsteady: bool,
    /// In order of their id.
    pub(super) devices: Vec<PoolDevice<'a>>,
    /// Thousandths in use over all its devices.
    pub(super) used: u64,
}

/// One device.
pub(super) struct PoolDevice<'a> {
    pub(super) device: &'a Device,
    /// What is left of it in this round.
    pub(super) free: Milli,
    /// Not lost, and without a hold whose end its node has not confirmed.
    pub(super) healthy: bool,
}

impl<'a> Pool<'a> {
    pub(super) fn of(state: &'a State, now: Timestamp) -> Self {
        let mut nodes: Vec<PoolNode<'a>> = state
            .nodes
            .values()
            .map(|node| PoolNode {
                node,
                revoked: node
                    .credential
                    .is_some_and(|id| state.credentials.get(&id).is_none_or(|c| c.revoked)),
                unsteady: node.steady_at().is_some_and(|at| now < at),
                devices: Vec::with_capacity(node.devices.len()),
                used: 0,
            })
            .collect();
        let position: BTreeMap<NodeId, usize> = nodes.iter().enumerate().map(|(i, n)| (n.node.id, i)).collect();
        let (mut stray, mut largest) = (0, 1);
        for device in state.devices.values() {
            largest = largest.max(device.memory_bytes);
            let Some(node) = position.get(&device.node) else {
                stray += 1;
                continue;
            };
            let free = device.free();
            let dirty = device.holds.iter().any(|h| h.phase == HoldPhase::Dirty);
            let node = &mut nodes[*node];
            node.used += u64::from(Milli::WHOLE.minus(free).0);
            node.devices.push(PoolDevice {
                device,
                free,
                healthy: device.condition == DeviceCondition::Usable && !dirty,
            });
        }
        Self {
            nodes,
            devices: state.devices.len() as u32,
            stray,
            largest,
        }
    }
}

impl PoolNode<'_> {
    /// Gives `share` of the devices at `chosen` away for the rest of the round.
    pub(super) fn take(&mut self, chosen: &[usize], share: Milli) -> Vec<Hold> {
        chosen
            .iter()
            .map(|&at| {
                let device = &mut self.devices[at];
                device.free = device.free.minus(share);
                self.used += u64::from(share.0);
                Hold {
                    device: device.device.id,
                    share,
                }
            })
            .collect()
    }

    /// Its use in hundredths of its capacity.
    pub(super) fn used_percent(&self) -> i32 {
        let whole = self.devices.len() as u64 * u64::from(Milli::WHOLE.0);
        (self.used * 100).checked_div(whole).unwrap_or(0) as i32
    }
}
