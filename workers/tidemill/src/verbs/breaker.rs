//! `breaker show|confirm|reset`: what holds work where it is when many nodes fall silent at once.
//!
//! It asks for a person's judgement and says on what that rests; each judgement carries a reason, which goes on the
//! ledger.

use clap::{Args, Subcommand};
use serde_json::json;

use super::workload::report;
use crate::api::Query;
use crate::cli::GlobalArgs;
use crate::exit::CliError;
use crate::output::print;

const EXAMPLES: &str = "\
Examples:
  tidemill breaker show
  tidemill breaker confirm --reason 'the east site has no power'
  tidemill breaker reset --reason 'the switch was replaced'";

/// Arguments of `breaker`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BreakerArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: BreakerVerb,
}

/// What to do with the breaker.
#[derive(Debug, Subcommand)]
pub enum BreakerVerb {
    /// Show whether it is tripped, for which nodes, and what it holds
    #[command(after_help = EXAMPLES)]
    Show,
    /// Say that the silent nodes are gone: their work is replaced at once
    Confirm(ReasonArgs),
    /// Close it: every node is judged by itself again
    Reset(ReasonArgs),
}

/// Arguments of a judgement.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReasonArgs {
    /// Why; it goes on the ledger
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// Runs `breaker …`.
pub async fn run(args: BreakerArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let server = global.connect()?;
    let (verb, reason) = match args.verb {
        BreakerVerb::Show => {
            let found = server.get("/v1/breaker", &Query::default()).await?;
            return print(&global.printer().object(&found)?);
        }
        BreakerVerb::Confirm(args) => ("confirm", args.reason),
        BreakerVerb::Reset(args) => ("reset", args.reason),
    };
    let path = format!("/v1/breaker/{verb}");
    let answer = server
        .post(&path, &Query::default(), &json!({"reason": reason}))
        .await?;
    report(&answer, "accepted", global)
}
