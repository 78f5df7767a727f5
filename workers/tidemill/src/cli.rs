//! The command line: global options, the verbs, and help that groups them by what a person wants to do.
//!
//! Verbs are declared with `clap`'s derive next to their code, one family a file under [`crate::verbs`]; this file only
//! gathers them. Adding a verb = a variant of [`Verb`], its arguments in its family's file, and its name in [`GROUPS`].
//!
//! Kept: each verb stands in exactly one group (a test says so); each has an example; reserved verbs parse and are
//! refused by one mechanism ([`crate::reserved`]).

use std::path::PathBuf;

use clap::{Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};
use tidemill_client::{ServerUrl, Token};

use crate::api::{self, DEFAULT_SERVER, Server};
use crate::exit::CliError;
use crate::output::{Format, Printer};
use crate::reserved::{self, RESERVED};
use crate::verbs::{
    breaker, events, example, ledger, lists, load, logs, moves, node, role, scale, show, system, token, workload,
};

/// Control plane for elastic GPU pools: every change is an event on a ledger that can be replayed and verified.
#[derive(Debug, Parser)]
#[command(name = "tidemill", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    /// Options of every verb.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Options of every verb.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// How data is printed
    #[arg(
        short = 'o',
        long,
        global = true,
        value_enum,
        default_value = "table",
        env = "TIDEMILL_OUTPUT",
        hide_env = true
    )]
    pub output: Format,
    /// Leave out the header line
    #[arg(long, global = true)]
    pub no_headers: bool,
    /// Control-plane servers, separated by commas; any of them will do [default: http://127.0.0.1:7070]
    #[arg(
        long = "server",
        id = "server",
        global = true,
        value_name = "URL",
        value_delimiter = ',',
        env = "TIDEMILL_SERVER",
        hide_env_values = true
    )]
    pub named_servers: Vec<ServerUrl>,
    /// Token shown to the server [env: TIDEMILL_TOKEN]
    #[arg(long, global = true)]
    pub token: Option<String>,
    /// File that holds the token [env: TIDEMILL_TOKEN_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl GlobalArgs {
    /// The servers that were named, or the one that `up` is by default.
    pub fn servers(&self) -> Vec<ServerUrl> {
        if self.named_servers.is_empty() {
            let url: Result<ServerUrl, _> = DEFAULT_SERVER.parse();
            return vec![url.expect("the default is a URL, and a test says so")];
        }
        self.named_servers.clone()
    }

    /// The control plane as these options name it.
    pub fn connect(&self) -> Result<Server, CliError> {
        Ok(Server::new(&self.servers(), self.explicit_token()?))
    }

    /// The token that was given: by flag, by file, by environment, in this order. Read here rather than by the parser,
    /// for which a variable and a flag would be two tokens in conflict.
    pub fn explicit_token(&self) -> Result<Option<Token>, CliError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if let Some(text) = &self.token {
            return api::token_of_text(text).map(Some);
        }
        if let Some(path) = &self.token_file {
            return api::token_of_file(path).map(Some);
        }
        if let Some(text) = variable("TIDEMILL_TOKEN") {
            return api::token_of_text(&text).map(Some);
        }
        variable("TIDEMILL_TOKEN_FILE")
            .map(|path| api::token_of_file(path.as_ref()))
            .transpose()
    }

    /// A printer for this process's stdout.
    pub fn printer(&self) -> Printer {
        Printer::for_stdout(self.output, self.no_headers)
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run everything on this machine: ledger, workers, API, gateway, a node
    Up(role::UpArgs),
    /// Run a server of a cluster: sequencer candidate, API and read models
    Server(role::ServerArgs),
    /// Run workers of a cluster
    Worker(role::WorkerArgs),
    /// Run a gateway
    Gateway(role::GatewayArgs),
    /// Run the agent that makes this machine a node
    Agent(role::AgentArgs),
    /// Create, list and revoke credentials
    Token(token::TokenArgs),
    /// Declare workloads from a file
    Apply(workload::ApplyArgs),
    /// Delete a workload
    Delete(workload::DeleteArgs),
    /// Stop a workload; it stays declared
    Stop(workload::StopArgs),
    /// Start a stopped workload
    Start(workload::StartArgs),
    /// Return a workload to the version that served before
    Rollback(workload::RollbackArgs),
    /// Override how many replicas a service has
    Scale(scale::ScaleArgs),
    /// List nodes
    Nodes(lists::ListArgs),
    /// List devices
    Devices(lists::ListArgs),
    /// List services
    Services(lists::ListArgs),
    /// List instances
    Instances(lists::ListArgs),
    /// List what waits for capacity, and why
    Queue(lists::ListArgs),
    /// List work that moved or is moving from one instance to another
    Switches(lists::ListArgs),
    /// Empty a node, or all of a provider: replace first, then stop
    Drain(moves::DrainArgs),
    /// Keep new work off a node
    Cordon(moves::CordonArgs),
    /// Let a node take work again; withdraws a drain
    Uncordon(moves::UncordonArgs),
    /// Replace an instance elsewhere, then stop it
    Move(moves::MoveArgs),
    /// Show the pool's capacity
    Pool(lists::ListArgs),
    /// Show anything by id, name or unique prefix
    Status(show::ShowArgs),
    /// Say why: dominant reason, evidence, candidates, next step
    Explain(show::ShowArgs),
    /// Print the ledger, one event a line
    Events(events::EventsArgs),
    /// Print an instance's output
    Logs(logs::LogsArgs),
    /// Show, confirm or reset the breaker that stops mass moves
    Breaker(breaker::BreakerArgs),
    /// Forget a lost node
    Node(node::NodeArgs),
    /// Put load on a URL and report what its clients saw
    Load(load::LoadArgs),
    /// Write a slice of the ledger to a file
    Export(ledger::ExportArgs),
    /// Check the ledger's chain, density and seals through the log itself
    Verify(ledger::VerifyArgs),
    /// Check the installation; each finding with a next step
    Doctor(system::DoctorArgs),
    /// Print the version
    Version(system::VersionArgs),
    /// Print a completion script for a shell
    Completion(system::CompletionArgs),
    /// The example service of examples/hello.yaml
    #[command(hide = true)]
    ExampleService(example::ExampleArgs),
}

