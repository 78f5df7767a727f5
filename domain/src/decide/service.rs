//! Services: declare, stop, start, delete, scale.

use std::collections::BTreeSet;

use crate::command::{Context, DeclaredService};
use crate::events::Event;
use crate::events::evidence::TrafficMinuteClosed;
use crate::events::service::{
    DesiredReason, ServiceApplied, ServiceDeleteRequested, ServiceDeleted, ServiceDesiredChanged,
    ServiceScaleOverridden, ServiceScaleReleased, ServiceSpec, ServiceStarted, ServiceStopRequested,
};
use crate::id::ServiceId;
use crate::rejection::Rejection;
use crate::state::service::{Lifecycle, ScaleOverride, Service};
use crate::state::{MINUTE, State};
use crate::time::Timestamp;

use super::{check_count, fresh, not_found, rollout, validate};

/// Most services of one declaration: together they stay well inside one record.
const MAX_SERVICES: usize = 64;

pub(super) fn apply(
    state: &State,
    context: &Context<'_>,
    declared: Vec<DeclaredService>,
) -> Result<Vec<Event>, Rejection> {
    check_count("services", declared.len(), MAX_SERVICES)?;
    let mut names = BTreeSet::new();
    let mut hosts = BTreeSet::new();
    let mut events = Vec::new();
    for (number, service) in declared.into_iter().enumerate() {
        if !names.insert((service.tenant.clone(), service.name.clone())) {
            let reason = format!("{}/{} is declared twice", service.tenant, service.name);
            return Err(Rejection::Invalid {
                key: "name".into(),
                reason,
            });
        }
        validate::service_spec(&service.spec)?;
        let known = state.service_named(&service.tenant, &service.name);
        if let Some(host) = &service.spec.route.host {
            let owner = state
                .services
                .values()
                .find(|s| s.spec().route.host.as_ref() == Some(host) && known.is_none_or(|k| k.id != s.id));
            if let Some(owner) = owner {
                return Err(Rejection::HostTaken {
                    host: host.clone(),
                    service: owner.full_name(),
                });
            }
            if !hosts.insert(host.clone()) {
                let reason = format!("host `{host}` is declared twice");
                return Err(Rejection::Invalid {
                    key: "route.host".into(),
                    reason,
                });
            }
        }
        match known {
            None => create(state, context, number as u64, service, &mut events),
            Some(known) => change(context, known, service, &mut events)?,
        }
    }
    Ok(events)
}

fn create(state: &State, context: &Context<'_>, number: u64, declared: DeclaredService, events: &mut Vec<Event>) {
    let service = fresh(context, "service", number, ServiceId::from_bits, |id| {
        state.services.contains_key(id)
    });
    let desired = declared.spec.scale.min;
    events.push(
        ServiceApplied {
            service,
            tenant: declared.tenant,
            name: declared.name,
            generation: 1,
            spec: declared.spec,
        }
        .into(),
    );
    if desired > 0 {
        events.push(
            ServiceDesiredChanged {
                service,
                desired,
                reason: DesiredReason::Minimum,
            }
            .into(),
        );
    }
}

fn change(
    context: &Context<'_>,
    known: &Service,
    declared: DeclaredService,
    events: &mut Vec<Event>,
) -> Result<(), Rejection> {
    if known.lifecycle == Lifecycle::Deleting {
        return Err(wrong_state(
            known,
            "it is being deleted; apply it again once it is gone",
        ));
    }
    let spec = declared.spec;
    // The same again under a halted rollout is its owner's wish to try once more.
    let same = **known.spec() == spec;
    if same && known.halted.is_none() {
        return Ok(());
    }
    let generation = match same || needs_new_instances(known.spec(), &spec) {
        true => known.newest + 1,
        false => known.generation,
    };
    let (desired, reason) = known.desired_under(&spec.scale, context.now);
    let service = known.id;
    events.push(
        ServiceApplied {
            service,
            tenant: declared.tenant,
            name: declared.name,
            generation,
            spec,
        }
        .into(),
    );
    if desired != known.desired {
        events.push(
            ServiceDesiredChanged {
                service,
                desired,
                reason,
            }
            .into(),
        );
    }
    Ok(())
}

/// Whether running instances no longer match: all but scale, route and class is baked into them.
fn needs_new_instances(old: &ServiceSpec, new: &ServiceSpec) -> bool {
    old.run != new.run || old.devices != new.devices || old.placement != new.placement
}

pub(super) fn get(state: &State, service: ServiceId) -> Result<&Service, Rejection> {
    state
        .services
        .get(&service)
        .ok_or_else(|| not_found("service", service))
}

pub(super) fn wrong_state(service: &Service, reason: &str) -> Rejection {
    let state = match service.lifecycle {
        Lifecycle::Active => "active",
        Lifecycle::Stopped => "stopped",
        Lifecycle::Deleting => "being deleted",
    };
    Rejection::WrongState {
        what: format!("service {}", service.full_name()),
        state: state.to_owned(),
        reason: reason.to_owned(),
    }
}

pub(super) fn not_deleting(service: &Service) -> Result<(), Rejection> {
    if service.lifecycle == Lifecycle::Deleting {
        return Err(wrong_state(service, "nothing but its end can be asked of it"));
    }
    Ok(())
}

