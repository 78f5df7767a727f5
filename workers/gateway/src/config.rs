//! What a gateway is told at its start, and the limits it keeps.
//!
//! Every limit has a default that suits a host with a few GiB of memory; each bounds something that a client or an
//! upstream could otherwise grow without end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tidemill_client::{ServerUrl, Token};

use crate::tls::TlsFiles;

/// Header fields for which the HTTP library keeps room on the stack; other proxies take as many.
pub(crate) const USUAL_HEADERS: usize = 100;

/// Configuration of one gateway.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Doors, any of which will do. Empty: routes come from disk alone.
    pub servers: Vec<ServerUrl>,
    /// Token of role `gateway`, shown to doors only.
    pub token: Option<Token>,
    /// Address to listen on; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Name, unique among the cell's gateways.
    pub name: String,
    /// Directory for the last routes; created if missing.
    pub data_dir: PathBuf,
    /// URL under which clients reach this gateway. `None`: the scheme and the bound address.
    pub public_url: Option<String>,
    /// Certificate and key; with them clients are served by TLS only.
    pub tls: Option<TlsFiles>,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds of a gateway.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Client connections at a time; further ones wait in the kernel's backlog.
    pub max_connections: usize,
    /// Client connections at a time from one address (IPv6: one /64); 0 = no limit, as behind a load balancer.
    pub connections_per_address: usize,
    /// The same for the loopback.
    pub connections_per_loopback: usize,
    /// Time in which a client must have sent a whole request head, or ended its TLS handshake.
    pub header_timeout: Duration,
    /// How long a client's connection is kept without a request. Longer than common clients keep theirs (90 s), so
    /// that it is they who close, and none sends a request into the close.
    pub client_idle_timeout: Duration,
    /// How long a client may take nothing of what is there for it.
    pub client_stall_timeout: Duration,
    /// Bytes of a request body that must come in each [`Limits::body_pace`] while more is awaited.
    pub body_pace_bytes: u64,
    /// See [`Limits::body_pace_bytes`].
    pub body_pace: Duration,
    /// Bytes of one request body.
    pub max_body_bytes: u64,
    /// Bytes of a request's target.
    pub max_target_bytes: usize,
    /// Requests at a time on one HTTP/2 connection of a client.
    pub max_streams: u32,
    /// Bytes of one request head.
    pub max_header_bytes: usize,
    /// Header fields of one request. Any but the default costs an allocation a request.
    pub max_headers: usize,
    /// Requests that may wait for an instance, per service that does not say otherwise.
    pub queue_length: usize,
    /// How long one request may wait in all, over all its tries, if its service does not say otherwise.
    pub queue_deadline: Duration,
    /// Bytes of one request's body kept for sending it again.
    pub replay_bytes: usize,
    /// The same, summed over all requests; above it bodies are passed on but not kept.
    pub replay_total_bytes: usize,
    /// Tries that may break after bytes were sent before the request fails. Tries that reached nobody are bounded by
    /// the time a request may wait instead.
    pub max_broken_tries: u32,
    /// Time in which an instance must accept a connection.
    pub connect_timeout: Duration,
    /// How long an unused connection to an instance is kept. Below the 4-5 s after which common servers close theirs.
    pub idle_timeout: Duration,
    /// Unused connections kept per instance.
    pub idle_connections: usize,
    /// Time in which a new instance comes to its full share of requests.
    pub slow_start: Duration,
    /// How long an instance's host may give no sign at all before what is open to it is given up.
    pub vanished_after: Duration,
    /// How long running requests may take to end after shutdown was asked for.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            connections_per_address: 1_000,
            connections_per_loopback: 16_384,
            header_timeout: Duration::from_secs(10),
            client_idle_timeout: Duration::from_secs(120),
            client_stall_timeout: Duration::from_secs(300),
            body_pace_bytes: 1024,
            body_pace: Duration::from_secs(20),
            max_body_bytes: u64::MAX,
            max_target_bytes: 16 * 1024,
            max_streams: 128,
            max_header_bytes: 64 * 1024,
            max_headers: USUAL_HEADERS,
            queue_length: 10_000,
            queue_deadline: Duration::from_secs(30),
            replay_bytes: 1024 * 1024,
            replay_total_bytes: 256 * 1024 * 1024,
            max_broken_tries: 6,
            connect_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(3),
            idle_connections: 256,
            slow_start: Duration::from_secs(10),
            vanished_after: Duration::from_secs(10),
            shutdown_grace: Duration::from_secs(30),
        }
    }
}