/// Visible verbs by what a person wants; help prints them in this order.
const GROUPS: &[(&str, &[&str])] = &[
    ("Run", &["up", "server", "worker", "gateway", "agent", "token"]),
    ("Workloads", &["apply", "delete", "stop", "start", "rollback", "scale"]),
    (
        "Look",
        &[
            "nodes",
            "devices",
            "services",
            "instances",
            "queue",
            "switches",
            "pool",
            "status",
            "explain",
            "logs",
        ],
    ),
    ("Operate", &["drain", "cordon", "uncordon", "move", "breaker", "node"]),
    ("Ledger", &["events", "export", "verify"]),
    ("Tools", &["load", "doctor", "version", "completion"]),
];

const EXAMPLES: &str = "\
Examples:
  tidemill up
  tidemill apply -f examples/hello.yaml --wait 60s
  tidemill services
  tidemill explain hello
  tidemill events --about hello -o jsonl
  tidemill verify
  tidemill help apply

Exit codes: 0 ok, 1 error, 2 usage, 3 accepted but not fully placed within --wait, 4 not found,
5 conflict, 6 not authorised, 7 control plane unreachable, 8 a check failed, 9 refused for safety.";

/// The whole command line, reserved verbs included.
pub fn command() -> Command {
    let mut command = Cli::command();
    let groups = grouped_help(&command);
    for verb in RESERVED {
        command = command.subcommand(verb.command());
    }
    command
        .help_template("{about}\n\nUsage: tidemill [OPTIONS] VERB …\n\n{before-help}Options:\n{options}{after-help}")
        .before_help(groups)
        .after_help(EXAMPLES)
}

