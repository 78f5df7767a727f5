//! How many replicas of which generation a service should have, and what to do to get there.
//!
//! [`reconcile`] compares what is wanted with what there is and names the next actions, never a plan: carried out in any
//! order, or not at all, they leave a state from which it names the right next ones. Replicas of an older declaration are
//! replaced make-before-break: a newer one is ready before an older one that serves is drained, with room for
//! [`surge`] more than wanted at a time. The alternative, a rollout object with a cursor, would be state that can
//! disagree with the instances; the instances themselves say how far the rollout is.
//!
//! A rollout whose new replicas fail [`ROLLOUT_TRIES`](crate::decide::ROLLOUT_TRIES) times in a row is halted: replicas
//! that were to replace others and do not serve go, and what is missing is made from the generation that served before.
//!
//! Replicas on a node that is being emptied, and those asked to move, are replaced in the same way, all at once; those on a
//! doubted node are replaced and otherwise left alone, since the node may be back in a moment; while the
//! [`breaker`](crate::state::breaker) is tripped they are not even replaced. A drain with a deadline waits for replacements
//! as long as it can.
//!
//! A new replica counts for an older one's leaving only once it was ready for its declaration's `ready_hold`: a version
//! that answers and then dies replaces nothing.
//!
//! Standbys are instances of the same kind that are kept out of rotation. They are asked for last, serve at once where a
//! replica is missing, and a replica still on its way then stands by in their place.
//!
//! Invariants: what is ready never falls below what is wanted (or what there was) by an action named here; replicas that
//! never served go before those that do; nothing is requested before a service's back-off is over; a service that is
//! stopped or deleted loses all its replicas and gets none.

use std::cmp::Reverse;

use crate::command::{CHUNK, Command};
use crate::decide::fails_to_roll_out;
use crate::events::instance::StopReason;
use crate::id::{InstanceId, ServiceId};
use crate::state::State;
use crate::state::instance::{Displaced, Instance, InstanceState};
use crate::state::node::NodeState;
use crate::state::service::{Lifecycle, Service};
use crate::time::{Span, Timestamp};

/// One thing to do for a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaAction {
    /// Its count is out of date with the time, or its deletion or its rollout is complete.
    Settle {
        /// Which service.
        service: ServiceId,
    },
    /// What its rollout starts does not get ready.
    Halt {
        /// Which service.
        service: ServiceId,
        /// The failing generation.
        generation: u64,
    },
    /// It lacks instances.
    Request {
        /// Which service.
        service: ServiceId,
        /// The generation to make them from.
        generation: u64,
        /// How many, at most [`CHUNK`].
        count: u32,
    },
    /// It lacks standbys.
    RequestStandbys {
        /// Which service.
        service: ServiceId,
        /// The generation to make them from.
        generation: u64,
        /// How many, at most [`CHUNK`].
        count: u32,
    },
    /// Standbys that answer are to serve.
    Promote {
        /// Which service.
        service: ServiceId,
        /// Which become replicas.
        promoted: Vec<InstanceId>,
        /// Which replicas that do not answer yet stand by instead.
        stood_by: Vec<InstanceId>,
    },
    /// It has instances to take out of rotation.
    Drain {
        /// Which service.
        service: ServiceId,
        /// Which, at most [`CHUNK`].
        instances: Vec<InstanceId>,
        /// Why.
        reason: StopReason,
    },
}

impl ReplicaAction {
    /// The command that asks for it.
    pub fn into_command(self) -> Command {
        match self {
            ReplicaAction::Settle { service } => Command::SettleService { service },
            ReplicaAction::Halt { service, generation } => Command::HaltRollout { service, generation },
            ReplicaAction::Request {
                service,
                generation,
                count,
            } => Command::RequestInstances {
                service,
                generation,
                count,
            },
            ReplicaAction::RequestStandbys {
                service,
                generation,
                count,
            } => Command::RequestStandbys {
                service,
                generation,
                count,
            },
            ReplicaAction::Promote {
                service,
                promoted,
                stood_by,
            } => Command::PromoteStandbys {
                service,
                promoted,
                stood_by,
            },
            ReplicaAction::Drain { instances, reason, .. } => Command::DrainInstances { instances, reason },
        }
    }
}

/// What to do now, and when to look again even if nothing changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reconciliation {
    /// What to do.
    pub actions: Vec<ReplicaAction>,
    /// Next time at which the answer changes by itself: an override begins or ends, or a back-off is over.
    pub next_wake: Option<Timestamp>,
}

