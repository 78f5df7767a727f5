//! `apply`, `delete`, `stop`, `start`: declaring and changing workloads.
//!
//! The file is sent as it is and the door reads it, so an error names the key and line whichever client sent it and a
//! dry run is judged by the same code as the real one. `--wait` then watches the services until as many replicas are
//! ready as are desired; it is a client's patience and nothing more: giving up changes nothing.
//!
//! Kept: accepted and not (fully) placed in time is exit 3 with the dominant reason of what is missing; an interrupt
//! while waiting says that the change stands; an unreachable server while waiting is waited for, since the change is
//! on the ledger already.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use serde_json::{Value, json};
use tidemill_door::workload::MAX_INPUT_BYTES;

use super::follow::until_interrupt;
use crate::api::{self, Query, Server};
use crate::cli::GlobalArgs;
use crate::exit::{CliError, Exit};
use crate::output::column::bytes;
use crate::output::lists::List;
use crate::output::{Format, note, print};
use crate::target::{DEFAULT_TENANT, Target};
use crate::time::{parse_duration, short_span};

const APPLY_EXAMPLES: &str = "\
Examples:
  tidemill apply -f examples/hello.yaml --wait 60s
  tidemill apply -f chat.yaml --dry-run
  sed s/v1/v2/ chat.yaml | tidemill apply -f -";

const DELETE_EXAMPLES: &str = "\
Examples:
  tidemill delete service/hello
  tidemill delete acme/chat --yes --wait 60s";

const STOP_EXAMPLES: &str = "\
Examples:
  tidemill stop service/hello
  tidemill stop acme/chat --wait 60s";

const START_EXAMPLES: &str = "\
Examples:
  tidemill start service/hello --wait 60s
  tidemill start acme/chat";

/// How often a waited-for service is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// Longest pause between looks while no server answers.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Arguments of `apply`.
#[derive(Debug, Args)]
#[command(after_help = APPLY_EXAMPLES)]
pub struct ApplyArgs {
    /// The file (YAML or JSON, one or several documents); `-` is stdin
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: PathBuf,
    /// Wait until every service of the file has its replicas ready
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "dry_run")]
    pub wait: Option<Duration>,
    /// Check everything and say what would change; change nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Arguments of `stop`.
#[derive(Debug, Args)]
#[command(after_help = STOP_EXAMPLES)]
pub struct StopArgs {
    /// What is stopped.
    #[command(flatten)]
    pub target: TargetArgs,
}

/// Arguments of `start`.
#[derive(Debug, Args)]
#[command(after_help = START_EXAMPLES)]
pub struct StartArgs {
    /// What is started.
    #[command(flatten)]
    pub target: TargetArgs,
}

/// Arguments of `delete`.
#[derive(Debug, Args)]
#[command(after_help = DELETE_EXAMPLES)]
pub struct DeleteArgs {
    /// What is deleted.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Do not ask before deleting
    #[arg(long, short = 'y')]
    pub yes: bool,
}

/// The workload that `delete`, `stop` and `start` are about.
#[derive(Debug, Args)]
pub struct TargetArgs {
    /// The workload: NAME, TENANT/NAME, or either behind `service/`
    #[arg(value_name = "KIND/NAME")]
    pub target: String,
    /// Tenant of the workload
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Wait until it is done
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub wait: Option<Duration>,
}

/// Runs `apply`.
pub async fn apply(args: ApplyArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let text = read(&args.file)?;
    let server = global.connect()?;
    let query = Query::default().with("dry_run", args.dry_run);
    let answer = server
        .post_text(List::Changes.path(), &query, "application/yaml", text)
        .await?;
    report(&answer, "applied", global)?;
    if args.dry_run {
        note("dry run: nothing was changed");
        return Ok(());
    }
    let targets = changed_services(&answer);
    wait_if_asked(&server, args.wait, &answer, &targets).await?;
    if let (Format::Table, Some(first)) = (global.output, targets.first()) {
        let name = first.short();
        note(&format!(
            "next: tidemill services; tidemill instances; tidemill events --about {name}"
        ));
    }
    Ok(())
}

