//! What is asked of an engine, and its answers in our words.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    errors::Error,
    models::{ContainerCreateBody, ContainerState, DeviceRequest, HostConfig, HostConfigLogConfig, PortBinding},
    query_parameters::{
        CreateContainerOptions, EventsOptions, KillContainerOptions, ListContainersOptions, RemoveContainerOptions,
    },
};
use futures::StreamExt;
use tidemill_protocol::agent::{DesiredDevice, DeviceInfo};
use tokio::time::timeout;

use super::{SHARED, TOLD};
use crate::{
    InstanceId,
    launch::LaunchError,
    shim::{
        log_file_bytes,
        wire::{Container, Spec},
    },
};

/// Where engines listen if `DOCKER_HOST` names no other socket.
const SOCKET: &str = "/var/run/docker.sock";

/// Seconds an engine may take to begin an answer: starting a container with a large image mounts many layers.
const ANSWER_SECONDS: u64 = 120;

/// A living engine answers a ping within milliseconds, a busy one within this.
const PING: Duration = Duration::from_secs(5);

/// How much later than a container's end the word may come that its memory ran out.
const LATE_WORD: Duration = Duration::from_secs(1);

/// Room for `/dev/shm`: an engine's own 64 MiB end most programs that share tensors between processes. It counts only as
/// it is used, and against the container's memory.
const SHARED_MEMORY: i64 = 1 << 30;

/// A container's data directory, node, instance and workload.
const LABEL_AGENT: &str = "tidemill.agent";
const LABEL_NODE: &str = "tidemill.node";
const LABEL_INSTANCE: &str = "tidemill.instance";
const LABEL_SERVICE: &str = "tidemill.service";

/// The node's engine. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Engine(Arc<Inner>);

struct Inner {
    socket: String,
    /// Stays with the data directory.
    agent: String,
    /// Accelerators with hardware behind them, UUID to kind.
    hardware: HashMap<String, String>,
    /// Address of this machine on which containers' ports are published.
    publish: &'static str,
    client: tokio::sync::Mutex<Option<Docker>>,
    /// Instances that a keeper holds.
    held: Mutex<BTreeSet<String>>,
    /// The id this node was greeted with.
    node: Mutex<String>,
}

/// An instance is held by a keeper for as long as this lives: its container is no orphan.
pub(crate) struct Held {
    engine: Engine,
    instance: String,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.engine.locked(&self.engine.0.held).remove(&self.instance);
    }
}

/// Why an engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// No engine answers.
    #[error("no Docker engine answers at {socket}: {source}")]
    Away {
        /// Where.
        socket: String,
        /// Why.
        source: Error,
    },
    /// It answered no.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its words.
        message: String,
    },
}

impl Trouble {
    /// Its status, if it answered.
    pub(super) fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Away { .. } => None,
        }
    }
}

impl Engine {
    /// The engine as `data_dir`'s agent sees it. Nothing is asked of it yet.
    pub(crate) fn new(data_dir: &Path, machine_id: &str, address: Option<&str>, devices: &[DeviceInfo]) -> Self {
        let socket = std::env::var("DOCKER_HOST")
            .ok()
            .and_then(|host| host.strip_prefix("unix://").map(str::to_owned))
            .unwrap_or_else(|| SOCKET.to_owned());
        let whole = data_dir.canonicalize().unwrap_or_else(|_| data_dir.to_owned());
        let agent = blake3::hash(format!("{machine_id}\0{}", whole.display()).as_bytes()).to_hex()[..16].to_owned();
        let loopback = address.is_none_or(|address| {
            address == "localhost" || address.starts_with("127.") || matches!(address, "::1" | "[::1]")
        });
        let hardware = devices
            .iter()
            .filter(|device| !device.simulated && device.kind != "cpu")
            .map(|device| (device.uuid.clone(), device.kind.clone()))
            .collect();
        Self(Arc::new(Inner {
            socket,
            agent,
            hardware,
            publish: if loopback { "127.0.0.1" } else { "0.0.0.0" },
            client: tokio::sync::Mutex::new(None),
            held: Mutex::new(BTreeSet::new()),
            node: Mutex::new(String::new()),
        }))
    }