/// What leaving takes besides an instance's own grace: gateways' word and the node's.
const LEAVING: Span = Span::from_secs(3);

/// Replicas beyond what is wanted that a rollout may have at a time: a quarter, at least one.
pub fn surge(desired: u32) -> u32 {
    (desired / 4).max(1)
}

/// What `service` needs at `now`. Nothing, if there is no such service.
pub fn reconcile(state: &State, service: ServiceId, now: Timestamp) -> Reconciliation {
    let Some(service) = state.services.get(&service) else {
        return Reconciliation::default();
    };
    let mut out = Reconciliation {
        actions: Vec::new(),
        next_wake: next_override_edge(service, now),
    };
    if out_of_date(state, service, now) {
        // What follows depends on the count that settling sets, so the rest waits for it.
        out.actions.push(ReplicaAction::Settle { service: service.id });
        return out;
    }
    if fails_to_roll_out(service) {
        // Halting changes what is made and what goes.
        out.actions.push(ReplicaAction::Halt {
            service: service.id,
            generation: service.generation,
        });
        return out;
    }
    let mut staying: Vec<&Instance> = service
        .live
        .iter()
        .filter_map(|id| state.instances.get(id))
        .filter(|i| !i.state.leaving())
        .collect();
    staying.sort_by_key(|i| goes_first(state, i));
    match service.lifecycle {
        Lifecycle::Active => active(state, service, &staying, now, &mut out),
        Lifecycle::Stopped => drain(service, &staying, StopReason::ServiceStopped, &mut out),
        Lifecycle::Deleting => drain(service, &staying, StopReason::ServiceDeleted, &mut out),
    }
    out
}

/// Whether the recorded count no longer is what holds at `now`, an override has run out, or a deletion or a rollout is
/// complete.
fn out_of_date(state: &State, service: &Service, now: Timestamp) -> bool {
    match service.lifecycle {
        Lifecycle::Deleting => {
            let holding = |id| state.instances.get(id).is_some_and(|i| i.holding);
            service.live.is_empty() && !service.ended.iter().any(holding)
        }
        Lifecycle::Active | Lifecycle::Stopped => {
            let run_out = service
                .scale_override
                .and_then(|o| o.until)
                .is_some_and(|until| until <= now);
            run_out || service.desired_at(now).0 != service.desired || state.rollout_through(service, now)
        }
    }
}

fn next_override_edge(service: &Service, now: Timestamp) -> Option<Timestamp> {
    let edges = service.scale_override.map(|o| [o.from, o.until]);
    edges.into_iter().flatten().flatten().filter(|edge| *edge > now).min()
}

/// Order in which replicas are given up: those that wait, then those that never served, then those that do not answer,
/// then those on a doubted node, then those that serve; the newest first in each.
fn goes_first(state: &State, instance: &Instance) -> (u8, Reverse<Timestamp>, Reverse<InstanceId>) {
    let doubted = || {
        let node = instance.node.and_then(|id| state.nodes.get(&id));
        node.is_none_or(|n| n.state != NodeState::Ready)
    };
    let rank = match instance.state {
        InstanceState::Pending => 0,
        _ if instance.ready_at.is_none() => 1,
        InstanceState::Ready if doubted() => 3,
        InstanceState::Ready => 4,
        _ => 2,
    };
    let since = instance.ready_at.unwrap_or(instance.requested_at);
    (rank, Reverse(since), Reverse(instance.id))
}

fn is_ready(instance: &&&Instance) -> bool {
    instance.serves()
}

