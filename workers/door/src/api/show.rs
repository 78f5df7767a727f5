//! `status` and `explain`: anything by id, name or unique prefix.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use http::Uri;
use serde_json::Value;

use super::Handled;
use super::params::Params;
use crate::gate::Caller;
use crate::reads::ShowQuery;
use crate::shared::Shared;

async fn query(shared: &Shared, caller: &Caller, id: String, uri: &Uri) -> Handled<ShowQuery> {
    let params = Params::of(uri, &["at", "seq", "min_seq", "tenant"])?;
    let query = ShowQuery {
        id,
        tenant: params.tenant(&caller.principal)?,
        point: params.point(shared)?,
        gateway_url: shared.gateway_url(),
    };
    params.caught_up(shared).await?;
    Ok(query)
}

pub(crate) async fn status(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    uri: Uri,
) -> Handled<Json<Value>> {
    let query = query(&shared, &caller, id, &uri).await?;
    Ok(Json(shared.deps.reads.status(query).await?))
}

pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    uri: Uri,
) -> Handled<Json<Value>> {
    let query = query(&shared, &caller, id, &uri).await?;
    Ok(Json(shared.deps.reads.explain(query).await?))
}
