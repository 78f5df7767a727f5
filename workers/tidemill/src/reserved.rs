//! Verbs the contract names and this release does not have.
//!
//! One table and one refusal: a reserved verb takes any arguments, prints a sentence with code `not_yet` and exits 1. So
//! its name cannot be used for something else meanwhile, and a script that runs ahead of the release learns why.
//!
//! Kept: nothing here is stubbed; a verb leaves this table in the change that builds it. Rejected: leaving them unknown to the
//! parser, whose "did you mean" would suggest the wrong verb.

use clap::{Arg, ArgAction, Command};

use crate::exit::CliError;

/// A verb that is named but not built.
#[derive(Debug, Clone, Copy)]
pub struct Reserved {
    /// The verb.
    pub name: &'static str,
    /// What it will do, as a sentence without its subject.
    pub about: &'static str,
    /// An example of its use.
    pub example: &'static str,
    /// What helps meanwhile.
    pub instead: &'static str,
}

const fn reserved(name: &'static str, about: &'static str, example: &'static str, instead: &'static str) -> Reserved {
    Reserved {
        name,
        about,
        example,
        instead,
    }
}

const NO_SUBSTITUTE: &str = "use a newer release";

/// Every reserved verb, in the order of the contract.
pub const RESERVED: &[Reserved] = &[
    reserved(
        "demo",
        "Run `up` with simulated nodes and a replayed day",
        "tidemill demo --seed 1",
        "try `tidemill up --devices 'sim:A100-80G*8'`",
    ),
    reserved("jobs", "List jobs", "tidemill jobs --state running", NO_SUBSTITUTE),
    reserved(
        "device",
        "Return or reset a device",
        "tidemill device return GPU-1 --reason 'replaced'",
        NO_SUBSTITUTE,
    ),
    reserved(
        "incident",
        "Tell a switch's whole story on one page",
        "tidemill incident sw-4f",
        "see `tidemill events --about ID`",
    ),
    reserved(
        "review",
        "Read an exported slice without a server",
        "tidemill review may.tml",
        "lists take `--file EXPORT`",
    ),
    reserved(
        "simulate",
        "Run a scenario under virtual time",
        "tidemill simulate tide.yaml --seed 1",
        NO_SUBSTITUTE,
    ),
    reserved(
        "bench",
        "Run the production policies on public traces",
        "tidemill bench placement nodes.csv pods.csv",
        NO_SUBSTITUTE,
    ),
    reserved(
        "bill",
        "Compute a tenant's bill from the ledger",
        "tidemill bill --tenant acme",
        NO_SUBSTITUTE,
    ),
    reserved(
        "sla",
        "Compute service levels from the ledger",
        "tidemill sla --tenant acme",
        NO_SUBSTITUTE,
    ),
    reserved(
        "report",
        "Answer a buyer's questions from the ledger",
        "tidemill report",
        NO_SUBSTITUTE,
    ),
    reserved("price", "Show or set prices", "tidemill price list", NO_SUBSTITUTE),
    reserved("tenant", "Manage tenants", "tidemill tenant list", NO_SUBSTITUTE),
    reserved(
        "quota",
        "Show or set quotas",
        "tidemill quota show --tenant acme",
        NO_SUBSTITUTE,
    ),
    reserved(
        "budget",
        "Show or set budgets",
        "tidemill budget show --tenant acme",
        NO_SUBSTITUTE,
    ),
    reserved(
        "secret",
        "Manage secrets of workloads",
        "tidemill secret list",
        NO_SUBSTITUTE,
    ),
    reserved("env", "Bake and fetch environments", "tidemill env list", NO_SUBSTITUTE),
    reserved(
        "backup",
        "Back up the ledger",
        "tidemill backup /mnt/backup",
        "see `tidemill export`",
    ),
    reserved(
        "restore",
        "Restore a ledger",
        "tidemill restore /mnt/backup",
        NO_SUBSTITUTE,
    ),
    reserved("alerts", "List alerts", "tidemill alerts", "see `tidemill doctor`"),
];

/// The reserved verb of this name.
pub fn find(name: &str) -> Option<&'static Reserved> {
    RESERVED.iter().find(|verb| verb.name == name)
}

impl Reserved {
    /// As a subcommand that takes anything.
    pub fn command(&self) -> Command {
        Command::new(self.name)
            .about(format!("{} (not in this release)", self.about))
            .after_help(format!("Example:\n  {}", self.example))
            .hide(true)
            .arg(
                Arg::new("anything")
                    .action(ArgAction::Append)
                    .num_args(0..)
                    .trailing_var_arg(true)
                    .allow_hyphen_values(true)
                    .hide(true),
            )
    }

    /// The refusal.
    pub fn refusal(&self) -> CliError {
        CliError::not_yet(
            format!(
                "`{}` is reserved and this release does not have it yet; it will: {}",
                self.name,
                lower_first(self.about)
            ),
            self.instead,
        )
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_lowercase().chain(chars).collect())
        .unwrap_or_default()
}
