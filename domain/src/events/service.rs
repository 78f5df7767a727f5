//! Services: what their owners declare.

pub mod v1;

use std::collections::BTreeMap;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::ServiceId;
use crate::time::{Span, Timestamp};
use crate::unit::{Blake3, Milli, Name};

use super::node::{DeviceKind, Supply};

/// A service was declared or its declaration changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceApplied {
    /// Its id.
    pub service: ServiceId,
    /// Whose.
    pub tenant: Name,
    /// Unique in the tenant.
    pub name: Name,
    /// 1, then one more whenever what instances are made from changed; a change of scale or route keeps it.
    pub generation: u64,
    /// The whole declaration.
    pub spec: ServiceSpec,
}

/// Its owner wants no replicas until it is started again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceStopRequested {
    /// Which.
    pub service: ServiceId,
}

/// Its owner wants it running again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceStarted {
    /// Which.
    pub service: ServiceId,
}

/// Its owner wants it gone; that follows once its instances have ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceDeleteRequested {
    /// Which.
    pub service: ServiceId,
}

/// It is gone, and nothing of it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceDeleted {
    /// Which.
    pub service: ServiceId,
}

/// Someone set the replica count by hand, for a time or until released.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceScaleOverridden {
    /// Which.
    pub service: ServiceId,
    /// Replicas while it holds.
    pub replicas: u32,
    /// Begin; at once if none.
    pub from: Option<Timestamp>,
    /// End; until released if none.
    pub until: Option<Timestamp>,
}

/// The override is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceScaleReleased {
    /// Which.
    pub service: ServiceId,
}

/// How many replicas the service is to have from now on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceDesiredChanged {
    /// Which.
    pub service: ServiceId,
    /// Replicas.
    pub desired: u32,
    /// Why.
    pub reason: DesiredReason,
}

/// Every replica is of the present generation: the change is through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceRolledOut {
    /// Which.
    pub service: ServiceId,
    /// The generation that serves alone now.
    pub generation: u64,
    /// Since it was declared.
    pub took: Span,
}

/// Replicas of the present generation do not get ready: no more are started, and the generation before serves on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceRolloutHalted {
    /// Which.
    pub service: ServiceId,
    /// The generation that failed.
    pub generation: u64,
    /// The generation that serves on.
    pub serving: u64,
    /// The last failure, in a sentence.
    pub reason: String,
}

/// Its owner went back to an earlier generation: instances still made from it stay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceRolledBack {
    /// Which.
    pub service: ServiceId,
    /// The generation left.
    pub from: u64,
    /// The generation that is the present one again.
    pub to: u64,
    /// The whole declaration that holds now: what instances are made from is that generation's, scale, route and class
    /// stay as they were declared last.
    pub spec: ServiceSpec,
}

/// What set the replica count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum DesiredReason {
    /// The declared minimum.
    Minimum,
    /// An override by hand.
    Override,
    /// Its owner stopped it.
    Stopped,
    /// Its owner deleted it.
    Deleted,
}

/// A service's declaration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceSpec {
    /// Priority class.
    pub class: Class,
    /// What runs.
    pub run: Run,
    /// What it runs on.
    pub devices: DeviceRequest,
    /// How many.
    pub scale: Scale,
    /// Where.
    pub placement: PlacementRules,
    /// How requests reach it.
    pub route: Route,
    /// What a singleton does whose node cannot renew its lease.
    pub on_isolation: OnIsolation,
}

/// Priority class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// May use what is held back for critical work.
    Critical,
    /// The usual.
    Standard,
}

/// What an instance executes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Run {
    /// Runtime.
    pub runtime: Runtime,
    /// Program and arguments; empty only with an image, which then runs what it is made to run.
    pub command: Vec<String>,
    /// Container image; with [`Runtime::Docker`] alone, and always there.
    pub image: Option<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// What must be on the node before it starts.
    pub fetch: Vec<FetchFile>,
    /// What of the host it may use.
    pub limits: HostLimits,
    /// HTTP path that answers 2xx when ready; running for 1 s is ready if none.
    pub ready_http: Option<String>,
    /// Longest time to become ready.
    pub ready_timeout: Span,
    /// A replica of a new generation counts only once it was ready for so long.
    pub ready_hold: Span,
    /// Between SIGTERM and SIGKILL.
    pub stop_grace: Span,
}

