//! `up`, `server`, `worker`, `gateway`, `agent`: arguments of the roles a process can play.
//!
//! Flags are turned into the plain options of [`crate::roles`] here. Each flag has an environment variable of the same
//! name under `TIDEMILL_`, because in a container that is how roles are configured.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::json;
use tidemill_agent::devices::Drivers;
use tidemill_agent::leave::{self, LeaveError, LeaveStage};
use tidemill_client::{ServerUrl, Token};
use tidemill_gateway::{Limits, TlsFiles};
use tidemill_protocol::agent::Leave;

use crate::cli::GlobalArgs;
use crate::exit::{CliError, Exit};
use crate::output::{note, print};
use crate::paths;
use crate::roles::{self, AgentOptions, GatewayOptions, ServerOptions, UpOptions, WorkerName, WorkerOptions};
use crate::time::{millis, parse_duration, short_span};

use super::follow::until_interrupt;

const UP_EXAMPLES: &str = "\
Examples:
  tidemill up
  tidemill up --data ./data --listen 127.0.0.1:0 --gateway 127.0.0.1:0
  tidemill up --devices 'sim:A100-80G*8@0.93,cpu*4'
  tidemill up --nats nats://127.0.0.1:4222";

const SERVER_EXAMPLES: &str = "\
Examples:
  tidemill server --data /var/lib/tidemill --nats nats://nats-1:4222,nats://nats-2:4222 --listen 0.0.0.0:7070";

const WORKER_EXAMPLES: &str = "\
Examples:
  tidemill worker all --nats nats://nats-1:4222 --server http://server-1:7070
  tidemill worker scheduler failover --nats nats://nats-1:4222";

const GATEWAY_EXAMPLES: &str = "\
Examples:
  tidemill gateway --server http://server-1:7070,http://server-2:7070 --listen 0.0.0.0:7080 --data /var/lib/tidemill-gateway --token-file gateway.token
  tidemill gateway --server http://server-1:7070 --listen 0.0.0.0:443 --tls-cert chain.pem --tls-key key.pem --data /var/lib/tidemill-gateway --token-file gateway.token";

const AGENT_EXAMPLES: &str = "\
Examples:
  tidemill agent --server http://server-1:7070 --token-file node.token --data /var/lib/tidemill-agent --name gpu-1 --supply idc --provider own --region east --zone a --devices auto
  tidemill agent --server http://server-1:7070 --token-file node.token --data ./agent --name cafe-7 --supply cafe --provider netbar --region south --zone b --tunnel --devices cpu*4";

const LEAVE_EXAMPLES: &str = "\
Examples:
  tidemill agent leave --data /var/lib/tidemill-agent
  tidemill agent leave --data ./agent --deadline 5m --reason 'closing time'";

const SUPPLY: [&str; 6] = ["idc", "cloud", "enterprise", "cafe", "pc", "partner"];

/// Arguments of `up`.
#[derive(Debug, Args)]
#[command(after_help = UP_EXAMPLES)]
pub struct UpArgs {
    /// Where the ledger and everything else is kept [default: the user's data directory]
    #[arg(long, value_name = "DIR", env = "TIDEMILL_DATA", hide_env_values = true)]
    pub data: Option<PathBuf>,
    /// Where the API listens; port 0 picks a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070", env = "TIDEMILL_LISTEN", hide_env_values = true, value_parser = parse_address)]
    pub listen: SocketAddr,
    /// Where the gateway listens; port 0 picks a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7080", env = "TIDEMILL_GATEWAY", hide_env_values = true, value_parser = parse_address)]
    pub gateway: SocketAddr,
    /// Keep the ledger in this JetStream instead of a file here
    #[arg(long, value_name = "URL", env = "TIDEMILL_NATS", hide_env_values = true)]
    pub nats: Option<String>,
    /// Devices of this machine: `auto`, or a list such as `sim:A100-80G*8@0.93,cpu*4`
    #[arg(
        long,
        value_name = "SPEC",
        default_value = "auto",
        env = "TIDEMILL_DEVICES",
        hide_env_values = true
    )]
    pub devices: String,
    /// Do not make this machine a node
    #[arg(long, conflicts_with = "devices")]
    pub no_node: bool,
    #[command(flatten)]
    pub drivers: DriverArgs,
}

