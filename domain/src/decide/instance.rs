//! Instances: request, place, drain, release.

use std::collections::BTreeMap;

use crate::command::{CHUNK, Context};
use crate::events::Event;
use crate::events::instance::{
    InstancesCancelled, InstancesDrainRequested, InstancesInRotation, InstancesPlaced, InstancesRequested,
    InstancesStopRequested, Placement, PlacementDeferred, StopReason,
};
use crate::events::placement::Explanation;
use crate::id::{DeviceId, InstanceId, ServiceId};
use crate::rejection::Rejection;
use crate::state::State;
use crate::state::instance::InstanceState;
use crate::state::service::{Lifecycle, Service};
use crate::unit::Milli;

use super::{check_count, fresh, not_found, switch};

pub(super) fn service(state: &State, id: ServiceId) -> Result<&Service, Rejection> {
    state.services.get(&id).ok_or_else(|| not_found("service", id))
}

pub(super) fn wrong(what: String, state: &str, reason: &str) -> Rejection {
    Rejection::WrongState {
        what,
        state: state.to_owned(),
        reason: reason.to_owned(),
    }
}

pub(super) fn request(
    state: &State,
    context: &Context<'_>,
    id: ServiceId,
    generation: u64,
    count: u32,
) -> Result<Vec<Event>, Rejection> {
    let service = may_grow(state, context, id, generation, count)?;
    // While a rollout is halted, replicas of the new generation that did get ready count too: they stay.
    let halted = service.halted.is_some();
    let staying = service
        .live
        .iter()
        .filter_map(|id| state.instances.get(id))
        .filter(|i| !i.state.leaving() && !i.standby)
        .filter(|i| i.generation == generation || halted && i.state == InstanceState::Ready)
        .filter(|i| state.displaced(i).is_none())
        .count();
    if staying + state.held_by_breaker(service) + count as usize > service.desired as usize {
        return Err(complete(service));
    }
    let instances = new_instances(state, context, count);
    if instances.is_empty() {
        return Ok(vec![]);
    }
    let taking_over = switch::choose(state, id, &instances);
    let requested = InstancesRequested {
        service: id,
        generation,
        instances,
        standby: false,
    };
    Ok(std::iter::once(requested.into()).chain(taking_over).collect())
}

/// The service, if it gets `count` new instances of `generation` now.
pub(super) fn may_grow<'a>(
    state: &'a State,
    context: &Context<'_>,
    id: ServiceId,
    generation: u64,
    count: u32,
) -> Result<&'a Service, Rejection> {
    check_count("instances", count as usize, CHUNK)?;
    let service = service(state, id)?;
    let name = || format!("service {}", service.full_name());
    let current = service.made_generation();
    if generation != current {
        return Err(Rejection::StaleGeneration {
            service: service.full_name(),
            asked: generation,
            current,
        });
    }
    if service.lifecycle != Lifecycle::Active {
        return Err(wrong(name(), "not active", "it gets no new instances"));
    }
    if service.retry_at.is_some_and(|at| context.now < at) {
        return Err(wrong(
            name(),
            "backing off",
            "its instances failed; the next try is later",
        ));
    }
    Ok(service)
}

/// It has what is wanted.
pub(super) fn complete(service: &Service) -> Rejection {
    wrong(
        format!("service {}", service.full_name()),
        "complete",
        "it would have more instances than wanted",
    )
}

/// Ids for new instances.
pub(super) fn new_instances(state: &State, context: &Context<'_>, count: u32) -> Vec<InstanceId> {
    let taken = |id: &InstanceId| state.instances.contains_key(id);
    (0..u64::from(count))
        .map(|n| fresh(context, "instance", n, InstanceId::from_bits, taken))
        .collect()
}

pub(super) fn place(
    state: &State,
    id: ServiceId,
    placements: Vec<Placement>,
    explanation: Explanation,
) -> Result<Vec<Event>, Rejection> {
    check_count("placements", placements.len(), CHUNK)?;
    let service = service(state, id)?;
    if placements.is_empty() {
        return Ok(vec![]);
    }
    let mut taken: BTreeMap<DeviceId, Milli> = BTreeMap::new();
    let mut seen = std::collections::BTreeSet::new();
    for placement in &placements {
        if !seen.insert(placement.instance) {
            let reason = format!("{} is placed twice", placement.instance);
            return Err(Rejection::Invalid {
                key: "placements".into(),
                reason,
            });
        }
        check_placement(state, service, placement, &mut taken)?;
    }
    Ok(vec![
        InstancesPlaced {
            service: id,
            placements,
            explanation,
        }
        .into(),
    ])
}

