//! The breaker: whether it holds work where it is, and an operator's judgement.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::{Extension, Json};
use serde_json::{Value, json};
use tidemill_domain::command::Command;
use tidemill_domain::state::State as CellState;
use tidemill_domain::state::breaker::{LEAST_NODES, LEAST_PROVIDERS, SHARE, WITHIN};

use super::{Change, Handled, ReasonBody, answer_to, json_body};
use crate::gate::Caller;
use crate::health::{Check, CheckState};
use crate::shared::Shared;

/// What helps while it is tripped.
const NEXT: &str = "look at the network between these nodes and the servers; if it heals, the breaker closes by itself; \
                    if the nodes are gone, `tidemill breaker confirm --reason TEXT` moves their work";

/// How it stands.
fn breaker(state: &CellState) -> Value {
    let tripped = state.cell.breaker.tripped_at;
    let nodes: Vec<Value> = state
        .doubted_nodes()
        .map(|n| {
            json!({
                "id": n.id, "name": n.name, "provider": n.provider, "region": n.region, "reason": n.reason,
                "since": n.doubts.back(),
            })
        })
        .collect();
    let (reason, next) = match tripped {
        None => (
            format!(
                "it trips when a {} of the nodes, at least {LEAST_NODES} of {LEAST_PROVIDERS} providers, fall silent within \
                 {WITHIN}",
                match SHARE {
                    3 => "third".to_owned(),
                    n => format!("{n}th part"),
                }
            ),
            "nothing needs to be done",
        ),
        Some(_) => (sentence(state), NEXT),
    };
    json!({
        "state": if tripped.is_some() { "tripped" } else { "closed" },
        "since": tripped, "reason": reason, "next_step": next, "held": held(state), "doubted": nodes,
    })
}

/// Instances that would be replaced were it not tripped.
fn held(state: &CellState) -> usize {
    state
        .services
        .values()
        .map(|service| state.held_by_breaker(service))
        .sum()
}

fn sentence(state: &CellState) -> String {
    let nodes = state.doubted_nodes().count();
    let providers: std::collections::BTreeSet<&str> = state.doubted_nodes().map(|n| n.provider.as_str()).collect();
    format!(
        "{nodes} nodes of {} providers fell silent together: {} instances on them are not replaced until an operator has judged",
        providers.len(),
        held(state)
    )
}

/// What `doctor` says of it.
pub(super) fn examine(state: &CellState, checks: &mut Vec<Check>) {
    checks.push(match state.breaker_tripped() {
        false => Check::ok("breaker", "closed: work on lost nodes is replaced".to_owned()),
        true => Check::new("breaker", CheckState::Fail, "breaker_tripped", sentence(state), NEXT),
    });
}

pub(crate) async fn show(State(shared): State<Arc<Shared>>) -> Json<Value> {
    Json(shared.deps.view.read(breaker))
}

pub(crate) async fn confirm(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Handled<Response> {
    let ReasonBody { reason } = json_body(request, &shared).await?;
    judge(&shared, &caller, "confirmed", Command::ConfirmBreaker { reason }).await
}

pub(crate) async fn reset(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Handled<Response> {
    let ReasonBody { reason } = json_body(request, &shared).await?;
    judge(&shared, &caller, "reset", Command::ResetBreaker { reason }).await
}

async fn judge(shared: &Shared, caller: &Caller, done: &'static str, command: Command) -> Handled<Response> {
    let held = shared.deps.view.read(held);
    let envelope = caller.envelope(command);
    let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    let (action, sentence) = match (answered.events.is_empty(), held) {
        (true, _) => ("unchanged", "it was not tripped".to_owned()),
        (false, 0) => (done, "nothing was held".to_owned()),
        (false, 1) => (done, "1 instance on a silent node is replaced now".to_owned()),
        (false, n) => (done, format!("{n} instances on silent nodes are replaced now")),
    };
    let change = Change {
        kind: "breaker",
        tenant: String::new(),
        name: "breaker".to_owned(),
        id: "breaker".to_owned(),
        action,
        sentence,
    };
    Ok(answer_to(&answered, &[change], json!({"repeated": answered.repeated})))
}
