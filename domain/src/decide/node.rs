//! Nodes: joining, doubt, loss, return, leaving.

use std::collections::BTreeSet;

use crate::command::{Context, JoinNode};
use crate::events::Event;
use crate::events::instance::{InstanceStopped, InstancesLost};
use crate::events::node::{JoinedDevice, NodeJoined, NodeLeft, NodeLost, NodeReady, NodeRecovered, NodeSuspected};
use crate::id::{DeviceId, InstanceId, NodeId};
use crate::rejection::Rejection;
use crate::state::State;
use crate::state::device::DeviceCondition;
use crate::state::instance::InstanceState;
use crate::state::node::{Node, NodeState};
use crate::time::Span;

use super::{check_count, fresh, not_found};

/// Most devices of one node. Real hosts have up to 16, a simulated one 1,000.
const MAX_DEVICES: usize = 4096;

pub(super) fn join(state: &State, context: &Context<'_>, join: JoinNode) -> Result<Vec<Event>, Rejection> {
    check_count("devices", join.devices.len(), MAX_DEVICES)?;
    let known = state.node_named(join.name.as_str());
    check_identity(state, known, &join)?;
    let node = known.map_or_else(
        || fresh(context, "node", 0, NodeId::from_bits, |id| state.nodes.contains_key(id)),
        |n| n.id,
    );
    let mut devices = Vec::with_capacity(join.devices.len());
    let mut seen = BTreeSet::new();
    for offered in join.devices {
        let device = DeviceId::of_uuid(&offered.uuid);
        if !seen.insert(device) {
            let reason = format!("{} is listed twice", offered.uuid);
            return Err(Rejection::Invalid {
                key: "devices".into(),
                reason,
            });
        }
        check_device(state, node, device, &offered.uuid)?;
        devices.push(JoinedDevice {
            device,
            uuid: offered.uuid,
            kind: offered.kind,
            model: offered.model,
            memory_bytes: offered.memory_bytes,
            speed_milli: offered.speed_milli,
            simulated: offered.simulated,
        });
    }
    let joined = NodeJoined {
        node,
        name: join.name,
        supply: join.supply,
        provider: join.provider,
        region: join.region,
        zone: join.zone,
        address: join.address,
        boot_id: join.boot_id,
        machine_id: join.machine_id,
        agent_id: join.agent_id,
        credential: join.credential,
        devices,
    };
    let mut events = Vec::new();
    if !known.is_some_and(|n| unchanged(state, n, &joined)) {
        events.push(joined.into());
        events.push(NodeReady { node }.into());
    }
    if let Some(known) = known {
        settle_instances(
            state,
            context,
            known,
            &join.instances.into_iter().collect(),
            &mut events,
        );
    }
    Ok(events)
}

/// A living node's name is its own; a token speaks only for the nodes that it enrolled.
fn check_identity(state: &State, known: Option<&Node>, join: &JoinNode) -> Result<(), Rejection> {
    if let Some(credential) = join.credential.and_then(|id| state.credentials.get(&id))
        && let Some(allowed) = credential.supply.filter(|allowed| *allowed != join.supply)
    {
        let (allowed, asked) = (allowed.name(), join.supply.name());
        return Err(Rejection::NotAllowed {
            reason: format!(
                "this token enrols nodes of supply kind `{allowed}` only, and this agent says `{asked}`: start it with \
                 `--supply {allowed}`, or make a token with `tidemill token create --role node --supply {asked}`"
            ),
        });
    }
    let Some(node) = known else { return Ok(()) };
    let living = matches!(node.state, NodeState::Joining | NodeState::Ready | NodeState::Suspect);
    if living && node.machine_id != join.machine_id {
        return Err(Rejection::NodeNameTaken {
            name: node.name.to_string(),
            state: node.state.name().to_owned(),
        });
    }
    let enrolled_by = node
        .credential
        .and_then(|id| state.credentials.get(&id))
        .filter(|c| !c.revoked);
    if join.credential.is_some() && enrolled_by.is_some_and(|c| Some(c.id) != join.credential) {
        return Err(Rejection::NotAllowed {
            reason: format!(
                "node `{}` was enrolled with another token; revoke that one first",
                node.name
            ),
        });
    }
    Ok(())
}

fn check_device(state: &State, node: NodeId, device: DeviceId, uuid: &str) -> Result<(), Rejection> {
    let Some(device) = state.devices.get(&device) else {
        return Ok(());
    };
    if device.node == node || device.condition == DeviceCondition::Lost {
        return Ok(());
    }
    let owner = state
        .nodes
        .get(&device.node)
        .map_or_else(|| device.node.to_string(), |n| n.name.to_string());
    Err(Rejection::DeviceElsewhere {
        uuid: uuid.to_owned(),
        node: owner,
    })
}

