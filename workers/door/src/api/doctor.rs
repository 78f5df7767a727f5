//! `doctor`: every finding with a code and a next step, the worst first.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use tidemill_bus::ledger::FindingState;
use tidemill_domain::state::State as CellState;
use tidemill_domain::state::node::NodeState;

use super::{breaker, hardware, probes};
use crate::health::{Check, CheckState};
use crate::shared::Shared;

/// Time for the log to say how it is set up.
const DESCRIBE_PATIENCE: Duration = Duration::from_secs(5);
/// Worker roles without which nothing moves.
const ROLES: [&str; 2] = ["scheduler", "failover"];

pub(crate) async fn doctor(State(shared): State<Arc<Shared>>) -> Json<Vec<Check>> {
    let mut checks = probes::checks(&shared).await;
    match tokio::time::timeout(DESCRIBE_PATIENCE, shared.deps.ledger.describe()).await {
        Ok(description) => checks.extend(description.findings.into_iter().map(|finding| {
            let state = match finding.state {
                FindingState::Verified => CheckState::Ok,
                FindingState::NotVerifiable => CheckState::Unknown,
                FindingState::Wrong => CheckState::Fail,
            };
            Check::new("durability", state, finding.code, finding.message, finding.next_step)
        })),
        Err(_) => checks.push(Check::new(
            "durability",
            CheckState::Unknown,
            "ledger_unavailable",
            "the ledger did not say how it is set up",
            "check that NATS runs and is reachable",
        )),
    }
    shared.deps.view.read(|state| {
        cell(state, &mut checks);
        breaker::examine(state, &mut checks);
        hardware::examine(state, &shared.telemetry, &mut checks);
    });
    checks.sort_by_key(|check| std::cmp::Reverse(check.state));
    Json(checks)
}

/// What the state itself shows.
fn cell(state: &CellState, checks: &mut Vec<Check>) {
    for role in ROLES {
        checks.push(match state.terms.get(role) {
            Some(term) => Check::ok(
                &format!("worker {role}"),
                format!("held by {} in term {}", term.holder, term.term),
            ),
            None => Check::new(
                &format!("worker {role}"),
                CheckState::Fail,
                "worker_missing",
                "nobody has ever held this role",
                format!("start one with `tidemill worker {role}`; `tidemill up` has it"),
            ),
        });
    }
    let names = |wanted: NodeState| {
        let nodes = state.nodes.values().filter(|node| node.state == wanted);
        nodes.map(|node| node.name.as_str()).collect::<Vec<_>>()
    };
    for (wanted, code, next) in [
        (
            NodeState::Suspect,
            "nodes_silent",
            "see why with `tidemill status NODE`; it is given up if it stays silent",
        ),
        (
            NodeState::Lost,
            "nodes_lost",
            "start its agent again; its work was replaced elsewhere",
        ),
    ] {
        let found = names(wanted);
        if !found.is_empty() {
            let shown = found.iter().take(10).copied().collect::<Vec<_>>().join(", ");
            let detail = format!("{} {}: {shown}", found.len(), wanted.name());
            checks.push(Check::new("nodes", CheckState::Warn, code, detail, next));
        }
    }
    if names(NodeState::Ready).is_empty() {
        checks.push(Check::new(
            "nodes",
            CheckState::Warn,
            "no_nodes",
            "no node takes work",
            "start an agent on a machine with `tidemill agent`",
        ));
    } else {
        checks.push(Check::ok(
            "nodes",
            format!("{} take work", names(NodeState::Ready).len()),
        ));
    }
}
