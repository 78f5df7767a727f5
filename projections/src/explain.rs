//! `explain`: why one thing is as it is, in four parts.
//!
//! Dominant reason, evidence, candidates with their scores, next step. It reads what was decided and recorded when it
//! was decided; nothing is judged again here, so it cannot disagree with what happened. Times are points in time.
//!
//! Invariant: reason and next step are never empty, whatever the thing and its state.

mod switch;

use std::fmt;

use serde::Serialize;
use tidemill_domain::commit::Address;
use tidemill_domain::events::placement::{Explanation as Placement, Part};
use tidemill_domain::id::{DeviceId, InstanceId, NodeId, ServiceId};
use tidemill_domain::state::instance::{Displaced, Instance, InstanceState};
use tidemill_domain::state::node::{Intake, NodeState};
use tidemill_domain::state::service::Lifecycle;
use tidemill_domain::state::{Entity, State};
use tidemill_domain::time::Span;

use crate::history::entity_text;
use crate::resolve::kind;
use crate::rows::{
    InstanceRow, ServiceRow, count, device_row, filter_sentence, instance_row, node_row, queue_row, service_row,
    unconfirmed,
};

/// Why one thing is as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explain {
    /// Its id.
    pub target: String,
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Its state, in one word.
    pub state: String,
    /// The dominant reason.
    pub reason: String,
    /// What that rests on, the weightiest first.
    pub evidence: Vec<Evidence>,
    /// What was chosen among, best first; empty where nothing was.
    pub candidates: Vec<CandidateRow>,
    /// What would help, or that nothing needs to be done.
    pub next_step: String,
}

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// In a sentence.
    pub fact: String,
    /// The record that says so, where it is one.
    pub seq: Option<u64>,
}

/// One node that was considered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CandidateRow {
    /// Which.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its score; higher is better.
    pub score: i32,
    /// What that is made of.
    pub parts: Vec<PartRow>,
}

/// One term of a score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PartRow {
    /// What it measures.
    pub part: Part,
    /// Its points.
    pub points: i32,
}

impl fmt::Display for Explain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} ({}) is {}", self.kind, self.name, self.target, self.state)?;
        writeln!(f, "\nReason\n  {}", self.reason)?;
        writeln!(f, "\nEvidence")?;
        for evidence in &self.evidence {
            match evidence.seq {
                Some(seq) => writeln!(f, "  {} (record {seq})", evidence.fact)?,
                None => writeln!(f, "  {}", evidence.fact)?,
            }
        }
        writeln!(f, "\nCandidates")?;
        if self.candidates.is_empty() {
            writeln!(f, "  none")?;
        }
        for candidate in &self.candidates {
            let parts: Vec<String> = candidate
                .parts
                .iter()
                .map(|p| format!("{} {:+}", part_word(p.part), p.points))
                .collect();
            let parts = parts.join(", ");
            writeln!(f, "  {:>6}  {}  {parts}", candidate.score, candidate.name)?;
        }
        write!(f, "\nNext step\n  {}", self.next_step)
    }
}

fn part_word(part: Part) -> &'static str {
    match part {
        Part::Spread => "spread",
        Part::Packing => "packing",
        Part::Speed => "speed",
        Part::Supply => "supply",
        Part::Fit => "fit",
        Part::Locality => "files there",
        Part::Left => "to be left",
    }
}

/// Explains what the state has; none for what it lacks.
pub fn explain(state: &State, entity: &Entity) -> Option<Explain> {
    match entity {
        Entity::Service(id) => service(state, *id),
        Entity::Instance(id) => instance(state, *id),
        Entity::Node(id) => node(state, *id),
        Entity::Device(id) => device(state, *id),
        Entity::Switch(id) => switch::switch(state, *id),
        Entity::Cell => Some(cell(state)),
        Entity::Term(role) => {
            let term = state.terms.get(role)?;
            let reason = format!("{} holds the role", term.holder);
            let facts = vec![recorded(format!("term {} was granted", term.term), term.changed)];
            let next = "nothing: another process takes over when its lease runs out";
            Some(told(entity, role.clone(), "held", reason, facts, next))
        }
        Entity::Credential(id) => {
            let token = state.credentials.get(id)?;
            let (word, reason, next) = match (token.revoked, token.expires_at) {
                (true, _) => (
                    "revoked",
                    "someone revoked it".to_owned(),
                    "make a new one with `tidemill token create`",
                ),
                (false, Some(end)) => ("active", format!("it is valid until {end}"), "nothing"),
                (false, None) => ("active", "it is valid until revoked".to_owned(), "nothing"),
            };
            let facts = vec![fact(format!("it was made at {}", token.created_at))];
            Some(told(entity, id.to_string(), word, reason, facts, next))
        }
    }
}

