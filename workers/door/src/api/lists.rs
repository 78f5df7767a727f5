//! `nodes`, `devices`, `services`, `instances`, `queue`, `switches`, `pool`.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use http::Uri;
use serde_json::Value;

use super::params::Params;
use super::{Handled, hardware};
use crate::gate::Caller;
use crate::reads::{ListKind, ListQuery, Point};
use crate::shared::Shared;

const KNOWN: &[&str] = &[
    "at", "seq", "min_seq", "state", "supply", "provider", "tenant", "since", "limit",
];

async fn list(kind: ListKind, shared: &Shared, caller: &Caller, uri: &Uri) -> Handled<Json<Vec<Value>>> {
    let params = Params::of(uri, KNOWN)?;
    let query = ListQuery {
        point: params.point(shared)?,
        state: params.list("state"),
        supply: params.list("supply"),
        provider: params.list("provider"),
        tenant: params.tenant(&caller.principal)?,
        since: params.time("since")?,
        limit: params.number("limit")?,
        gateway_url: shared.gateway_url(),
    };
    params.caught_up(shared).await?;
    let now = query.point == Point::Latest;
    let mut rows = shared.deps.reads.list(kind, query).await?;
    if now {
        hardware::enrich(kind, &mut rows, &shared.telemetry);
    }
    Ok(Json(rows))
}

macro_rules! lists {
    ($($name:ident = $kind:ident;)*) => {$(
        pub(crate) async fn $name(
            State(shared): State<Arc<Shared>>,
            Extension(caller): Extension<Caller>,
            uri: Uri,
        ) -> Handled<Json<Vec<Value>>> {
            list(ListKind::$kind, &shared, &caller, &uri).await
        }
    )*};
}

lists! {
    nodes = Nodes;
    devices = Devices;
    services = Services;
    instances = Instances;
    queue = Queue;
    switches = Switches;
}

pub(crate) async fn pool(State(shared): State<Arc<Shared>>, uri: Uri) -> Handled<Json<Vec<Value>>> {
    let params = Params::of(&uri, &["at", "seq", "min_seq"])?;
    let point = params.point(&shared)?;
    params.caught_up(&shared).await?;
    // One row: every list of the API is an array.
    Ok(Json(vec![shared.deps.reads.pool(point).await?]))
}
