//! The role `gateway`: one gateway, connected to whichever server answers.

use tidemill_gateway::{Gateway, GatewayConfig, Limits};

use super::{GatewayOptions, until_told_to_end};
use crate::exit::{CliError, Exit};
use crate::output::note;

/// Runs a gateway until told to end, then lets running requests finish.
pub async fn gateway(options: GatewayOptions) -> Result<(), CliError> {
    let shutdown = until_told_to_end()?;
    let gateway = Gateway::bind(GatewayConfig {
        servers: options.servers,
        token: Some(options.token),
        listen: options.listen,
        name: options.name,
        data_dir: options.data,
        public_url: None,
        limits: Limits::default(),
    })
    .await
    .map_err(|error| CliError::told(Exit::Error, &error))?;
    note(&format!("gateway at {}", gateway.url()));
    gateway.serve(shutdown).await;
    Ok(())
}