fn active(state: &State, service: &Service, staying: &[&Instance], now: Timestamp, out: &mut Reconciliation) {
    let desired = service.desired as usize;
    let made = service.made_generation();
    let (doubted, staying): (Vec<&Instance>, Vec<&Instance>) = staying
        .iter()
        .partition(|i| state.displaced(i) == Some(Displaced::Doubted));
    // What serves on a doubted node may come back and is left alone; what never served there is only in the way.
    let tripped = state.breaker_tripped();
    let useless: Vec<&Instance> = doubted
        .into_iter()
        .filter(|i| i.ready_at.is_none() && !tripped)
        .collect();
    drain(service, &useless, StopReason::NodeDoubted, out);
    let (displaced, staying): (Vec<&Instance>, Vec<&Instance>) =
        staying.into_iter().partition(|i| state.displaced(i).is_some());
    let (standbys, staying): (Vec<&Instance>, Vec<&Instance>) = staying.into_iter().partition(|i| i.standby);
    // Under a halted rollout a new replica that serves is as good as an old one; without a halt it is the aim.
    let halted = service.halted.is_some();
    let (current, older): (Vec<&Instance>, Vec<&Instance>) = staying
        .iter()
        .partition(|i| i.generation == made || halted && i.state == InstanceState::Ready);

    // `staying` is in the order in which replicas go, so the surplus is its head.
    let surplus = current.len().saturating_sub(desired);
    let (surplus, kept) = current.split_at(surplus);
    let standing_by = standbys.iter().filter(|i| i.generation == made).count();
    let lacking = (service.standbys() as usize).saturating_sub(standing_by);
    let stood_by = stand_by(service, surplus, lacking, out);

    let ready = kept.iter().filter(is_ready).count();
    let (serving, useless): (Vec<&Instance>, Vec<&Instance>) = older.iter().partition(is_ready);
    // An older replica that does not serve is only in the way of its replacement.
    drain(service, &useless, StopReason::Replaced, out);
    let leaving = displaced_go(state, service, &displaced, ready + serving.len(), now, out);
    let proven = match service.advancing_from() {
        Some(_) => proven(service, kept, now, out),
        None => ready,
    };
    let spare = (proven + serving.len() + leaving)
        .saturating_sub(desired)
        .min(serving.len());
    drain(service, &serving[..spare], StopReason::Replaced, out);

    let promoted = promote(
        state,
        service,
        &standbys,
        (ready + serving.len() + leaving, kept.len()),
        out,
    );
    // What is on its way beyond what is wanted then stands by in the next round.
    let beyond = (kept.len() + promoted).saturating_sub(desired);
    let standing_by = standing_by + stood_by - promoted + beyond;
    let missing = desired.saturating_sub(kept.len() + promoted + state.held_by_breaker(service));
    let room =
        (desired + surge(service.desired) as usize).saturating_sub(kept.len() + promoted + serving.len() - spare);
    let wanted = missing.min(room);
    // Standbys come once nothing else is to be started: what serves goes first.
    let lacking = match missing {
        0 if !tripped => (service.standbys() as usize).saturating_sub(standing_by),
        _ => 0,
    };
    trim_standbys(service, &standbys, promoted, serving.len() - spare, out);
    if wanted + lacking == 0 {
        return;
    }
    if let Some(retry_at) = service.retry_at.filter(|at| now < *at) {
        out.next_wake = earliest(out.next_wake, Some(retry_at));
        return;
    }
    for count in chunks(wanted) {
        out.actions.push(ReplicaAction::Request {
            service: service.id,
            generation: made,
            count,
        });
    }
    for count in chunks(lacking) {
        out.actions.push(ReplicaAction::RequestStandbys {
            service: service.id,
            generation: made,
            count,
        });
    }
}

fn chunks(count: usize) -> impl Iterator<Item = u32> {
    (0..count)
        .step_by(CHUNK)
        .map(move |from| (count - from).min(CHUNK) as u32)
}

/// Replicas beyond what is wanted leave, except that those which never served stand by, as far as standbys lack. Answers
/// how many do.
fn stand_by(service: &Service, surplus: &[&Instance], lacking: usize, out: &mut Reconciliation) -> usize {
    let useful = |i: &&&Instance| i.ready_at.is_none() && i.generation == service.made_generation();
    let (starting, leaving): (Vec<&Instance>, Vec<&Instance>) = surplus.iter().partition(useful);
    // The furthest on the way come last.
    let (excess, stood_by) = starting.split_at(starting.len().saturating_sub(lacking));
    drain(service, excess, StopReason::ScaledDown, out);
    drain(service, &leaving, StopReason::ScaledDown, out);
    if !stood_by.is_empty() {
        out.actions.push(ReplicaAction::Promote {
            service: service.id,
            promoted: Vec::new(),
            stood_by: stood_by.iter().take(CHUNK).map(|i| i.id).collect(),
        });
    }
    stood_by.len()
}

