//! `doctor`, `version`, `completion`: about the installation rather than the pool.
//!
//! `doctor` prints findings, each with a code and a next step, and ends with exit 8 if one of them failed, so that it
//! can gate a deployment. What could not be checked is said as such and does not fail.

use clap::Args;
use clap_complete::Shell;
use serde_json::{Value, json};

use crate::api::Query;
use crate::cli::{self, GlobalArgs};
use crate::exit::{CliError, Exit};
use crate::output::lists::List;
use crate::output::{Format, print};

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
    let findings = global.connect()?.rows(List::Doctor.path(), &Query::default()).await?;
    print(&global.printer().rows(List::Doctor.columns(), &findings)?)?;
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
