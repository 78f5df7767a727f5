//! The role `agent`: this machine as a node of a pool.

use tidemill_agent::{AgentConfig, Machine, devices};

use super::{AgentOptions, until_told_to_end};
use crate::exit::{CliError, Exit};

/// Runs an agent until told to end; its instances run on.
pub async fn agent(options: AgentOptions) -> Result<(), CliError> {
    let shutdown = until_told_to_end()?;
    let config = config(options).await?;
    tidemill_agent::run(config, shutdown)
        .await
        .map_err(|error| CliError::told(Exit::Error, &error))
}

/// The agent's own configuration; makes its data directory, reads the machine and its devices.
pub async fn config(options: AgentOptions) -> Result<AgentConfig, CliError> {
    // Drivers may take seconds.
    tokio::task::spawn_blocking(move || read(options))
        .await
        .map_err(|died| CliError::new(Exit::Error, "agent_died", died.to_string(), "report this with the log"))?
}

fn read(options: AgentOptions) -> Result<AgentConfig, CliError> {
    let unusable = |error: std::io::Error| {
        CliError::new(
            Exit::Error,
            "data_dir_unusable",
            format!(
                "the agent's data directory {} cannot be used: {error}",
                options.data.display()
            ),
            "check its owner, its mode and the disk",
        )
    };
    std::fs::create_dir_all(&options.data).map_err(unusable)?;
    let machine = Machine::read(&options.name, &options.data).map_err(unusable)?;
    let found = devices::discover(&options.devices, &machine, &options.drivers)
        .map_err(|error| CliError::told(Exit::Usage, &error))?;
    let local = AgentConfig::local(&options.name, options.data.clone(), options.servers.clone()).map_err(unusable)?;
    Ok(AgentConfig {
        token: options.token,
        supply: options.supply,
        provider: options.provider,
        region: options.region,
        zone: options.zone,
        address: options.address,
        devices: found.devices,
        telemetry: found.telemetry,
        limitations: found.limitations,
        speed_command: options.speed_command,
        ..local
    })
}