/// The change of the replica count that follows when `service` becomes `then`.
pub(super) fn follow(then: &Service, now: Timestamp, events: &mut Vec<Event>) {
    let (desired, reason) = then.desired_at(now);
    if desired != then.desired {
        events.push(
            ServiceDesiredChanged {
                service: then.id,
                desired,
                reason,
            }
            .into(),
        );
    }
}

pub(super) fn stop(state: &State, context: &Context<'_>, id: ServiceId) -> Result<Vec<Event>, Rejection> {
    let service = get(state, id)?;
    not_deleting(service)?;
    if service.lifecycle == Lifecycle::Stopped {
        return Ok(vec![]);
    }
    let mut events = vec![ServiceStopRequested { service: id }.into()];
    let then = Service {
        lifecycle: Lifecycle::Stopped,
        ..service.clone()
    };
    follow(&then, context.now, &mut events);
    Ok(events)
}

pub(super) fn start(state: &State, context: &Context<'_>, id: ServiceId) -> Result<Vec<Event>, Rejection> {
    let service = get(state, id)?;
    not_deleting(service)?;
    if service.lifecycle == Lifecycle::Active {
        return Ok(vec![]);
    }
    let mut events = vec![ServiceStarted { service: id }.into()];
    let then = Service {
        lifecycle: Lifecycle::Active,
        ..service.clone()
    };
    follow(&then, context.now, &mut events);
    Ok(events)
}

pub(super) fn delete(state: &State, id: ServiceId) -> Result<Vec<Event>, Rejection> {
    let service = get(state, id)?;
    if service.lifecycle == Lifecycle::Deleting {
        return Ok(vec![]);
    }
    let mut events: Vec<Event> = vec![ServiceDeleteRequested { service: id }.into()];
    if service.desired > 0 {
        let changed = ServiceDesiredChanged {
            service: id,
            desired: 0,
            reason: DesiredReason::Deleted,
        };
        events.push(changed.into());
    }
    Ok(events)
}

pub(super) fn scale(
    state: &State,
    context: &Context<'_>,
    id: ServiceId,
    replicas: u32,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
) -> Result<Vec<Event>, Rejection> {
    let service = get(state, id)?;
    not_deleting(service)?;
    let invalid = |key: &str, reason: String| {
        Err(Rejection::Invalid {
            key: key.to_owned(),
            reason,
        })
    };
    let max = service.spec().scale.max;
    if replicas > max {
        return invalid(
            "replicas",
            format!("{replicas} is above scale.max = {max}; raise that first"),
        );
    }
    if until.is_some_and(|until| until <= context.now) {
        return invalid("to", "the override would be over before it began".to_owned());
    }
    if from.zip(until).is_some_and(|(from, until)| from >= until) {
        return invalid("from", "the override would end before it begins".to_owned());
    }
    let scale_override = Some(ScaleOverride { replicas, from, until });
    if service.scale_override == scale_override {
        return Ok(vec![]);
    }
    let mut events = vec![
        ServiceScaleOverridden {
            service: id,
            replicas,
            from,
            until,
        }
        .into(),
    ];
    follow(
        &Service {
            scale_override,
            ..service.clone()
        },
        context.now,
        &mut events,
    );
    Ok(events)
}

pub(super) fn release_scale(state: &State, context: &Context<'_>, id: ServiceId) -> Result<Vec<Event>, Rejection> {
    let service = get(state, id)?;
    if service.scale_override.is_none() {
        return Ok(vec![]);
    }
    let mut events = vec![ServiceScaleReleased { service: id }.into()];
    follow(
        &Service {
            scale_override: None,
            ..service.clone()
        },
        context.now,
        &mut events,
    );
    Ok(events)
}

pub(super) fn settle(state: &State, context: &Context<'_>, id: ServiceId) -> Result<Vec<Event>, Rejection> {
    let Some(service) = state.services.get(&id) else {
        return Ok(vec![]);
    };
    let mut events = Vec::new();
    if service.lifecycle == Lifecycle::Deleting {
        let holding = |id| state.instances.get(id).is_some_and(|i| i.holding);
        if service.live.is_empty() && !service.ended.iter().any(holding) {
            events.push(ServiceDeleted { service: id }.into());
        }
        return Ok(events);
    }
    let over = service
        .scale_override
        .is_some_and(|o| o.until.is_some_and(|until| until <= context.now));
    if over {
        events.push(ServiceScaleReleased { service: id }.into());
    }
    follow(service, context.now, &mut events);
    rollout::settle(state, context, service, &mut events);
    Ok(events)
}

pub(super) fn close_traffic_minute(state: &State, minute: TrafficMinuteClosed) -> Result<Vec<Event>, Rejection> {
    let service = get(state, minute.service)?;
    if minute.minute.0.rem_euclid(MINUTE.micros() as i64) != 0 {
        return Err(Rejection::Invalid {
            key: "minute".into(),
            reason: "it is not the begin of a minute".into(),
        });
    }
    if service.traffic_through.is_some_and(|through| minute.minute < through) {
        return Ok(vec![]);
    }
    Ok(vec![minute.into()])
}
