//! What happens to every request before and after its handler: trace, room, identity, time, count.
//!
//! One function in front of each route of the table. A handler thus begins with a [`Caller`] that is authenticated and
//! allowed, and no handler has a check of its own to forget; what depends on the tenant of a thing is the handler's.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method};
use tidemill_domain::command::{Command, Envelope};
use tidemill_domain::commit::{Cause, TraceContext};
use tidemill_domain::id::CommandId;
use tokio::sync::OwnedSemaphorePermit;

use crate::auth::{self, Principal};
use crate::problem::Refusal;
use crate::routes::{Route, Span};
use crate::shared::Shared;
use crate::trace;

/// The other end, put into each request by the server.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Its place among the connections, taken until the last holder is gone.
    pub(crate) _slot: Arc<OwnedSemaphorePermit>,
}

/// Who asks, in what trace, under what id.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Principal,
    pub(crate) trace: TraceContext,
    /// Id for the command this request asks for.
    command: CommandId,
}

impl Caller {
    /// The command's envelope.
    pub(crate) fn envelope(&self, command: Command) -> Envelope {
        Envelope {
            id: self.command,
            actor: self.principal.actor(),
            cause: Cause::Request,
            trace: Some(self.trace),
            command,
        }
    }

    /// The envelope of one of several commands of this request, told apart by `part`.
    pub(crate) fn envelope_for(&self, part: &str, command: Command) -> Envelope {
        Envelope {
            id: CommandId::derived(&[&self.command.0, part.as_bytes()]),
            ..self.envelope(command)
        }
    }

    /// The id its command has.
    pub(crate) fn command_id(&self) -> CommandId {
        self.command
    }
}

/// Longest `Idempotency-Key`.
const MAX_KEY: usize = 256;

/// See the module.
pub(crate) async fn gate(
    State((shared, route)): State<(Arc<Shared>, &'static Route)>,
    mut request: Request,
    next: Next,
) -> Response {
    let trace = trace::of_request(request.headers());
    let response = match admit(&shared, route, &request, trace) {
        Err(refusal) => refusal.into_response(),
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            run(&shared, route, request, next).await
        }
    };
    shared.metrics.request(route.path, response.status().as_u16());
    finish(response, trace)
}

fn admit(shared: &Shared, route: &Route, request: &Request, trace: TraceContext) -> Result<Caller, Refusal> {
    let headers = request.headers();
    let principal = if route.access == auth::Access::Public {
        Principal::Local
    } else {
        let Some(peer) = request.extensions().get::<Peer>().map(|peer| peer.address) else {
            return Err(Refusal::new(500, "internal", "the peer's address is not known", ""));
        };
        let open = shared.config.loopback_open;
        let now = shared.clock.now();
        let principal = shared
            .deps
            .view
            .read(|state| auth::authenticate(headers, peer, open, now, state))?;
        route.access.check(&principal)?;
        principal
    };
    let command = command_id(request, &principal)?;
    Ok(Caller {
        principal,
        trace,
        command,
    })
}

/// Derived from the caller's `Idempotency-Key`, so that a retry is the same command; fresh without one. The route is no
/// part of it: the same key on another one is the same id with another body, which the sequencer refuses as a conflict.
fn command_id(request: &Request, principal: &Principal) -> Result<CommandId, Refusal> {
    let key = request
        .headers()
        .get("idempotency-key")
        .filter(|_| request.method() == Method::POST);
    let Some(key) = key else {
        return Ok(CommandId(*uuid::Uuid::now_v7().as_bytes()));
    };
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Refusal::invalid(
            format!("the Idempotency-Key is empty or longer than {MAX_KEY} bytes"),
            "use a UUID",
        ));
    }
    Ok(CommandId::derived(&[b"http", &principal.key(), key.as_bytes()]))
}

async fn run(shared: &Shared, route: &Route, request: Request, next: Next) -> Response {
    match route.span {
        // A connection or stream lasts; it is bounded where it begins.
        Span::Long => next.run(request).await,
        Span::Short => {
            let Ok(_permit) = shared.requests.try_acquire() else {
                let limit = shared.config.limits.requests;
                return Refusal::overloaded(format!("{limit} requests are being answered already")).into_response();
            };
            let limit = shared.config.limits.request_timeout;
            match tokio::time::timeout(limit, next.run(request)).await {
                Ok(response) => response,
                Err(_) => Refusal::new(
                    504,
                    "timeout",
                    format!(
                        "there was no answer within {} ms; a command may have been carried out",
                        limit.as_millis()
                    ),
                    "ask again with the same Idempotency-Key",
                )
                .into_response(),
            }
        }
        Span::Probe => next.run(request).await,
    }
}

/// Writes the trace into headers and problems.
pub(crate) fn finish(response: Response, trace: TraceContext) -> Response {
    let mut response = match response.extensions().get::<Refusal>() {
        Some(refusal) => {
            let mut refusal = refusal.clone();
            refusal.0.trace_id = trace.trace_id_hex();
            refusal.into_response()
        }
        None => response,
    };
    if let Ok(value) = HeaderValue::from_str(&trace.to_traceparent()) {
        response.headers_mut().insert(trace::TRACEPARENT, value);
    }
    response
}
