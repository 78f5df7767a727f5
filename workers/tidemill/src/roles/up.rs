//! The role `up`: everything on this machine, in one process.
//!
//! The parts are those of a cluster and speak to each other as they do there: the agent and the gateway connect to the
//! door over loopback. What ends with the process is the control plane; instances run on under their shims and are
//! found again by the next start on the same data.

use std::sync::Arc;
use std::time::Duration;

use tidemill_client::ServerUrl;
use tidemill_domain::state::node::NodeState;
use tidemill_gateway::{Gateway, GatewayConfig, Limits};
use tokio_util::sync::CancellationToken;

use super::plane::{self, Plane};
use super::store::{self, JetStreamOptions, Store};
use super::workers::Workers;
use super::{AgentOptions, UpOptions, WorkerName, until_told_to_end};
use crate::exit::{CliError, Exit};
use crate::output::note;

/// How long the parts may take to find each other.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs everything until told to end.
pub async fn up(options: UpOptions) -> Result<(), CliError> {
    let shutdown = until_told_to_end()?;
    super::check_free(options.listen)?;
    super::check_free(options.gateway)?;
    check_reachable(options.listen)?;
    let _lock = store::lock_dir(&options.data)?;
    let store = open(&options).await?;
    let name = store::stable_name(&options.data, "up")?;
    let plane = Plane::start(&name, &options.data, &store).await?;
    let workers = Workers::start(
        &WorkerName::ALL,
        &name,
        &plane.view,
        Arc::new(plane.candidate.clone()),
        &store,
    );
    let door = plane.door(&name, options.listen, &store, workers.statuses()).await?;
    let api = super::url_of(door.local_addr());
    let (stop_door, serving) = plane::serve(door);

    let server: ServerUrl = api.parse().map_err(|e| CliError::told(Exit::Error, &e))?;
    let gateway = Gateway::bind(GatewayConfig {
        servers: vec![server.clone()],
        token: None,
        listen: options.gateway,
        name: "gateway".to_owned(),
        data_dir: options.data.join("gateway"),
        // Port 0 is not known yet; the gateway then says where it was bound.
        public_url: (options.gateway.port() != 0).then(|| super::url_of(options.gateway)),
        tls: None,
        limits: Limits::default(),
    })
    .await
    .map_err(|error| CliError::told(Exit::Error, &error))?;
    let gateway_url = gateway.url();
    let stop_gateway = CancellationToken::new();
    let gateway = tokio::spawn(gateway.serve(stop_gateway.clone()));

    let stop_agent = CancellationToken::new();
    let mut agent = match options.no_node {
        true => None,
        false => Some(agent(&options, server, stop_agent.clone()).await?),
    };

    let started = async {
        let ready = plane.ready(PATIENCE).await;
        ready && (agent.is_none() || node_joined(&plane).await)
    };
    tokio::select! {
        ready = started => {
            if !ready {
                note("still starting; `tidemill doctor` says what is missing");
            }
            super::write_endpoints(&options.data, &api, Some(&gateway_url))?;
            say(&options, &api, &gateway_url);
        }
        () = shutdown.cancelled() => {}
    }
    let outcome = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        ended = ended(&mut agent) => ended,
    };

    stop_agent.cancel();
    if let Some(agent) = agent.as_mut().filter(|a| !a.is_finished()) {
        let _ = agent.await;
    }
    stop_gateway.cancel();
    let _ = gateway.await;
    stop_door.cancel();
    let _ = serving.await;
    workers.stop().await;
    plane.stop().await;
    outcome
}

/// That this process's own gateway and agent can reach the door without a token: over loopback.
fn check_reachable(listen: std::net::SocketAddr) -> Result<(), CliError> {
    if listen.ip().is_loopback() || listen.ip().is_unspecified() {
        return Ok(());
    }
    Err(CliError::usage(
        format!("`up` cannot listen on {listen} alone: its own gateway and agent reach it over loopback"),
        format!(
            "listen on 0.0.0.0:{} to let other machines in; each of them needs a token",
            listen.port()
        ),
    ))
}

type AgentTask = tokio::task::JoinHandle<Result<(), CliError>>;

/// The agent's end before it was told to: everything ends with it, with its reason.
async fn ended(agent: &mut Option<AgentTask>) -> Result<(), CliError> {
    match agent {
        None => std::future::pending().await,
        Some(running) => match running.await {
            // Its owner took the machine out of the pool; the pool goes on without it.
            Ok(Ok(())) => {
                *agent = None;
                std::future::pending().await
            }
            Ok(ended) => ended,
            Err(died) => Err(CliError::new(
                Exit::Error,
                "agent_died",
                died.to_string(),
                "report this with the log",
            )),
        },
    }
}

async fn open(options: &UpOptions) -> Result<Store, CliError> {
    match &options.nats {
        None => store::open_embedded(&options.data),
        Some(urls) => {
            let jetstream = JetStreamOptions {
                urls: urls.clone(),
                monitors: Vec::new(),
                replicas: 1,
                cell: store::DEFAULT_CELL.to_owned(),
            };
            store::open_jetstream(&options.data, &jetstream, true).await
        }
    }
}

async fn agent(options: &UpOptions, server: ServerUrl, stop: CancellationToken) -> Result<AgentTask, CliError> {
    let config = super::agent::config(AgentOptions {
        servers: vec![server],
        token: None,
        data: options.data.join("agent"),
        name: "local".to_owned(),
        supply: "idc".to_owned(),
        provider: "local".to_owned(),
        region: "local".to_owned(),
        zone: "local".to_owned(),
        address: Some("127.0.0.1".to_owned()),
        devices: options.devices.clone(),
        drivers: options.drivers.clone(),
        speed_command: options.speed_command.clone(),
    })
    .await?;
    Ok(tokio::spawn(async move {
        tidemill_agent::run(config, stop)
            .await
            .map_err(|error| CliError::told(Exit::Error, &error))
    }))
}

/// Waits until this machine's node takes work.
async fn node_joined(plane: &Plane) -> bool {
    let mut progress = plane.view.progress();
    let joined = progress.wait_for(|_| {
        plane
            .view
            .read(|state| state.node_named("local").is_some_and(|n| n.state == NodeState::Ready))
    });
    matches!(tokio::time::timeout(PATIENCE, joined).await, Ok(Ok(_)))
}

fn say(options: &UpOptions, api: &str, gateway: &str) {
    note(&format!("api      {api}"));
    note(&format!("gateway  {gateway}"));
    note(&format!("data     {}", options.data.display()));
    note("next:");
    note("  tidemill apply -f examples/hello.yaml --wait 60s");
    note(&format!("  curl {}/hello/", gateway.trim_end_matches('/')));
}
