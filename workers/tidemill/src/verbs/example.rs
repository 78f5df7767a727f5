//! `example-service`: the service of `examples/hello.yaml`, hidden because it is a workload and no command.
//!
//! The service itself is the agent's ([`tidemill_agent::example`]), whose tests run it; this file holds its arguments.

use std::time::Duration;

use clap::Args;
use tidemill_agent::example::{self, Options};

use crate::exit::{CliError, Exit};
use crate::time::parse_duration;

/// Arguments of `example-service`. What is left out is as [`Options::new`] has it.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  tidemill example-service --port 8080 --start-delay 200ms --request-time 30ms")]
pub struct ExampleArgs {
    /// Port to listen on
    #[arg(long, env = "PORT")]
    pub port: u16,
    /// Time from start until it is ready
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub start_delay: Option<Duration>,
    /// Time from a request to the first piece of its answer
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub request_time: Option<Duration>,
    /// Pieces of an answer whose request does not say
    #[arg(long, value_name = "N")]
    pub tokens: Option<u32>,
    /// Time between two pieces
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub per_token: Option<Duration>,
}

/// Runs the service until SIGTERM or SIGINT.
pub async fn run(args: ExampleArgs) -> Result<(), CliError> {
    let usual = Options::new(args.port);
    let options = Options {
        start_delay: args.start_delay.unwrap_or(usual.start_delay),
        request_time: args.request_time.unwrap_or(usual.request_time),
        tokens: args.tokens.unwrap_or(usual.tokens),
        per_token: args.per_token.unwrap_or(usual.per_token),
        ..usual
    };
    example::serve(options).await.map_err(|error| {
        CliError::new(
            Exit::Error,
            "example_service_failed",
            format!("the example service cannot run on port {}: {error}", args.port),
            "give it a free port with --port",
        )
    })
}
