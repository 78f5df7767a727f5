//! The table of routes: path, method, who may, what it does, and the handler, in one line each.
//!
//! The router, `/openapi.json`, the gate's checks and the metrics' labels are all made from it, so none can drift from
//! the others. To add a route: a line here and a handler under [`crate::api`].

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use http::{HeaderMap, Method};
use tidemill_protocol::{AGENT_PATH, GATEWAY_PATH};

use crate::api::{apply, breaker, doctor, events, lists, logs, metrics, moves, nodes, probes, services, show, tokens};
use crate::auth::Access;
use crate::connect;
use crate::gate::{finish, gate};
use crate::problem::Refusal;
use crate::shared::Shared;
use crate::{openapi, trace, workload};

/// Longest body of a request, bytes.
const MAX_BODY: usize = workload::MAX_INPUT_BYTES + 1;

/// How long a route's answer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// Bounded in number and time.
    Short,
    /// A stream or connection, bounded where it begins.
    Long,
    /// Answered even when there is no room for requests.
    Probe,
}

/// A route's method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Reads.
    Get,
    /// Commands.
    Post,
}

/// A query parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
}

const fn param(name: &'static str, what: &'static str) -> Param {
    Param { name, what }
}

/// One line of the table.
pub(crate) struct Route {
    pub(crate) verb: Verb,
    /// As axum writes it.
    pub(crate) path: &'static str,
    pub(crate) access: Access,
    pub(crate) span: Span,
    pub(crate) summary: &'static str,
    pub(crate) query: &'static [Param],
    /// Media type of the answer.
    pub(crate) answer: &'static str,
    handler: fn() -> MethodRouter<Arc<Shared>>,
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

const POINT: [Param; 3] = [
    param("at", "as recorded by this time (RFC 3339)"),
    param("seq", "as of this record"),
    param("min_seq", "wait until this record is seen, as after a write"),
];
const SHOW: &[Param] = &[POINT[0], POINT[1], POINT[2], param("tenant", "only within this tenant")];
const LIST: &[Param] = &[
    POINT[0],
    POINT[1],
    POINT[2],
    param("state", "any of these, separated by commas"),
    param("supply", "any of these, separated by commas"),
    param("provider", "any of these, separated by commas"),
    param("tenant", "of this tenant"),
    param("since", "not before (RFC 3339)"),
    param("limit", "at most so many rows"),
];
const EVENTS: &[Param] = &[
    POINT[0],
    POINT[1],
    POINT[2],
    param("after", "behind this record"),
    param("about", "that concern this id or name"),
    param("tenant", "about this tenant's workloads"),
    param("since", "recorded at or after (RFC 3339)"),
    param("limit", "at most so many"),
];
const LOGS: &[Param] = &[
    param("follow", "go on as output comes"),
    param("after", "from this position of the output"),
];

const fn get(
    path: &'static str,
    access: Access,
    summary: &'static str,
    query: &'static [Param],
    handler: fn() -> MethodRouter<Arc<Shared>>,
) -> Route {
    Route {
        verb: Verb::Get,
        path,
        access,
        span: Span::Short,
        summary,
        query,
        answer: JSON,
        handler,
    }
}

const fn post(
    path: &'static str,
    access: Access,
    summary: &'static str,
    query: &'static [Param],
    handler: fn() -> MethodRouter<Arc<Shared>>,
) -> Route {
    Route {
        verb: Verb::Post,
        ..get(path, access, summary, query, handler)
    }
}

const fn later(verb: Verb, path: &'static str) -> Route {
    Route {
        verb,
        ..get(path, Access::Operate, "Reserved: answers `not_yet`", &[], || {
            routing::any(not_yet)
        })
    }
}

/// Every route.
pub(crate) static ROUTES: &[Route] = &[
    get("/v1/nodes", Access::ReadPool, "Hosts of the pool", LIST, || {
        routing::get(lists::nodes)
    }),
    get(
        "/v1/devices",
        Access::ReadPool,
        "Accelerators and CPU capacity",
        LIST,
        || routing::get(lists::devices),
    ),
    get("/v1/services", Access::Read, "Services", LIST, || {
        routing::get(lists::services)
    }),
    get("/v1/instances", Access::Read, "Running copies", LIST, || {
        routing::get(lists::instances)
    }),
    get(
        "/v1/queue",
        Access::Read,
        "What waits for capacity, and why",
        LIST,
        || routing::get(lists::queue),
    ),
    get(
        "/v1/switches",
        Access::Read,
        "Work that moved or is moving from one instance to another",
        LIST,
        || routing::get(lists::switches),
    ),
    get("/v1/pool", Access::ReadPool, "Sums over the whole pool", &POINT, || {
        routing::get(lists::pool)
    }),
    get(
        "/v1/status/{id}",
        Access::Read,
        "Anything by id, name or unique prefix",
        SHOW,
        || routing::get(show::status),
    ),
    get(
        "/v1/explain/{id}",
        Access::Read,
        "Reason, evidence, candidates, next step",
        SHOW,
        || routing::get(show::explain),
    ),
    Route {
        span: Span::Long,
        ..get(
            "/v1/events",
            Access::Read,
            "The ledger, one event a row; a stream with `Accept: text/event-stream`",
            EVENTS,
            || routing::get(events::events),
        )
    },
    Route {
        span: Span::Long,
        answer: TEXT,
        ..get(
            "/v1/logs/{instance}",
            Access::Read,
            "An instance's output",
            LOGS,
            || routing::get(logs::logs),
        )
    },
    post(
        "/v1/apply",
        Access::Write,
        "Declare workloads from a YAML body, all or none",
        &[param("dry_run", "say what would change and change nothing")],
        || routing::post(apply::apply),
    ),
    post(
        "/v1/services/{tenant}/{name}/stop",
        Access::Write,
        "Want no replicas; as tenant, `~` is the caller's own, here and below",
        &[],
        || routing::post(services::stop),
    ),
    post(
        "/v1/services/{tenant}/{name}/start",
        Access::Write,
        "Want a stopped service to run",
        &[],
        || routing::post(services::start),
    ),
    post(
        "/v1/services/{tenant}/{name}/delete",
        Access::Write,
        "Want a service gone",
        &[],
        || routing::post(services::delete),
    ),
    post(
        "/v1/services/{tenant}/{name}/rollback",
        Access::Write,
        "Go back to the generation that served before",
        &[],
        || routing::post(services::roll_back),
    ),
    post(
        "/v1/services/{tenant}/{name}/scale",
        Access::Write,
        "Set the replica count by hand, `{replicas, from?, to?, for_ms?}`, or give it back, `{auto: true}`",
        &[],
        || routing::post(services::scale),
    ),
    get(
        "/v1/tokens",
        Access::Operate,
        "Tokens, without their texts",
        &[],
        || routing::get(tokens::list),
    ),
    post(
        "/v1/tokens",
        Access::Operate,
        "Make a token, `{role, supply?, tenant?, ttl_ms?}`; its text is shown in the answer and nowhere else",
        &[],
        || routing::post(tokens::create),
    ),
    post(
        "/v1/tokens/{id}/revoke",
        Access::Operate,
        "Make a token useless",
        &[],
        || routing::post(tokens::revoke),
    ),
    post(
        "/v1/nodes/{id}/forget",
        Access::Operate,
        "Declare that a lost node will not come back, `{reason}`: its name is free and nothing waits for it any more",
        &[],
        || routing::post(nodes::forget),
    ),
    post(
        "/v1/nodes/{id}/drain",
        Access::Operate,
        "Empty a node, `{reason, deadline_ms?, reclaim?}`: each instance is replaced elsewhere, then stopped",
        &[],
        || routing::post(moves::drain),
    ),
    post(
        "/v1/nodes/{id}/cordon",
        Access::Operate,
        "Give a node nothing new, `{reason}`",
        &[],
        || routing::post(moves::cordon),
    ),
    post(
        "/v1/nodes/{id}/uncordon",
        Access::Operate,
        "Give a node work again, `{reason}`; withdraws a drain",
        &[],
        || routing::post(moves::uncordon),
    ),
    post(
        "/v1/providers/{provider}/drain",
        Access::Operate,
        "Empty every node of a provider, `{reason, deadline_ms?, reclaim?}`",
        &[],
        || routing::post(moves::drain_provider),
    ),
    post(
        "/v1/instances/{id}/move",
        Access::Operate,
        "Replace an instance elsewhere, then stop it, `{reason}`",
        &[],
        || routing::post(moves::move_instance),
    ),
    get(
        "/v1/breaker",
        Access::ReadPool,
        "Whether work on many silent nodes is held where it is, and for which",
        &[],
        || routing::get(breaker::show),
    ),
    post(
        "/v1/breaker/confirm",
        Access::Operate,
        "Say that the silent nodes are gone, `{reason}`: their work is replaced at once",
        &[],
        || routing::post(breaker::confirm),
    ),
    post(
        "/v1/breaker/reset",
        Access::Operate,
        "Close the breaker, `{reason}`: every node is judged by itself again",
        &[],
        || routing::post(breaker::reset),
    ),
    get(
        "/v1/doctor",
        Access::ReadPool,
        "Findings, each with a next step",
        &[],
        || routing::get(doctor::doctor),
    ),
    Route {
        span: Span::Long,
        ..get(AGENT_PATH, Access::Node, "WebSocket of an agent", &[], || {
            routing::get(connect::agent)
        })
    },
    Route {
        span: Span::Long,
        ..get(GATEWAY_PATH, Access::Gateway, "WebSocket of a gateway", &[], || {
            routing::get(connect::gateway)
        })
    },
    Route {
        span: Span::Probe,
        answer: TEXT,
        ..get("/metrics", Access::ReadPool, "Figures for Prometheus", &[], || {
            routing::get(metrics::metrics)
        })
    },
    Route {
        span: Span::Probe,
        answer: TEXT,
        ..get("/livez", Access::Public, "Whether the process answers", &[], || {
            routing::get(probes::livez)
        })
    },
    Route {
        span: Span::Probe,
        ..get(
            "/readyz",
            Access::Public,
            "Whether it serves well: 503 and the reason if not",
            &[param("verbose", "every check")],
            || routing::get(probes::readyz),
        )
    },
    Route {
        span: Span::Probe,
        ..get("/openapi.json", Access::Public, "This description", &[], || {
            routing::get(openapi::handler)
        })
    },
    later(Verb::Get, "/v1/jobs"),
    later(Verb::Post, "/v1/devices/{uuid}/return"),
    later(Verb::Post, "/v1/devices/{uuid}/reset"),
    later(Verb::Get, "/v1/incident/{id}"),
    later(Verb::Get, "/v1/bill"),
    later(Verb::Get, "/v1/sla"),
];

/// Everything the door answers.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let gated = (route.handler)().layer(from_fn_with_state((Arc::clone(&shared), route), gate));
        router = router.route(route.path, gated);
    }
    router
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY))
        .with_state(shared)
}

async fn not_yet(uri: http::Uri) -> impl IntoResponse {
    Refusal::new(
        501,
        "not_yet",
        format!("`{}` is not part of this release yet", uri.path()),
        "use a newer release",
    )
}

async fn unknown_path(headers: HeaderMap, uri: http::Uri) -> Response {
    let path: String = uri.path().chars().take(120).collect();
    let refusal = Refusal::new(
        404,
        "unknown_path",
        format!("there is nothing at `{path}`"),
        "see /openapi.json",
    );
    finish(refusal.into_response(), trace::of_request(&headers))
}

async fn wrong_method(headers: HeaderMap, method: Method, uri: http::Uri) -> Response {
    let refusal = Refusal::new(
        405,
        "wrong_method",
        format!("`{}` is not answered to {method}", uri.path()),
        "see /openapi.json",
    );
    finish(refusal.into_response(), trace::of_request(&headers))
}