fn told(
    entity: &Entity,
    name: String,
    state: impl Into<String>,
    reason: String,
    evidence: Vec<Evidence>,
    next_step: impl Into<String>,
) -> Explain {
    Explain {
        target: entity_text(entity),
        kind: kind(entity),
        name,
        state: state.into(),
        reason,
        evidence,
        candidates: Vec::new(),
        next_step: next_step.into(),
    }
}

fn fact(fact: impl Into<String>) -> Evidence {
    Evidence {
        fact: fact.into(),
        seq: None,
    }
}

fn recorded(fact: impl Into<String>, at: Address) -> Evidence {
    Evidence {
        fact: fact.into(),
        seq: Some(at.sequence),
    }
}

fn cell(state: &State) -> Explain {
    let cell = &state.cell;
    let facts = vec![
        fact(format!("ledger {}, {} events", cell.ledger, state.events)),
        fact(format!("epoch {} began at {}", cell.epoch, cell.epoch_started_at)),
    ];
    let reason = format!("{} leads in epoch {}", cell.leader, cell.epoch);
    told(
        &Entity::Cell,
        cell.name.clone(),
        "led",
        reason,
        facts,
        "nothing; `tidemill doctor` looks closer",
    )
}

fn candidates(state: &State, placement: &Placement) -> Vec<CandidateRow> {
    let name = |id: &NodeId| {
        state
            .nodes
            .get(id)
            .map_or_else(|| id.to_string(), |n| n.name.to_string())
    };
    let row = |c: &tidemill_domain::events::placement::Candidate| CandidateRow {
        node: c.node,
        name: name(&c.node),
        score: c.score,
        parts: c
            .parts
            .iter()
            .map(|p| PartRow {
                part: p.part,
                points: p.points,
            })
            .collect(),
    };
    placement.candidates.iter().map(row).collect()
}

/// What a round of placement looked at.
fn looked_at(placement: &Placement) -> Vec<Evidence> {
    let all = count(placement.devices as usize, "device");
    let mut facts = vec![fact(format!("{all} looked at, {} fit", placement.fitting))];
    for filter in &placement.filtered {
        facts.push(fact(format!("{} {}", filter.devices, filter_sentence(filter.filter))));
    }
    facts
}

fn service(state: &State, id: ServiceId) -> Option<Explain> {
    let entry = state.services.get(&id)?;
    let row = service_row(state, id)?;
    let queue = queue_row(state, id);
    let c = &row.instances;
    let mut facts = Vec::new();
    let waits = entry.pending.as_ref().filter(|_| c.pending > 0);
    if let Some(placement) = waits {
        facts.extend(looked_at(placement));
    }
    let stages = [
        (c.ready, "ready"),
        (c.starting, "starting"),
        (c.placed, "placed"),
        (c.pending, "pending"),
        (c.draining, "draining"),
        (c.standby, "standing by"),
        (c.standby_starting, "starting to stand by"),
    ];
    let stages: Vec<String> = stages
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, word)| format!("{n} {word}"))
        .collect();
    let stages = if stages.is_empty() {
        "none".to_owned()
    } else {
        stages.join(", ")
    };
    facts.push(recorded(
        format!("{} wanted; instances: {stages}", count(row.desired as usize, "replica")),
        entry.changed,
    ));
    let held = state.held_by_breaker(entry);
    if held > 0 {
        facts.push(fact(format!(
            "{} on silent nodes not replaced: the breaker is tripped, since many nodes fell silent at once",
            count(held, "replica")
        )));
    }
    if let Some(rollout) = &row.rollout {
        let (from, to) = (rollout.from, rollout.to);
        facts.push(fact(format!(
            "rollout from generation {from} to {to}, {} since {}: {} ready of the new one",
            rollout.state,
            rollout.since,
            count(rollout.updated as usize, "replica"),
        )));
    }
    if let Some(failure) = &row.last_failure {
        let row_of = match row.failures {
            0 => String::new(),
            n => format!(", {n} in a row"),
        };
        facts.push(fact(format!("the last failure{row_of}: {failure}")));
    }
    if let Some(retry_at) = row.retry_at.filter(|_| row.failures > 0) {
        facts.push(fact(format!("no new instance before {retry_at}")));
    }
    if let Some(over) = &row.scale_override {
        let from = over.from.map_or_else(String::new, |t| format!(" from {t}"));
        let until = over.until.map_or_else(|| "released".to_owned(), |t| t.to_string());
        facts.push(fact(format!(
            "{} set by hand{from} until {until}",
            count(over.replicas as usize, "replica")
        )));
    }
    // Where nothing is to run, the last placement is history and says nothing of what is.
    let wanted = entry.lifecycle == Lifecycle::Active && row.desired > 0;
    let placed = entry.placed.as_ref().filter(|_| wanted);
    let shown = waits.or(placed);
    if waits.is_none()
        && let Some(placed) = placed
    {
        facts.push(fact(format!("last placement: {}", placed.dominant)));
        facts.extend(looked_at(placed));
    }
    let next = match (&queue, row.state.as_str()) {
        _ if held > 0 => BREAKER_NEXT.to_owned(),
        (Some(queue), _) => queue.next_step.clone(),
        (None, "starting" | "updating" | "degraded") => {
            format!(
                "wait; `tidemill instances` shows each, `tidemill logs INSTANCE` what one of {} says",
                row.name
            )
        }
        (None, "deleting") => match unconfirmed(state, entry) {
            (0, _) => "wait until its instances have ended".to_owned(),
            (_, nodes) => format!(
                "start the agent of {} again: it says what is left and ends it; a machine that is gone for good is \
                 forgotten with `tidemill node forget NODE`",
                nodes.join(", ")
            ),
        },
        (None, "halted") => halted_next(&row),
        (None, "stopped") => format!("`tidemill start service/{}` runs it again", row.name),
        (None, "idle") => "raise scale.min, or set a count with `tidemill scale`".to_owned(),
        (None, _) => "nothing".to_owned(),
    };
    let mut explain = told(
        &Entity::Service(id),
        entry.full_name(),
        row.state,
        row.reason,
        facts,
        next,
    );
    explain.candidates = shown.map(|p| candidates(state, p)).unwrap_or_default();
    Some(explain)
}

