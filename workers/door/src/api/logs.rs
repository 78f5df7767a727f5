//! `logs`: an instance's output, asked of its agent and copied through.
//!
//! Parts wait in a bounded channel; when a slow client lets it fill, the agent is told to stop, and asked again from the
//! position reached once the client has caught up. So nothing is lost and nothing piles up, here or on the node.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::response::Response;
use futures::stream;
use http::{HeaderValue, Uri, header};
use tidemill_domain::id::{InstanceId, NodeId};
use tidemill_domain::state::State as CellState;
use tidemill_domain::state::instance::Instance;
use tidemill_domain::state::service::Service;
use tidemill_domain::unit::Name;
use tokio::sync::OwnedSemaphorePermit;

use super::Handled;
use super::params::Params;
use crate::connect::{LogStream, NextPart};
use crate::gate::Caller;
use crate::metrics::Counted;
use crate::problem::Refusal;
use crate::shared::Shared;

/// Time for the first part to arrive.
const FIRST_PART: Duration = Duration::from_secs(10);
/// Most instances that a refusal names.
const INSTANCES_NAMED: usize = 10;

pub(crate) async fn logs(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    uri: Uri,
) -> Handled<Response> {
    let params = Params::of(&uri, &["follow", "after"])?;
    let (follow, after) = (params.flag("follow")?, params.number("after")?);
    let (instance, node) = shared.deps.view.read(|state| find(state, &caller, &id))?;
    let Ok(permit) = Arc::clone(&shared.streams).try_acquire_owned() else {
        return Err(Refusal::overloaded(format!(
            "{} streams are open already",
            shared.config.limits.streams
        )));
    };
    let away = || {
        Refusal::new(
            503,
            "node_not_connected",
            format!("the agent of node {node} is not connected to this server"),
            "ask another server, or look on the node itself",
        )
    };
    let mut output = shared.registry.logs(node, instance, after, follow).ok_or_else(away)?;
    // The first part decides whether this is an answer or a refusal.
    let first = match tokio::time::timeout(FIRST_PART, output.next()).await {
        Ok(NextPart::Problem(problem)) => return Err(Refusal(Box::new(problem))),
        Ok(NextPart::Gone) => return Err(away()),
        Ok(part) => part,
        Err(_) => {
            return Err(Refusal::new(
                504,
                "timeout",
                "the node's agent did not answer in time",
                "ask again",
            ));
        }
    };
    let reader = Reader {
        shared,
        output,
        first: Some(first),
        _permit: permit,
    };
    let mut response = Response::new(Body::from_stream(stream::unfold(reader, Reader::next)));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

struct Reader {
    shared: Arc<Shared>,
    output: LogStream,
    first: Option<NextPart>,
    _permit: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, std::io::Error>, Self)> {
        let shared = Arc::clone(&self.shared);
        let _counted = Counted::in_(&shared.metrics.streams);
        loop {
            let part = match self.first.take() {
                Some(part) => part,
                None => tokio::select! {
                    () = shared.closing.cancelled() => return None,
                    part = self.output.next() => part,
                },
            };
            match part {
                NextPart::Data(data) if data.is_empty() => {}
                NextPart::Data(data) => return Some((Ok(Bytes::from(data)), self)),
                NextPart::End => return None,
                // The status line is long sent: breaking the body off is what tells the client.
                NextPart::Problem(problem) => return Some((Err(std::io::Error::other(problem)), self)),
                NextPart::Gone => {
                    return Some((
                        Err(std::io::Error::other("the node's agent is not connected any more")),
                        self,
                    ));
                }
            }
        }
    }
}

/// The instance meant, and where it was placed: by id, by unique prefix, or as the only one of a service.
fn find(state: &CellState, caller: &Caller, id: &str) -> Handled<(InstanceId, NodeId)> {
    let visible = |instance: &&Instance| {
        let tenant = state.services.get(&instance.service).map(|s| &s.tenant);
        caller.principal.sees(tenant)
    };
    let matches = |instance: &&Instance| {
        let text = instance.id.to_string();
        text.starts_with(id)
            || text
                .strip_prefix("inst-")
                .is_some_and(|body| !id.is_empty() && body.starts_with(id))
    };
    let short = || id.chars().take(80).collect::<String>();
    let exact = || {
        let id = id.parse::<InstanceId>().ok()?;
        state.instances.get(&id).filter(visible)
    };
    let instance = match (exact(), named(state, caller, id)) {
        (Some(instance), _) => instance,
        (None, Some(service)) => of_service(state, service, id)?,
        (None, None) => {
            let mut found = state.instances.values().filter(matches).filter(visible);
            match (found.next(), found.next()) {
                (Some(only), None) => only,
                (Some(_), Some(_)) => {
                    return Err(Refusal::new(
                        409,
                        "ambiguous",
                        format!("several instances begin with `{}`", short()),
                        "give more characters of the id",
                    ));
                }
                (None, _) => {
                    return Err(Refusal::new(
                        404,
                        "not_found",
                        format!("there is no instance and no service `{}`", short()),
                        "list what there is with `tidemill instances`",
                    ));
                }
            }
        }
    };
    let node = instance.node.ok_or_else(|| {
        Refusal::new(
            409,
            "wrong_state",
            format!("{} waits for placement and has no output yet", instance.id),
            format!("see why with `tidemill explain {}`", instance.id),
        )
    })?;
    Ok((instance.id, node))
}

/// The service of this name, written as lists print it: `NAME`, `TENANT/NAME`, each behind `service/` or not. A bare
/// name is of the caller's tenant.
fn named<'a>(state: &'a CellState, caller: &Caller, text: &str) -> Option<&'a Service> {
    let parts: Vec<&str> = text.split('/').collect();
    let own = caller.principal.tenant().cloned().unwrap_or_else(Name::default_tenant);
    let (tenant, name) = match parts.as_slice() {
        [name] | ["service", name] => (own, *name),
        [tenant, name] | ["service", tenant, name] => (tenant.parse().ok()?, *name),
        _ => return None,
    };
    let service = state.service_named(&tenant, &name.parse().ok()?)?;
    caller.principal.sees(Some(&service.tenant)).then_some(service)
}

/// The only instance of a service that has been placed; with none running, the last that ended.
fn of_service<'a>(state: &'a CellState, service: &Service, asked: &str) -> Handled<&'a Instance> {
    let live: Vec<&Instance> = service.live.iter().filter_map(|id| state.instances.get(id)).collect();
    let placed: Vec<&Instance> = live.iter().copied().filter(|i| i.node.is_some()).collect();
    let last_ended = || {
        let mut ended = service.ended.iter().rev().filter_map(|id| state.instances.get(id));
        ended.find(|instance| instance.node.is_some())
    };
    match placed.as_slice() {
        [only] => Ok(only),
        [] => last_ended().or(live.first().copied()).ok_or_else(|| {
            Refusal::new(
                404,
                "not_found",
                format!("`{asked}` has no instance yet"),
                format!("see why with `tidemill explain {asked}`"),
            )
        }),
        several => {
            let named = several.iter().take(INSTANCES_NAMED);
            let named: Vec<String> = named.map(|i| format!("{} ({})", i.id, i.state.name())).collect();
            Err(Refusal::new(
                409,
                "ambiguous",
                format!("`{asked}` has {} instances: {}", several.len(), named.join(", ")),
                format!("name one, such as `tidemill logs {}`", several[0].id),
            ))
        }
    }
}
