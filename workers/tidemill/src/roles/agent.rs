//! The role `agent`: this machine as a node of a pool.

use tidemill_agent::{AgentConfig, AgentError, Machine, devices};

use super::{AgentOptions, store, until_told_to_end};
use crate::exit::{CliError, Exit};

/// Runs an agent until told to end, or until its token is refused for good; its instances run on.
pub async fn agent(options: AgentOptions) -> Result<(), CliError> {
    let shutdown = until_told_to_end()?;
    let config = config(options)?;
    tidemill_agent::run(config, shutdown)
        .await
        .map_err(|error| match error {
            AgentError::Refused(problem) => (*problem).into(),
            other => CliError::told(Exit::Error, &other),
        })
}

/// The agent's own configuration; makes its data directory, reads the machine and its devices.
pub fn config(options: AgentOptions) -> Result<AgentConfig, CliError> {
    let unusable = |error: std::io::Error| store::unusable(&options.data, &error);
    store::make_dir(&options.data)?;
    let machine = Machine::read(&options.name, &options.data).map_err(unusable)?;
    let devices =
        devices::parse_spec(&options.devices, &machine).map_err(|error| CliError::told(Exit::Usage, &error))?;
    let local = AgentConfig::local(&options.name, options.data.clone(), options.servers.clone()).map_err(unusable)?;
    Ok(AgentConfig {
        token: options.token,
        supply: options.supply,
        provider: options.provider,
        region: options.region,
        zone: options.zone,
        address: options.address,
        devices,
        ..local
    })
}
