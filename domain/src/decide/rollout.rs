//! Rollouts: the end of one, its halt, the way back.
//!
//! A rollout is what lies between a service's settled generation and its present one; how far it is follows from the
//! instances. Only its ends are facts: it came through, it was halted because what it starts does not get ready, or its
//! owner went back. A halted rollout keeps what serves and tries nothing more until the owner decides: going back by
//! itself was rejected, since the declaration would then no longer be what was applied.

use crate::command::Context;
use crate::events::Event;
use crate::events::service::{ServiceRolledBack, ServiceRolledOut, ServiceRolloutHalted, ServiceSpec};
use crate::id::ServiceId;
use crate::rejection::Rejection;
use crate::state::State;
use crate::state::service::{Lifecycle, Service};

use super::service::{follow, get, not_deleting, wrong_state};

/// Tries in a row of a new generation that fail before its rollout is halted: one failure may be the node's.
pub const ROLLOUT_TRIES: u32 = 2;

/// Whether a rollout goes on of which what it starts has failed too often in a row.
pub fn fails_to_roll_out(service: &Service) -> bool {
    let goes_on = service.lifecycle == Lifecycle::Active && service.advancing_from().is_some();
    goes_on && service.failures >= ROLLOUT_TRIES
}

/// Appends the fact that the rollout is through, where it is.
pub(super) fn settle(state: &State, context: &Context<'_>, service: &Service, events: &mut Vec<Event>) {
    if state.rollout_through(service, context.now) {
        let rolled_out = ServiceRolledOut {
            service: service.id,
            generation: service.generation,
            took: context.now.since(service.declared_at),
        };
        events.push(rolled_out.into());
    }
}

pub(super) fn halt(state: &State, id: ServiceId, generation: u64) -> Result<Vec<Event>, Rejection> {
    let service = get(state, id)?;
    if generation != service.generation {
        return Err(Rejection::StaleGeneration {
            service: service.full_name(),
            asked: generation,
            current: service.generation,
        });
    }
    let Some(serving) = service.advancing_from() else {
        return Ok(vec![]);
    };
    if !fails_to_roll_out(service) {
        return Err(wrong_state(service, "its new generation has not failed often enough"));
    }
    let reason = service.last_failure.clone().unwrap_or_default();
    let halted = ServiceRolloutHalted {
        service: id,
        generation,
        serving,
        reason,
    };
    Ok(vec![halted.into()])
}

pub(super) fn roll_back(state: &State, context: &Context<'_>, id: ServiceId) -> Result<Vec<Event>, Rejection> {
    let service = get(state, id)?;
    not_deleting(service)?;
    let target = service
        .rollback_target()
        .and_then(|to| Some((to, service.specs.get(&to)?)));
    let Some((to, old)) = target else {
        return Err(wrong_state(service, "it has had no other generation that served"));
    };
    let present = service.spec();
    let spec = ServiceSpec {
        class: present.class,
        scale: present.scale.clone(),
        route: present.route.clone(),
        ..ServiceSpec::clone(old)
    };
    let mut events = vec![
        ServiceRolledBack {
            service: id,
            from: service.generation,
            to,
            spec,
        }
        .into(),
    ];
    follow(service, context.now, &mut events);
    Ok(events)
}
