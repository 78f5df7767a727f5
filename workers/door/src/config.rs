//! What a door is told, and what it is given to work with.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidemill_bus::commands::Commands;
use tidemill_bus::ledger::Ledger;
use tidemill_bus::observations::Observations;
use tidemill_bus::view::StateView;

use crate::health::Health;
use crate::reads::Reads;

/// How a door is set up.
#[derive(Debug, Clone)]
pub struct DoorConfig {
    /// Name of this door in observations; unique among the cell's servers and the same after a restart.
    pub name: String,
    /// Where it listens; port 0 picks a free one.
    pub listen: SocketAddr,
    /// Whether peers on this machine may do everything without a token.
    pub loopback_open: bool,
    /// Base URL of the gateway that services are shown with; the last gateway that connected if none.
    pub gateway_url: Option<String>,
    /// Bounds.
    pub limits: Limits,
}

impl DoorConfig {
    /// The usual bounds, open on loopback.
    pub fn new(name: impl Into<String>, listen: SocketAddr) -> Self {
        Self {
            name: name.into(),
            listen,
            loopback_open: true,
            gateway_url: None,
            limits: Limits::default(),
        }
    }
}

/// Bounds of what a door takes on at a time.
#[derive(Debug, Clone)]
pub struct Limits {
    /// TCP connections, agents' and gateways' included; more wait to be accepted.
    pub connections: usize,
    /// Requests being answered; more are refused as `overloaded`.
    pub requests: usize,
    /// Open event and log streams; more are refused as `overloaded`.
    pub streams: usize,
    /// Time for an answer, after which it is refused as `timeout`.
    pub request_timeout: Duration,
    /// Time for a request's headers to arrive.
    pub header_timeout: Duration,
    /// How long a command is tried again while no leader answers.
    pub submit_patience: Duration,
    /// Longest wait for `min_seq`.
    pub min_seq_wait: Duration,
    /// How often a node's desired state is sent unasked.
    pub resend: Duration,
    /// Time for a peer to take one message, after which its connection is closed as too slow.
    pub write_timeout: Duration,
    /// Time for the first message of a connection.
    pub hello_timeout: Duration,
    /// Silence on a connection after which it is taken for gone; agents and gateways beat once a second.
    pub silent_after: Duration,
    /// Time for running requests when the door ends.
    pub shutdown_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            requests: 1_024,
            streams: 256,
            request_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(10),
            submit_patience: Duration::from_secs(8),
            min_seq_wait: Duration::from_secs(5),
            resend: Duration::from_secs(10),
            write_timeout: Duration::from_secs(10),
            hello_timeout: Duration::from_secs(10),
            silent_after: Duration::from_secs(15),
            shutdown_grace: Duration::from_secs(3),
        }
    }
}

/// What a door works with.
#[derive(Clone)]
pub struct DoorDeps {
    /// Takes commands to the leader.
    pub commands: Arc<dyn Commands>,
    /// The present state.
    pub view: Arc<StateView>,
    /// Where beats and samples go.
    pub observations: Arc<dyn Observations>,
    /// Lists, events, explanations, at any time.
    pub reads: Arc<dyn Reads>,
    /// The log itself, for `/readyz` and `doctor`.
    pub ledger: Arc<dyn Ledger>,
    /// What the rest of the process has to say about its health.
    pub health: Arc<dyn Health>,
}
