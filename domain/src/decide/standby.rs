//! Standbys: instances that are kept warm and out of rotation, and their promotion.

use crate::command::{CHUNK, Context};
use crate::events::Event;
use crate::events::instance::{InstancesRequested, StandbysPromoted};
use crate::id::{InstanceId, ServiceId};
use crate::rejection::Rejection;
use crate::state::State;
use crate::state::instance::{Instance, InstanceState};

use super::instance::{complete, may_grow, new_instances, service, wrong};
use super::{check_count, not_found, switch};

pub(super) fn request(
    state: &State,
    context: &Context<'_>,
    id: ServiceId,
    generation: u64,
    count: u32,
) -> Result<Vec<Event>, Rejection> {
    let service = may_grow(state, context, id, generation, count)?;
    let standing_by = service
        .live
        .iter()
        .filter_map(|id| state.instances.get(id))
        .filter(|i| i.standby && !i.state.leaving() && i.generation == generation && state.displaced(i).is_none())
        .count();
    if standing_by + count as usize > service.standbys() as usize {
        return Err(complete(service));
    }
    let instances = new_instances(state, context, count);
    if instances.is_empty() {
        return Ok(vec![]);
    }
    Ok(vec![
        InstancesRequested {
            service: id,
            generation,
            instances,
            standby: true,
        }
        .into(),
    ])
}

/// Only what answers is promoted, and only what does not answer yet stands by instead: no request is ever taken from a
/// replica by this.
pub(super) fn promote(
    state: &State,
    id: ServiceId,
    promoted: Vec<InstanceId>,
    stood_by: Vec<InstanceId>,
) -> Result<Vec<Event>, Rejection> {
    check_count("instances", promoted.len() + stood_by.len(), CHUNK)?;
    let service = service(state, id)?;
    let of_it = |id: &InstanceId| -> Result<&Instance, Rejection> {
        let found = state.instances.get(id).filter(|i| i.service == service.id);
        found.ok_or_else(|| not_found("instance", id))
    };
    for id in &promoted {
        let instance = of_it(id)?;
        if !instance.standby || instance.state != InstanceState::Ready {
            let what = format!("instance {id}");
            return Err(wrong(
                what,
                instance.state_name(),
                "only a standby that answers is promoted",
            ));
        }
    }
    for id in &stood_by {
        let instance = of_it(id)?;
        let starts = matches!(
            instance.state,
            InstanceState::Pending | InstanceState::Placed | InstanceState::Starting
        );
        if instance.standby || !starts || instance.ready_at.is_some() {
            let what = format!("instance {id}");
            return Err(wrong(
                what,
                instance.state_name(),
                "what has served does not go to stand by",
            ));
        }
    }
    if promoted.is_empty() && stood_by.is_empty() {
        return Ok(vec![]);
    }
    let taking_over = switch::choose_at_once(state, id, &promoted);
    let event = StandbysPromoted {
        service: id,
        promoted,
        stood_by,
    };
    Ok(std::iter::once(event.into()).chain(taking_over).collect())
}