/// That the instance waits, its node takes work, and the devices are what it needs and free, counting what earlier
/// placements of the same command took.
fn check_placement(
    state: &State,
    service: &Service,
    placement: &Placement,
    taken: &mut BTreeMap<DeviceId, Milli>,
) -> Result<(), Rejection> {
    let instance = state
        .instances
        .get(&placement.instance)
        .ok_or_else(|| not_found("instance", placement.instance))?;
    if instance.service != service.id {
        return Err(not_found("instance", placement.instance));
    }
    if instance.state != InstanceState::Pending {
        return Err(wrong(
            format!("instance {}", instance.id),
            instance.state.name(),
            "only pending ones are placed",
        ));
    }
    let node = state
        .nodes
        .get(&placement.node)
        .ok_or_else(|| not_found("node", placement.node))?;
    if !node.takes_work() {
        return Err(wrong(
            format!("node {}", node.name),
            node.state_name(),
            "it takes no new work",
        ));
    }
    let request = &service
        .specs
        .get(&instance.generation)
        .unwrap_or_else(|| service.spec())
        .devices;
    let invalid = |reason: String| Rejection::Invalid {
        key: "placements".into(),
        reason,
    };
    if placement.holds.len() != request.count as usize {
        return Err(invalid(format!(
            "{} needs {} devices",
            placement.instance, request.count
        )));
    }
    for (i, hold) in placement.holds.iter().enumerate() {
        let device = state
            .devices
            .get(&hold.device)
            .ok_or_else(|| not_found("device", hold.device))?;
        if device.node != node.id {
            return Err(invalid(format!("{} is not on node {}", hold.device, node.name)));
        }
        if placement.holds[..i].iter().any(|h| h.device == hold.device) {
            return Err(invalid(format!("{} is listed twice for one instance", hold.device)));
        }
        if hold.share != request.share {
            return Err(invalid(format!(
                "{} needs {} thousandths",
                placement.instance, request.share.0
            )));
        }
        let taken = taken.entry(hold.device).or_default();
        let free = device.free().minus(*taken);
        if free < hold.share {
            return Err(Rejection::DeviceBusy {
                device: hold.device.to_string(),
                free: free.0,
                asked: hold.share.0,
            });
        }
        *taken = *taken + hold.share;
    }
    Ok(())
}

pub(super) fn defer(
    state: &State,
    id: ServiceId,
    waiting: u32,
    explanation: Explanation,
) -> Result<Vec<Event>, Rejection> {
    let service = service(state, id)?;
    if service.pending.as_ref() == Some(&explanation) && service.waiting == waiting {
        return Ok(vec![]);
    }
    Ok(vec![
        PlacementDeferred {
            service: id,
            waiting,
            explanation,
        }
        .into(),
    ])
}

pub(super) fn drain(state: &State, instances: Vec<InstanceId>, reason: StopReason) -> Result<Vec<Event>, Rejection> {
    check_count("instances", instances.len(), CHUNK)?;
    let mut cancelled = Vec::new();
    let mut draining = Vec::new();
    for id in instances {
        let instance = state.instances.get(&id).ok_or_else(|| not_found("instance", id))?;
        match instance.state {
            InstanceState::Pending => cancelled.push(id),
            InstanceState::Placed | InstanceState::Starting | InstanceState::Ready => draining.push(id),
            InstanceState::Draining(_)
            | InstanceState::Stopping(_)
            | InstanceState::Stopped
            | InstanceState::Failed
            | InstanceState::Lost => {}
        }
    }
    let mut events = Vec::new();
    if !cancelled.is_empty() {
        events.push(
            InstancesCancelled {
                instances: cancelled,
                reason,
            }
            .into(),
        );
    }
    if !draining.is_empty() {
        events.push(
            InstancesDrainRequested {
                instances: draining,
                reason,
            }
            .into(),
        );
    }
    Ok(events)
}

pub(super) fn release(state: &State, instances: Vec<InstanceId>) -> Result<Vec<Event>, Rejection> {
    check_count("instances", instances.len(), CHUNK)?;
    let draining = |id: &InstanceId| {
        state
            .instances
            .get(id)
            .is_some_and(|i| matches!(i.state, InstanceState::Draining(_)))
    };
    let instances: Vec<_> = instances.into_iter().filter(draining).collect();
    if instances.is_empty() {
        return Ok(vec![]);
    }
    Ok(vec![InstancesStopRequested { instances }.into()])
}

pub(super) fn in_rotation(state: &State, gateway: String, instances: Vec<InstanceId>) -> Result<Vec<Event>, Rejection> {
    let new = |id: &InstanceId| {
        state
            .instances
            .get(id)
            .is_some_and(|i| i.serves() && i.timings.in_rotation.is_none())
    };
    let instances: Vec<_> = instances.into_iter().filter(new).collect();
    if instances.is_empty() {
        return Ok(vec![]);
    }
    Ok(vec![InstancesInRotation { instances, gateway }.into()])
}
