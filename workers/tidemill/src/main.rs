//! The `tidemill` binary: every role of the product and the command line over it.
//!
//! `main` decides between three kinds of process before anything costs time or memory. The shim, which stands between
//! an agent and each instance, must stay tiny and must not have threads when it forks, so it is dispatched on
//! `argv[1]` before the command line is parsed or a runtime exists. Roles run until they are told to end. Everything
//! else is a verb that asks the control plane, prints and exits.
//!
//! Kept: data on stdout and all else on stderr; the exit code is the contract's ([`exit::Exit`]); a reader that went
//! away is silent.

mod api;
mod cli;
mod exit;
mod offline;
mod output;
mod paths;
mod reserved;
mod roles;
mod target;
mod time;
mod verbs;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use cli::{Parsed, Verb};
use exit::{CliError, Exit};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|verb| verb == "shim") {
        return tidemill_agent::shim_main(args);
    }
    let outcome = match cli::parse(std::env::args_os()) {
        Parsed::Run(cli) => run(*cli),
        Parsed::Refuse(error) => Err(error),
        Parsed::Say(error) => {
            // Help goes to stdout, errors to stderr; a reader that went away is no error.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                Exit::Usage as u8
            } else {
                Exit::Ok as u8
            });
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_reader_gone() => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(error.exit as u8)
        }
    }
}

fn run(cli: cli::Cli) -> Result<(), CliError> {
    let role = matches!(
        cli.verb,
        Verb::Up(_) | Verb::Server(_) | Verb::Worker(_) | Verb::Gateway(_) | Verb::Agent(_)
    );
    log_to_stderr(if role { "info" } else { "warn" });
    let runtime = if role {
        tokio::runtime::Builder::new_multi_thread().enable_all().build()
    } else {
        // One question needs one thread.
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    };
    let runtime = runtime.map_err(|error| {
        CliError::new(
            Exit::Error,
            "no_runtime",
            format!("the process cannot start its threads: {error}"),
            "check the limits on processes and open files (ulimit -u, ulimit -n)",
        )
    })?;
    runtime.block_on(verbs::run(cli))
}

/// `TIDEMILL_LOG` (as `RUST_LOG`) sets what is logged; `TIDEMILL_LOG_FORMAT=json` one JSON object a line.
fn log_to_stderr(level: &str) {
    let filter = EnvFilter::try_from_env("TIDEMILL_LOG")
        .or_else(|_| EnvFilter::try_from_default_env())
        .unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let json = std::env::var("TIDEMILL_LOG_FORMAT").is_ok_and(|format| format == "json");
    // A second initialisation is impossible here; were it to happen, the first one stays.
    let _ = if json {
        builder.json().try_init()
    } else {
        let color = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        builder.with_ansi(color).try_init()
    };
}
