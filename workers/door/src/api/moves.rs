//! Keeping work off nodes and taking it off them: cordon, drain, move.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use tidemill_domain::command::{Command, DrainNode};
use tidemill_domain::events::Event;
use tidemill_domain::events::node::DrainCause;
use tidemill_domain::id::{InstanceId, NodeId};
use tidemill_domain::state::State as CellState;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::time::Span;

use super::nodes::find;
use super::{Change, Handled, ReasonBody, answer, answer_to, json_body};
use crate::gate::Caller;
use crate::problem::Refusal;
use crate::shared::Shared;

/// Most nodes that one request drains.
const MAX_NODES: usize = 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    reason: String,
    #[serde(default)]
    deadline_ms: Option<u64>,
    /// The provider takes it back, on its own terms.
    #[serde(default)]
    reclaim: bool,
}

impl DrainBody {
    fn command(&self, node: NodeId) -> Command {
        Command::DrainNode(DrainNode {
            node,
            cause: match self.reclaim {
                true => DrainCause::Reclaim,
                false => DrainCause::Operator,
            },
            reason: self.reason.trim().to_owned(),
            deadline: self.deadline_ms.map(Span::from_millis),
        })
    }
}

/// What happened to a node, in the command's events.
fn told(events: &[Event], node: NodeId, name: String) -> Change {
    let switches = events.iter().filter(|event| matches!(event, Event::SwitchOpened(_)));
    let (action, sentence) = match (events.first(), switches.count()) {
        (None, _) => ("unchanged", String::new()),
        (Some(Event::NodeCordoned(_)), _) => ("cordoned", "it gets nothing new; what runs there stays".to_owned()),
        (Some(Event::NodeUncordoned(_)), _) => ("open", "it takes work again".to_owned()),
        (Some(_), _) if events.iter().any(|event| matches!(event, Event::NodeDrained(_))) => {
            ("drained", "nothing was on it".to_owned())
        }
        (Some(_), 0) => ("draining", "what is left on it is ending already".to_owned()),
        (Some(_), 1) => ("draining", "1 instance is replaced elsewhere first".to_owned()),
        (Some(_), n) => ("draining", format!("{n} instances are replaced elsewhere first")),
    };
    Change {
        kind: "node",
        tenant: String::new(),
        name,
        id: node.to_string(),
        action,
        sentence,
    }
}

async fn ask_node(
    shared: &Shared,
    caller: &Caller,
    id: &str,
    make: impl FnOnce(NodeId) -> Command,
) -> Handled<Response> {
    let (node, name) = shared.deps.view.read(|state| find(state, id))?;
    let envelope = caller.envelope(make(node));
    let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    let change = told(&answered.events, node, name);
    Ok(answer_to(&answered, &[change], json!({"repeated": answered.repeated})))
}

pub(crate) async fn drain(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Handled<Response> {
    let body: DrainBody = json_body(request, &shared).await?;
    ask_node(&shared, &caller, &id, |node| body.command(node)).await
}

pub(crate) async fn cordon(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Handled<Response> {
    let ReasonBody { reason } = json_body(request, &shared).await?;
    ask_node(&shared, &caller, &id, |node| Command::CordonNode { node, reason }).await
}

pub(crate) async fn uncordon(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Handled<Response> {
    let ReasonBody { reason } = json_body(request, &shared).await?;
    ask_node(&shared, &caller, &id, |node| Command::UncordonNode { node, reason }).await
}

/// Drains every node of a provider, one command each: a node that cannot be drained does not keep the others.
pub(crate) async fn drain_provider(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(provider): Path<String>,
    request: Request,
) -> Handled<Response> {
    let body: DrainBody = json_body(request, &shared).await?;
    let nodes = shared.deps.view.read(|state| of_provider(state, &provider));
    if nodes.is_empty() {
        return Err(Refusal::new(
            404,
            "not_found",
            format!(
                "no node of provider `{}` is in the pool",
                provider.chars().take(80).collect::<String>()
            ),
            "see the providers with `tidemill nodes`",
        ));
    }
    if nodes.len() > MAX_NODES {
        return Err(Refusal::new(
            422,
            "too_many",
            format!(
                "provider `{provider}` has {} nodes, at most {MAX_NODES} go at once",
                nodes.len()
            ),
            "drain them one by one, the largest first",
        ));
    }
    let mut changes = Vec::with_capacity(nodes.len());
    let mut sequence = 0;
    for (node, name) in nodes {
        // Under its own id each: a repeated request continues where the first was cut off.
        let envelope = caller.envelope_for(&node.to_string(), body.command(node));
        let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
        sequence = sequence.max(answered.sequence);
        changes.push(told(&answered.events, node, name));
    }
    Ok(answer(sequence, &changes, json!({})))
}

fn of_provider(state: &CellState, provider: &str) -> Vec<(NodeId, String)> {
    let there = state
        .nodes
        .values()
        .filter(|node| node.provider == provider && !matches!(node.state, NodeState::Lost | NodeState::Left));
    there.map(|node| (node.id, node.name.to_string())).collect()
}

pub(crate) async fn move_instance(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Handled<Response> {
    let ReasonBody { reason } = json_body(request, &shared).await?;
    let (instance, name) = shared.deps.view.read(|state| find_instance(state, &id))?;
    let envelope = caller.envelope(Command::MoveInstance { instance, reason });
    let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    let switch = answered.events.iter().find_map(|event| match event {
        Event::SwitchOpened(e) => Some(e.switch),
        _ => None,
    });
    let (action, sentence) = match (answered.events.is_empty(), switch) {
        (true, _) => ("unchanged", String::new()),
        (false, Some(switch)) => (
            "moving",
            format!("another takes its place first; see `tidemill explain {switch}`"),
        ),
        (false, None) => ("moving", "another takes its place first".to_owned()),
    };
    let change = Change {
        kind: "instance",
        tenant: String::new(),
        name,
        id: instance.to_string(),
        action,
        sentence,
    };
    Ok(answer_to(
        &answered,
        &[change],
        json!({"repeated": answered.repeated, "switch": switch}),
    ))
}

/// The instance of this id, or the only one whose id begins so.
fn find_instance(state: &CellState, text: &str) -> Handled<(InstanceId, String)> {
    let text = text.strip_prefix("instance/").unwrap_or(text);
    let matching = |id: &&InstanceId| {
        let full = id.to_string();
        let short = full.strip_prefix("inst-");
        !text.is_empty() && (full.starts_with(text) || short.is_some_and(|random| random.starts_with(text)))
    };
    let mut found = state.instances.keys().filter(matching);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok((*only, only.to_string())),
        (Some(_), Some(_)) => Err(Refusal::new(
            409,
            "ambiguous",
            format!(
                "several instances begin with `{}`",
                text.chars().take(40).collect::<String>()
            ),
            "give more characters; see `tidemill instances`",
        )),
        (None, _) => Err(Refusal::not_found("instance", text)),
    }
}
