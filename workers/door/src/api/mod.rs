//! Handlers of the REST API, one file a family.

pub(crate) mod apply;
pub(crate) mod breaker;
pub(crate) mod doctor;
pub(crate) mod events;
mod hardware;
pub(crate) mod lists;
pub(crate) mod logs;
pub(crate) mod metrics;
pub(crate) mod moves;
pub(crate) mod nodes;
mod params;
pub(crate) mod probes;
pub(crate) mod services;
pub(crate) mod show;
pub(crate) mod tokens;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tidemill_bus::commands::Answer;

use crate::problem::Refusal;
use crate::reads::ReadsError;
use crate::shared::Shared;

/// Header that repeats the sequence of an answer to a command.
const SEQUENCE: &str = "x-tidemill-sequence";

type Handled<T> = Result<T, Refusal>;

impl From<ReadsError> for Refusal {
    fn from(error: ReadsError) -> Self {
        let detail = error.to_string();
        match error {
            ReadsError::NotFound { .. } => Refusal::new(
                404,
                "not_found",
                detail,
                "list what there is, for example with `tidemill services`",
            ),
            ReadsError::Ambiguous { .. } => Refusal::new(409, "ambiguous", detail, "give more characters of the id"),
            ReadsError::Invalid { next, .. } => Refusal::bad_parameter(detail, next),
            ReadsError::NoSuchTenant { .. } => Refusal::new(404, "not_found", detail, "correct the name of the tenant"),
            ReadsError::NoSuchPoint { .. } => Refusal::new(
                404,
                "no_such_point",
                detail,
                "see where the ledger begins and ends with `tidemill events`",
            ),
            ReadsError::Unavailable { code, next, .. } => Refusal::new(503, &code, detail, next),
        }
    }
}

/// What a command did to one thing.
pub(crate) struct Change {
    kind: &'static str,
    tenant: String,
    name: String,
    id: String,
    action: &'static str,
    sentence: String,
}

impl Change {
    fn json(&self) -> Value {
        json!({
            "kind": self.kind, "tenant": self.tenant, "name": self.name, "id": self.id,
            "action": self.action, "sentence": self.sentence,
        })
    }
}

/// The answer to a command.
fn answer(sequence: u64, changes: &[Change], more: Value) -> Response {
    let mut body = json!({"sequence": sequence});
    if !changes.is_empty() {
        body["changes"] = changes.iter().map(Change::json).collect();
    }
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    let mut response = axum::Json(body).into_response();
    response.headers_mut().insert(SEQUENCE, HeaderValue::from(sequence));
    response
}

fn answer_to(answered: &Answer, changes: &[Change], more: Value) -> Response {
    answer(answered.sequence, changes, more)
}

/// The body, within the limit.
async fn body(request: Request, shared: &Arc<Shared>) -> Handled<Bytes> {
    Bytes::from_request(request, shared).await.map_err(|rejection| {
        let status = rejection.status().as_u16();
        match status {
            413 => Refusal::new(413, "too_large", "the body is larger than 1 MiB", "split it"),
            _ => Refusal::new(400, "body_broken", rejection.body_text(), "send the request again"),
        }
    })
}

/// The body of a command that says only why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReasonBody {
    reason: String,
}

/// A JSON body; no body is an empty object.
async fn json_body<T: DeserializeOwned>(request: Request, shared: &Arc<Shared>) -> Handled<T> {
    let bytes = body(request, shared).await?;
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| Refusal::invalid(format!("the body: {error}"), "see /openapi.json"))
}
