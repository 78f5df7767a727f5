//! Why work moved, and how far it is.

use tidemill_domain::id::{NodeId, SwitchId};
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::node::Node;
use tidemill_domain::state::{Entity, State};

use super::{Evidence, Explain, fact, recorded, told};
use crate::rows::{count, switch_row};

pub(super) fn switch(state: &State, id: SwitchId) -> Option<Explain> {
    let entry = state.switches.get(&id)?;
    let row = switch_row(state, id)?;
    let plan = if row.planned { "planned" } else { "unplanned" };
    let mut facts = vec![recorded(
        format!(
            "opened at {}: {} on {} was to be replaced ({}, {plan})",
            row.opened_at, row.instance, row.from_node_name, row.cause
        ),
        entry.changed,
    )];
    if let Some(detect) = row.detect_ms {
        facts.push(fact(format!("noticed {detect} ms after the last sign of life")));
    }
    let replacement = entry.replacement.and_then(|id| state.instances.get(&id));
    match (row.replacement, replacement) {
        (None, _) => facts.push(fact("nothing has been requested to take over yet")),
        (Some(id), None) => facts.push(fact(format!("{id} took over"))),
        (Some(id), Some(instance)) => {
            let node = instance.node.and_then(|id| state.nodes.get(&id));
            let place = node.map_or_else(String::new, |node| format!(" on {}", node.name));
            facts.push(fact(format!(
                "{id}{place} takes over; it is {}: {}",
                instance.state.name(),
                instance.reason
            )));
        }
    }
    if let Some(replace) = row.replace_ms {
        facts.push(fact(format!("in rotation {replace} ms after the opening")));
    }
    if let (Some(failed), Some(cut), Some(gap)) = (row.failed_requests, row.cut_streams, row.longest_gap_ms) {
        facts.push(fact(format!(
            "gateways reported on {}: {failed} failed, {cut} cut, longest gap {gap} ms",
            count(row.covered_seconds.unwrap_or(0) as usize, "second")
        )));
    }
    let next = match (row.state.as_str(), row.replacement) {
        ("open", None) => "wait, or see `tidemill queue` for what the replacement waits for".to_owned(),
        ("open", Some(id)) => format!("wait; `tidemill explain {id}` tells of the replacement"),
        _ => format!("`tidemill events --about {id}` shows each step"),
    };
    Some(told(
        &Entity::Switch(id),
        row.workload,
        row.state,
        row.reason,
        facts,
        next,
    ))
}

/// What a draining node still waits for.
pub(super) fn drain_facts(state: &State, node: &Node) -> Vec<Evidence> {
    let Some(drain) = node.intake.draining() else {
        return vec![];
    };
    let mut facts = vec![match drain.deadline {
        Some(deadline) => fact(format!(
            "it is to be empty by {deadline}: what has no replacement then is stopped without one"
        )),
        None => fact("it is emptied without a deadline: nothing is stopped before its replacement serves"),
    }];
    let waiting = waiting(state, node.id);
    facts.extend(waiting.into_iter().map(fact));
    facts
}

/// In a sentence each: what keeps instances on a draining node.
pub(crate) fn waiting(state: &State, node: NodeId) -> Vec<String> {
    let Some(node) = state.nodes.get(&node).filter(|node| node.intake.draining().is_some()) else {
        return vec![];
    };
    let instances = node.instances.iter().filter_map(|id| state.instances.get(id));
    instances
        .map(|instance| {
            let replacement = state
                .open_switch_of(instance.id)
                .and_then(|switch| switch.replacement)
                .and_then(|id| state.instances.get(&id));
            let why = match (instance.state, replacement) {
                (InstanceState::Draining(_), _) => "gateways are leaving it".to_owned(),
                (InstanceState::Stopping(_), _) => "its node is stopping it".to_owned(),
                (ended, _) if ended.ended() => "its node has not confirmed its end".to_owned(),
                (_, None) => "its replacement is not requested yet".to_owned(),
                (_, Some(other)) => format!(
                    "its replacement {} is {}: {}",
                    other.id,
                    other.state.name(),
                    other.reason
                ),
            };
            format!("{} waits: {why}", instance.id)
        })
        .collect()
}