/// Where `auto` looks for accelerators. The usual places need none of these.
#[derive(Debug, Args)]
#[command(next_help_heading = "Drivers")]
pub struct DriverArgs {
    /// NVIDIA's management library [default: libnvidia-ml.so.1]
    #[arg(
        long,
        value_name = "FILE",
        env = "TIDEMILL_NVML_LIBRARY",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub nvml_library: Option<PathBuf>,
    /// Where the kernel shows AMD devices
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/sys",
        env = "TIDEMILL_SYSFS",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub sysfs: PathBuf,
    /// Huawei's command-line tool
    #[arg(
        long,
        value_name = "PROGRAM",
        default_value = "npu-smi",
        env = "TIDEMILL_NPU_SMI",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub npu_smi: PathBuf,
    /// The kernel's log, read for errors that NVIDIA's library does not report
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/dev/kmsg",
        env = "TIDEMILL_KERNEL_LOG",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub kernel_log: PathBuf,
    /// Prints `UUID SPEED` for the accelerators given as arguments; 1 is their model's nominal speed
    #[arg(
        long,
        value_name = "PROGRAM",
        env = "TIDEMILL_SPEED_COMMAND",
        hide_env_values = true,
        hide_short_help = true
    )]
    pub speed_command: Option<PathBuf>,
}

impl DriverArgs {
    fn options(self) -> (Drivers, Option<PathBuf>) {
        let drivers = Drivers {
            nvml_library: self.nvml_library,
            sysfs: self.sysfs,
            npu_smi: self.npu_smi,
            kernel_log: self.kernel_log,
            ..Drivers::default()
        };
        (drivers, self.speed_command)
    }
}

/// Arguments of `server`.
#[derive(Debug, Args)]
#[command(after_help = SERVER_EXAMPLES)]
pub struct ServerArgs {
    /// Where checkpoints, snapshots and read models are kept
    #[arg(long, value_name = "DIR", env = "TIDEMILL_DATA", hide_env_values = true)]
    pub data: PathBuf,
    /// The NATS servers that hold the ledger
    #[arg(long, value_name = "URL", env = "TIDEMILL_NATS", hide_env_values = true)]
    pub nats: String,
    /// NATS's monitoring address, to check settings clients cannot see
    #[arg(long, value_name = "URL", env = "TIDEMILL_NATS_MONITOR", hide_env_values = true)]
    pub nats_monitor: Option<String>,
    /// Where the API listens
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7070", env = "TIDEMILL_LISTEN", hide_env_values = true, value_parser = parse_address)]
    pub listen: SocketAddr,
    /// Copies JetStream keeps of each stream, where this server makes them; 3 survives the loss of a NATS server
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5), env = "TIDEMILL_REPLICAS", hide_env_values = true)]
    pub replicas: u8,
    /// The cell: one control plane and its ledger
    #[arg(long, value_name = "NAME", default_value = roles::store::DEFAULT_CELL, env = "TIDEMILL_CELL", hide_env_values = true)]
    pub cell: String,
}

/// Arguments of `worker`.
#[derive(Debug, Args)]
#[command(after_help = WORKER_EXAMPLES)]
pub struct WorkerArgs {
    /// Which workers: `scheduler`, `failover`, `evidence`, or `all`
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// The NATS servers that hold the ledger
    #[arg(long, value_name = "URL", env = "TIDEMILL_NATS", hide_env_values = true)]
    pub nats: Option<String>,
    /// Where snapshots are kept [default: the user's data directory]
    #[arg(long, value_name = "DIR", env = "TIDEMILL_DATA", hide_env_values = true)]
    pub data: Option<PathBuf>,
    /// The cell
    #[arg(long, value_name = "NAME", default_value = roles::store::DEFAULT_CELL, env = "TIDEMILL_CELL", hide_env_values = true)]
    pub cell: String,
}