/// Runs `delete`.
pub async fn delete(args: DeleteArgs, global: &GlobalArgs) -> Result<(), CliError> {
    if !args.yes {
        let target = Target::parse(&args.target.target, args.target.tenant.as_deref())?;
        confirm_deletion(&global.connect()?, &target).await?;
    }
    command("delete", args.target, global).await
}

/// Runs `delete`, `stop` or `start`.
pub async fn command(verb: &str, args: TargetArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let target = Target::parse(&args.target, args.tenant.as_deref())?;
    let server = global.connect()?;
    let answer = server.post(&target.path(verb), &Query::default(), &json!({})).await?;
    report(&answer, &format!("{target}: {verb} accepted"), global)?;
    wait_if_asked(&server, args.wait, &answer, &changed_services(&answer)).await
}

/// Says what would go and asks, where a person sits in front of it; a script has said what it wants.
async fn confirm_deletion(server: &Server, target: &Target) -> Result<(), CliError> {
    let (input, told) = (std::io::stdin(), std::io::stderr());
    if !input.is_terminal() || !told.is_terminal() {
        return Ok(());
    }
    let rows = server
        .get(
            List::Services.path(),
            &Query::default().with_some("tenant", target.tenant.as_ref()),
        )
        .await?;
    let row = rows
        .as_array()
        .into_iter()
        .flatten()
        .find(|row| target.is(row) || (target.tenant.is_none() && row["name"] == target.name.as_str()));
    let ready = row.and_then(|row| row["ready"].as_u64()).unwrap_or(0);
    note(&format!(
        "{target} and its {ready} ready replicas will be gone. Delete it? [y/N]"
    ));
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(CliError::new(
        Exit::Refused,
        "not_confirmed",
        "nothing was deleted",
        "answer y, or pass --yes",
    ))
}

/// The file's bytes, at most as many as a server reads.
fn read(file: &Path) -> Result<Bytes, CliError> {
    let unreadable = |error: std::io::Error| {
        let next = match error.kind() {
            std::io::ErrorKind::IsADirectory => "name the file in it; several documents fit one file, between `---`",
            _ => "check the path; `-f -` reads stdin",
        };
        let code = "file_unreadable";
        CliError::new(
            Exit::Error,
            code,
            format!("{} cannot be read: {error}", file.display()),
            next,
        )
    };
    let mut text = Vec::new();
    let limit = MAX_INPUT_BYTES as u64 + 1;
    if file.as_os_str() == "-" {
        std::io::stdin().lock().take(limit).read_to_end(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(limit).read_to_end(&mut text))
    }
    .map_err(unreadable)?;
    if text.len() > MAX_INPUT_BYTES {
        return Err(CliError::new(
            Exit::Error,
            "too_large",
            format!("{} is larger than {}", file.display(), bytes(MAX_INPUT_BYTES as u64)),
            "check that it is a workload file",
        ));
    }
    Ok(text.into())
}

/// Prints what a command changed: a line for each change, or the whole answer in machine formats.
pub fn report(answer: &Value, otherwise: &str, global: &GlobalArgs) -> Result<(), CliError> {
    let changes = answer.get("changes").and_then(Value::as_array);
    let dry_run = answer.get("dry_run").and_then(Value::as_bool) == Some(true);
    let warnings = answer.get("warnings").and_then(Value::as_array);
    for warning in warnings.into_iter().flatten().filter_map(Value::as_str) {
        note(&format!("warning: {warning}"));
    }
    match global.output {
        Format::Table => {
            let lines: Vec<String> = match changes {
                Some(changes) => changes.iter().map(|change| change_line(change, dry_run)).collect(),
                None => vec![otherwise.to_owned()],
            };
            print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>())
        }
        Format::Csv if changes.is_some() => {
            let rows = changes.cloned().unwrap_or_default();
            print(&global.printer().rows(List::Changes.columns(), &rows)?)
        }
        _ => print(&global.printer().object(answer)?),
    }
}

