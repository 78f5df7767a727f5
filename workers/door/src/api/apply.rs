//! `apply`: a workload file becomes one command, all or nothing; a dry run is decided by the same code on the same state.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::json;
use tidemill_domain::command::{Command, Context, DeclaredService};
use tidemill_domain::decide::decide;
use tidemill_domain::events::Event;
use tidemill_domain::events::service::{DeviceRequest, ServiceApplied, ServiceSpec};
use tidemill_domain::id::{CommandId, ServiceId, derive};
use tidemill_domain::state::State as CellState;
use tidemill_domain::unit::Name;

use super::params::Params;
use super::{Change, Handled, answer, body};
use crate::gate::Caller;
use crate::problem::Refusal;
use crate::shared::Shared;
use crate::workload::{self, Workloads};

pub(crate) async fn apply(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Handled<Response> {
    let params = Params::of(request.uri(), &["dry_run"])?;
    let dry_run = params.flag("dry_run")?;
    let bytes = body(request, &shared).await?;
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        Refusal::invalid(
            format!(
                "the file is no text: it is not UTF-8 from byte {} on",
                error.valid_up_to()
            ),
            "give a workload file, YAML saved as UTF-8; nothing was changed",
        )
    })?;
    // A tenant's file need not repeat whose it is.
    let own = caller.principal.tenant().cloned().unwrap_or_else(Name::default_tenant);
    let Workloads { services, warnings } = workload::parse_for(text, &own)?;
    own_tenant(&caller, &services)?;
    let command = Command::ApplyServices {
        services: services.clone(),
    };
    let envelope = caller.envelope(command.clone());
    if dry_run {
        let (sequence, events, before) = shared.deps.view.read(|state| {
            let context = Context {
                now: shared.clock.now().max(state.recorded_at),
                command: envelope.id,
                actor: &envelope.actor,
                term_lapsed: false,
            };
            let events = decide(state, &context, command)?;
            Ok::<_, Refusal>((state.sequence, events, specs(state, &services)))
        })?;
        let changes = changes(&services, &before, &events, envelope.id);
        return Ok(answer(
            sequence,
            &changes,
            json!({"warnings": warnings, "dry_run": true}),
        ));
    }
    let id = envelope.id;
    let before = shared.deps.view.read(|state| specs(state, &services));
    let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    let changes = changes(&services, &before, &answered.events, id);
    Ok(answer(
        answered.sequence,
        &changes,
        json!({"warnings": warnings, "repeated": answered.repeated}),
    ))
}

fn own_tenant(caller: &Caller, services: &[DeclaredService]) -> Handled<()> {
    match services
        .iter()
        .find(|service| !caller.principal.sees(Some(&service.tenant)))
    {
        None => Ok(()),
        Some(service) => Err(Refusal::not_allowed(format!(
            "this token is for tenant `{}`, and the file declares {}/{}",
            caller.principal.tenant().map_or("-", |tenant| tenant.as_str()),
            service.tenant,
            service.name
        ))),
    }
}

type Before = Vec<Option<(ServiceId, Arc<ServiceSpec>)>>;

/// The present declarations of these services.
fn specs(state: &CellState, services: &[DeclaredService]) -> Before {
    let spec = |service: &DeclaredService| {
        let known = state.service_named(&service.tenant, &service.name)?;
        Some((known.id, Arc::clone(known.spec())))
    };
    services.iter().map(spec).collect()
}

fn changes(declared: &[DeclaredService], before: &Before, events: &[Event], command: CommandId) -> Vec<Change> {
    let applied = |service: &DeclaredService| {
        events.iter().find_map(|event| match event {
            Event::ServiceApplied(e) if e.tenant == service.tenant && e.name == service.name => Some(e),
            _ => None,
        })
    };
    let change = |(number, service): (usize, &DeclaredService)| {
        let before = before.get(number).and_then(Option::as_ref);
        let (id, action, sentence) = match applied(service) {
            None => (before.map(|(id, _)| *id), "unchanged", String::new()),
            // The id of a new service is derived from the command, in a repeated answer too.
            Some(e) if e.service.bits() == derive(&command.0, "service", number as u64) => {
                (Some(e.service), "created", creation(&service.spec))
            }
            Some(e) => (
                Some(e.service),
                "changed",
                difference(before.map(|(_, spec)| &**spec), e),
            ),
        };
        Change {
            kind: "service",
            tenant: service.tenant.to_string(),
            name: service.name.to_string(),
            id: id.map(|id| id.to_string()).unwrap_or_default(),
            action,
            sentence,
        }
    };
    declared.iter().enumerate().map(change).collect()
}

fn creation(spec: &ServiceSpec) -> String {
    let replicas = match spec.scale.min {
        1 => "1 replica".to_owned(),
        n => format!("{n} replicas"),
    };
    format!("{replicas} on {} each", devices(&spec.devices))
}

fn devices(request: &DeviceRequest) -> String {
    let words: Vec<String> = if request.models.is_empty() {
        let word = |kind| {
            let known = workload::DEVICE_KINDS.iter().find(|(_, k)| k == kind);
            known.map_or_else(String::new, |(word, _)| (*word).to_owned())
        };
        request.kinds.iter().map(word).collect()
    } else {
        request.models.clone()
    };
    let what = if words.is_empty() {
        "any device".to_owned()
    } else {
        words.join(" or ")
    };
    match (request.count, request.share.0) {
        (1, 1000) => format!("1 {what}").replace("1 any", "any"),
        (1, share) => format!("{}.{:03} of {what}", share / 1000, share % 1000),
        (count, _) => format!("{count} × {what}"),
    }
}

fn difference(before: Option<&ServiceSpec>, applied: &ServiceApplied) -> String {
    let Some(old) = before else { return String::new() };
    let new = &applied.spec;
    let mut parts = Vec::new();
    if (old.scale.min, old.scale.max) != (new.scale.min, new.scale.max) {
        parts.push(format!(
            "replicas {} to {}, were {} to {}",
            new.scale.min, new.scale.max, old.scale.min, old.scale.max
        ));
    }
    if old.scale.concurrency != new.scale.concurrency {
        parts.push("target concurrency".to_owned());
    }
    for (name, differs) in [
        ("run", old.run != new.run),
        ("devices", old.devices != new.devices),
        ("placement", old.placement != new.placement),
    ] {
        if differs {
            parts.push(format!("{name} (instances are replaced)"));
        }
    }
    for (name, differs) in [("route", old.route != new.route), ("class", old.class != new.class)] {
        if differs {
            parts.push(name.to_owned());
        }
    }
    parts.join("; ")
}