/// Whether a join says only what the state knows: the same agent over a new connection.
fn unchanged(state: &State, node: &Node, joined: &NodeJoined) -> bool {
    node.state == NodeState::Ready
        && node.agent_id == joined.agent_id
        && node.boot_id == joined.boot_id
        && node.machine_id == joined.machine_id
        && node.supply == joined.supply
        && node.address == joined.address
        && (&node.provider, &node.region, &node.zone) == (&joined.provider, &joined.region, &joined.zone)
        && node.credential == joined.credential
        && node.devices.len() == joined.devices.len()
        && joined.devices.iter().all(|d| {
            state.devices.get(&d.device).is_some_and(|known| {
                known.node == node.id
                    && known.condition == DeviceCondition::Usable
                    && (known.memory_bytes, known.speed_milli) == (d.memory_bytes, d.speed_milli)
                    && known.model == d.model
            })
        })
}

/// Ends what the node should have and does not. What was placed and never begun stays: the node will begin it.
fn settle_instances(
    state: &State,
    context: &Context<'_>,
    node: &Node,
    has: &BTreeSet<InstanceId>,
    events: &mut Vec<Event>,
) {
    let mut lost = Vec::new();
    for id in node.instances.iter().filter(|id| !has.contains(id)) {
        let Some(instance) = state.instances.get(id) else {
            continue;
        };
        match instance.state {
            InstanceState::Pending | InstanceState::Placed => {}
            InstanceState::Starting | InstanceState::Ready => lost.push(*id),
            InstanceState::Draining(_)
            | InstanceState::Stopping(_)
            | InstanceState::Stopped
            | InstanceState::Failed
            | InstanceState::Lost => events.push(
                InstanceStopped {
                    instance: *id,
                    occurred_at: context.now.max(instance.occurred_at),
                    killed: false,
                }
                .into(),
            ),
        }
    }
    if !lost.is_empty() {
        let reason = "its node's agent came back without it".to_owned();
        events.push(
            InstancesLost {
                instances: lost,
                reason,
            }
            .into(),
        );
    }
}

fn get(state: &State, node: NodeId) -> Result<&Node, Rejection> {
    state.nodes.get(&node).ok_or_else(|| not_found("node", node))
}

fn living_instances(state: &State, node: &Node) -> Vec<InstanceId> {
    let living = |id: &&InstanceId| state.instances.get(id).is_some_and(|i| !i.state.ended());
    node.instances.iter().filter(living).copied().collect()
}

pub(super) fn suspect(state: &State, id: NodeId, silent: Span, reason: String) -> Result<Vec<Event>, Rejection> {
    match get(state, id)?.state {
        NodeState::Ready => Ok(vec![
            NodeSuspected {
                node: id,
                silent,
                reason,
            }
            .into(),
        ]),
        _ => Ok(vec![]),
    }
}

pub(super) fn recover(state: &State, id: NodeId, reason: String) -> Result<Vec<Event>, Rejection> {
    match get(state, id)?.state {
        NodeState::Suspect | NodeState::Lost => Ok(vec![NodeRecovered { node: id, reason }.into()]),
        _ => Ok(vec![]),
    }
}

pub(super) fn lose(state: &State, id: NodeId, silent: Span, reason: String) -> Result<Vec<Event>, Rejection> {
    let node = get(state, id)?;
    match node.state {
        NodeState::Suspect => {
            let instances = living_instances(state, node);
            Ok(vec![
                NodeLost {
                    node: id,
                    silent,
                    reason,
                    instances,
                }
                .into(),
            ])
        }
        NodeState::Lost | NodeState::Left => Ok(vec![]),
        state @ (NodeState::Joining | NodeState::Ready) => Err(Rejection::WrongState {
            what: format!("node {}", node.name),
            state: state.name().to_owned(),
            reason: "a node is suspected before it is given up".to_owned(),
        }),
    }
}

pub(super) fn leave(state: &State, id: NodeId, reason: String) -> Result<Vec<Event>, Rejection> {
    let node = get(state, id)?;
    if node.state == NodeState::Left {
        return Ok(vec![]);
    }
    let instances = living_instances(state, node);
    Ok(vec![
        NodeLeft {
            node: id,
            reason,
            instances,
        }
        .into(),
    ])
}