/// How an instance is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// As a process of the node.
    Process,
    /// As a container of the node's Docker engine.
    Docker,
}

impl Runtime {
    /// Each with its word, on the wire and in workload files.
    pub const WORDS: [(&'static str, Runtime); 2] = [
        (Runtime::Process.word(), Runtime::Process),
        (Runtime::Docker.word(), Runtime::Docker),
    ];

    /// What nodes offer that do not say what they offer: those of releases that knew nothing else.
    pub fn unsaid() -> Vec<Runtime> {
        vec![Runtime::Process]
    }

    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Runtime::Process => "process",
            Runtime::Docker => "docker",
        }
    }
}

/// A file that an instance needs, known by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct FetchFile {
    /// Where it is had from: `http` or `https`.
    pub url: String,
    /// What it must hash to.
    pub blake3: Blake3,
    /// What becomes of it.
    pub target: FetchTarget,
}

/// What becomes of a fetched file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum FetchTarget {
    /// It stands, read-only, at this path below the instance's working directory.
    File(String),
    /// It is an archive of images (as `docker save` writes it) that the node's engine loads.
    Image,
}

/// What of the host an instance may use at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Schema)]
pub struct HostLimits {
    /// Processor time, thousandths of one CPU; no limit if none.
    pub cpu: Option<Milli>,
    /// Memory, bytes; no limit if none.
    pub memory_bytes: Option<u64>,
    /// Processes and threads; no limit if none.
    pub processes: Option<u32>,
}

/// What a singleton does whose node cannot renew its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum OnIsolation {
    /// It is stopped by its agent before another may start.
    #[default]
    Stop,
    /// It runs on: its store refuses the older of two fencing tokens.
    Continue,
}

/// The devices each instance needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct DeviceRequest {
    /// Devices, all on one node.
    pub count: u32,
    /// Of each device, in thousandths; below 1000 only with one device.
    pub share: Milli,
    /// Allowed kinds; any if empty.
    pub kinds: Vec<DeviceKind>,
    /// Allowed models; any if empty.
    pub models: Vec<String>,
    /// Least memory of the device (of the share, where it is one), bytes.
    pub memory_bytes: u64,
}

/// How many replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Scale {
    /// Never fewer.
    pub min: u32,
    /// Never more.
    pub max: u32,
    /// Requests a replica takes at a time; no limit if none.
    pub concurrency: Option<u32>,
    /// Warm instances kept out of rotation.
    pub standby: u32,
    /// Two must never run at a time.
    pub singleton: bool,
}

/// Where replicas may run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct PlacementRules {
    /// Allowed supply kinds.
    pub supply: Vec<Supply>,
    /// Allowed regions; any if empty.
    pub regions: Vec<String>,
    /// Over what replicas are spread first.
    pub spread: Spread,
}

/// A failure domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Over nodes.
    Node,
    /// Over providers, then nodes.
    Provider,
    /// Over regions, then nodes.
    Region,
    /// Packed as tightly as possible.
    None,
}

/// How requests reach a service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Route {
    /// `Host` under which it is reached besides its path.
    pub host: Option<String>,
    /// Which requests may be sent twice.
    pub retry: Retry,
    /// Requests that may wait for a replica in each gateway; the gateway's own setting if none.
    pub queue: Option<u32>,
    /// Longest wait of one; the gateway's own setting if none.
    pub queue_timeout: Option<Span>,
}

/// Which requests may be sent a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// None.
    Never,
    /// Safe and idempotent methods, those with an `Idempotency-Key`, and those of which nothing was sent.
    Idempotent,
    /// All that were not answered.
    Any,
}
