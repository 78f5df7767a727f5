//! Who is connected.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::Utf8Bytes;
use tidemill_domain::commit::Address;
use tidemill_domain::id::{CredentialId, InstanceId, NodeId};
use tidemill_domain::state::State;
use tidemill_protocol::agent::DoorMessage;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::logs::{LogStream, LogTable};
use super::socket::Outgoing;

/// A message encoded once, for however many it goes to.
pub(super) type Snapshot = Utf8Bytes;

/// A connected agent as others see it.
pub(super) struct AgentEntry {
    pub(super) connection: u64,
    /// Start of the agent process that speaks.
    agent_id: String,
    /// Changes with each beat; its sender goes with the connection.
    beats: watch::Receiver<()>,
    signals: Signals,
    /// Woken when the node's work or stage changed.
    pub(super) work: Arc<Notify>,
    /// The change it was woken for last.
    seen: Address,
    pub(super) outgoing: Outgoing<DoorMessage>,
    pub(super) logs: Arc<LogTable>,
}

struct GatewayEntry {
    connection: u64,
    signals: Signals,
}

/// What ends a connection from this side.
#[derive(Clone)]
pub(super) struct Signals {
    /// The token that let it in.
    pub(super) credential: Option<CredentialId>,
    /// Cancelled when a newer connection takes its place.
    pub(super) superseded: CancellationToken,
    /// Cancelled when its token is no longer good.
    pub(super) unwelcome: CancellationToken,
}

impl Signals {
    pub(super) fn new(credential: Option<CredentialId>) -> Self {
        Self {
            credential,
            superseded: CancellationToken::new(),
            unwelcome: CancellationToken::new(),
        }
    }
}

/// The agent process at the other end of a connection.
pub(super) struct Speaker {
    pub(super) agent_id: String,
    pub(super) beats: watch::Receiver<()>,
}

/// See the module.
pub(crate) struct Registry {
    next: AtomicU64,
    agents: Mutex<HashMap<NodeId, AgentEntry>>,
    gateways: Mutex<HashMap<String, GatewayEntry>>,
    /// Routes as every gateway gets them.
    pub(super) routes: watch::Sender<Option<Snapshot>>,
    tasks: TaskTracker,
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            next: AtomicU64::new(1),
            agents: Mutex::default(),
            gateways: Mutex::default(),
            routes: watch::Sender::new(None),
            tasks: TaskTracker::new(),
        }
    }
}

impl Registry {
    fn agents(&self) -> MutexGuard<'_, HashMap<NodeId, AgentEntry>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gateways(&self) -> MutexGuard<'_, HashMap<String, GatewayEntry>> {
        self.gateways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection's number, unique within this process.
    pub(super) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Counted until dropped: what the door's end waits for.
    pub(super) fn task(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// Waits until every connection has ended. To be called when no new ones come.
    pub(crate) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Enters a node's connection; an older one is told to end.
    pub(super) fn enter_agent(
        &self,
        node: NodeId,
        connection: u64,
        speaker: Speaker,
        signals: Signals,
        outgoing: Outgoing<DoorMessage>,
    ) -> (Arc<Notify>, Arc<LogTable>) {
        let entry = AgentEntry {
            connection,
            agent_id: speaker.agent_id,
            beats: speaker.beats,
            signals,
            work: Arc::new(Notify::new()),
            seen: Address::default(),
            outgoing,
            logs: Arc::new(LogTable::default()),
        };
        let mine = (Arc::clone(&entry.work), Arc::clone(&entry.logs));
        if let Some(older) = self.agents().insert(node, entry) {
            older.signals.superseded.cancel();
        }
        mine
    }

    /// Whether another agent process than `agent_id` speaks for the node over a connection to this door, and lives: it beats
    /// within `patience`. One that was killed, or whose network is gone, does not.
    pub(super) async fn has_rival(&self, node: NodeId, agent_id: &str, patience: Duration) -> bool {
        let beats = {
            let agents = self.agents();
            let rival = agents.get(&node).filter(|entry| entry.agent_id != agent_id);
            rival.map(|entry| entry.beats.clone())
        };
        let Some(mut beats) = beats else { return false };
        beats.mark_unchanged();
        matches!(tokio::time::timeout(patience, beats.changed()).await, Ok(Ok(())))
    }

    /// Takes a connection out, unless a newer one stands there.
    pub(super) fn leave_agent(&self, node: NodeId, connection: u64) {
        let mut agents = self.agents();
        if agents.get(&node).is_some_and(|entry| entry.connection == connection) {
            agents.remove(&node);
        }
    }

    pub(super) fn enter_gateway(&self, name: &str, connection: u64, signals: Signals) {
        let entry = GatewayEntry { connection, signals };
        if let Some(older) = self.gateways().insert(name.to_owned(), entry) {
            older.signals.superseded.cancel();
        }
    }

    /// Ends the connections whose token is no longer good.
    pub(super) fn end_unwelcome(&self, good: impl Fn(Option<CredentialId>) -> bool) {
        let end = |signals: &Signals| {
            if !good(signals.credential) {
                signals.unwelcome.cancel();
            }
        };
        self.agents().values().for_each(|entry| end(&entry.signals));
        self.gateways().values().for_each(|entry| end(&entry.signals));
    }

    pub(super) fn leave_gateway(&self, name: &str, connection: u64) {
        let mut gateways = self.gateways();
        if gateways.get(name).is_some_and(|entry| entry.connection == connection) {
            gateways.remove(name);
        }
    }

    /// Wakes the connections of nodes whose work or stage changed.
    pub(super) fn wake_changed(&self, state: &State) {
        for (node, entry) in &mut *self.agents() {
            if let Some(node) = state.nodes.get(node)
                && let changed = node.work_changed.max(node.changed)
                && changed != entry.seen
            {
                entry.seen = changed;
                entry.work.notify_one();
            }
        }
    }

    /// Asks the node's agent for an instance's output; none if it is not connected here.
    pub(crate) fn logs(
        &self,
        node: NodeId,
        instance: InstanceId,
        after: Option<u64>,
        follow: bool,
    ) -> Option<LogStream> {
        let agents = self.agents();
        let entry = agents.get(&node)?;
        let stream = LogStream::begin(Arc::clone(&entry.logs), entry.outgoing.clone(), instance, after, follow);
        drop(agents);
        stream
    }
}
