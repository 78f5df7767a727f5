//! A node's own commands: forgetting one that was lost.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde_json::json;
use tidemill_domain::command::Command;
use tidemill_domain::events::Event;
use tidemill_domain::id::NodeId;
use tidemill_domain::state::State as CellState;

use super::{Change, Handled, ReasonBody, answer_to, json_body};
use crate::gate::Caller;
use crate::problem::Refusal;
use crate::shared::Shared;

pub(crate) async fn forget(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Handled<Response> {
    let body: ReasonBody = json_body(request, &shared).await?;
    let reason = body.reason.trim().to_owned();
    let (node, name) = shared.deps.view.read(|state| find(state, &id))?;
    let envelope = caller.envelope(Command::ForgetNode { node, reason });
    let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    let instances = answered.events.iter().find_map(|event| match event {
        Event::NodeLeft(e) => Some(e.instances.len()),
        _ => None,
    });
    let (action, sentence) = match instances {
        None => ("unchanged", String::new()),
        Some(0) => ("forgotten", "nothing waited for it".to_owned()),
        Some(n) => (
            "forgotten",
            format!("{n} of its instances are taken for ended; if the machine still runs, they may run on there"),
        ),
    };
    let change = Change {
        kind: "node",
        tenant: String::new(),
        name,
        id: node.to_string(),
        action,
        sentence,
    };
    Ok(answer_to(&answered, &[change], json!({"repeated": answered.repeated})))
}

/// The node of this name or id, or the only one whose id begins so.
pub(super) fn find(state: &CellState, text: &str) -> Handled<(NodeId, String)> {
    let text = text.strip_prefix("node/").unwrap_or(text);
    if let Some(node) = state.node_named(text) {
        return Ok((node.id, node.name.to_string()));
    }
    let matching = |id: &&NodeId| {
        let full = id.to_string();
        !text.is_empty()
            && (full.starts_with(text)
                || full
                    .strip_prefix("node-")
                    .is_some_and(|random| random.starts_with(text)))
    };
    let mut found = state.nodes.keys().filter(matching);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok((
            *only,
            state
                .nodes
                .get(only)
                .map_or_else(String::new, |node| node.name.to_string()),
        )),
        (Some(_), Some(_)) => Err(Refusal::new(
            409,
            "ambiguous",
            format!(
                "several nodes begin with `{}`",
                text.chars().take(40).collect::<String>()
            ),
            "give more characters; see `tidemill nodes`",
        )),
        (None, _) => Err(Refusal::not_found("node", text)),
    }
}
