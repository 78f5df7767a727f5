//! What agents report of their instances.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::{Context, FactBody, InstanceFact, ReportFacts};
use crate::events::Event;
use crate::events::instance::{InstanceFailed, InstanceReady, InstanceStarted, InstanceStopped, InstanceUnready};
use crate::events::switch::SwitchCause;
use crate::id::{InstanceId, ServiceId};
use crate::rejection::Rejection;
use crate::state::State;
use crate::state::instance::{Instance, InstanceState};
use crate::time::{Span, Timestamp};

use super::switch::{self, Because};
use super::{check_count, not_found};

/// Most facts of one report.
const MAX_FACTS: usize = 512;
/// An instance that was ready this long proves its declaration good: a failure after it begins a new count.
const PROVEN: Span = Span::from_secs(60);
/// Longest wait between two tries.
const BACKOFF_CAP: Span = Span::from_secs(300);

/// The wait before a service's next instance after `failures` failures in a row: none after the first failure of an
/// instance that had served, else 1 s, doubling up to five minutes.
pub fn backoff(failures: u32, had_served: bool) -> Span {
    match failures {
        0 => Span::ZERO,
        1 if had_served => Span::ZERO,
        n => Span::from_secs(1 << (n - 1).min(20)).min(BACKOFF_CAP),
    }
}

/// What the facts of this report have changed so far: later facts of the same report see it.
struct Overlay {
    states: BTreeMap<InstanceId, InstanceState>,
    freed: BTreeSet<InstanceId>,
    ready_at: BTreeMap<InstanceId, Timestamp>,
    rounds: BTreeMap<ServiceId, (u32, Option<Timestamp>)>,
    /// Switches opened, to stand after the facts.
    switches: Vec<Event>,
}

pub(super) fn report(state: &State, context: &Context<'_>, report: ReportFacts) -> Result<Vec<Event>, Rejection> {
    check_count("facts", report.facts.len(), MAX_FACTS)?;
    if !state.nodes.contains_key(&report.node) {
        return Err(not_found("node", report.node));
    }
    let mut overlay = Overlay {
        states: BTreeMap::new(),
        freed: BTreeSet::new(),
        ready_at: BTreeMap::new(),
        rounds: BTreeMap::new(),
        switches: Vec::new(),
    };
    let mut events = Vec::with_capacity(report.facts.len());
    for fact in report.facts {
        // A node speaks about its own instances; what it says of others, or of ones long forgotten, is not heard.
        if let Some(instance) = state
            .instances
            .get(&fact.instance)
            .filter(|i| i.node == Some(report.node))
        {
            events.extend(one(state, context, instance, fact, &mut overlay));
        }
    }
    events.append(&mut overlay.switches);
    Ok(events)
}

fn one(
    state: &State,
    context: &Context<'_>,
    instance: &Instance,
    fact: InstanceFact,
    overlay: &mut Overlay,
) -> Option<Event> {
    let id = instance.id;
    let now = overlay.states.get(&id).copied().unwrap_or(instance.state);
    let holding = instance.holding && !overlay.freed.contains(&id);
    let occurred_at = (context.now - fact.age).max(instance.occurred_at);
    match fact.body {
        FactBody::Started {
            pid,
            port,
            fetch,
            start,
        } => {
            if now.ended() || instance.pid == Some(pid) {
                return None;
            }
            if now == InstanceState::Placed {
                overlay.states.insert(id, InstanceState::Starting);
            }
            Some(
                InstanceStarted {
                    instance: id,
                    occurred_at,
                    pid,
                    port,
                    fetch,
                    start,
                }
                .into(),
            )
        }
        FactBody::Ready { endpoint, load } => {
            if !matches!(now, InstanceState::Placed | InstanceState::Starting) {
                return None;
            }
            overlay.states.insert(id, InstanceState::Ready);
            overlay.ready_at.insert(id, occurred_at);
            Some(
                InstanceReady {
                    instance: id,
                    occurred_at,
                    endpoint,
                    load,
                }
                .into(),
            )
        }
        FactBody::Unready { reason } => {
            if now != InstanceState::Ready {
                return None;
            }
            overlay.states.insert(id, InstanceState::Starting);
            Some(
                InstanceUnready {
                    instance: id,
                    occurred_at,
                    reason,
                }
                .into(),
            )
        }
        FactBody::Failed { code, reason } => {
            if now.ended() || now.leaving() {
                return stopped(overlay, id, now, holding, occurred_at, false);
            }
            overlay.states.insert(id, InstanceState::Failed);
            overlay.freed.insert(id);
            let (failures, retry_at) = count_failure(state, context, instance, overlay);
            if instance.ready_at.is_some() || overlay.ready_at.contains_key(&id) {
                let because = Because {
                    before: overlay.switches.len() as u64,
                    cause: SwitchCause::InstanceFailed,
                    detail: &reason,
                    detect: Some(context.now.since(occurred_at)),
                };
                switch::open(state, context, [id], &because, &mut overlay.switches);
            }
            Some(
                InstanceFailed {
                    instance: id,
                    occurred_at,
                    code,
                    reason,
                    failures,
                    retry_at,
                }
                .into(),
            )
        }
        FactBody::Stopped { killed } => stopped(overlay, id, now, holding, occurred_at, killed),
    }
}

fn stopped(
    overlay: &mut Overlay,
    instance: InstanceId,
    now: InstanceState,
    holding: bool,
    occurred_at: Timestamp,
    killed: bool,
) -> Option<Event> {
    if now.ended() && !holding {
        return None;
    }
    if !now.ended() {
        overlay.states.insert(instance, InstanceState::Stopped);
    }
    overlay.freed.insert(instance);
    Some(
        InstanceStopped {
            instance,
            occurred_at,
            killed,
        }
        .into(),
    )
}

/// Failures in a row of the service, and when it may try again. Instances of one try that fail together count once.
fn count_failure(state: &State, context: &Context<'_>, instance: &Instance, overlay: &mut Overlay) -> (u32, Timestamp) {
    // While a rollout runs, the end of a replica it replaces says nothing of what it starts.
    if let Some(service) = state.services.get(&instance.service)
        && service.made_generation() != instance.generation
    {
        return (service.failures, service.retry_at.unwrap_or(context.now));
    }
    let ready_at = overlay.ready_at.get(&instance.id).copied().or(instance.ready_at);
    let served = ready_at.map(|at| context.now.since(at));
    let (failures, retry_at) = *overlay.rounds.entry(instance.service).or_insert_with(|| {
        state
            .services
            .get(&instance.service)
            .map_or((0, None), |s| (s.failures, s.retry_at))
    });
    let round = match retry_at {
        Some(retry_at) if instance.requested_at < retry_at => (failures, retry_at),
        _ => {
            let failures = if served.is_some_and(|s| s >= PROVEN) {
                1
            } else {
                failures.saturating_add(1)
            };
            (failures, context.now + backoff(failures, served.is_some()))
        }
    };
    overlay.rounds.insert(instance.service, (round.0, Some(round.1)));
    round
}
