//! Which entities an event concerns.

use tidemill_domain::commit::Actor;
use tidemill_domain::events::Event;
use tidemill_domain::id::{InstanceId, derive};
use tidemill_domain::state::{Entity, State};

/// A number that stands for the entity in indexes: its type, then its 50 bits. Worker roles, which have no id, get the
/// bits of their name's hash.
pub fn entity_key(entity: &Entity) -> i64 {
    let (tag, bits) = match entity {
        Entity::Cell => (0, 0),
        Entity::Term(role) => (1, derive(role.as_bytes(), "role", 0)),
        Entity::Credential(id) => (2, id.bits()),
        Entity::Node(id) => (3, id.bits()),
        Entity::Device(id) => (4, id.bits()),
        Entity::Service(id) => (5, id.bits()),
        Entity::Instance(id) => (6, id.bits()),
        Entity::Switch(id) => (7, id.bits()),
    };
    // 53 bits in all: it is never negative, and survives readers that take numbers for doubles.
    (tag << 50 | bits).cast_signed()
}

/// Every entity the event concerns: its target, what it names, what those belong to or run on, and the token that
/// asked. `before` is the state before the event.
pub fn about(event: &Event, actor: &Actor, target: &Entity, before: &State) -> Vec<Entity> {
    let mut out = vec![target.clone()];
    if let Actor::Credential(id) = actor {
        out.push(Entity::Credential(*id));
    }
    let mut instances = |ids: &[InstanceId]| {
        for id in ids {
            out.push(Entity::Instance(*id));
            if let Some(instance) = before.instances.get(id) {
                out.push(Entity::Service(instance.service));
                out.extend(instance.node.map(Entity::Node));
            }
        }
    };
    match event {
        Event::NodeJoined(e) => {
            for device in &e.devices {
                out.push(Entity::Device(device.device));
                let moved_from = before.devices.get(&device.device).map(|d| d.node);
                out.extend(moved_from.filter(|n| *n != e.node).map(Entity::Node));
            }
            out.extend(e.credential.map(Entity::Credential));
        }
        Event::NodeInspected(e) => out.extend(e.findings.iter().filter_map(|f| f.device).map(Entity::Device)),
        Event::BreakerTripped(e) => out.extend(e.nodes.iter().copied().map(Entity::Node)),
        Event::NodeLost(e) => instances(&e.instances),
        Event::NodeLeft(e) => instances(&e.instances),
        Event::InstancesRequested(e) => instances(&e.instances),
        Event::StandbysPromoted(e) => {
            instances(&e.promoted);
            instances(&e.stood_by);
        }
        Event::InstancesPlaced(e) => {
            for placement in &e.placements {
                out.push(Entity::Instance(placement.instance));
                out.push(Entity::Node(placement.node));
                out.extend(placement.holds.iter().map(|h| Entity::Device(h.device)));
            }
            out.push(Entity::Service(e.service));
        }
        Event::InstanceStarted(e) => instances(&[e.instance]),
        Event::InstanceReady(e) => instances(&[e.instance]),
        Event::InstanceUnready(e) => instances(&[e.instance]),
        Event::InstanceStopped(e) => instances(&[e.instance]),
        Event::InstanceFailed(e) => instances(&[e.instance]),
        Event::InstancesInRotation(e) => instances(&e.instances),
        Event::InstancesDrainRequested(e) => instances(&e.instances),
        Event::InstancesStopRequested(e) => instances(&e.instances),
        Event::InstancesLost(e) => instances(&e.instances),
        Event::InstancesCancelled(e) => instances(&e.instances),
        Event::InstanceMoveRequested(e) => instances(&[e.instance]),
        Event::SwitchOpened(e) => instances(&[e.instance]),
        Event::SwitchReplacementChosen(e) => {
            instances(&[e.instance]);
            out.extend(before.switches.get(&e.switch).map(|s| Entity::Service(s.service)));
        }
        Event::SwitchClosed(e) => {
            if let Some(switch) = before.switches.get(&e.switch) {
                out.extend([
                    Entity::Service(switch.service),
                    Entity::Instance(switch.instance),
                    Entity::Node(switch.node),
                ]);
            }
            out.extend(e.replacement.map(Entity::Instance));
            out.extend(e.to_node.map(Entity::Node));
        }
        // The rest concern their target alone. Windows of observations name nodes only to count their beats.
        Event::LedgerCreated(_)
        | Event::EpochStarted(_)
        | Event::StateSealed(_)
        | Event::FeatureActivated(_)
        | Event::BreakerConfirmed(_)
        | Event::BreakerReset(_)
        | Event::CredentialCreated(_)
        | Event::CredentialRevoked(_)
        | Event::WorkerTermGranted(_)
        | Event::NodeReady(_)
        | Event::NodeSuspected(_)
        | Event::NodeRecovered(_)
        | Event::NodeCordoned(_)
        | Event::NodeUncordoned(_)
        | Event::NodeDrainRequested(_)
        | Event::NodeDrained(_)
        | Event::ServiceApplied(_)
        | Event::ServiceStopRequested(_)
        | Event::ServiceStarted(_)
        | Event::ServiceDeleteRequested(_)
        | Event::ServiceDeleted(_)
        | Event::ServiceScaleOverridden(_)
        | Event::ServiceScaleReleased(_)
        | Event::ServiceRolledOut(_)
        | Event::ServiceRolloutHalted(_)
        | Event::ServiceRolledBack(_)
        | Event::ServiceDesiredChanged(_)
        | Event::PlacementDeferred(_)
        | Event::TrafficMinuteClosed(_)
        | Event::ObservationWindowSealed(_) => {}
    }
    if out.len() > 1 {
        out.sort_unstable();
        out.dedup();
    }
    out
}
