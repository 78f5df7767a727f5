//! What a node is to run and what a gateway is to route to, as functions of the state alone.
//!
//! Both are whole snapshots: an agent or gateway that missed any number of changes needs only the last one. They are
//! computed here and not kept, so that they cannot drift from what the ledger says.

use crate::events::service::ServiceSpec;
use crate::id::NodeId;
use crate::state::State;
use crate::state::instance::{Instance, InstanceState};
use crate::state::service::{Lifecycle, Service};

/// What a node is to do with one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Run it.
    Run,
    /// Stop it, or confirm that nothing of it is left.
    Stop,
}

/// One instance of a node's desired state.
#[derive(Debug, Clone, Copy)]
pub struct NodeWork<'a> {
    /// The instance.
    pub instance: &'a Instance,
    /// Its service.
    pub service: &'a Service,
    /// The declaration it was made from.
    pub spec: &'a ServiceSpec,
    /// What to do.
    pub work: Work,
}

/// Everything the node is to run or stop. What it has besides these is to be stopped too.
pub fn node_work(state: &State, node: NodeId) -> impl Iterator<Item = NodeWork<'_>> {
    let instances = state.nodes.get(&node).into_iter().flat_map(|n| &n.instances);
    instances.filter_map(|id| {
        let instance = state.instances.get(id)?;
        let service = state.services.get(&instance.service)?;
        let spec = service
            .specs
            .get(&instance.generation)
            .unwrap_or_else(|| service.spec());
        // A draining instance runs on: gateways are still leaving it, and its streams end by themselves.
        let work = match instance.state {
            InstanceState::Pending => return None,
            InstanceState::Placed | InstanceState::Starting | InstanceState::Ready | InstanceState::Draining(_) => {
                Work::Run
            }
            InstanceState::Stopping(_) | InstanceState::Stopped | InstanceState::Failed | InstanceState::Lost => {
                Work::Stop
            }
        };
        Some(NodeWork {
            instance,
            service,
            spec,
            work,
        })
    })
}

/// How a gateway treats one instance.
#[derive(Debug, Clone, Copy)]
pub struct Backend<'a> {
    /// The instance.
    pub instance: &'a Instance,
    /// No new requests: what is in flight finishes.
    pub draining: bool,
}

/// One service's route.
#[derive(Debug)]
pub struct ServiceRoute<'a> {
    /// The service.
    pub service: &'a Service,
    /// Stopped or deleted by its owner: requests are answered at once instead of queued.
    pub stopped: bool,
    /// Ready instances and those being left.
    pub backends: Vec<Backend<'a>>,
}

/// Every service's route, services without a ready instance included.
pub fn routes(state: &State) -> impl Iterator<Item = ServiceRoute<'_>> {
    state.services.values().map(|service| ServiceRoute {
        service,
        stopped: service.lifecycle != Lifecycle::Active,
        backends: service
            .live
            .iter()
            .filter_map(|id| state.instances.get(id))
            .filter_map(|instance| {
                let draining = match instance.state {
                    InstanceState::Ready if instance.standby => return None,
                    InstanceState::Ready => false,
                    InstanceState::Draining(_) | InstanceState::Stopping(_) => true,
                    _ => return None,
                };
                (instance.ready_at.is_some()).then_some(Backend { instance, draining })
            })
            .collect(),
    })
}
