//! `/livez` and `/readyz`.
//!
//! Alive means that the process answers, and nothing else: restarting it because NATS is away would only add an outage.
//! Ready means that what is asked here is answered well and soon.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::Uri;
use serde_json::json;
use tidemill_bus::view::ViewHealth;

use super::Handled;
use super::params::Params;
use crate::health::{Check, CheckState};
use crate::problem::Refusal;
use crate::shared::Shared;

/// Time in which the log has to answer a probe.
const LEDGER_PATIENCE: Duration = Duration::from_secs(2);
/// Records behind the log's end at which answers are too old.
const MAX_LAG: u64 = 10_000;

pub(crate) async fn livez() -> &'static str {
    "ok\n"
}

pub(crate) async fn readyz(State(shared): State<Arc<Shared>>, uri: Uri) -> Handled<Response> {
    let verbose = Params::of(&uri, &["verbose"])?.flag("verbose")?;
    let checks = checks(&shared).await;
    let failed: Vec<&Check> = checks.iter().filter(|check| check.state == CheckState::Fail).collect();
    let Some(first) = failed.first() else {
        if !verbose {
            return Ok("ok\n".into_response());
        }
        return Ok(Json(json!({"ready": true, "role": shared.deps.health.role(), "checks": checks})).into_response());
    };
    let reasons: Vec<String> = failed
        .iter()
        .map(|check| format!("{}: {}", check.check, check.detail))
        .collect();
    let refusal = Refusal::new(503, &first.code, reasons.join("; "), first.next.clone());
    if !verbose {
        return Err(refusal);
    }
    let body = json!({
        "ready": false, "role": shared.deps.health.role(), "checks": checks,
        "code": first.code, "detail": refusal.0.detail, "next": first.next,
    });
    Ok((http::StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response())
}

/// Everything that readiness rests on.
pub(super) async fn checks(shared: &Shared) -> Vec<Check> {
    let mut checks = vec![ledger(shared).await, view(shared), read_models(shared), door(shared)];
    checks.extend(shared.deps.health.checks());
    checks
}

async fn ledger(shared: &Shared) -> Check {
    if let Some(known) = shared.deps.health.ledger() {
        return known;
    }
    let next = "check that NATS runs and is reachable, or the disk of the embedded ledger";
    match tokio::time::timeout(LEDGER_PATIENCE, shared.deps.ledger.tail()).await {
        Ok(Ok(tail)) => {
            let epoch = tail.epoch;
            Check::ok("ledger", format!("it ends at {} in epoch {epoch}", tail.sequence))
        }
        Ok(Err(error)) => Check::new(
            "ledger",
            CheckState::Fail,
            "ledger_unavailable",
            error.to_string(),
            next,
        ),
        Err(_) => {
            let detail = format!("it did not answer within {} ms", LEDGER_PATIENCE.as_millis());
            Check::new("ledger", CheckState::Fail, "ledger_unavailable", detail, next)
        }
    }
}

fn view(shared: &Shared) -> Check {
    let progress = *shared.deps.view.progress().borrow();
    if let ViewHealth::Stopped(error) = &*shared.deps.view.health().borrow() {
        return Check::new(
            "state",
            CheckState::Fail,
            error.code(),
            error.to_string(),
            error.next_step(),
        );
    }
    lag("state", "state_behind", progress.sequence, progress.ledger_last)
}

fn read_models(shared: &Shared) -> Check {
    let reads = &shared.deps.reads;
    if let Some(problem) = reads.problem() {
        return Check::new(
            "read_models",
            CheckState::Fail,
            "read_models_stopped",
            problem,
            "they are rebuilt from the ledger on restart",
        );
    }
    let last = shared.deps.view.progress().borrow().ledger_last;
    lag("read_models", "read_models_behind", reads.applied(), last)
}

fn lag(check: &str, code: &str, at: u64, last: u64) -> Check {
    let behind = last.saturating_sub(at);
    let detail = format!("at {at} of {last}");
    if behind > MAX_LAG {
        return Check::new(check, CheckState::Fail, code, detail, "it catches up by itself");
    }
    Check::ok(check, detail)
}

fn door(shared: &Shared) -> Check {
    if shared.observer.congested() {
        return Check::new(
            "observations",
            CheckState::Fail,
            "observations_behind",
            "what is heard cannot be stored",
            "check that NATS runs and has room, or the disk",
        );
    }
    Check::ok("observations", "what is heard is stored")
}
