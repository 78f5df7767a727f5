//! Scores: small exact integers, so that the same pool gives the same choice on every machine.
//!
//! A node's score is the sum of five parts. Spread outweighs everything else together, since it is about surviving; the
//! others are worth up to some hundreds of points each. Equal scores go to the lower node id, equal devices of a node to
//! the lower device id. A lottery among equals would spread load as well, but could not be replayed.

use crate::events::node::Supply;
use crate::events::placement::{Part, ScorePart};
use crate::events::service::{ServiceSpec, Spread};
use crate::unit::Milli;

use super::filter::memory_of_share;
use super::pool::{PoolDevice, PoolNode};

/// Points off per replica in the declared failure domain: more than all other parts together.
pub(super) const DOMAIN: i32 = 10_000;
/// Points off per replica on the same node where another domain is declared; counted up to [`NODE_CAP`].
const NODE: i32 = 100;
const NODE_CAP: u32 = 20;
/// Points off for a device all of whose memory, the pool's largest, would be left unused.
const FIT: u64 = 200;
/// Points off for a node that work of the service was asked to leave: it goes back there only if nothing else fits.
const LEFT: i32 = 1_000_000;
/// Packing counts this much more where replicas are not to be spread.
const PACKED: i32 = 10;

/// The parts of one node's score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Points {
    pub(super) spread: i32,
    pub(super) packing: i32,
    pub(super) speed: i32,
    pub(super) supply: i32,
    pub(super) fit: i32,
    /// Off for a node that work was asked to leave; a part only where it applies.
    pub(super) left: i32,
}

impl Points {
    pub(super) fn total(self) -> i32 {
        self.spread + self.packing + self.speed + self.supply + self.fit + self.left
    }

    pub(super) fn parts(self) -> Vec<ScorePart> {
        let part = |part, points| ScorePart { part, points };
        let mut parts = vec![
            part(Part::Spread, self.spread),
            part(Part::Packing, self.packing),
            part(Part::Speed, self.speed),
            part(Part::Supply, self.supply),
            part(Part::Fit, self.fit),
        ];
        if self.left != 0 {
            parts.push(part(Part::Left, self.left));
        }
        parts
    }
}

/// What a service has on a node already.
#[derive(Debug, Clone, Copy)]
pub(super) struct Here {
    /// What its instances are kept apart by.
    pub(super) spread: Spread,
    /// Its replicas there.
    pub(super) replicas: u32,
    /// One of them was asked to leave.
    pub(super) left: bool,
}

/// Where one more instance would go on a node, and what that is worth.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    /// Everything but the failure domain's share of the spread, which changes with placements elsewhere.
    pub(super) points: Points,
    /// Positions of the devices on the node.
    pub(super) chosen: Vec<usize>,
}

/// The best way to take one more instance on the node, if there is one. `suitable` are the positions of devices that
/// passed the filters.
pub(super) fn offer(
    entry: &PoolNode<'_>,
    suitable: &[usize],
    spec: &ServiceSpec,
    largest: u64,
    here: Here,
) -> Option<Offer> {
    let share = spec.devices.share;
    let count = spec.devices.count as usize;
    let rated = |position: usize| {
        let device = &entry.devices[position];
        (device.free >= share).then(|| (rate(device, spec, largest), position))
    };
    let chosen: Vec<usize> = if count == 1 {
        let best = suitable
            .iter()
            .filter_map(|&p| rated(p))
            .max_by_key(|(points, position)| (*points, std::cmp::Reverse(*position)))?;
        vec![best.1]
    } else {
        together(entry, suitable.iter().filter_map(|&p| rated(p)).collect(), count)?
    };
    let first = &entry.devices[chosen[0]];
    let slowest = chosen.iter().map(|&p| entry.devices[p].device.speed_milli).min();
    let packing = packing(entry, first, share);
    let points = Points {
        spread: match here.spread {
            Spread::Node => -(DOMAIN * here.replicas as i32),
            Spread::Provider | Spread::Region => -(NODE * here.replicas.min(NODE_CAP) as i32),
            Spread::None => 0,
        },
        packing: match here.spread {
            Spread::None => packing * PACKED,
            _ => packing,
        },
        speed: speed(slowest.unwrap_or(0)),
        supply: supply(entry.node.supply),
        fit: fit(first, spec, largest),
        left: if here.left { -LEFT } else { 0 },
    };
    Some(Offer { points, chosen })
}

/// `count` devices of one node, of one model where that goes, since a group runs at the pace of its slowest.
fn together(entry: &PoolNode<'_>, mut rated: Vec<(i32, usize)>, count: usize) -> Option<Vec<usize>> {
    if rated.len() < count {
        return None;
    }
    rated.sort_by_key(|(points, position)| (std::cmp::Reverse(*points), *position));
    let model = |position: usize| entry.devices[position].device.model.as_str();
    let of_one_model = rated.iter().find_map(|(_, lead)| {
        let alike = rated.iter().map(|(_, p)| *p).filter(|p| model(*p) == model(*lead));
        let alike: Vec<usize> = alike.take(count).collect();
        (alike.len() == count).then_some(alike)
    });
    Some(of_one_model.unwrap_or_else(|| rated.iter().take(count).map(|(_, p)| *p).collect()))
}

/// What makes one device of a node better than another.
fn rate(device: &PoolDevice<'_>, spec: &ServiceSpec, largest: u64) -> i32 {
    let fullness = if spec.devices.share < Milli::WHOLE {
        // The fuller device first, so that whole ones stay whole.
        Milli::WHOLE.minus(device.free).0 as i32
    } else {
        0
    };
    fullness + speed(device.device.speed_milli) + fit(device, spec, largest)
}

/// 0 to 100: a share goes where little of the device is left, a whole device where the node is in use already.
fn packing(entry: &PoolNode<'_>, device: &PoolDevice<'_>, share: Milli) -> i32 {
    let node = entry.used_percent();
    if share < Milli::WHOLE {
        let device = Milli::WHOLE.minus(device.free).0 as i32 / 10;
        (device * 4 + node) / 5
    } else {
        node
    }
}

/// −100 to 100: measured speed against nominal.
fn speed(milli: u32) -> i32 {
    (i32::try_from(milli).unwrap_or(i32::MAX).saturating_sub(1000) / 10).clamp(-100, 100)
}

/// 0 to −[`FIT`]: memory that would be left unused, against the largest device of the pool.
fn fit(device: &PoolDevice<'_>, spec: &ServiceSpec, largest: u64) -> i32 {
    let given = memory_of_share(device.device.memory_bytes, spec.devices.share);
    let unused = given.saturating_sub(spec.devices.memory_bytes);
    -((u128::from(unused) * u128::from(FIT) / u128::from(largest.max(1))) as i32)
}

/// 0 to 100: how rarely supply of this kind goes away unasked.
fn supply(supply: Supply) -> i32 {
    match supply {
        Supply::Idc => 100,
        Supply::Enterprise => 80,
        Supply::Cloud => 60,
        Supply::Partner => 50,
        Supply::Pc => 20,
        Supply::Cafe => 10,
    }
}
