//! The verbs, one family a file: their arguments next to what they do.
//!
//! A verb takes its arguments and the global ones, asks or tells the control plane, and prints data to stdout and
//! everything else to stderr. It returns [`CliError`] for anything that is not exit 0 and never ends the process itself.

pub mod breaker;
pub mod events;
pub mod example;
pub mod follow;
pub mod ledger;
pub mod lists;
pub mod load;
pub mod logs;
pub mod moves;
pub mod node;
pub mod role;
pub mod scale;
pub mod show;
pub mod system;
pub mod token;
pub mod workload;

use crate::cli::{Cli, Verb};
use crate::exit::CliError;
use crate::output::lists::List;

/// Runs what was asked for.
pub async fn run(cli: Cli) -> Result<(), CliError> {
    let global = cli.global;
    match cli.verb {
        Verb::Up(args) => role::up(args).await,
        Verb::Server(args) => role::server(args).await,
        Verb::Worker(args) => role::worker(args).await,
        Verb::Gateway(args) => role::gateway(args, &global).await,
        Verb::Agent(args) => role::agent(args, &global).await,
        Verb::Switches(args) => lists::run(List::Switches, args, &global).await,
        Verb::Drain(args) => moves::drain(args, &global).await,
        Verb::Cordon(args) => moves::cordon(args, &global).await,
        Verb::Uncordon(args) => moves::uncordon(args, &global).await,
        Verb::Move(args) => moves::move_instance(args, &global).await,
        Verb::Breaker(args) => breaker::run(args, &global).await,
        Verb::Node(args) => node::run(args, &global).await,
        Verb::Token(args) => token::run(args, &global).await,
        Verb::Apply(args) => workload::apply(args, &global).await,
        Verb::Delete(args) => workload::delete(args, &global).await,
        Verb::Stop(args) => workload::command("stop", args.target, &global).await,
        Verb::Start(args) => workload::command("start", args.target, &global).await,
        Verb::Rollback(args) => workload::command("rollback", args.target, &global).await,
        Verb::Scale(args) => scale::run(args, &global).await,
        Verb::Nodes(args) => lists::run(List::Nodes, args, &global).await,
        Verb::Devices(args) => lists::run(List::Devices, args, &global).await,
        Verb::Services(args) => lists::run(List::Services, args, &global).await,
        Verb::Instances(args) => lists::run(List::Instances, args, &global).await,
        Verb::Queue(args) => lists::run(List::Queue, args, &global).await,
        Verb::Pool(args) => lists::run(List::Pool, args, &global).await,
        Verb::Status(args) => show::run("status", args, &global).await,
        Verb::Explain(args) => show::run("explain", args, &global).await,
        Verb::Events(args) => events::run(args, &global).await,
        Verb::Logs(args) => logs::run(args, &global).await,
        Verb::Load(args) => load::run(args, &global).await,
        Verb::Export(args) => ledger::export(args, &global).await,
        Verb::Verify(args) => ledger::verify(args, &global).await,
        Verb::Doctor(args) => system::doctor(args, &global).await,
        Verb::Version(args) => system::version(args, &global),
        Verb::Completion(args) => system::completion(args),
        Verb::ExampleService(args) => example::run(args).await,
    }
}
