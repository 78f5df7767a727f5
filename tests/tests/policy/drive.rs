//! Drives a cell by the policies alone, as the scheduler would, and plays its nodes.

use tidemill_domain::command::{Command, FactBody, JoinNode};
use tidemill_domain::events::Event;
use tidemill_domain::events::instance::StopReason;
use tidemill_domain::id::{InstanceId, NodeId, ServiceId};
use tidemill_domain::policy::placement::{self, Decision};
use tidemill_domain::policy::replicas::{ReplicaAction, reconcile};
use tidemill_domain::state::instance::{Instance, InstanceState};
use tidemill_domain::unit::Name;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{fact, join, name, ready, recover, started, suspect};

pub fn service(cell: &Cell, service: &str) -> ServiceId {
    let found = cell.state.service_named(&Name::default_tenant(), &name(service));
    found.unwrap().id
}

pub fn node(cell: &Cell, node: &str) -> NodeId {
    cell.state.node_named(node).unwrap().id
}

pub fn live<'a>(cell: &'a Cell, of: &str) -> Vec<&'a Instance> {
    let live = &cell.state.services[&service(cell, of)].live;
    live.iter().map(|id| &cell.state.instances[id]).collect()
}

pub fn in_state(cell: &Cell, of: &str, state: InstanceState) -> Vec<InstanceId> {
    let live = live(cell, of).into_iter();
    live.filter(|i| i.state == state).map(|i| i.id).collect()
}

/// A node of another provider than the usual one.
pub fn of_provider(node: &str, provider: &str, devices: usize) -> Command {
    Command::JoinNode(JoinNode {
        provider: provider.into(),
        ..join(node, devices)
    })
}

/// The node of this name falls silent; what that brings.
pub fn falls_silent(cell: &mut Cell, name: &str) -> Vec<Event> {
    cell.given(suspect(node(cell, name)))
}

/// The node of this name is heard again.
pub fn is_heard(cell: &mut Cell, name: &str) {
    cell.given(recover(node(cell, name)));
}

/// What the service needs now.
pub fn actions(cell: &Cell, of: &str) -> Vec<ReplicaAction> {
    reconcile(&cell.state, service(cell, of), cell.now).actions
}

/// The drains among what the service needs now, flattened.
pub fn drains(cell: &Cell, of: &str) -> Vec<(InstanceId, StopReason)> {
    let drains = actions(cell, of).into_iter().filter_map(|action| match action {
        ReplicaAction::Drain { instances, reason, .. } => Some(instances.into_iter().map(move |i| (i, reason))),
        _ => None,
    });
    drains.flatten().collect()
}

/// Carries out what all services need, until nothing changes any more.
pub fn schedule(cell: &mut Cell) {
    for _ in 0..50 {
        let services: Vec<ServiceId> = cell.state.services.keys().copied().collect();
        let mut asked = false;
        for id in services {
            for action in reconcile(&cell.state, id, cell.now).actions {
                asked = true;
                cell.given(action.into_command());
            }
        }
        for decision in placement::round(&cell.state, cell.now) {
            asked |= !cell.given(decision.into_command()).is_empty();
        }
        if !asked {
            return;
        }
    }
    panic!("the policies do not come to rest");
}

/// What the round says about a service that waits.
pub fn deferral(cell: &Cell, of: &str) -> tidemill_domain::events::placement::Explanation {
    let id = service(cell, of);
    let found = placement::round(&cell.state, cell.now)
        .into_iter()
        .find_map(|d| match d {
            Decision::Defer {
                service, explanation, ..
            } if service == id => Some(explanation),
            _ => None,
        });
    found.unwrap()
}

/// Its node reports that the instance answers.
pub fn make_ready(cell: &mut Cell, instance: InstanceId) {
    let node = cell.state.instances[&instance].node.unwrap();
    cell.given(fact(node, instance, started(instance.bits() as u32)));
    cell.given(fact(node, instance, ready()));
}

/// Every placed or starting instance of the service becomes ready.
pub fn all_ready(cell: &mut Cell, of: &str) {
    let waiting: Vec<InstanceId> = live(cell, of)
        .into_iter()
        .filter(|i| matches!(i.state, InstanceState::Placed | InstanceState::Starting))
        .map(|i| i.id)
        .collect();
    for instance in waiting {
        make_ready(cell, instance);
    }
}

/// Draining instances of the service are released and stop at once.
pub fn finish_drains(cell: &mut Cell, of: &str) {
    let leaving: Vec<(InstanceId, NodeId)> = live(cell, of)
        .into_iter()
        .filter(|i| i.state.leaving())
        .map(|i| (i.id, i.node.unwrap()))
        .collect();
    for (instance, node) in leaving {
        cell.given(Command::ReleaseInstances {
            instances: vec![instance],
        });
        cell.given(fact(node, instance, FactBody::Stopped { killed: false }));
    }
}
