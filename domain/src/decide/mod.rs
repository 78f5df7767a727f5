//! Decisions: a command meets the state and becomes events, or a typed refusal.
//!
//! One function per command, grouped by family as the events are. A decision either answers with everything that
//! follows from the command or with a rejection, never with a part. A command that finds its wish already true answers
//! with no events: workers and agents may ask again as often as they like. Checks that must not race (is the device
//! still free?) are made here, against the writer's own state, and nowhere else.
//!
//! To add a command: a variant in [`crate::command`], a function in the family's file, an arm in [`decide`], and a
//! given/when/then table in `tests/tests/decide_*.rs`.

mod breaker;
mod cell;
mod drain;
mod facts;
mod instance;
mod node;
mod rollout;
mod service;
mod standby;
mod switch;
pub mod validate;

pub use facts::backoff;
pub use rollout::{ROLLOUT_TRIES, fails_to_roll_out};

use crate::command::{Command, Context};
use crate::commit::Actor;
use crate::events::Event;
use crate::rejection::Rejection;
use crate::state::State;

/// What follows from `command` in `state`.
pub fn decide(state: &State, context: &Context<'_>, command: Command) -> Result<Vec<Event>, Rejection> {
    check_term(state, context)?;
    match command {
        Command::ActivateFeature { feature } => cell::activate_feature(state, feature),
        Command::CreateCredential(c) => cell::create_credential(state, context, c),
        Command::RevokeCredential { credential } => cell::revoke_credential(state, credential),
        Command::AcquireTerm { role, holder } => cell::acquire_term(state, context, role, holder),
        Command::JoinNode(join) => node::join(state, context, join),
        Command::ReportFacts(report) => facts::report(state, context, report),
        Command::SuspectNode {
            node,
            silent,
            closed,
            reason,
        } => node::suspect(state, context, node, silent, closed, reason),
        Command::RecoverNode { node, reason } => node::recover(state, node, reason),
        Command::LoseNode { node, silent, reason } => node::lose(state, node, silent, reason),
        Command::LeaveNode { node, reason } => node::leave(state, context, node, reason),
        Command::ForgetNode { node, reason } => node::forget(state, node, reason),
        Command::ApplyServices { services } => service::apply(state, context, services),
        Command::StopService { service } => service::stop(state, context, service),
        Command::StartService { service } => service::start(state, context, service),
        Command::DeleteService { service } => service::delete(state, service),
        Command::ScaleService {
            service,
            replicas,
            from,
            until,
        } => service::scale(state, context, service, replicas, from, until),
        Command::ReleaseScale { service } => service::release_scale(state, context, service),
        Command::SettleService { service } => service::settle(state, context, service),
        Command::HaltRollout { service, generation } => rollout::halt(state, service, generation),
        Command::RollBackService { service } => rollout::roll_back(state, context, service),
        Command::RequestInstances {
            service,
            generation,
            count,
        } => instance::request(state, context, service, generation, count),
        Command::RequestStandbys {
            service,
            generation,
            count,
        } => standby::request(state, context, service, generation, count),
        Command::PromoteStandbys {
            service,
            promoted,
            stood_by,
        } => standby::promote(state, service, promoted, stood_by),
        Command::PlaceInstances {
            service,
            placements,
            explanation,
        } => instance::place(state, service, placements, explanation),
        Command::DeferPlacement {
            service,
            waiting,
            explanation,
        } => instance::defer(state, service, waiting, explanation),
        Command::DrainInstances { instances, reason } => instance::drain(state, instances, reason),
        Command::ReleaseInstances { instances } => instance::release(state, instances),
        Command::ReportInRotation { gateway, instances } => instance::in_rotation(state, gateway, instances),
        Command::CordonNode { node, reason } => drain::cordon(state, node, reason),
        Command::UncordonNode { node, reason } => drain::uncordon(state, node, reason),
        Command::DrainNode(drain) => drain::drain(state, context, drain),
        Command::SettleDrain { node } => drain::settle(state, node),
        Command::MoveInstance { instance, reason } => drain::move_instance(state, context, instance, reason),
        Command::ConfirmBreaker { reason } => breaker::confirm(state, reason),
        Command::ResetBreaker { reason } => breaker::reset(state, reason),
        Command::CloseSwitch(close) => switch::close(state, close),
        Command::CloseTrafficMinute(minute) => service::close_traffic_minute(state, minute),
        Command::SealObservationWindow(window) => cell::seal_window(state, window),
    }
}

/// A worker speaks only in its present term.
fn check_term(state: &State, context: &Context<'_>) -> Result<(), Rejection> {
    let Actor::Worker { role, term } = context.actor else {
        return Ok(());
    };
    match state.terms.get(role) {
        Some(current) if current.term == *term => Ok(()),
        current => Err(Rejection::StaleTerm {
            role: role.clone(),
            term: *term,
            current: current.map_or(0, |t| t.term),
            holder: current.map_or_else(|| "nobody".to_owned(), |t| t.holder.clone()),
        }),
    }
}

fn not_found(what: &str, id: impl ToString) -> Rejection {
    Rejection::NotFound {
        what: what.to_owned(),
        id: id.to_string(),
    }
}

fn check_count(what: &str, asked: usize, limit: usize) -> Result<(), Rejection> {
    if asked > limit {
        return Err(Rejection::TooMany {
            what: what.to_owned(),
            asked: asked as u64,
            limit: limit as u64,
        });
    }
    Ok(())
}

/// An id derived from the command under `purpose` that `taken` does not know.
fn fresh<T>(
    context: &Context<'_>,
    purpose: &str,
    number: u64,
    make: impl Fn(u64) -> T,
    taken: impl Fn(&T) -> bool,
) -> T {
    // The salt moves only on a clash, which is as good as never; it makes uniqueness a fact rather than a hope.
    let mut salt = 0;
    loop {
        let id = make(crate::id::derive(&context.command.0, purpose, number | salt << 32));
        if !taken(&id) {
            return id;
        }
        salt += 1;
    }
}