fn change_line(change: &Value, dry_run: bool) -> String {
    let text = |key: &str| change.get(key).and_then(Value::as_str).unwrap_or_default();
    let tenant = match text("tenant") {
        "" | DEFAULT_TENANT => String::new(),
        tenant => format!("{tenant}/"),
    };
    let kind = match text("kind") {
        "" => "service",
        kind => kind,
    };
    let sentence = match text("sentence") {
        "" => String::new(),
        sentence => format!(": {sentence}"),
    };
    let action = match (dry_run, text("action")) {
        (false, action) => action.to_owned(),
        (true, "unchanged") => "would stay unchanged".to_owned(),
        (true, action) => format!("would be {action}"),
    };
    format!("{kind}/{tenant}{} {action}{sentence}", text("name"))
}

/// The services a command was about, each with the tenant that it turned out to be of.
pub fn changed_services(answer: &Value) -> Vec<Target> {
    let text = |change: &Value, key: &str| change.get(key).and_then(Value::as_str).map(str::to_owned);
    answer
        .get("changes")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter(|change| text(change, "kind").is_none_or(|kind| kind == "service"))
        .filter_map(|change| {
            Some(Target {
                tenant: text(change, "tenant"),
                name: text(change, "name")?,
            })
        })
        .collect()
}

/// Waits until the targets have what they want, if a wait was asked for.
pub async fn wait_if_asked(
    server: &Server,
    wait: Option<Duration>,
    answer: &Value,
    targets: &[Target],
) -> Result<(), CliError> {
    let Some(wait) = wait else { return Ok(()) };
    let sequence = api::sequence(answer);
    let began = Instant::now();
    match until_interrupt(settle(server, wait, began, sequence, targets)).await {
        Some(Ok(missing)) if missing.is_empty() => {
            let names: Vec<String> = targets.iter().map(ToString::to_string).collect();
            let span = short_span(began.elapsed());
            note(&format!("{} as desired after {span}", names.join(", ")));
            Ok(())
        }
        Some(Ok(missing)) => Err(not_placed(server, wait, &missing).await),
        Some(Err(error)) => Err(error),
        None => Err(CliError::new(
            Exit::NotPlaced,
            "interrupted",
            match sequence {
                Some(sequence) => format!("stopped waiting; the change stands at sequence {sequence}"),
                None => "stopped waiting; the change stands".to_owned(),
            },
            "look with `tidemill services --watch`",
        )),
    }
}

/// A target that is not there yet, and the row that says so.
type Missing = (Target, Option<Value>);

