//! `doctor`, `version`, `completion`: about the installation rather than the pool.
//!
//! `doctor` prints findings, each with a code and a next step, and ends with exit 8 if one of them failed, so that it
//! can gate a deployment. What could not be checked is said as such and does not fail. Where no server answers, that is
//! the first finding, what lies on this machine is still looked at, and the exit code is that of an unreachable server.

use clap::Args;
use clap_complete::Shell;
use serde_json::{Value, json};
use tidemill_bus::embedded::EmbeddedLedger;
use tidemill_bus::ledger::{FindingState, Ledger, OpenError};

use super::ledger;
use crate::api::Query;
use crate::cli::{self, GlobalArgs};
use crate::exit::{CliError, Exit};
use crate::output::lists::List;
use crate::output::{Format, print};
use crate::roles::store::ledger_path;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidemill doctor\n  tidemill doctor -o json")]
pub struct DoctorArgs {}

/// Arguments of `version`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidemill version\n  tidemill version -o json")]
pub struct VersionArgs {}

/// Arguments of `completion`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tidemill completion bash > /etc/bash_completion.d/tidemill\n  source <(tidemill completion zsh)"
)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Runs `doctor`.
pub async fn doctor(_args: DoctorArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let (findings, away) = match global.connect()?.rows(List::Doctor.path(), &Query::default()).await {
        Ok(findings) => (findings, None),
        Err(error) if error.code == "unreachable" => (without_server(&error, global).await, Some(error)),
        Err(error) => return Err(error),
    };
    print(&global.printer().rows(List::Doctor.columns(), &findings)?)?;
    if let Some(error) = away {
        return Err(error);
    }
    let failed = findings
        .iter()
        .filter(|finding| {
            matches!(
                finding.get("state").and_then(Value::as_str),
                Some("fail" | "failed" | "error")
            )
        })
        .count();
    if failed == 0 {
        return Ok(());
    }
    Err(CliError::new(
        Exit::CheckFailed,
        "check_failed",
        format!("{failed} of {} checks failed", findings.len()),
        "each finding above says what to do",
    ))
}

fn finding(check: &str, state: &str, code: &str, detail: impl Into<String>, next: &str) -> Value {
    json!({"check": check, "state": state, "code": code, "detail": detail.into(), "next": next})
}

/// What can be said without a server: that there is none, and how the data directory of this machine is.
async fn without_server(error: &CliError, global: &GlobalArgs) -> Vec<Value> {
    let mut findings = vec![finding(
        "server",
        "fail",
        &error.code,
        error.detail.as_str(),
        &error.next,
    )];
    let data = ledger::data_dir();
    let place = data.display();
    if let Some(api) = ledger::last_api(&data)
        && !global.servers().iter().any(|server| ledger::same_server(&api, server))
    {
        let detail = format!("what last ran on {place} answered at {api}");
        let next = format!("if that is the one, pass --server {api} or set TIDEMILL_SERVER to it");
        findings.push(finding("server", "warn", "another_server", detail, &next));
    }
    let ledger = match EmbeddedLedger::open_read_only(&ledger_path(&data)) {
        Ok(ledger) => ledger,
        Err(OpenError::Missing { .. }) => {
            let detail = format!("{place} holds no ledger of its own");
            let next = "`tidemill up` makes one there; TIDEMILL_DATA names another directory";
            findings.push(finding("ledger here", "unknown", "ledger_missing", detail, next));
            return findings;
        }
        Err(error) => {
            let detail = error.to_string();
            findings.push(finding("ledger here", "fail", error.code(), detail, error.next_step()));
            return findings;
        }
    };
    findings.push(match ledger.tail().await {
        Ok(tail) => {
            let detail = format!("{place} holds a ledger of {} records", tail.sequence);
            finding("ledger here", "ok", "ok", detail, "")
        }
        Err(error) => finding(
            "ledger here",
            "fail",
            error.code(),
            error.to_string(),
            "run `tidemill verify`",
        ),
    });
    findings.extend(ledger.describe().await.findings.into_iter().map(|found| {
        let state = match found.state {
            FindingState::Verified => "ok",
            FindingState::NotVerifiable => "unknown",
            FindingState::Wrong => "fail",
        };
        finding("durability", state, found.code, found.message, found.next_step)
    }));
    findings
}

/// Runs `version`.
pub fn version(_args: VersionArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let version = env!("CARGO_PKG_VERSION");
    match global.output {
        Format::Table => print(&format!("tidemill {version}\n")),
        _ => print(&global.printer().object(&json!({
            "version": version,
            "protocol": tidemill_protocol::PROTOCOL_VERSION,
        }))?),
    }
}

/// Runs `completion`.
pub fn completion(args: CompletionArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "tidemill", &mut script);
    print(&String::from_utf8_lossy(&script))
}
