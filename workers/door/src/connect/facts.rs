//! Facts on their way to the ledger.
//!
//! A batch is asked for until the ledger has it or has refused it for good; only then is it acknowledged, and the agent
//! forgets it. The command's id is derived from what the batch says and not from when: a batch that an agent repeats,
//! over this connection or another, is the same command although its facts are older by then.

use std::time::Duration;

use tidemill_bus::commands::SubmitError;
use tidemill_domain::command::{Command, Envelope, InstanceFact, ReportFacts};
use tidemill_domain::commit::{Actor, Cause, TraceContext};
use tidemill_domain::id::{CommandId, NodeId};
use tidemill_domain::time::Span;
use tokio::time::Instant;

use crate::shared::Shared;
use crate::trace;

/// Pauses between tries.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(3);

/// Facts that go into one command.
pub(super) struct Batch {
    /// Digest of ids and bodies, ages left out.
    pub(super) digest: [u8; 32],
    /// The facts, ages as of [`Batch::received`].
    pub(super) facts: Vec<InstanceFact>,
    /// Highest id in the agent's outbox, facts that this build cannot read included.
    pub(super) through: u64,
    /// When they came.
    pub(super) received: Instant,
}

/// Returns when the ledger has the batch, or never will.
pub(super) async fn settle(shared: &Shared, node: NodeId, agent_id: &str, batch: Batch) {
    if batch.facts.is_empty() {
        return;
    }
    let id = CommandId::derived(&[b"facts", &node.bits().to_le_bytes(), agent_id.as_bytes(), &batch.digest]);
    let trace = trace_of(shared, &batch);
    let mut pause = PAUSE_MIN;
    let mut told = false;
    // After an unknown outcome the command must stay as it was, ages included.
    let mut frozen: Option<Envelope> = None;
    loop {
        let envelope = frozen.clone().unwrap_or_else(|| envelope(id, node, trace, &batch));
        match shared.submit_once(envelope.clone()).await {
            Ok(_) => return,
            // The id stands for these very facts: an earlier try was carried out, when they were younger.
            Err(SubmitError::Conflict { .. }) => return,
            Err(error @ SubmitError::Rejected { .. }) => {
                tracing::warn!(%node, code = error.code(), %error, "facts were refused for good");
                return;
            }
            Err(error) => {
                if matches!(error, SubmitError::Unknown { .. }) {
                    frozen = Some(envelope);
                }
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%node, code = error.code(), %error, "facts wait for the ledger");
                }
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn envelope(id: CommandId, node: NodeId, trace: TraceContext, batch: &Batch) -> Envelope {
    let waited = Span::from_micros(u64::try_from(batch.received.elapsed().as_micros()).unwrap_or(u64::MAX));
    let older = |fact: &InstanceFact| InstanceFact {
        age: Span::from_micros(fact.age.micros().saturating_add(waited.micros())),
        ..fact.clone()
    };
    Envelope {
        id,
        actor: Actor::Node(node),
        cause: Cause::Request,
        trace: Some(trace),
        command: Command::ReportFacts(ReportFacts {
            node,
            facts: batch.facts.iter().map(older).collect(),
        }),
    }
}

/// The trace of what made the first instance, since its start is what is told of; else a new one.
fn trace_of(shared: &Shared, batch: &Batch) -> TraceContext {
    let fresh = trace::fresh();
    let first = batch.facts.first().map(|fact| fact.instance);
    let known = shared
        .deps
        .view
        .read(|state| first.and_then(|id| state.instances.get(&id)).and_then(|i| i.trace));
    match known {
        Some(known) => TraceContext {
            span_id: fresh.span_id,
            ..known
        },
        None => fresh,
    }
}