    fn locked<'a, T>(&self, mutex: &'a Mutex<T>) -> std::sync::MutexGuard<'a, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks an instance as held.
    pub(crate) fn hold(&self, instance: &InstanceId) -> Held {
        self.locked(&self.0.held).insert(instance.to_string());
        Held {
            engine: self.clone(),
            instance: instance.to_string(),
        }
    }

    /// Remembers the id this node was greeted with.
    pub(crate) fn greeted_as(&self, node: &str) {
        node.clone_into(&mut self.locked(&self.0.node));
    }

    /// The id this node was greeted with.
    pub(super) fn node(&self) -> String {
        self.locked(&self.0.node).clone()
    }

    /// Where containers' ports are published: on loopback where nothing beyond this machine is to reach them.
    pub(super) fn publish(&self) -> &'static str {
        self.0.publish
    }

    /// The cards among `devices` that a container is to be given.
    pub(super) fn gpus(&self, devices: &[DesiredDevice]) -> Result<Vec<String>, LaunchError> {
        let mut gpus = Vec::new();
        for device in devices {
            match self.0.hardware.get(&device.uuid).map(String::as_str) {
                Some("cuda") => gpus.push(device.uuid.clone()),
                Some(kind) => {
                    return Err(LaunchError {
                        code: "device_not_in_containers",
                        reason: format!(
                            "{} is a {kind} device, and containers are given NVIDIA cards and CPUs only; use runtime \
                             process, or ask for `kind: [cuda]`",
                            device.uuid
                        ),
                    });
                }
                None => {}
            }
        }
        Ok(gpus)
    }

    /// A client that speaks the engine's version of its API.
    pub(super) async fn client(&self) -> Result<Docker, Trouble> {
        let mut client = self.0.client.lock().await;
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let fresh = Docker::connect_with_unix(&self.0.socket, ANSWER_SECONDS, API_DEFAULT_VERSION)
            .map_err(|error| self.trouble(error))?;
        let fresh = match timeout(PING, fresh.negotiate_version()).await {
            Ok(negotiated) => negotiated.map_err(|error| self.trouble(error))?,
            Err(_) => return Err(self.trouble(Error::RequestTimeoutError)),
        };
        *client = Some(fresh.clone());
        Ok(fresh)
    }

    pub(super) fn trouble(&self, error: Error) -> Trouble {
        match error {
            Error::DockerResponseServerError { status_code, message } => Trouble::Refused {
                status: status_code,
                message,
            },
            Error::DockerStreamError { error } => Trouble::Refused {
                status: 500,
                message: error,
            },
            source => Trouble::Away {
                socket: self.0.socket.clone(),
                source,
            },
        }
    }

    /// Whether an engine answers.
    pub(crate) async fn answers(&self) -> Result<(), Trouble> {
        let client = self.client().await?;
        match timeout(PING, client.ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.trouble(error)),
            Err(_) => Err(self.trouble(Error::RequestTimeoutError)),
        }
    }

    /// The container's state; none if there is no such container of ours.
    pub(super) async fn find(&self, spec: &Spec) -> Result<Option<ContainerState>, Trouble> {
        let client = self.client().await?;
        match client.inspect_container(&name_of(&spec.instance), None).await {
            Ok(found) => {
                let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
                match labels.get(LABEL_AGENT) == Some(&self.0.agent) {
                    true => Ok(Some(found.state.unwrap_or_default())),
                    false => Err(Trouble::Refused {
                        status: 409,
                        message: format!(
                            "the container {} is of another agent; remove it, or give that agent a node of its own",
                            name_of(&spec.instance)
                        ),
                    }),
                }
            }
            Err(error) => match self.trouble(error) {
                trouble if trouble.status() == Some(404) => Ok(None),
                trouble => Err(trouble),
            },
        }
    }

    /// Creates the container of `spec`, which is in `dir`.
    pub(super) async fn create(&self, spec: &Spec, container: &Container, dir: &Path) -> Result<(), Trouble> {
        let options = CreateContainerOptions {
            name: Some(name_of(&spec.instance)),
            ..CreateContainerOptions::default()
        };
        let body = self.body(spec, container, dir);
        let client = self.client().await?;
        let created = client.create_container(Some(options), body).await;
        created.map(|_| ()).map_err(|error| self.trouble(error))
    }

    fn body(&self, spec: &Spec, container: &Container, dir: &Path) -> ContainerCreateBody {
        let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let port = format!("{}/tcp", spec.port);
        let binding = PortBinding {
            host_ip: Some(container.publish.clone()),
            host_port: Some(spec.port.to_string()),
        };
        let labels = [
            (LABEL_AGENT, self.0.agent.clone()),
            (LABEL_NODE, container.node.clone()),
            (LABEL_INSTANCE, spec.instance.clone()),
            (LABEL_SERVICE, spec.workload.clone()),
        ];
        let gpus = (!container.gpus.is_empty()).then(|| {
            vec![DeviceRequest {
                device_ids: Some(container.gpus.clone()),
                capabilities: Some(vec![vec!["gpu".to_owned()]]),
                ..DeviceRequest::default()
            }]
        });
        // The engine's own copy of the output: as large as ours, so that nothing is lost while no agent reads it.
        let log = HashMap::from([
            ("max-size".to_owned(), log_file_bytes().to_string()),
            ("max-file".to_owned(), "2".to_owned()),
        ]);
        let (program, arguments) = match spec.command.split_first() {
            Some((program, rest)) => (Some(vec![program.clone()]), Some(rest.to_vec())),
            None => (None, None),
        };
        ContainerCreateBody {
            image: Some(with_tag(&container.image)),
            entrypoint: program,
            cmd: arguments,
            env: Some(spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
            labels: Some(labels.map(|(name, value)| (name.to_owned(), value)).into()),
            exposed_ports: Some(vec![port.clone()]),
            host_config: Some(HostConfig {
                init: Some(true),
                memory: container.memory_bytes.map(signed),
                // The same number: no swap beside it.
                memory_swap: container.memory_bytes.map(signed),
                nano_cpus: container.cpu_milli.map(|milli| i64::from(milli) * 1_000_000),
                pids_limit: container.processes.map(i64::from),
                shm_size: Some(SHARED_MEMORY),
                device_requests: gpus,
                port_bindings: Some(HashMap::from([(port, Some(vec![binding]))])),
                binds: Some(vec![format!("{}:{TOLD}:ro", dir.join(SHARED).display())]),
                log_config: Some(HostConfigLogConfig {
                    typ: Some("json-file".to_owned()),
                    config: Some(log),
                }),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    /// Starts the container; nothing happens if it runs.
    pub(super) async fn start(&self, instance: &str) -> Result<(), Trouble> {
        let client = self.client().await?;
        let started = client.start_container(&name_of(instance), None).await;
        started.map_err(|error| self.trouble(error))
    }

    /// Sends a signal to its main process; one that is gone is not looked for.
    pub(super) async fn signal(&self, instance: &str, signal: &str) -> Result<(), Trouble> {
        let client = self.client().await?;
        let options = KillContainerOptions {
            signal: signal.to_owned(),
        };
        match client.kill_container(&name_of(instance), Some(options)).await {
            Ok(()) => Ok(()),
            Err(error) => match self.trouble(error) {
                trouble if matches!(trouble.status(), Some(404 | 409)) => Ok(()),
                trouble => Err(trouble),
            },
        }
    }

    /// Whether the engine saw its memory run out. The kernel's word of that may come after the container's end, and is
    /// then missing from its state, but not from the engine's events.
    pub(super) async fn saw_out_of_memory(&self, instance: &str, state: &ContainerState) -> bool {
        let Ok(client) = self.client().await else {
            return false;
        };
        let filters = HashMap::from([
            ("container".to_owned(), vec![name_of(instance)]),
            ("event".to_owned(), vec!["oom".to_owned()]),
        ]);
        let options = EventsOptions {
            since: state.started_at.clone(),
            until: None,
            filters: Some(filters),
        };
        let mut events = std::pin::pin!(client.events(Some(options)));
        matches!(timeout(LATE_WORD, events.next()).await, Ok(Some(Ok(_))))
    }

    /// Removes a container with all that is in it, running or not. One that is gone is removed.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Trouble> {
        let client = self.client().await?;
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            ..RemoveContainerOptions::default()
        };
        match client.remove_container(name, Some(options)).await {
            Ok(()) => Ok(()),
            Err(error) => match self.trouble(error) {
                trouble if trouble.status() == Some(404) => Ok(()),
                trouble => Err(trouble),
            },
        }
    }

    /// Removes every container with this node's or this data directory's mark that no keeper holds.
    pub(super) async fn sweep(&self) -> Result<(), Trouble> {
        let mut marks = vec![format!("{LABEL_AGENT}={}", self.0.agent)];
        let node = self.node();
        if !node.is_empty() {
            marks.push(format!("{LABEL_NODE}={node}"));
        }
        let client = self.client().await?;
        for mark in marks {
            let options = ListContainersOptions {
                all: true,
                filters: Some(HashMap::from([("label".to_owned(), vec![mark])])),
                ..ListContainersOptions::default()
            };
            let listed = client.list_containers(Some(options)).await;
            for found in listed.map_err(|error| self.trouble(error))? {
                let labels = found.labels.unwrap_or_default();
                let (Some(id), Some(instance)) = (found.id, labels.get(LABEL_INSTANCE)) else {
                    continue;
                };
                // Asked for each, and after the list was made: a keeper holds its instance before it creates anything.
                if self.locked(&self.0.held).contains(instance) {
                    continue;
                }
                tracing::warn!(
                    code = "orphan_container",
                    instance,
                    "removing a container that is nobody's any more"
                );
                match self.remove(&id).await {
                    // 409: its removal is under way.
                    Err(trouble) if trouble.status() != Some(409) => return Err(trouble),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The name of an instance's container.
pub(super) fn name_of(instance: &str) -> String {
    format!("tidemill-{instance}")
}

/// The image with the tag that is meant where none is written: an engine asked for a name alone fetches every tag.
pub(super) fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    match last.contains([':', '@']) {
        true => image.to_owned(),
        false => format!("{image}:latest"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn device(uuid: &str, kind: &str, simulated: bool) -> DeviceInfo {
        DeviceInfo {
            uuid: uuid.into(),
            kind: kind.into(),
            model: "m".into(),
            memory_bytes: 1,
            speed_milli: 1000,
            simulated,
        }
    }

    fn wanted(uuid: &str, kind: &str) -> DesiredDevice {
        DesiredDevice {
            uuid: uuid.into(),
            milli: 1000,
            kind: kind.into(),
        }
    }

    #[test]
    fn cards_go_in_by_uuid_and_simulated_ones_do_not() {
        let all = [
            device("GPU-a", "cuda", false),
            device("GPU-sim", "cuda", true),
            device("AMD-a", "rocm", false),
            device("CPU-a", "cpu", false),
        ];
        let engine = Engine::new(Path::new("/d"), "m", Some("10.0.0.1"), &all);
        let ask = |uuid: &str, kind: &str| engine.gpus(&[wanted(uuid, kind)]);
        assert_eq!(ask("GPU-a", "cuda").unwrap(), ["GPU-a"]);
        assert!(ask("GPU-sim", "cuda").unwrap().is_empty());
        assert!(ask("CPU-a", "cpu").unwrap().is_empty());
        assert_eq!(ask("AMD-a", "rocm").unwrap_err().code, "device_not_in_containers");
        assert_eq!(engine.publish(), "0.0.0.0");
        assert_eq!(Engine::new(Path::new("/d"), "m", None, &[]).publish(), "127.0.0.1");
        let container = Container {
            image: "registry:5000/chat".into(),
            node: "node-1".into(),
            gpus: vec!["GPU-a".into()],
            cpu_milli: Some(1500),
            memory_bytes: Some(1 << 20),
            processes: Some(9),
            publish: "0.0.0.0".into(),
        };
        let spec = Spec {
            instance: "inst-1".into(),
            workload: "acme/chat".into(),
            command: vec!["serve".into(), "--port".into(), "7".into()],
            port: 7,
            ..Spec::default()
        };
        let body = engine.body(&spec, &container, Path::new("/d/inst-1"));
        let host = body.host_config.unwrap();
        let request = &host.device_requests.unwrap()[0];
        assert_eq!(request.device_ids, Some(vec!["GPU-a".to_owned()]));
        assert_eq!(request.capabilities, Some(vec![vec!["gpu".to_owned()]]));
        assert_eq!(
            (host.init, host.nano_cpus, host.pids_limit),
            (Some(true), Some(1_500_000_000), Some(9))
        );
        assert_eq!((host.memory, host.memory_swap), (Some(1 << 20), Some(1 << 20)));
        assert_eq!(body.image.as_deref(), Some("registry:5000/chat:latest"));
        assert_eq!(body.entrypoint, Some(vec!["serve".to_owned()]));
        assert_eq!(body.labels.unwrap()[LABEL_SERVICE], "acme/chat");
    }

    #[test]
    fn a_name_without_a_tag_is_its_latest() {
        for (image, whole) in [
            ("a", "a:latest"),
            ("h:5000/a", "h:5000/a:latest"),
            ("a:1", "a:1"),
            ("a@sha256:00", "a@sha256:00"),
        ] {
            assert_eq!(with_tag(image), whole);
        }
    }
}