const BREAKER_NEXT: &str = "see `tidemill breaker show`; it closes by itself when the nodes are heard again, and `tidemill \
                            breaker confirm --reason TEXT` has their work replaced";

fn halted_next(row: &ServiceRow) -> String {
    let back = row.rollback_to.map_or_else(String::new, |to| {
        format!("`tidemill rollback service/{}` returns to generation {to}; ", row.name)
    });
    format!("{back}apply a mended file, or the same one again to try once more")
}

fn instance(state: &State, id: InstanceId) -> Option<Explain> {
    let entry = state.instances.get(&id)?;
    let row = instance_row(state, id)?;
    let service = state.services.get(&entry.service)?;
    let mut facts = vec![recorded(format!("{} since {}", row.state, row.since), entry.changed)];
    let placement = match entry.state {
        InstanceState::Pending => service.pending.as_ref(),
        // What came to its end is no news of the last placement, which may be another's.
        state if state.ended() => None,
        _ => service.placed.as_ref(),
    };
    if let Some(node) = &row.node_name {
        facts.push(fact(format!("on node {node} with {}", row.devices.join(", "))));
    }
    facts.extend(steps(&row));
    if entry.state == InstanceState::Pending {
        facts.extend(placement.map(looked_at).unwrap_or_default());
    }
    if entry.state.ended() && entry.holding {
        facts.push(fact("its node has not confirmed that nothing of it is left"));
    }
    let held = state.breaker_tripped() && state.displaced(entry) == Some(Displaced::Doubted);
    if held {
        facts.push(fact(
            "its node is silent with many others: nothing is started in its place while the breaker is tripped",
        ));
    }
    let next = match held {
        true => BREAKER_NEXT.to_owned(),
        false => instance_next(entry, service.failures > 0, placement),
    };
    let mut explain = told(&Entity::Instance(id), row.workload, row.state, row.reason, facts, next);
    explain.candidates = placement.map(|p| candidates(state, p)).unwrap_or_default();
    Some(explain)
}

fn steps(row: &InstanceRow) -> Option<Evidence> {
    let t = &row.timings_ms;
    let steps = [
        ("decide", t.decide),
        ("place", t.place),
        ("fetch", t.fetch),
        ("start", t.start),
        ("load", t.load),
        ("in rotation", t.in_rotation),
    ];
    let known: Vec<String> = steps
        .iter()
        .filter_map(|(step, ms)| Some(format!("{step} {}", Span::from_millis((*ms)?))))
        .collect();
    (!known.is_empty()).then(|| fact(format!("start-up: {}", known.join(", "))))
}

