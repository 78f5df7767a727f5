//! `node forget`: the operator's word that a lost machine will not come back.
//!
//! It frees what only waits for that machine, and cannot end what still runs there; so it asks a person, and a script
//! says `--yes`.

use std::io::IsTerminal;

use clap::{Args, Subcommand};
use serde_json::json;

use super::workload::report;
use crate::api::{Query, segment};
use crate::cli::GlobalArgs;
use crate::exit::{CliError, Exit};
use crate::output::note;

const EXAMPLES: &str = "\
Examples:
  tidemill node forget node-7k2m --reason 'scrapped'
  tidemill node forget rack3-7 --reason 'disk gone' --yes";

/// Arguments of `node`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct NodeArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: NodeVerb,
}

/// What to do with a node.
#[derive(Debug, Subcommand)]
pub enum NodeVerb {
    /// Declare that a lost node will not come back: nothing waits for it any more
    Forget(ForgetArgs),
}

/// Arguments of `node forget`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ForgetArgs {
    /// The node: its name, its id or a unique prefix of that
    pub node: String,
    /// Why; it goes on the ledger
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Do not ask
    #[arg(long, short = 'y')]
    pub yes: bool,
}

/// Runs `node …`.
pub async fn run(args: NodeArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let NodeVerb::Forget(args) = args.verb;
    let server = global.connect()?;
    if !args.yes {
        confirm(&args.node)?;
    }
    let path = format!("/v1/nodes/{}/forget", segment(&args.node));
    let answer = server
        .post(&path, &Query::default(), &json!({"reason": args.reason}))
        .await?;
    report(&answer, &format!("{} forgotten", args.node), global)
}

/// Asks where a person sits in front of it. A script that does not say `--yes` may not know what it says.
fn confirm(node: &str) -> Result<(), CliError> {
    let refused = |what: &str, next: &str| Err(CliError::new(Exit::Refused, "not_confirmed", what, next));
    let (input, told) = (std::io::stdin(), std::io::stderr());
    if !input.is_terminal() || !told.is_terminal() {
        return refused(
            "forgetting a node takes what runs on it for ended, whether it has or not",
            "pass --yes if the machine is gone for good",
        );
    }
    note(&format!(
        "what {node} runs is taken for ended; if the machine still runs, so may its work. Forget it? [y/N]"
    ));
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => refused("nothing was changed", "answer y, or pass --yes"),
    }
}
