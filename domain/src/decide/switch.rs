//! Switches: opening them where work has to move, and closing them.
//!
//! A switch is opened in the very commit that makes its instance one to be replaced, so that no instance is ever moved
//! off the record; which instance takes over is recorded when that one is requested.

use crate::command::{CloseSwitch, Context};
use crate::events::Event;
use crate::events::switch::{SwitchCause, SwitchClosed, SwitchOpened, SwitchReplacementChosen};
use crate::id::{InstanceId, ServiceId, SwitchId};
use crate::rejection::Rejection;
use crate::state::State;
use crate::state::instance::{Instance, InstanceState};
use crate::state::service::Lifecycle;
use crate::state::switch::Switch;
use crate::time::Span;

use super::{fresh, not_found};

/// Why instances are to be replaced.
pub(super) struct Because<'a> {
    /// Switches that the same command opened before: their ids are taken.
    pub(super) before: u64,
    pub(super) cause: SwitchCause,
    pub(super) detail: &'a str,
    pub(super) detect: Option<Span>,
}

/// The events that open a switch for each of `instances` whose work has to move: those that are wanted, were placed, and
/// are not on their way out or moving already.
pub(super) fn open(
    state: &State,
    context: &Context<'_>,
    instances: impl IntoIterator<Item = InstanceId>,
    because: &Because<'_>,
    events: &mut Vec<Event>,
) {
    for (id, number) in instances.into_iter().zip(because.before..) {
        let Some(instance) = state.instances.get(&id).filter(|i| moves(state, i)) else {
            continue;
        };
        let Some(node) = instance.node else { continue };
        let switch = fresh(context, "switch", number, SwitchId::from_bits, |id| {
            state.switches.contains_key(id)
        });
        events.push(
            SwitchOpened {
                switch,
                service: instance.service,
                instance: id,
                node,
                cause: because.cause,
                detail: because.detail.to_owned(),
                detect: because.detect,
            }
            .into(),
        );
    }
}

fn moves(state: &State, instance: &Instance) -> bool {
    let lives = matches!(
        instance.state,
        InstanceState::Placed | InstanceState::Starting | InstanceState::Ready
    );
    let service = state.services.get(&instance.service);
    // What fails before it ever served, or is being rolled over, is another story: nobody depends on it yet.
    let wanted = service.is_some_and(|s| s.lifecycle == Lifecycle::Active && s.desired > 0);
    // What stands by serves nobody.
    lives && wanted && !instance.standby && state.open_switch_of(instance.id).is_none()
}

/// Instances of `service` just requested take over for its open switches, the longest open first.
pub(super) fn choose(state: &State, service: ServiceId, requested: &[InstanceId]) -> Vec<Event> {
    pair(state, service, requested, |s| !has_replacement(state, s))
}

/// Instances of `service` that answer take over for its open switches that nothing which answers has taken over yet.
pub(super) fn choose_at_once(state: &State, service: ServiceId, ready: &[InstanceId]) -> Vec<Event> {
    let answers = |id| state.instances.get(&id).is_some_and(Instance::serves);
    pair(state, service, ready, |s| !s.replacement.is_some_and(answers))
}

fn pair(state: &State, service: ServiceId, instances: &[InstanceId], waits: impl Fn(&Switch) -> bool) -> Vec<Event> {
    let mut waiting: Vec<&Switch> = state
        .switches
        .values()
        .filter(|s| s.service == service && s.is_open() && waits(s))
        .collect();
    waiting.sort_by_key(|s| (s.opened_at, s.id));
    let pairs = waiting.into_iter().zip(instances);
    pairs
        .map(|(switch, instance)| {
            SwitchReplacementChosen {
                switch: switch.id,
                instance: *instance,
            }
            .into()
        })
        .collect()
}

/// Whether something takes over that has not ended or left since.
pub(super) fn has_replacement(state: &State, switch: &Switch) -> bool {
    let replacement = switch.replacement.and_then(|id| state.instances.get(&id));
    replacement.is_some_and(|i| !i.state.ended() && !i.state.leaving())
}

pub(super) fn close(state: &State, close: CloseSwitch) -> Result<Vec<Event>, Rejection> {
    let switch = state
        .switches
        .get(&close.switch)
        .ok_or_else(|| not_found("switch", close.switch))?;
    if !switch.is_open() {
        return Ok(vec![]);
    }
    let replacement = switch.replacement.and_then(|id| state.instances.get(&id));
    let in_rotation = replacement.and_then(|i| Some(i.available_at()? + i.timings.in_rotation.unwrap_or(Span::ZERO)));
    Ok(vec![
        SwitchClosed {
            switch: switch.id,
            outcome: close.outcome,
            replacement: switch.replacement,
            to_node: replacement.and_then(|i| i.node),
            replace: in_rotation.map(|at| at.since(switch.opened_at)),
            effect: close.effect,
        }
        .into(),
    ])
}
