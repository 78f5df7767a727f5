//! The breaker: tripping, and an operator's judgement.

use crate::command::Context;
use crate::events::Event;
use crate::events::breaker::{BreakerConfirmed, BreakerReset, BreakerTripped};
use crate::id::NodeId;
use crate::rejection::Rejection;
use crate::state::State;

use super::node::reason_given;

/// The breaker trips with the doubt of `node`, if that is one too many.
pub(super) fn trip(state: &State, context: &Context<'_>, node: NodeId) -> Option<Event> {
    if state.breaker_tripped() {
        return None;
    }
    let loss = state.mass_loss(Some((node, context.now)))?;
    let tripped = BreakerTripped {
        nodes: loss.nodes,
        of: loss.of as u32,
        providers: loss.providers as u32,
    };
    Some(tripped.into())
}

/// The nodes are gone: their work is to move.
pub(super) fn confirm(state: &State, reason: String) -> Result<Vec<Event>, Rejection> {
    judge(state, reason, |reason| BreakerConfirmed { reason }.into())
}

/// Every node is judged by itself again.
pub(super) fn reset(state: &State, reason: String) -> Result<Vec<Event>, Rejection> {
    judge(state, reason, |reason| BreakerReset { reason }.into())
}

/// An operator's judgement, with its reason. Nothing, if there is nothing to judge.
fn judge(state: &State, reason: String, judged: impl FnOnce(String) -> Event) -> Result<Vec<Event>, Rejection> {
    reason_given(&reason)?;
    Ok(match state.breaker_tripped() {
        true => vec![judged(reason)],
        false => vec![],
    })
}
