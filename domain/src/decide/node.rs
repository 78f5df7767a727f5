//! Nodes: joining, doubt, loss, return, leaving.

use std::collections::BTreeSet;

use crate::command::{Context, JoinNode, OfferedInspection};
use crate::events::Event;
use crate::events::instance::{InstanceStopped, InstancesLost};
use crate::events::node::{
    InspectionFinding, JoinedDevice, NodeInspected, NodeJoined, NodeLeft, NodeLost, NodeReady, NodeRecovered,
    NodeSuspected,
};
use crate::events::switch::SwitchCause;
use crate::id::{DeviceId, InstanceId, NodeId};
use crate::rejection::Rejection;
use crate::state::State;
use crate::state::device::DeviceCondition;
use crate::state::instance::InstanceState;
use crate::state::node::{Node, NodeState};
use crate::time::Span;

use super::switch::{self, Because};
use super::{breaker, check_count, fresh, not_found};

/// Most findings of one inspection.
const MAX_FINDINGS: usize = 256;

/// Most devices of one node. Real hosts have up to 16, a simulated one 1,000.
const MAX_DEVICES: usize = 4096;
/// Longest reason that an operator gives.
const MAX_REASON: usize = 512;

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
    let mut runtimes = join.runtimes;
    runtimes.sort_unstable();
    runtimes.dedup();
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
        runtimes,
    };
    let inspected = inspect(state, node, &joined, join.inspection)?;
    let mut events = Vec::new();
    if !known.is_some_and(|n| unchanged(state, n, &joined)) {
        events.push(joined.into());
        events.push(NodeReady { node }.into());
    }
    if let Some(inspected) = inspected.filter(|new| known.and_then(|n| n.inspection.as_ref()) != Some(new)) {
        events.push(inspected.into());
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

/// What the node says of itself, and what only the cell can see: that its installation is another's too.
fn inspect(
    state: &State,
    node: NodeId,
    joined: &NodeJoined,
    offered: Option<OfferedInspection>,
) -> Result<Option<NodeInspected>, Rejection> {
    let twin = state.nodes.values().find(|other| {
        other.id != node && living(other) && other.machine_id == joined.machine_id && other.boot_id != joined.boot_id
    });
    if offered.is_none() && twin.is_none() {
        return Ok(None);
    }
    let offered = offered.unwrap_or_default();
    check_count("inspection", offered.findings.len(), MAX_FINDINGS)?;
    let listed: BTreeSet<DeviceId> = joined.devices.iter().map(|d| d.device).collect();
    let mut findings: Vec<InspectionFinding> = offered
        .findings
        .into_iter()
        .map(|finding| InspectionFinding {
            device: finding
                .uuid
                .as_deref()
                .map(DeviceId::of_uuid)
                .filter(|id| listed.contains(id)),
            code: finding.code,
            detail: finding.detail,
            next: finding.next,
        })
        .collect();
    if let Some(twin) = twin {
        findings.push(InspectionFinding {
            device: None,
            code: "machine_cloned".to_owned(),
            detail: format!("its installation is that of node `{}`, which runs elsewhere", twin.name),
            next: "give this machine an id of its own: `rm /etc/machine-id && systemd-machine-id-setup`".to_owned(),
        });
    }
    Ok(Some(NodeInspected {
        node,
        took: offered.took,
        memory_bps: offered.memory_bps,
        disk_write_bps: offered.disk_write_bps,
        disk_sync: offered.disk_sync,
        round_trip: offered.round_trip,
        findings,
    }))
}

fn living(node: &Node) -> bool {
    matches!(node.state, NodeState::Joining | NodeState::Ready | NodeState::Suspect)
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
    if living(node) && node.machine_id != join.machine_id {
        return Err(Rejection::NodeNameTaken {
            name: node.name.to_string(),
            state: node.state.name().to_owned(),
        });
    }
    // Its first beats still; a machine that was restarted is silent for long enough to be suspected.
    if node.state == NodeState::Ready && node.boot_id != join.boot_id {
        return Err(Rejection::NodeCloned {
            name: node.name.to_string(),
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
        && node.runtimes == joined.runtimes
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
        let because = Because {
            before: 0,
            cause: SwitchCause::NodeRestarted,
            detail: &reason,
            detect: None,
        };
        switch::open(state, context, lost.iter().copied(), &because, events);
        events.push(
            InstancesLost {
                instances: lost,
                reason,
            }
            .into(),
        );
    }
}

pub(super) fn get(state: &State, node: NodeId) -> Result<&Node, Rejection> {
    state.nodes.get(&node).ok_or_else(|| not_found("node", node))
}

fn living_instances(state: &State, node: &Node) -> Vec<InstanceId> {
    let living = |id: &&InstanceId| state.instances.get(id).is_some_and(|i| !i.state.ended());
    node.instances.iter().filter(living).copied().collect()
}

pub(super) fn suspect(
    state: &State,
    context: &Context<'_>,
    id: NodeId,
    silent: Span,
    closed: bool,
    reason: String,
) -> Result<Vec<Event>, Rejection> {
    let node = get(state, id)?;
    if node.state != NodeState::Ready {
        return Ok(vec![]);
    }
    let cause = match closed {
        true => SwitchCause::ConnectionClosed,
        false => SwitchCause::NodeSilent,
    };
    let mut events = vec![
        NodeSuspected {
            node: id,
            silent,
            reason: reason.clone(),
        }
        .into(),
    ];
    open_switches(state, context, node, cause, &reason, silent, &mut events);
    events.extend(breaker::trip(state, context, id));
    Ok(events)
}

/// Opens a switch for everything on a node that stops being there.
fn open_switches(
    state: &State,
    context: &Context<'_>,
    node: &Node,
    cause: SwitchCause,
    detail: &str,
    silent: Span,
    events: &mut Vec<Event>,
) {
    let because = Because {
        before: 0,
        cause,
        detail,
        detect: Some(silent),
    };
    switch::open(state, context, node.instances.iter().copied(), &because, events);
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
        NodeState::Suspect if state.breaker_tripped() => Err(Rejection::WrongState {
            what: "the breaker".to_owned(),
            state: "tripped".to_owned(),
            reason: "nodes are given up again once it was confirmed or reset".to_owned(),
        }),
        // What was to move was found when the node was doubted.
        NodeState::Suspect => Ok(vec![
            NodeLost {
                node: id,
                silent,
                reason,
                instances: living_instances(state, node),
            }
            .into(),
        ]),
        NodeState::Lost | NodeState::Left => Ok(vec![]),
        state @ (NodeState::Joining | NodeState::Ready) => Err(Rejection::WrongState {
            what: format!("node {}", node.name),
            state: state.name().to_owned(),
            reason: "a node is suspected before it is given up".to_owned(),
        }),
    }
}

/// Whoever acts on a node says why.
pub(super) fn reason_given(reason: &str) -> Result<(), Rejection> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON {
        return Err(Rejection::Invalid {
            key: "reason".into(),
            reason: format!("say why, in at most {MAX_REASON} bytes"),
        });
    }
    Ok(())
}

/// An operator's word that a given-up node will not come back: what is only waiting for it need not wait any longer.
pub(super) fn forget(state: &State, id: NodeId, reason: String) -> Result<Vec<Event>, Rejection> {
    reason_given(&reason)?;
    let node = get(state, id)?;
    match node.state {
        NodeState::Left if node.instances.is_empty() && node.credential.is_none() => Ok(vec![]),
        NodeState::Lost | NodeState::Left => Ok(vec![
            NodeLeft {
                node: id,
                reason: format!("forgotten by an operator: {reason}"),
                instances: node.instances.iter().copied().collect(),
            }
            .into(),
        ]),
        state @ (NodeState::Joining | NodeState::Ready | NodeState::Suspect) => Err(Rejection::WrongState {
            what: format!("node {}", node.name),
            state: state.name().to_owned(),
            reason: "only a lost node can be forgotten: stop its agent first and wait until it is given up".to_owned(),
        }),
    }
}

pub(super) fn leave(state: &State, context: &Context<'_>, id: NodeId, reason: String) -> Result<Vec<Event>, Rejection> {
    let node = get(state, id)?;
    if node.state == NodeState::Left {
        return Ok(vec![]);
    }
    let left = NodeLeft {
        node: id,
        reason: reason.clone(),
        instances: living_instances(state, node),
    };
    let mut events = vec![left.into()];
    open_switches(
        state,
        context,
        node,
        SwitchCause::NodeLeft,
        &reason,
        Span::ZERO,
        &mut events,
    );
    Ok(events)
}