fn grouped_help(command: &Command) -> String {
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("{title}:\n"));
        for name in *names {
            let about = command
                .find_subcommand(name)
                .and_then(|verb| verb.get_about())
                .map(ToString::to_string)
                .unwrap_or_default();
            text.push_str(&format!("  {name:<11} {about}\n"));
        }
        text.push('\n');
    }
    text.push_str("Reserved (refused as `not_yet` in this release):\n ");
    let mut column = 1;
    for verb in RESERVED {
        if column + verb.name.len() > 95 {
            text.push_str("\n ");
            column = 1;
        }
        text.push_str(&format!(" {}", verb.name));
        column += verb.name.len() + 1;
    }
    text
}

/// What the command line came to.
pub enum Parsed {
    /// A verb to run.
    Run(Box<Cli>),
    /// Help, version or a usage error: print it, end with its code.
    Say(clap::Error),
    /// A reserved verb.
    Refuse(CliError),
}

/// Reads the command line.
pub fn parse(args: impl IntoIterator<Item = std::ffi::OsString>) -> Parsed {
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => return Parsed::Say(error),
    };
    if let Some(verb) = matches.subcommand_name().and_then(reserved::find) {
        return Parsed::Refuse(verb.refusal());
    }
    match Cli::from_arg_matches(&matches) {
        Ok(cli) => Parsed::Run(Box::new(cli)),
        Err(error) => Parsed::Say(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_default_server_is_a_url_and_help_says_it() {
        let Parsed::Run(cli) = parse(["tidemill", "--server", DEFAULT_SERVER, "nodes"].map(Into::into)) else {
            panic!("not taken");
        };
        assert_eq!(cli.global.named_servers, cli.global.servers());
        let help = command()
            .render_help()
            .to_string()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(help.contains(&format!("[default: {DEFAULT_SERVER}]")), "{help}");
    }

    #[test]
    fn each_visible_verb_is_in_one_group_and_has_an_example() {
        let command = command();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let unique: BTreeSet<&str> = grouped.iter().copied().collect();
        assert_eq!(grouped.len(), unique.len(), "a verb stands in two groups");
        let visible: BTreeSet<&str> = command
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set())
            .map(Command::get_name)
            .collect();
        assert_eq!(visible, unique);
        for verb in command.get_subcommands() {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("tidemill"), "`{}` has no example", verb.get_name());
        }
    }

    #[test]
    fn every_verb_of_the_contract_is_known() {
        let contract = "up demo server worker gateway agent token apply delete stop start rollback scale nodes devices \
            services jobs instances switches queue pool status explain drain cordon uncordon move device node breaker \
            events incident export verify review logs load simulate bench doctor version completion bill sla report \
            price tenant quota budget secret env backup restore alerts";
        let command = command();
        for verb in contract.split_whitespace() {
            assert!(command.find_subcommand(verb).is_some(), "`{verb}` is missing");
        }
    }

    #[test]
    fn help_takes_a_verb() {
        for (args, word) in [
            ("help apply", "--dry-run"),
            ("help agent", "--supply"),
            ("help", "Exit codes"),
        ] {
            let args = std::iter::once("tidemill").chain(args.split(' ')).map(Into::into);
            let Parsed::Say(help) = parse(args) else {
                panic!("not help")
            };
            assert!(!help.use_stderr());
            assert!(help.to_string().contains(word), "{help}");
        }
    }

    #[test]
    fn reserved_verbs_are_refused_whatever_follows() {
        for args in [
            "incident node-1 --from x",
            "jobs",
            "bench placement a b --seed 1",
            "--server http://a:1 bill -x",
        ] {
            let args = std::iter::once("tidemill").chain(args.split(' ')).map(Into::into);
            match parse(args) {
                Parsed::Refuse(error) => assert_eq!((error.code.as_str(), error.exit as u8), ("not_yet", 1)),
                Parsed::Run(cli) => panic!("ran {cli:?}"),
                Parsed::Say(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn help() {
        let mut command = command().term_width(100);
        command.build();
        insta::assert_snapshot!("help", command.render_help().to_string());
        for verb in ["apply", "agent", "instances", "scale"] {
            let verb = command.find_subcommand_mut(verb).unwrap();
            insta::assert_snapshot!(format!("help_{}", verb.get_name()), verb.render_help().to_string());
        }
    }
}
