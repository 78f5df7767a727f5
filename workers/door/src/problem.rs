//! Refusals as `application/problem+json`: which status a code has, decided once.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use tidemill_bus::commands::SubmitError;
use tidemill_domain::rejection::Rejection;
use tidemill_protocol::Problem;

use crate::workload::WorkloadError;

/// A handler's refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(pub Box<Problem>);

impl Refusal {
    /// With status, code, what happened and what to do.
    pub fn new(status: u16, code: &str, detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(status, code, detail, next)))
    }

    /// Something in the request cannot be.
    pub fn invalid(detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(422, "invalid", detail, next)
    }

    /// A parameter of the query is unknown or makes no sense: the question itself is wrong, whatever the state.
    pub fn bad_parameter(detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self::new(400, "bad_parameter", detail, next)
    }

    /// No such thing, or none that the caller may know of.
    pub fn not_found(what: &str, id: &str) -> Self {
        let id: String = id.chars().take(80).collect();
        Self::new(
            404,
            "not_found",
            format!("there is no {what} `{id}`"),
            "list what there is, for example with `tidemill services`",
        )
    }

    /// The role does not allow it.
    pub fn not_allowed(detail: impl Into<String>) -> Self {
        Self::new(
            403,
            "not_allowed",
            detail,
            "use a token whose role allows it (`tidemill token create`)",
        )
    }

    /// Too much at once.
    pub fn overloaded(detail: impl Into<String>) -> Self {
        Self::new(503, "overloaded", detail, "ask again in a moment")
    }
}

/// HTTP status of a rejection.
fn status_of(rejection: &Rejection) -> u16 {
    match rejection {
        Rejection::NotFound { .. } => 404,
        Rejection::Invalid { .. } | Rejection::TooMany { .. } => 422,
        Rejection::NotYet { .. } => 501,
        Rejection::NotAllowed { .. } => 403,
        Rejection::NodeNameTaken { .. }
        | Rejection::DeviceElsewhere { .. }
        | Rejection::HostTaken { .. }
        | Rejection::WrongState { .. }
        | Rejection::DeviceBusy { .. }
        | Rejection::StaleTerm { .. }
        | Rejection::TermHeld { .. }
        | Rejection::StaleGeneration { .. } => 409,
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        Self::new(
            status_of(&rejection),
            rejection.code(),
            rejection.to_string(),
            rejection.next(),
        )
    }
}

impl From<SubmitError> for Refusal {
    fn from(error: SubmitError) -> Self {
        let status = match error {
            SubmitError::Rejected { rejection, .. } => return rejection.into(),
            SubmitError::Conflict { .. } => 409,
            SubmitError::Overloaded { .. }
            | SubmitError::NoLeader { .. }
            | SubmitError::Unknown { .. }
            | SubmitError::ReadOnly { .. }
            | SubmitError::ShuttingDown => 503,
        };
        Self::new(status, error.code(), error.to_string(), error.next())
    }
}

impl From<WorkloadError> for Refusal {
    fn from(error: WorkloadError) -> Self {
        Self(Box::new(error.to_problem()))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&*self.0).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // The gate knows the trace and writes it in.
        response.extensions_mut().insert(self);
        response
    }
}
