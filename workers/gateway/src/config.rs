//! What a gateway is told at its start, and the limits it keeps.
//!
//! Every limit has a default that suits a host with a few GiB of memory; each bounds something that a client or an
//! upstream could otherwise grow without end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tidemill_client::{ServerUrl, Token};

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
    /// URL under which clients reach this gateway. `None`: `http://` and the bound address.
    pub public_url: Option<String>,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds of a gateway.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Client connections at a time; further ones wait in the kernel's backlog.
    pub max_connections: usize,
    /// Time in which a client must have sent a whole request head; also how long an idle connection is kept.
    pub header_timeout: Duration,
    /// Bytes of one request head.
    pub max_header_bytes: usize,
    /// Header fields of one request.
    pub max_headers: usize,
    /// Requests that may wait for an instance, per service.
    pub queue_length: usize,
    /// How long one request may wait in all, over all its tries.
    pub queue_deadline: Duration,
    /// Bytes of one request's body kept for sending it again.
    pub replay_bytes: usize,
    /// The same, summed over all requests; above it bodies are passed on but not kept.
    pub replay_total_bytes: usize,
    /// Tries that may break after bytes were sent before the request fails. Tries that reached nobody are bounded by
    /// [`Limits::queue_deadline`] instead.
    pub max_broken_tries: u32,
    /// Time in which an instance must accept a connection.
    pub connect_timeout: Duration,
    /// How long an unused connection to an instance is kept. Below the 4-5 s after which common servers close theirs.
    pub idle_timeout: Duration,
    /// Unused connections kept per instance.
    pub idle_connections: usize,
    /// How long running requests may take to end after shutdown was asked for.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            header_timeout: Duration::from_secs(60),
            max_header_bytes: 64 * 1024,
            max_headers: 128,
            queue_length: 10_000,
            queue_deadline: Duration::from_secs(30),
            replay_bytes: 1024 * 1024,
            replay_total_bytes: 256 * 1024 * 1024,
            max_broken_tries: 6,
            connect_timeout: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(3),
            idle_connections: 256,
            shutdown_grace: Duration::from_secs(30),
        }
    }
}
