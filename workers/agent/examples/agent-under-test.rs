//! A binary with the agent's two faces, for the tests: `shim …` is a shim, `example-service PORT` the example service,
//! `agent DATA SERVER` an agent.

use std::{path::PathBuf, process::ExitCode};

use tidemill_agent::{AgentConfig, Machine, devices, example};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    let verb = args.next().unwrap_or_default();
    match verb.to_str() {
        Some("shim") => tidemill_agent::shim_main(args),
        Some("example-service") => {
            let port = args.next().and_then(|port| port.to_str()?.parse().ok());
            done(example::run(example::Options::new(port.unwrap_or(0))))
        }
        Some("agent") => {
            let rest: Vec<_> = args.collect();
            let [data, server] = rest.as_slice() else {
                return ExitCode::from(2);
            };
            done(agent(data.into(), &server.to_string_lossy()))
        }
        _ => ExitCode::from(2),
    }
}

fn done<E: std::fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn agent(data: PathBuf, server: &str) -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(std::env::var("RUST_LOG").unwrap_or_default())
        .init();
    tokio::runtime::Runtime::new()?.block_on(async move {
        std::fs::create_dir_all(&data)?;
        let machine = Machine::read("n1", &data)?;
        let mut config = AgentConfig::local("n1", data, vec![server.parse()?])?;
        config.devices = devices::parse_spec("cpu*4", &machine)?;
        let shutdown = CancellationToken::new();
        let agent = tokio::spawn(tidemill_agent::run(config, shutdown.clone()));
        let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::spawn(async move {
            terminate.recv().await;
            shutdown.cancel();
        });
        agent.await??;
        Ok(())
    })
}
