//! Keeping work away from nodes and taking it off them: cordon, drain, move, and their ends.

use crate::command::{Context, DrainNode};
use crate::events::Event;
use crate::events::instance::InstanceMoveRequested;
use crate::events::node::{DrainCause, NodeCordoned, NodeDrainRequested, NodeDrained, NodeLeft, NodeUncordoned};
use crate::events::switch::SwitchCause;
use crate::id::{InstanceId, NodeId};
use crate::rejection::Rejection;
use crate::state::State;
use crate::state::instance::InstanceState;
use crate::state::node::{Intake, Node, NodeState};
use crate::time::Span;

use super::node::{get, reason_given};
use super::switch::{self, Because};

/// Longest notice.
const MAX_DEADLINE: Span = Span::from_secs(30 * 24 * 3600);

fn in_pool(node: &Node) -> Result<(), Rejection> {
    match node.state {
        NodeState::Joining | NodeState::Ready | NodeState::Suspect => Ok(()),
        state @ (NodeState::Lost | NodeState::Left) => Err(Rejection::WrongState {
            what: format!("node {}", node.name),
            state: state.name().to_owned(),
            reason: "it is out of the pool already".to_owned(),
        }),
    }
}

pub(super) fn cordon(state: &State, id: NodeId, reason: String) -> Result<Vec<Event>, Rejection> {
    reason_given(&reason)?;
    let node = get(state, id)?;
    in_pool(node)?;
    match &node.intake {
        Intake::Open => Ok(vec![NodeCordoned { node: id, reason }.into()]),
        // What is being emptied takes no work anyway.
        Intake::Cordoned { .. } | Intake::Draining(_) | Intake::Drained(_) => Ok(vec![]),
    }
}

pub(super) fn uncordon(state: &State, id: NodeId, reason: String) -> Result<Vec<Event>, Rejection> {
    reason_given(&reason)?;
    let node = get(state, id)?;
    match node.intake {
        Intake::Open if node.steady_at().is_none() => Ok(vec![]),
        _ => Ok(vec![NodeUncordoned { node: id, reason }.into()]),
    }
}

pub(super) fn drain(state: &State, context: &Context<'_>, drain: DrainNode) -> Result<Vec<Event>, Rejection> {
    reason_given(&drain.reason)?;
    if drain.deadline.is_some_and(|deadline| deadline > MAX_DEADLINE) {
        return Err(Rejection::Invalid {
            key: "deadline".into(),
            reason: "it is out of range: at most 30 days".into(),
        });
    }
    let node = get(state, drain.node)?;
    in_pool(node)?;
    let deadline = drain.deadline.map(|after| context.now + after);
    let same = |present: &crate::state::node::Drain| {
        present.cause == drain.cause
            && present.reason == drain.reason
            && present.deadline.is_none() == deadline.is_none()
    };
    match &node.intake {
        Intake::Drained(_) => return Ok(vec![]),
        Intake::Draining(present) if same(present) && deadline.is_none() => return Ok(vec![]),
        _ => {}
    }
    let mut events = vec![
        NodeDrainRequested {
            node: drain.node,
            cause: drain.cause,
            reason: drain.reason.clone(),
            deadline,
        }
        .into(),
    ];
    let because = Because {
        before: 0,
        cause: match drain.cause {
            DrainCause::Operator => SwitchCause::Drain,
            DrainCause::Reclaim => SwitchCause::Reclaim,
            DrainCause::Leave => SwitchCause::OwnerLeave,
        },
        detail: &drain.reason,
        detect: None,
    };
    switch::open(state, context, node.instances.iter().copied(), &because, &mut events);
    if empty(state, node) {
        events.extend(emptied(node, drain.cause));
    }
    Ok(events)
}

/// Puts on record that a draining node is empty, if it is.
pub(super) fn settle(state: &State, id: NodeId) -> Result<Vec<Event>, Rejection> {
    let node = get(state, id)?;
    match node.intake.draining() {
        Some(drain) if empty(state, node) => Ok(emptied(node, drain.cause)),
        _ => Ok(vec![]),
    }
}

/// Whether everything on the node is confirmed stopped.
fn empty(state: &State, node: &Node) -> bool {
    let left = |id: &InstanceId| state.instances.get(id).is_some_and(|i| i.holding || !i.state.ended());
    !node.instances.iter().any(left)
}

fn emptied(node: &Node, cause: DrainCause) -> Vec<Event> {
    let mut events = vec![NodeDrained { node: node.id }.into()];
    if cause == DrainCause::Leave {
        let left = NodeLeft {
            node: node.id,
            reason: "its owner took it out of the pool, and it was emptied first".to_owned(),
            instances: vec![],
        };
        events.push(left.into());
    }
    events
}

pub(super) fn move_instance(
    state: &State,
    context: &Context<'_>,
    id: InstanceId,
    reason: String,
) -> Result<Vec<Event>, Rejection> {
    reason_given(&reason)?;
    let instance = state
        .instances
        .get(&id)
        .ok_or_else(|| super::not_found("instance", id))?;
    match instance.state {
        InstanceState::Placed | InstanceState::Starting | InstanceState::Ready => {}
        other => {
            return Err(Rejection::WrongState {
                what: format!("instance {id}"),
                state: other.name().to_owned(),
                reason: "only an instance that is placed and wanted can be moved".to_owned(),
            });
        }
    }
    if instance.moving.is_some() {
        return Ok(vec![]);
    }
    let mut events = vec![
        InstanceMoveRequested {
            instance: id,
            reason: reason.clone(),
        }
        .into(),
    ];
    let because = Because {
        before: 0,
        cause: SwitchCause::Move,
        detail: &reason,
        detect: None,
    };
    switch::open(state, context, [id], &because, &mut events);
    Ok(events)
}
