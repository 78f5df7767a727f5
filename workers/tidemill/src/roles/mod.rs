//! The roles a process can play: everything (`up`), or one part of a cluster.
//!
//! Each role takes plain options, already parsed and checked for form, and runs until the process is told to end. The
//! command line knows nothing of how a role is put together, and a role knows nothing of flags, so tests start roles
//! the way users do.
//!
//! Kept: a role that cannot start says so before anything was written; a signal ends it in order and with exit 0.

mod agent;
mod gateway;
mod plane;
pub mod reads;
mod server;
pub mod store;
mod up;
mod workers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tidemill_agent::devices::Drivers;
use tidemill_client::{ServerUrl, Token};
use tidemill_gateway::{Limits, TlsFiles};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

pub use self::agent::agent;
pub use self::gateway::gateway;
pub use self::server::server;
pub use self::up::up;
pub use self::workers::worker;
use crate::exit::{CliError, Exit};

/// Everything on this machine.
#[derive(Debug, Clone)]
pub struct UpOptions {
    /// Where the ledger and everything else is kept.
    pub data: PathBuf,
    /// Where the API listens; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Where the gateway listens; port 0 picks a free one.
    pub gateway: SocketAddr,
    /// JetStream instead of the embedded ledger.
    pub nats: Option<String>,
    /// Devices of this machine's node, as the contract's SPEC has it.
    pub devices: String,
    /// Do not make this machine a node.
    pub no_node: bool,
    /// Where its devices are looked for.
    pub drivers: Drivers,
    /// What measures its accelerators.
    pub speed_command: Option<PathBuf>,
}

/// A candidate for the sequencer with door and read models.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Checkpoints, snapshots and read models.
    pub data: PathBuf,
    /// Where JetStream is.
    pub nats: String,
    /// NATS's monitoring address, to check settings that clients cannot see.
    pub nats_monitor: Option<String>,
    /// Where the API listens.
    pub listen: SocketAddr,
    /// Copies of each stream, where they are made anew.
    pub replicas: usize,
    /// The cell.
    pub cell: String,
}

/// A worker role of this release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerName {
    /// Places pending instances.
    Scheduler,
    /// Declares silent nodes lost, lets drained instances go.
    Failover,
    /// Puts traffic and observation windows on record.
    Evidence,
}

impl WorkerName {
    /// Every worker of this release.
    pub const ALL: [Self; 3] = [Self::Scheduler, Self::Failover, Self::Evidence];

    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::Failover => "failover",
            Self::Evidence => "evidence",
        }
    }
}

/// Workers as a process of their own.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Roles to play, sorted and without repeats.
    pub names: Vec<WorkerName>,
    /// Where JetStream is.
    pub nats: Option<String>,
    /// Snapshots.
    pub data: PathBuf,
    /// The cell.
    pub cell: String,
}

/// A gateway as a process of its own.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// Servers to connect to.
    pub servers: Vec<ServerUrl>,
    /// Token of role `gateway`.
    pub token: Token,
    /// Where clients are served.
    pub listen: SocketAddr,
    /// Where the last routes are kept.
    pub data: PathBuf,
    /// Name, unique among the cell's gateways.
    pub name: String,
    /// Certificate and key, for clients that come by TLS.
    pub tls: Option<TlsFiles>,
    /// What clients and instances must keep to.
    pub limits: Limits,
}

/// An agent.
#[derive(Debug, Clone)]
pub struct AgentOptions {
    /// Servers to connect to.
    pub servers: Vec<ServerUrl>,
    /// Token of role `node`; none over loopback to a server of the same process.
    pub token: Option<Token>,
    /// Outbox, logs and working directories of instances.
    pub data: PathBuf,
    /// The node's name.
    pub name: String,
    /// Supply kind.
    pub supply: String,
    /// Provider.
    pub provider: String,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Host or IP at which gateways reach instances; `None` = through a tunnel only.
    pub address: Option<String>,
    /// Devices, as the contract's SPEC has it.
    pub devices: String,
    /// Where they are looked for.
    pub drivers: Drivers,
    /// What measures accelerators.
    pub speed_command: Option<PathBuf>,
}

/// That nobody listens on `address` yet: said before anything is written. Port 0 is always free.
fn check_free(address: SocketAddr) -> Result<(), CliError> {
    match std::net::TcpListener::bind(address) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(CliError::new(
            Exit::Error,
            "address_in_use",
            format!("{address} is in use by another process"),
            "stop that process (a tidemill that still runs?), or choose another address; port 0 picks a free one",
        )),
        Err(error) => Err(CliError::new(
            Exit::Error,
            "listen_failed",
            format!("{address} cannot be listened on: {error}"),
            "choose an address of this machine, and a port above 1023",
        )),
        Ok(_) => Ok(()),
    }
}

/// The URL at which this machine reaches what listens on `address`.
fn url_of(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("http://127.0.0.1:{}", address.port()),
        false => format!("http://{address}"),
    }
}

/// Says where a process is reached in `endpoints.json`, whole or not at all.
fn write_endpoints(data: &Path, api: &str, gateway: Option<&str>) -> Result<(), CliError> {
    let endpoints = serde_json::json!({ "api": api, "gateway": gateway, "console": api });
    let (path, aside) = (data.join("endpoints.json"), data.join("endpoints.json.new"));
    let written = std::fs::write(&aside, format!("{endpoints}\n")).and_then(|()| std::fs::rename(&aside, &path));
    written.map_err(|error| store::unusable(&path, &error))
}

/// A token that is cancelled by the first SIGTERM or SIGINT. A second one ends the process at once.
pub fn until_told_to_end() -> Result<CancellationToken, CliError> {
    let failed = |error| {
        CliError::new(
            Exit::Error,
            "no_signals",
            format!("the process cannot take signals: {error}"),
            "check the limits of its environment",
        )
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let token = CancellationToken::new();
    let told = token.clone();
    tokio::spawn(async move {
        for turn in 0.. {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if turn > 0 {
                // Whoever asks twice does not want to wait for what is in flight. 130 is what shells expect of SIGINT.
                std::process::exit(130);
            }
            tracing::info!("told to end; a second signal ends at once");
            told.cancel();
        }
    });
    Ok(token)
}