/// Brings standbys that answer into rotation where replicas are missing, or are on their way while work is moving.
/// `serving` = how many replicas answer, `kept` = how many of what is wanted there are, on their way or not. Answers how
/// many of the generation that is made come in.
fn promote(
    state: &State,
    service: &Service,
    standbys: &[&Instance],
    (serving, kept): (usize, usize),
    out: &mut Reconciliation,
) -> usize {
    let desired = service.desired as usize;
    let moves = || state.switches.values().any(|s| s.service == service.id && s.is_open());
    let lacking = desired.saturating_sub(serving);
    if lacking == 0 || (kept >= desired && !moves()) {
        return 0;
    }
    let made = service.made_generation();
    let mut able: Vec<&&Instance> = standbys.iter().filter(|i| i.state == InstanceState::Ready).collect();
    able.sort_by_key(|i| (i.generation != made, i.ready_at, i.id));
    let promoted: Vec<&&Instance> = able.into_iter().take(lacking.min(CHUNK)).collect();
    if !promoted.is_empty() {
        out.actions.push(ReplicaAction::Promote {
            service: service.id,
            promoted: promoted.iter().map(|i| i.id).collect(),
            stood_by: Vec::new(),
        });
    }
    promoted.iter().filter(|i| i.generation == made).count()
}

/// Lets go of standbys that are too many, and of those of an older generation once no replica of that serves any more.
fn trim_standbys(
    service: &Service,
    standbys: &[&Instance],
    promoted: usize,
    older_serving: usize,
    out: &mut Reconciliation,
) {
    let made = service.made_generation();
    let (current, older): (Vec<&Instance>, Vec<&Instance>) = standbys.iter().partition(|i| i.generation == made);
    let surplus = current.len().saturating_sub(service.standbys() as usize + promoted);
    drain(service, &current[..surplus], StopReason::ScaledDown, out);
    if older_serving == 0 {
        drain(service, &older, StopReason::Replaced, out);
    }
}

/// How many of a rollout's new replicas have been ready for as long as they must before they count; wakes when the next
/// one has.
fn proven(service: &Service, new: &[&Instance], now: Timestamp, out: &mut Reconciliation) -> usize {
    let (proven, held): (Vec<Timestamp>, Vec<Timestamp>) = new
        .iter()
        .filter_map(|i| service.proven_at(i))
        .partition(|at| *at <= now);
    out.next_wake = earliest(out.next_wake, held.into_iter().min());
    proven.len()
}

/// Takes out of rotation what is to leave its place and has been replaced, or must not stay longer. `others` = replicas
/// that serve elsewhere. Answers how many of those that serve stay for now.
fn displaced_go(
    state: &State,
    service: &Service,
    displaced: &[&Instance],
    others: usize,
    now: Timestamp,
    out: &mut Reconciliation,
) -> usize {
    let (serving, useless): (Vec<&Instance>, Vec<&Instance>) = displaced.iter().partition(is_ready);
    let due = |i: &&Instance| {
        let at = due_at(state, service, i);
        at.is_some_and(|at| at <= now)
    };
    let (due, staying): (Vec<&Instance>, Vec<&Instance>) = serving.into_iter().partition(due);
    let spare = (others + staying.len())
        .saturating_sub(service.desired as usize)
        .min(staying.len());
    let (spare, staying) = staying.split_at(spare);
    let wakes = staying.iter().filter_map(|i| due_at(state, service, i)).min();
    out.next_wake = earliest(out.next_wake, wakes);
    let reason = |i: &&&Instance| match state.displaced(i) {
        Some(Displaced::Moving) => StopReason::Moved,
        _ => StopReason::NodeDraining,
    };
    let (moved, drained): (Vec<&Instance>, Vec<&Instance>) = useless
        .iter()
        .chain(&due)
        .chain(spare)
        .partition(|i| reason(i) == StopReason::Moved);
    drain(service, &drained, StopReason::NodeDraining, out);
    drain(service, &moved, StopReason::Moved, out);
    staying.len()
}

/// When an instance of a draining node has to begin to leave whether it was replaced or not: so that its grace is over by
/// the deadline, but not in the first half of the notice.
fn due_at(state: &State, service: &Service, instance: &Instance) -> Option<Timestamp> {
    let Some(Displaced::Draining { since, deadline }) = state.displaced(instance) else {
        return None;
    };
    let deadline = deadline?;
    let spec = service
        .specs
        .get(&instance.generation)
        .unwrap_or_else(|| service.spec());
    let half = Span::from_micros(deadline.since(since).micros() / 2);
    let needed = Span::from_micros(spec.run.stop_grace.micros() + LEAVING.micros());
    Some(deadline - needed.min(half))
}

fn earliest(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    a.into_iter().chain(b).min()
}

fn drain(service: &Service, instances: &[&Instance], reason: StopReason, out: &mut Reconciliation) {
    out.actions
        .extend(instances.chunks(CHUNK).map(|chunk| ReplicaAction::Drain {
            service: service.id,
            instances: chunk.iter().map(|i| i.id).collect(),
            reason,
        }));
}