/// Arguments of `gateway`.
#[derive(Debug, Args)]
#[command(after_help = GATEWAY_EXAMPLES)]
pub struct GatewayArgs {
    /// Where clients are served; port 0 picks a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7080", env = "TIDEMILL_LISTEN", hide_env_values = true, value_parser = parse_address)]
    pub listen: SocketAddr,
    /// Where the last routes are kept
    #[arg(long, value_name = "DIR", env = "TIDEMILL_DATA", hide_env_values = true)]
    pub data: PathBuf,
    /// Name, unique among the cell's gateways [default: host name and port]
    #[arg(long, env = "TIDEMILL_NAME", hide_env_values = true)]
    pub name: Option<String>,
    /// Serve clients by TLS with this PEM certificate chain; read again when it changes
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        env = "TIDEMILL_TLS_CERT",
        hide_env_values = true
    )]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        env = "TIDEMILL_TLS_KEY",
        hide_env_values = true
    )]
    pub tls_key: Option<PathBuf>,
    /// Largest request body in bytes [default: no limit]
    #[arg(long, value_name = "BYTES", env = "TIDEMILL_MAX_BODY", hide_env_values = true)]
    pub max_body: Option<u64>,
    /// Time in which a client must have sent a whole request head
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration, env = "TIDEMILL_HEADER_TIMEOUT", hide_env_values = true)]
    pub header_timeout: Duration,
    /// Connections of one client address at a time; 0 = no limit, as behind a load balancer
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1000,
        env = "TIDEMILL_CONNECTIONS_PER_ADDRESS",
        hide_env_values = true
    )]
    pub connections_per_address: usize,
    /// Further servers, so that `--server A B` means what it looks like.
    #[arg(hide = true)]
    pub more_servers: Vec<ServerUrl>,
}

/// Arguments of `agent`.
#[derive(Debug, Args)]
#[command(after_help = AGENT_EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AgentArgs {
    /// `leave`, or nothing.
    #[command(subcommand)]
    pub verb: Option<AgentVerb>,
    /// The node.
    #[command(flatten)]
    pub node: Option<NodeArgs>,
    /// Where its drivers are. Beside the node and not in it: clap takes a group that holds a group for absent.
    #[command(flatten)]
    pub drivers: DriverArgs,
}

/// What else an agent can be told.
#[derive(Debug, Subcommand)]
pub enum AgentVerb {
    /// Take this machine back: its work moves elsewhere, then the agent ends
    Leave(LeaveArgs),
}

/// Arguments of `agent leave`.
#[derive(Debug, Args)]
#[command(after_help = LEAVE_EXAMPLES)]
pub struct LeaveArgs {
    /// Data directory of the agent that runs on this machine
    #[arg(long, value_name = "DIR", env = "TIDEMILL_DATA", hide_env_values = true)]
    pub data: PathBuf,
    /// Be empty by then, with replacements or without [default: wait for replacements]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub deadline: Option<Duration>,
    /// Why; it goes on the ledger
    #[arg(long, value_name = "TEXT", default_value = "its owner takes the machine back")]
    pub reason: String,
}