/// Looks until nothing is missing or the time is over; what is still missing.
async fn settle(
    server: &Server,
    wait: Duration,
    began: Instant,
    sequence: Option<u64>,
    targets: &[Target],
) -> Result<Vec<Missing>, CliError> {
    let query = Query::default().with_some("min_seq", sequence);
    let mut missing: Vec<Missing> = targets.iter().map(|target| (target.clone(), None)).collect();
    let mut pause = LOOK_EVERY;
    let mut away = false;
    loop {
        match server.rows(List::Services.path(), &query).await {
            Ok(rows) => {
                pause = LOOK_EVERY;
                missing = missing_of(&rows, targets);
                if missing.is_empty() {
                    return Ok(missing);
                }
            }
            Err(error) if error.exit == Exit::Unreachable => {
                if !std::mem::replace(&mut away, true) {
                    note(&format!("still waiting, but: {error}"));
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(error) => return Err(error),
        }
        let left = wait.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Ok(missing);
        }
        tokio::time::sleep(pause.min(left)).await;
    }
}

fn missing_of(rows: &[Value], targets: &[Target]) -> Vec<Missing> {
    let mut missing = Vec::new();
    for target in targets {
        let row = rows.iter().find(|row| target.is(row));
        // A deleted service has no row, and that is as desired.
        if let Some(row) = row
            && !settled(row)
        {
            missing.push((target.clone(), Some(row.clone())));
        }
    }
    missing
}

/// Whether a service has exactly what is desired. Its state is the control plane's word; the counts are looked at
/// besides, because one replica more than desired is `ready` and still has to go.
fn settled(row: &Value) -> bool {
    let number = |key: &str| row.get(key).and_then(Value::as_u64);
    let exact = number("desired").is_some() && number("desired") == number("ready");
    match row.get("state").and_then(Value::as_str) {
        Some("stopped" | "deleted") => true,
        Some("ready" | "idle") | None => exact,
        Some(_) => false,
    }
}

async fn not_placed(server: &Server, wait: Duration, missing: &[Missing]) -> CliError {
    let mut lines = Vec::new();
    let mut seen = BTreeSet::new();
    for (target, row) in missing {
        let number = |key: &str| row.as_ref().and_then(|row| row.get(key)).and_then(Value::as_u64);
        let count = match (number("ready"), number("desired")) {
            (Some(ready), Some(desired)) => format!("{ready} of {desired} ready"),
            _ => "not seen yet".to_owned(),
        };
        let reason = dominant_reason(server, target, row.as_ref()).await;
        lines.push(format!("{target}: {count}: {reason}"));
        seen.insert(target.short());
    }
    let names: Vec<String> = seen.into_iter().collect();
    CliError::new(
        Exit::NotPlaced,
        "not_placed",
        format!(
            "accepted, but not there after {}:\n  {}",
            short_span(wait),
            lines.join("\n  ")
        ),
        format!(
            "it goes on by itself; look with `tidemill explain {}`",
            names.join("`, `tidemill explain ")
        ),
    )
}

/// What the control plane says is in the way; the service's own reason where it cannot be asked.
async fn dominant_reason(server: &Server, target: &Target, row: Option<&Value>) -> String {
    let path = format!("/v1/explain/{}", api::segment(&target.name));
    let query = Query::default().with_some("tenant", target.tenant.as_ref());
    let explained = server
        .with_timeout(Duration::from_secs(2))
        .get(&path, &query)
        .await
        .unwrap_or_default();
    [explained.get("reason"), row.and_then(|row| row.get("reason"))]
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find(|text| !text.is_empty())
        .unwrap_or("no reason is known")
        .to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn changes_read_as_sentences() {
        let answer = json!({"sequence": 7, "changes": [
            {"kind": "service", "tenant": "default", "name": "hello", "action": "created", "sentence": "2 replicas on cpu"},
            {"kind": "service", "tenant": "acme", "name": "chat", "action": "unchanged"},
        ]});
        let lines: Vec<String> = answer["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| change_line(c, false))
            .collect();
        assert_eq!(
            lines.join("\n"),
            "service/hello created: 2 replicas on cpu\nservice/acme/chat unchanged"
        );
        assert_eq!(changed_services(&answer).len(), 2);
        let lines: Vec<String> = answer["changes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| change_line(c, true))
            .collect();
        assert_eq!(
            lines.join("\n"),
            "service/hello would be created: 2 replicas on cpu\nservice/acme/chat would stay unchanged"
        );
    }

    #[test]
    fn settled_means_exactly_what_is_desired() {
        let row = |state: &str, desired: u64, ready: u64| json!({"state": state, "desired": desired, "ready": ready});
        assert!(settled(&row("ready", 2, 2)));
        assert!(settled(&row("idle", 0, 0)));
        assert!(settled(&row("stopped", 0, 0)));
        assert!(!settled(&row("ready", 2, 4)), "two have to go");
        assert!(!settled(&row("updating", 2, 2)), "of an older generation");
        assert!(!settled(&row("pending", 2, 0)));
        assert!(!settled(&json!({})));
    }

    #[test]
    fn a_service_without_a_row_is_deleted() {
        let target = Target::parse("hello", None).unwrap();
        let rows = [json!({"name": "hello", "tenant": "acme", "state": "pending"})];
        assert!(missing_of(&rows, std::slice::from_ref(&target)).is_empty());
        let rows = [json!({"name": "hello", "tenant": "default", "state": "pending"})];
        assert_eq!(missing_of(&rows, &[target]).len(), 1);
    }
}
