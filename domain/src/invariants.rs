//! The standing invariants, one predicate each: the same for unit tests, simulator and production.
//!
//! Each looks at one entity and what it refers to, so that the sequencer can check exactly what a commit touched
//! before it is appended, and a test can check everything. A breach stops writes: an inconsistent pool that keeps
//! deciding makes more of it.

use crate::state::device::{Device, HoldPhase};
use crate::state::instance::{Instance, InstanceState};
use crate::state::service::Service;
use crate::state::switch::Switch;
use crate::state::{Entity, State};
use crate::unit::Milli;

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invariant {id} does not hold for {entity}: {detail}")]
pub struct Breach {
    /// Its id in the design.
    pub id: &'static str,
    /// Of what.
    pub entity: String,
    /// What was found.
    pub detail: String,
}

/// Checks what was touched.
pub fn check(state: &State, touched: &[Entity]) -> Result<(), Breach> {
    touched.iter().try_for_each(|entity| check_entity(state, entity))
}

/// Checks everything.
pub fn check_all(state: &State) -> Result<(), Breach> {
    state.entities().try_for_each(|entity| check_entity(state, &entity))
}

fn check_entity(state: &State, entity: &Entity) -> Result<(), Breach> {
    match entity {
        Entity::Device(id) => state
            .devices
            .get(id)
            .map_or(Ok(()), |device| device_adds_up(state, device)),
        Entity::Instance(id) => state.instances.get(id).map_or(Ok(()), |instance| {
            instance_is_consistent(state, instance)?;
            instance_is_somewhere(state, instance)
        }),
        Entity::Service(id) => state
            .services
            .get(id)
            .map_or(Ok(()), |service| service_is_consistent(state, service)),
        Entity::Node(id) => {
            let Some(node) = state.nodes.get(id) else { return Ok(()) };
            match node.instances.iter().find(|i| !state.instances.contains_key(i)) {
                Some(lost) => breach("I7", id, format!("it has {lost}, which the state forgot")),
                None if node.reason.is_empty() => breach("I3", id, "it has no reason".to_owned()),
                None => Ok(()),
            }
        }
        Entity::Switch(id) => state
            .switches
            .get(id)
            .map_or(Ok(()), |switch| switch_moves_one(state, switch)),
        Entity::Cell | Entity::Term(_) | Entity::Credential(_) => Ok(()),
    }
}

fn breach<T>(id: &'static str, entity: impl ToString, detail: String) -> Result<T, Breach> {
    Err(Breach {
        id,
        entity: entity.to_string(),
        detail,
    })
}

/// I1: a device's classes sum to the whole; nothing is held twice; each hold is its instance's.
fn device_adds_up(state: &State, device: &Device) -> Result<(), Breach> {
    let classes = device.classes();
    if classes.total() != Milli::WHOLE {
        return breach(
            "I1",
            device.id,
            format!("its classes sum to {} thousandths", classes.total().0),
        );
    }
    for (i, hold) in device.holds.iter().enumerate() {
        if device.holds[..i].iter().any(|h| h.instance == hold.instance) {
            return breach("I1", device.id, format!("{} holds it twice", hold.instance));
        }
        let Some(instance) = state.instances.get(&hold.instance) else {
            return breach(
                "I1",
                device.id,
                format!("{} holds it and does not exist", hold.instance),
            );
        };
        if !instance.holding
            || !instance
                .holds
                .iter()
                .any(|h| h.device == device.id && h.share == hold.share)
        {
            return breach("I1", device.id, format!("{} does not know of its hold", hold.instance));
        }
        let phase = match instance.state {
            InstanceState::Draining(_) | InstanceState::Stopping(_) => HoldPhase::Draining,
            InstanceState::Lost => HoldPhase::Dirty,
            _ => HoldPhase::Held,
        };
        if hold.phase != phase {
            return breach(
                "I3",
                device.id,
                format!(
                    "{} is {:?} and holds it as {:?}",
                    instance.id, instance.state, hold.phase
                ),
            );
        }
    }
    Ok(())
}

/// I3: stage and facts agree: intent is not fact.
fn instance_is_consistent(state: &State, instance: &Instance) -> Result<(), Breach> {
    if instance.reason.is_empty() {
        return breach("I3", instance.id, "it has no reason".to_owned());
    }
    let placed = instance.node.is_some();
    match instance.state {
        InstanceState::Pending if placed => breach("I3", instance.id, "it is pending and placed".to_owned()),
        InstanceState::Stopped | InstanceState::Failed if instance.holding => breach(
            "I3",
            instance.id,
            "it has ended as confirmed and still holds devices".to_owned(),
        ),
        InstanceState::Placed | InstanceState::Starting | InstanceState::Ready if !instance.holding => {
            breach("I3", instance.id, "it lives without devices".to_owned())
        }
        _ => match state.services.get(&instance.service) {
            None => breach("I7", instance.id, "its service does not exist".to_owned()),
            Some(service) if instance.state.ended() == service.live.contains(&instance.id) => breach(
                "I7",
                instance.id,
                format!("it is {} and listed otherwise", instance.state.name()),
            ),
            Some(_) => Ok(()),
        },
    }
}

/// I7: whatever may have left something on a node is known to that node.
fn instance_is_somewhere(state: &State, instance: &Instance) -> Result<(), Breach> {
    if !instance.holding {
        return Ok(());
    }
    let known = instance
        .node
        .and_then(|id| state.nodes.get(&id))
        .is_some_and(|node| node.instances.contains(&instance.id));
    if known {
        Ok(())
    } else {
        breach("I7", instance.id, "its node does not know of it".to_owned())
    }
}

/// I7: an instance's work moves once at a time, and not onto itself.
fn switch_moves_one(state: &State, switch: &Switch) -> Result<(), Breach> {
    if switch.replacement == Some(switch.instance) {
        return breach("I7", switch.id, "an instance takes over from itself".to_owned());
    }
    let twin = |other: &&Switch| other.id != switch.id && other.is_open() && other.instance == switch.instance;
    match state.switches.values().find(twin).filter(|_| switch.is_open()) {
        Some(other) => breach("I7", switch.id, format!("{} moves the same instance", other.id)),
        None => Ok(()),
    }
}

/// I7: a service lists each of its instances once, and has the declaration of each.
fn service_is_consistent(state: &State, service: &Service) -> Result<(), Breach> {
    for id in service.live.iter().chain(&service.ended) {
        let Some(instance) = state.instances.get(id) else {
            return breach("I7", service.id, format!("it lists {id}, which the state forgot"));
        };
        if !service.specs.contains_key(&instance.generation) {
            return breach(
                "I7",
                service.id,
                format!("it forgot generation {} of {id}", instance.generation),
            );
        }
    }
    if !service.specs.contains_key(&service.generation) {
        return breach("I7", service.id, "it forgot its present declaration".to_owned());
    }
    Ok(())
}
