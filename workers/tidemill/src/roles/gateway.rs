//! The role `gateway`: one gateway, connected to whichever server answers.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tidemill_gateway::{Gateway, GatewayConfig};

use super::{GatewayOptions, until_told_to_end};
use crate::exit::{CliError, Exit};
use crate::output::note;

/// Runs a gateway until told to end, then lets running requests finish.
pub async fn gateway(options: GatewayOptions) -> Result<(), CliError> {
    let shutdown = until_told_to_end()?;
    allow_many_files();
    let gateway = Gateway::bind(GatewayConfig {
        servers: options.servers,
        token: Some(options.token),
        listen: options.listen,
        name: options.name,
        data_dir: options.data,
        public_url: None,
        tls: options.tls,
        limits: options.limits,
    })
    .await
    .map_err(|error| CliError::told(Exit::Error, &error))?;
    note(&format!("gateway at {}", gateway.url()));
    gateway.serve(shutdown).await;
    Ok(())
}

/// Each connection is a file, and the usual soft limit of 1,024 is for programs that use select.
fn allow_many_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::warn!(soft, %error, "the limit of open files stays; connections beyond it will wait");
    }
}