fn instance_next(entry: &Instance, failing: bool, placement: Option<&Placement>) -> String {
    let id = entry.id;
    match entry.state {
        InstanceState::Pending => match placement.map(|p| p.next_step.as_str()) {
            Some("") | None => "wait: it is placed as soon as devices fit".to_owned(),
            Some(next) => next.to_owned(),
        },
        InstanceState::Placed | InstanceState::Starting => {
            format!("wait until it answers; `tidemill logs {id}` shows what it says")
        }
        InstanceState::Ready if entry.standby => "nothing: it serves as soon as a replica is missing".to_owned(),
        InstanceState::Ready => "nothing".to_owned(),
        InstanceState::Draining(_) | InstanceState::Stopping(_) => "wait until it has ended".to_owned(),
        InstanceState::Failed if failing => {
            format!("read `tidemill logs {id}`, correct the declaration and apply it again")
        }
        InstanceState::Stopped | InstanceState::Failed => {
            "nothing: another takes its place where one is wanted".to_owned()
        }
        InstanceState::Lost if entry.holding => "nothing: another takes its place; bring its node back to free its \
                                                devices, or forget a machine that is gone for good with `tidemill \
                                                node forget NODE`"
            .to_owned(),
        InstanceState::Lost => "nothing: another takes its place where one is wanted".to_owned(),
    }
}

fn node(state: &State, id: NodeId) -> Option<Explain> {
    let entry = state.nodes.get(&id)?;
    let row = node_row(state, id)?;
    let mut facts = vec![
        recorded(
            format!("it became {}, or its inventory changed,", row.state),
            entry.changed,
        ),
        fact(format!(
            "{}: {} free, {} lost; {} placed",
            count(row.devices as usize, "device"),
            row.free_devices,
            row.lost_devices,
            count(row.instances as usize, "instance")
        )),
        fact(format!(
            "supply {}, provider {}, region {}, zone {}",
            crate::rows::supply_word(&row.supply),
            row.provider,
            row.region,
            row.zone
        )),
    ];
    match &row.address {
        Some(address) => facts.push(fact(format!("gateways reach it at {address}"))),
        None => facts.push(fact("gateways reach it by tunnel only")),
    }
    facts.extend(switch::drain_facts(state, entry));
    let steady_at = entry.steady_at().filter(|_| entry.takes_work());
    if let Some(at) = steady_at {
        let doubts = count(entry.doubts.len(), "time");
        facts.push(fact(format!("it was doubted {doubts} lately: no new work before {at}")));
    }
    let revoked = entry
        .credential
        .filter(|id| state.credentials.get(id).is_none_or(|token| token.revoked));
    if let Some(token) = revoked {
        facts.push(fact(format!("its token {token} was revoked: it gets no new work")));
    }
    let next = match entry.state {
        _ if revoked.is_some() => "make a new token with `tidemill token create` and start its agent with that",
        NodeState::Joining => "wait: its inventory is being accepted",
        NodeState::Ready => match &entry.intake {
            Intake::Open if steady_at.is_some() => {
                "look at its network; it gets work again by itself, or at once with `tidemill uncordon NODE`"
            }
            Intake::Open => "nothing",
            Intake::Cordoned { .. } => "`tidemill uncordon NODE` gives it work again",
            Intake::Draining(_) => "wait; `tidemill uncordon NODE` withdraws the drain",
            Intake::Drained(_) => "take it away, or give it work again with `tidemill uncordon NODE`",
        },
        NodeState::Suspect if state.breaker_tripped() => BREAKER_NEXT,
        NodeState::Suspect => "wait: it is trusted again when it is heard, and given up if it is not",
        NodeState::Lost => {
            "start its agent again, or check its machine and network; its instances are replaced elsewhere. If the machine is \
             gone for good, `tidemill node forget NODE`"
        }
        NodeState::Left => "nothing; starting its agent brings it back",
    };
    Some(told(
        &Entity::Node(id),
        row.name.to_string(),
        row.state,
        row.reason,
        facts,
        next,
    ))
}

fn device(state: &State, id: DeviceId) -> Option<Explain> {
    let row = device_row(state, id)?;
    let mut facts = vec![fact(format!(
        "{} on node {}, {} of 1000 thousandths free",
        row.model, row.node_name, row.free_milli
    ))];
    for hold in &row.holds {
        let instance = hold.instance;
        facts.push(fact(format!("{} thousandths with {instance}", hold.share_milli)));
    }
    let next = match row.state.as_str() {
        "dirty" => "wait for its node's word, or start the node's agent again",
        "lost" => "bring its node back, with this device",
        "draining" => "wait until who holds it has left",
        _ => "nothing",
    };
    Some(told(&Entity::Device(id), row.uuid, row.state, row.reason, facts, next))
}
