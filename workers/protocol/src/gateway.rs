//! Gateway ↔ door.
//!
//! A gateway opens with [`GatewayMessage::Hello`], is sent whole [`Routes`] snapshots, reports each snapshot it has
//! put to use ([`GatewayMessage::Applied`]: what a drain waits for), and once a second says what its clients saw
//! ([`TrafficSample`]). It keeps the last routes on disk and serves from them while no door can be reached.

use serde::{Deserialize, Serialize};

use crate::{Problem, Stamp};

/// What a gateway sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum GatewayMessage {
    /// First message on a connection.
    Hello(GatewayHello),
    /// Once a second: liveness, the stamp in use, and samples of the seconds closed since the last one.
    Beat(GatewayBeat),
    /// The routes of this stamp are in use; requests begun from now on follow them.
    Applied(Stamp),
    /// An instance that routes call ready did not take a connection, or its check fails.
    Suspicion(Suspicion),
    /// A message of a newer gateway.
    #[serde(other)]
    Unknown,
}

/// What a door sends to a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DoorToGateway {
    /// The gateway is known.
    Welcome(GatewayWelcome),
    /// All routes.
    Routes(Routes),
    /// The connection ends now.
    Refused(#[serde(with = "crate::problem::nested")] Problem),
    /// A message of a newer door.
    #[serde(other)]
    Unknown,
}

/// Who the gateway is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatewayHello {
    /// [`crate::PROTOCOL_VERSION`] of the gateway.
    pub protocol: u32,
    /// Name, unique among the cell's gateways.
    pub name: String,
    /// Random id of this process's start.
    pub gateway_id: String,
    /// `http://HOST:PORT` under which clients reach it.
    pub url: String,
}

/// Answer to [`GatewayHello`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatewayWelcome {
    /// How often to beat, milliseconds.
    pub beat_ms: u64,
}

/// A gateway's heartbeat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatewayBeat {
    /// Counts up from 1 within one gateway process.
    pub number: u64,
    /// Stamp of the routes in use.
    #[serde(default)]
    pub applied: Option<Stamp>,
    /// What was seen in the seconds closed since the last beat, at most 30 of them (older ones are merged).
    #[serde(default)]
    pub samples: Vec<TrafficSample>,
}

/// One second of one service at one gateway. A service without a sample in a beat had no traffic and nobody waiting in
/// the seconds that beat covers: the beat is what says that the gateway was there to see it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TrafficSample {
    /// Tenant of the service.
    pub tenant: String,
    /// Name of the service.
    pub service: String,
    /// How long ago the second ended, milliseconds of the gateway's monotonic clock.
    pub age_ms: u64,
    /// Seconds summed into this sample: 1, or more where a gateway could not reach a door. 0 (an older gateway) means 1.
    #[serde(default)]
    pub seconds: u32,
    /// Requests that arrived.
    pub arrived: u64,
    /// Requests answered by an instance with a status below 500.
    pub ok: u64,
    /// Requests an instance answered with 5xx: the application's fault.
    pub application_errors: u64,
    /// Requests that failed for a platform reason after retries.
    pub failed: u64,
    /// Requests refused because the queue was full (429) or its deadline passed (503).
    pub refused: u64,
    /// Requests given up by their client.
    pub cancelled: u64,
    /// Streams cut after they had begun.
    pub cut_streams: u64,
    /// Second and further tries.
    pub retries: u64,
    /// Requests waiting in the queue at the end of the second.
    pub queued: u64,
    /// Requests in flight at the end of the second.
    pub in_flight: u64,
    /// Longest time so far in which no request succeeded while at least one waited, milliseconds. A request waits from
    /// its arrival until its answer begins, in the queue or at an instance; a gap still open when the second ends is
    /// given as long as it is by then, so the largest value over samples is the longest gap.
    pub longest_gap_ms: u64,
    /// Latency to the first byte: counts in buckets whose upper bounds are [`LATENCY_BOUNDS_MS`] (last: above all).
    pub latency: Vec<u64>,
    /// The same by instance.
    #[serde(default)]
    pub instances: Vec<InstanceTraffic>,
}

/// A gap longer than this is perceived by customers, milliseconds.
pub const PERCEIVED_GAP_MS: u64 = 1_000;

impl TrafficSample {
    /// Whether a customer perceived a failing of the platform: a request failed after retries, a begun stream was cut,
    /// or the service answered nobody for over a second while somebody waited.
    pub fn is_perceived(&self) -> bool {
        self.failed > 0 || self.cut_streams > 0 || self.longest_gap_ms > PERCEIVED_GAP_MS
    }
}

/// Upper bounds of the latency buckets, milliseconds. 20 buckets with the open one; factor about 1.6-2 between
/// neighbours, from a cached answer to a long generation.
pub const LATENCY_BOUNDS_MS: [u64; 19] = [
    1, 2, 5, 10, 20, 35, 50, 75, 100, 150, 250, 400, 700, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
];

/// One second of one instance at one gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceTraffic {
    /// `inst-…`
    pub instance: String,
    /// Requests sent to it.
    pub sent: u64,
    /// Answered below 500.
    pub ok: u64,
    /// Answered 5xx.
    pub errors: u64,
    /// Tries that ended without an answer.
    pub broken: u64,
    /// In flight at the end of the second.
    pub in_flight: u64,
}

/// A gateway's word that an instance does not answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suspicion {
    /// `inst-…`
    pub instance: String,
    /// What was seen.
    pub reason: String,
}

/// All routes at a stamp.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Routes {
    /// From which ledger position they were computed.
    pub stamp: Stamp,
    /// One entry a service, those without a ready instance too.
    pub services: Vec<ServiceRoute>,
}

/// How requests reach one service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceRoute {
    /// Tenant.
    pub tenant: String,
    /// Name.
    pub name: String,
    /// `Host` header under which it is reached besides its path.
    #[serde(default)]
    pub host: Option<String>,
    /// `never`, `idempotent` or `any`.
    pub retry: String,
    /// Requests an instance takes at a time; `None` = no limit.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// Requests that may wait for an instance in each gateway, 0 = none waits; `None` = the gateway's own setting.
    #[serde(default)]
    pub queue: Option<u32>,
    /// Longest wait of one, milliseconds; `None` = the gateway's own setting.
    #[serde(default)]
    pub queue_timeout_ms: Option<u64>,
    /// Stopped by its owner: answer 503 at once rather than queue.
    #[serde(default)]
    pub stopped: bool,
    /// Instances in rotation, and those draining (`draining: true`: no new requests, streams end).
    pub instances: Vec<RouteInstance>,
}

/// One instance behind a route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RouteInstance {
    /// `inst-…`
    pub instance: String,
    /// `node-…`
    pub node: String,
    /// `HOST:PORT`; `None` = only by tunnel.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// No new requests.
    #[serde(default)]
    pub draining: bool,
}
