//! A service's own commands: stop, start, delete, scale.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use tidemill_domain::command::Command;
use tidemill_domain::id::ServiceId;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::Name;

use super::{Change, Handled, answer_to, json_body, params};
use crate::gate::Caller;
use crate::problem::Refusal;
use crate::shared::Shared;

type Target = Path<(String, String)>;

/// In a path: the tenant of whoever asks; the default one for those who have none.
const OWN: &str = "~";

/// The tenant of this path.
fn tenant_of(caller: &Caller, text: String) -> String {
    match text.as_str() {
        OWN => caller
            .principal
            .tenant()
            .cloned()
            .unwrap_or_else(Name::default_tenant)
            .to_string(),
        _ => text,
    }
}

/// The service of this path, unless it is another tenant's.
fn find(shared: &Shared, caller: &Caller, tenant: &str, name: &str) -> Handled<ServiceId> {
    let missing = || Refusal::not_found("service", &format!("{tenant}/{name}"));
    let parsed = tenant.parse::<Name>().ok().zip(name.parse::<Name>().ok());
    let (tenant, name) = parsed.ok_or_else(missing)?;
    if !caller.principal.sees(Some(&tenant)) {
        return Err(missing());
    }
    let found = shared
        .deps
        .view
        .read(|state| state.service_named(&tenant, &name).map(|s| s.id));
    found.ok_or_else(missing)
}

async fn ask(
    shared: &Shared,
    caller: &Caller,
    (tenant, name): (String, String),
    action: &'static str,
    sentence: String,
    command: impl FnOnce(ServiceId) -> Command,
) -> Handled<Response> {
    let tenant = tenant_of(caller, tenant);
    let id = find(shared, caller, &tenant, &name)?;
    let envelope = caller.envelope(command(id));
    let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    let action = if answered.events.is_empty() {
        "unchanged"
    } else {
        action
    };
    let change = Change {
        kind: "service",
        tenant,
        name,
        id: id.to_string(),
        action,
        sentence,
    };
    Ok(answer_to(&answered, &[change], json!({"repeated": answered.repeated})))
}

pub(crate) async fn stop(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(target): Target,
) -> Handled<Response> {
    ask(&shared, &caller, target, "stopping", String::new(), |service| {
        Command::StopService { service }
    })
    .await
}

pub(crate) async fn start(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(target): Target,
) -> Handled<Response> {
    ask(&shared, &caller, target, "starting", String::new(), |service| {
        Command::StartService { service }
    })
    .await
}

pub(crate) async fn delete(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(target): Target,
) -> Handled<Response> {
    ask(&shared, &caller, target, "deleting", String::new(), |service| {
        Command::DeleteService { service }
    })
    .await
}

/// `{replicas, from?, to?, for_ms?}` or `{auto: true}`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ScaleBody {
    replicas: Option<u32>,
    auto: bool,
    from: Option<String>,
    to: Option<String>,
    for_ms: Option<u64>,
}

/// Longest override: about a hundred years, so that its end is a time that can be shown.
const MAX_SPAN_MS: u64 = 100 * 366 * 24 * 3_600_000;

pub(crate) async fn scale(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(target): Target,
    request: Request,
) -> Handled<Response> {
    let body: ScaleBody = json_body(request, &shared).await?;
    let next = "send {\"replicas\": N} with from, to or for_ms if it is to end, or {\"auto\": true}";
    let timed = body.from.is_some() || body.to.is_some() || body.for_ms.is_some();
    let replicas = match (body.auto, body.replicas) {
        (true, None) if !timed => {
            let sentence = "back to what its file says".to_owned();
            return ask(&shared, &caller, target, "released", sentence, |service| {
                Command::ReleaseScale { service }
            })
            .await;
        }
        (false, Some(replicas)) => replicas,
        _ => {
            return Err(Refusal::invalid(
                "the body names neither a count nor auto, or both",
                next,
            ));
        }
    };
    let from = body.from.map(|text| params::time("from", &text)).transpose()?;
    let until = match (body.to, body.for_ms) {
        (Some(_), Some(_)) => return Err(Refusal::invalid("to and for_ms are both given", next)),
        (Some(to), None) => Some(params::time("to", &to)?),
        (None, Some(span)) if span == 0 || span > MAX_SPAN_MS => {
            return Err(Refusal::invalid("for_ms is out of range", next));
        }
        (None, Some(span)) => Some(shared.until(caller.command_id(), from, Span::from_millis(span))),
        (None, None) => None,
    };
    let sentence = describe(replicas, from, until);
    ask(&shared, &caller, target, "scaled", sentence, |service| {
        Command::ScaleService {
            service,
            replicas,
            from,
            until,
        }
    })
    .await
}

fn describe(replicas: u32, from: Option<Timestamp>, until: Option<Timestamp>) -> String {
    let noun = if replicas == 1 { "replica" } else { "replicas" };
    let mut text = format!("{replicas} {noun}");
    if let Some(from) = from {
        text.push_str(&format!(" from {from}"));
    }
    match until {
        Some(until) => text.push_str(&format!(" until {until}")),
        None => text.push_str(" until `scale --auto`"),
    }
    text
}
