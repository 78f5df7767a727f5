//! `drain`, `cordon`, `uncordon`, `move`: keeping work off nodes and taking it off them.
//!
//! Each is one command that says why; the work itself is the scheduler's. With `--wait`, `drain` stays until the node is
//! empty and says what it waits for whenever that changes, so that whoever sits in front of the machine knows.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use super::follow::until_interrupt;
use super::workload::report;
use crate::api::{self, Query, Server, segment};
use crate::cli::GlobalArgs;
use crate::exit::{CliError, Exit};
use crate::output::note;
use crate::time::{millis, parse_duration, short_span};

const DRAIN_EXAMPLES: &str = "\
Examples:
  tidemill drain rack3-7 --reason 'new disk'
  tidemill drain rack3-7 --reason 'new disk' --wait 10m
  tidemill drain node-7k2m --reason 'the cloud wants it back' --reclaim --deadline 2m
  tidemill drain --provider cloudy --reason 'contract ends'";

const CORDON_EXAMPLES: &str = "\
Examples:
  tidemill cordon rack3-7 --reason 'its fan rattles'";

const UNCORDON_EXAMPLES: &str = "\
Examples:
  tidemill uncordon rack3-7
  tidemill uncordon rack3-7 --reason 'fan changed'";

const MOVE_EXAMPLES: &str = "\
Examples:
  tidemill move inst-9q --reason 'noisy neighbour'";

/// How often to look while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Arguments of `drain`.
#[derive(Debug, Args)]
#[command(after_help = DRAIN_EXAMPLES)]
pub struct DrainArgs {
    /// The node: its name, its id or a unique prefix of that
    #[arg(required_unless_present = "provider", conflicts_with = "provider")]
    pub node: Option<String>,
    /// Every node of this provider
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Why; it goes on the ledger
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Be empty by then, with replacements or without [default: wait for replacements]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub deadline: Option<Duration>,
    /// The provider takes it back: recorded as that
    #[arg(long)]
    pub reclaim: bool,
    /// Stay until it is empty
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub wait: Option<Duration>,
}

/// Arguments of `cordon`.
#[derive(Debug, Args)]
#[command(after_help = CORDON_EXAMPLES)]
pub struct CordonArgs {
    /// The node: its name, its id or a unique prefix of that
    pub node: String,
    /// Why; it goes on the ledger
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// Arguments of `uncordon`.
#[derive(Debug, Args)]
#[command(after_help = UNCORDON_EXAMPLES)]
pub struct UncordonArgs {
    /// The node: its name, its id or a unique prefix of that
    pub node: String,
    /// Why; it goes on the ledger
    #[arg(long, value_name = "TEXT", default_value = "it may work again")]
    pub reason: String,
}

/// Arguments of `move`.
#[derive(Debug, Args)]
#[command(after_help = MOVE_EXAMPLES)]
pub struct MoveArgs {
    /// The instance: its id or a unique prefix of that
    pub instance: String,
    /// Why; it goes on the ledger
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// Runs `drain`.
pub async fn drain(args: DrainArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let server = global.connect()?;
    let body = json!({
        "reason": args.reason, "deadline_ms": args.deadline.map(millis), "reclaim": args.reclaim,
    });
    let path = match (&args.provider, &args.node) {
        (Some(provider), _) => format!("/v1/providers/{}/drain", segment(provider)),
        (None, Some(node)) => format!("/v1/nodes/{}/drain", segment(node)),
        (None, None) => {
            return Err(CliError::usage(
                "it is not said what to drain",
                "name a node, or give --provider",
            ));
        }
    };
    let answer = server.post(&path, &Query::default(), &body).await?;
    report(&answer, "accepted", global)?;
    let Some(wait) = args.wait else { return Ok(()) };
    let began = Instant::now();
    match until_interrupt(emptied(&server, &answer, wait, began)).await {
        Some(Ok(left)) if left.is_empty() => {
            note(&format!("drained after {}", short_span(began.elapsed())));
            Ok(())
        }
        Some(Ok(left)) => Err(CliError::new(
            Exit::NotPlaced,
            "not_drained",
            format!("not empty after {}: {}", short_span(began.elapsed()), left.join("; ")),
            "it goes on; `tidemill explain NODE` says what it waits for, `tidemill uncordon NODE` withdraws it",
        )),
        Some(Err(error)) => Err(error),
        None => Err(CliError::new(
            Exit::NotPlaced,
            "interrupted",
            "stopped waiting; the drain goes on",
            "`tidemill uncordon NODE` withdraws it",
        )),
    }
}

/// Looks until the nodes of `answer` are empty or the time is over; what is still waited for.
async fn emptied(server: &Server, answer: &Value, wait: Duration, began: Instant) -> Result<Vec<String>, CliError> {
    let changes = answer.get("changes").and_then(Value::as_array);
    let mut nodes: Vec<String> = changes
        .into_iter()
        .flatten()
        .filter_map(|change| change.get("id").and_then(Value::as_str))
        .map(str::to_owned)
        .collect();
    let query = Query::default().with_some("min_seq", api::sequence(answer));
    let mut told = Vec::new();
    loop {
        let mut left = Vec::new();
        for node in std::mem::take(&mut nodes) {
            let found = server.get(&format!("/v1/explain/{}", segment(&node)), &query).await?;
            if let Some(waits) = waits_for(&found) {
                left.extend(waits);
                nodes.push(node);
            }
        }
        if left != told {
            for line in &left {
                note(line);
            }
            told.clone_from(&left);
        }
        let remaining = wait.saturating_sub(began.elapsed());
        if nodes.is_empty() || remaining.is_zero() {
            return Ok(left);
        }
        tokio::time::sleep(LOOK_EVERY.min(remaining)).await;
    }
}

/// What a draining node waits for; none once it is empty, or out of the pool, or not draining any more.
fn waits_for(explained: &Value) -> Option<Vec<String>> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    if !matches!(text(explained, "state").as_str(), "draining" | "suspect") {
        return None;
    }
    let name = text(explained, "name");
    let evidence = explained.get("evidence").and_then(Value::as_array);
    let facts = evidence.into_iter().flatten().map(|fact| text(fact, "fact"));
    let mut waits: Vec<String> = facts
        .filter(|fact| fact.contains(" waits: "))
        .map(|fact| format!("{name}: {fact}"))
        .collect();
    if waits.is_empty() {
        waits.push(format!("{name}: its last instance is ending"));
    }
    Some(waits)
}

/// Runs `cordon`.
pub async fn cordon(args: CordonArgs, global: &GlobalArgs) -> Result<(), CliError> {
    on_node("cordon", &args.node, &args.reason, global).await
}

/// Runs `uncordon`.
pub async fn uncordon(args: UncordonArgs, global: &GlobalArgs) -> Result<(), CliError> {
    on_node("uncordon", &args.node, &args.reason, global).await
}

async fn on_node(verb: &str, node: &str, reason: &str, global: &GlobalArgs) -> Result<(), CliError> {
    let path = format!("/v1/nodes/{}/{verb}", segment(node));
    let body = json!({"reason": reason});
    let answer = global.connect()?.post(&path, &Query::default(), &body).await?;
    report(&answer, "accepted", global)
}

/// Runs `move`.
pub async fn move_instance(args: MoveArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let path = format!("/v1/instances/{}/move", segment(&args.instance));
    let body = json!({"reason": args.reason});
    let answer = global.connect()?.post(&path, &Query::default(), &body).await?;
    report(&answer, "accepted", global)
}