/// The node an agent makes of its machine.
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// Where outbox, logs and working directories are kept
    #[arg(long, value_name = "DIR", env = "TIDEMILL_DATA", hide_env_values = true)]
    pub data: PathBuf,
    /// The node's name, unique in the cell
    #[arg(long, env = "TIDEMILL_NAME", hide_env_values = true)]
    pub name: String,
    /// Kind of supply
    #[arg(long, value_name = "KIND", env = "TIDEMILL_SUPPLY", hide_env_values = true, value_parser = SUPPLY)]
    pub supply: String,
    /// Who provides it
    #[arg(long, env = "TIDEMILL_PROVIDER", hide_env_values = true)]
    pub provider: String,
    /// Region
    #[arg(long, env = "TIDEMILL_REGION", hide_env_values = true)]
    pub region: String,
    /// Zone within the region
    #[arg(long, env = "TIDEMILL_ZONE", hide_env_values = true)]
    pub zone: String,
    /// Host or IP at which gateways reach this node [default: 127.0.0.1]
    #[arg(long, env = "TIDEMILL_ADDRESS", hide_env_values = true, conflicts_with = "tunnel")]
    pub address: Option<String>,
    /// This node cannot be reached; its agent dials out
    #[arg(long)]
    pub tunnel: bool,
    /// Its devices: `auto`, or a list such as `sim:A100-80G*8@0.93,cpu*4`
    #[arg(
        long,
        value_name = "SPEC",
        default_value = "auto",
        env = "TIDEMILL_DEVICES",
        hide_env_values = true
    )]
    pub devices: String,
    /// Further servers, so that `--server A B` means what it looks like.
    #[arg(hide = true)]
    pub more_servers: Vec<ServerUrl>,
}

/// `HOST:PORT`, `:PORT` or `PORT`; without a host it is this machine only.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let full = match text.strip_prefix(':') {
        Some(port) => format!("127.0.0.1:{port}"),
        None if text.parse::<u16>().is_ok() => format!("127.0.0.1:{text}"),
        None => text.to_owned(),
    };
    full.to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next())
        .ok_or_else(|| format!("`{text}` is not HOST:PORT"))
}

/// Runs `up`.
pub async fn up(args: UpArgs) -> Result<(), CliError> {
    let (drivers, speed_command) = args.drivers.options();
    roles::up(UpOptions {
        data: args.data.unwrap_or_else(paths::default_data_dir),
        listen: args.listen,
        gateway: args.gateway,
        nats: args.nats,
        devices: args.devices,
        no_node: args.no_node,
        drivers,
        speed_command,
    })
    .await
}

/// Runs `server`.
pub async fn server(args: ServerArgs) -> Result<(), CliError> {
    roles::server(ServerOptions {
        data: args.data,
        nats: args.nats,
        nats_monitor: args.nats_monitor,
        listen: args.listen,
        replicas: usize::from(args.replicas),
        cell: args.cell,
    })
    .await
}

/// Runs `worker`.
pub async fn worker(args: WorkerArgs) -> Result<(), CliError> {
    roles::worker(WorkerOptions {
        names: worker_names(&args.names)?,
        nats: args.nats,
        data: args.data.unwrap_or_else(|| paths::default_data_dir().join("worker")),
        cell: args.cell,
    })
    .await
}

fn worker_names(names: &[String]) -> Result<Vec<WorkerName>, CliError> {
    let mut workers = Vec::new();
    for name in names {
        if name == "all" {
            workers.extend(WorkerName::ALL);
            continue;
        }
        let known = WorkerName::ALL.into_iter().find(|worker| worker.as_str() == name);
        workers.push(known.ok_or_else(|| {
            let all: Vec<&str> = WorkerName::ALL.iter().map(|worker| worker.as_str()).collect();
            CliError::usage(
                format!("there is no worker `{name}` in this release"),
                format!("name some of {}, or all", all.join(", ")),
            )
        })?);
    }
    workers.sort_unstable();
    workers.dedup();
    Ok(workers)
}

/// Runs `gateway`.
pub async fn gateway(args: GatewayArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let name = args.name.unwrap_or_else(|| format!("gateway-{}", args.listen.port()));
    roles::gateway(GatewayOptions {
        servers: servers(global, args.more_servers),
        token: required_token(global, "gateway")?,
        listen: args.listen,
        data: args.data,
        name,
        tls: args
            .tls_cert
            .zip(args.tls_key)
            .map(|(cert, key)| TlsFiles { cert, key }),
        limits: Limits {
            max_body_bytes: args.max_body.unwrap_or(u64::MAX),
            header_timeout: args.header_timeout,
            connections_per_address: args.connections_per_address,
            ..Limits::default()
        },
    })
    .await
}

/// Runs `agent`.
pub async fn agent(args: AgentArgs, global: &GlobalArgs) -> Result<(), CliError> {
    if let Some(AgentVerb::Leave(args)) = args.verb {
        return leave(args, global).await;
    }
    let node = args.node.ok_or_else(|| {
        CliError::usage(
            "an agent needs --data, --name, --supply, --provider, --region and --zone",
            "see `tidemill agent --help`",
        )
    })?;
    let (drivers, speed_command) = args.drivers.options();
    roles::agent(AgentOptions {
        servers: servers(global, node.more_servers),
        token: Some(required_token(global, "node")?),
        data: node.data,
        name: node.name,
        supply: node.supply,
        provider: node.provider,
        region: node.region,
        zone: node.zone,
        address: (!node.tunnel).then(|| node.address.unwrap_or_else(|| "127.0.0.1".to_owned())),
        devices: node.devices,
        drivers,
        speed_command,
    })
    .await
}

async fn leave(args: LeaveArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let wish = Leave {
        reason: args.reason,
        deadline_ms: args.deadline.map(millis),
    };
    let began = Instant::now();
    let told = |stage: &LeaveStage| match stage {
        LeaveStage::Asked => note("asked; the control plane has not answered yet"),
        LeaveStage::Draining { running: 0 } => note("nothing runs here any more"),
        LeaveStage::Draining { running: 1 } => note("1 instance still runs here; it is replaced elsewhere first"),
        LeaveStage::Draining { running } => {
            note(&format!(
                "{running} instances still run here; they are replaced elsewhere first"
            ));
        }
        LeaveStage::NotAsked | LeaveStage::Left { .. } | LeaveStage::Refused { .. } => {}
    };
    let stage = until_interrupt(leave::leave(&args.data, &wish, told)).await;
    match stage {
        Some(Ok(LeaveStage::Refused { problem })) => Err(problem.into()),
        Some(Ok(LeaveStage::Left { reason })) => {
            let after = began.elapsed();
            let found = json!({
                "state": "left", "after_ms": millis(after), "reason": reason,
            });
            note(&format!("left the pool after {}", short_span(after)));
            print(&global.printer().object(&found)?)
        }
        Some(Ok(_)) => Err(CliError::told(Exit::Error, &LeaveError::Ended)),
        Some(Err(error)) => Err(CliError::told(Exit::Error, &error)),
        None => Err(CliError::new(
            Exit::NotPlaced,
            "interrupted",
            "stopped waiting; the machine goes on leaving",
            "an operator withdraws it with `tidemill uncordon NODE`",
        )),
    }
}

fn servers(global: &GlobalArgs, more: Vec<ServerUrl>) -> Vec<ServerUrl> {
    // Where only `--server A B` left a second one over, the first was named too.
    global.servers().into_iter().chain(more).collect()
}

fn required_token(global: &GlobalArgs, role: &str) -> Result<Token, CliError> {
    global.explicit_token()?.ok_or_else(|| {
        CliError::usage(
            "no token was given",
            format!("make one with `tidemill token create --role {role} > {role}.token` and pass --token-file"),
        )
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(parse_address("7070").unwrap().to_string(), "127.0.0.1:7070");
        assert_eq!(parse_address(":0").unwrap().to_string(), "127.0.0.1:0");
        assert_eq!(parse_address("0.0.0.0:1").unwrap().to_string(), "0.0.0.0:1");
        assert!(parse_address("nowhere").is_err());
    }

    #[test]
    fn workers() {
        let names = |list: &[&str]| worker_names(&list.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(names(&["failover", "all", "scheduler"]).unwrap(), WorkerName::ALL);
        assert_eq!(names(&["billing"]).unwrap_err().code, "usage");
    }
}
