//! An agent's connection, from greeting to end.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::Bytes;
use tidemill_domain::command::{Command, DrainNode, JoinNode};
use tidemill_domain::events::node::DrainCause;
use tidemill_domain::id::{CredentialId, NodeId};
use tidemill_domain::policy::work;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::time::Span;
use tidemill_kit::observation::{BEAT, Body};
use tidemill_protocol::agent::{AgentMessage, Desired, DoorMessage, Hello, Leave, Welcome};
use tidemill_protocol::{MAX_MESSAGE_BYTES, Problem};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior};

use super::facts::{self, Batch};
use super::registry::{Signals, Speaker};
use super::socket::{self, Heard, Outgoing, Reader};
use super::translate_agent;
use crate::auth;
use crate::gate::{Caller, Peer};
use crate::metrics::Counted;
use crate::problem::Refusal;
use crate::shared::{Shared, stamp};

/// Batches of facts that may wait for the ledger; an agent sends the next only after the last was settled.
const BATCHES: usize = 8;
/// Longest telemetry kept of one beat.
const MAX_TELEMETRY: usize = 64 * 1024;
/// An agent that lives beats within this time: two beats and some.
const RIVAL_BEATS: Duration = Duration::from_millis(2_500);
/// Time for this server to see the join that it asked for.
const SEE_JOIN: Duration = Duration::from_secs(5);

pub(crate) async fn connect(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<Peer>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let upgrade = upgrade.map_err(|error| no_websocket(&error.body_text()))?;
    if shared.observer.congested() {
        return Err(Refusal::overloaded(
            "what is heard cannot be stored, so no new connection is taken",
        ));
    }
    let task = shared.registry.task();
    Ok(upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .on_upgrade(move |socket| async move {
            talk(shared, caller, socket).await;
            // They count for as long as the connection lasts.
            drop((task, peer));
        }))
}

/// Why a connection is ended: what the next try would be refused with.
pub(super) fn unwelcome(shared: &Shared, credential: Option<CredentialId>) -> Problem {
    let now = shared.clock.now();
    let found = shared.deps.view.read(|state| auth::still_good(state, credential, now));
    let Refusal(problem) = found
        .err()
        .unwrap_or_else(|| Refusal::overloaded("this connection is ended by the server"));
    *problem
}

pub(super) fn no_websocket(detail: &str) -> Refusal {
    Refusal::new(
        426,
        "websocket_expected",
        detail,
        "connect with `tidemill agent` or `tidemill gateway`",
    )
}

/// Talks until the connection ends.
async fn talk(shared: Arc<Shared>, caller: Caller, socket: WebSocket) {
    let limits = &shared.config.limits;
    let (mut reader, outgoing, writer) =
        socket::split::<DoorMessage>(socket, limits.silent_after, limits.write_timeout);
    let (latest, snapshots) = watch::channel(None);
    let mut writing = tokio::spawn(writer.run(snapshots));
    let greeted = tokio::select! {
        () = shared.closing.cancelled() => return,
        greeted = greet(&shared, &caller, &mut reader) => greeted,
    };
    let (node, hello) = match greeted {
        Ok(Some(greeted)) => greeted,
        Ok(None) => return,
        Err(Refusal(problem)) => {
            tracing::info!(code = problem.code, %problem, "an agent was refused");
            outgoing.send(DoorMessage::Refused(*problem)).await;
            drop(outgoing);
            let _ = writing.await;
            return;
        }
    };
    let _counted = Counted::in_(&shared.metrics.agents);
    let connection = shared.registry.number();
    let signals = Signals::new(caller.principal.credential());
    let (beats, beaten) = watch::channel(());
    let speaker = Speaker {
        agent_id: hello.agent_id.clone(),
        beats: beaten,
    };
    let (work, logs) = shared
        .registry
        .enter_agent(node, connection, speaker, signals.clone(), outgoing.clone());
    shared.observer.heard(&Body::NodeConnected { node, connection });
    let welcome = shared.deps.view.read(|state| Welcome {
        node: node.to_string(),
        stamp: stamp(state),
        beat_ms: BEAT.millis(),
        resend_ms: limits.resend.as_millis() as u64,
    });
    outgoing.send(DoorMessage::Welcome(welcome)).await;
    let (batches, settling) = settle(&shared, node, &hello, &outgoing);
    let (leaves, letting_go) = let_go(&shared, &caller, node, &outgoing);
    let session = Session {
        shared: &shared,
        node,
        hello,
        latest,
        outgoing,
        batches,
        leaves,
        logs,
        beats,
    };
    session.send_desired();
    let mut resend = tokio::time::interval(limits.resend);
    resend.set_missed_tick_behavior(MissedTickBehavior::Delay);
    resend.tick().await;
    let ended = loop {
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => break None,
            () = signals.superseded.cancelled() => break Some(session.supersede().await),
            () = signals.unwelcome.cancelled() => {
                let problem = unwelcome(&shared, signals.credential);
                let reason = problem.detail.clone();
                session.outgoing.send(DoorMessage::Refused(problem)).await;
                break Some(reason);
            }
            reason = &mut writing => {
                break Some(reason.ok().flatten().unwrap_or_else(|| "the connection broke".to_owned()));
            }
            () = work.notified() => {
                session.send_desired();
                session.say_if_left().await;
            }
            _ = resend.tick() => session.send_desired(),
            heard = reader.next() => match heard {
                Heard::Text(text) => session.hear(&text),
                Heard::Ended { reason, .. } => break Some(reason),
            },
        }
    };
    shared.registry.leave_agent(node, connection);
    session.logs.close();
    // A door that ends says nothing here: the node is well, and its agent goes to another door.
    if let Some(reason) = ended {
        tracing::info!(%node, connection, reason, "an agent's connection ended");
        shared.observer.heard(&Body::NodeDisconnected {
            node,
            connection,
            reason,
        });
    }
    drop(session);
    settling.abort();
    letting_go.abort();
    if !writing.is_finished() {
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut writing).await;
        writing.abort();
    }
}

/// Hears the greeting and has the join decided. `None`: the peer went.
async fn greet(shared: &Shared, caller: &Caller, reader: &mut Reader) -> Result<Option<(NodeId, Hello)>, Refusal> {
    let pick = |message| match message {
        AgentMessage::Hello(hello) => Some(hello),
        _ => None,
    };
    let Some(hello) = reader.greeting(shared.config.limits.hello_timeout, pick).await? else {
        return Ok(None);
    };
    let join = translate_agent::join(&hello, caller.principal.credential())?;
    let known = shared
        .deps
        .view
        .read(|state| state.node_named(&hello.name).map(|node| node.id));
    if let Some(node) = known
        && shared.registry.has_rival(node, &hello.agent_id, RIVAL_BEATS).await
    {
        return Err(Refusal::new(
            409,
            "node_cloned",
            format!("another agent runs as node `{}` and beats", hello.name),
            "end that one, or give this one a --name and a --data of its own",
        ));
    }
    let node = join_node(shared, caller, join).await?;
    Ok(Some((node, hello)))
}

/// Asks for the join. Its id is this connection's own: a join must be decided anew each time, since what happened to the
/// node between two equal greetings is what it answers to.
async fn join_node(shared: &Shared, caller: &Caller, join: JoinNode) -> Result<NodeId, Refusal> {
    let name = join.name.clone();
    let envelope = caller.envelope(Command::JoinNode(join));
    let answer = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    let seen = shared.deps.view.wait_for(answer.sequence, SEE_JOIN).await;
    let node = shared
        .deps
        .view
        .read(|state| state.node_named(name.as_str()).map(|node| node.id));
    match node {
        Some(node) if seen => Ok(node),
        _ => Err(Refusal::new(
            503,
            "behind",
            format!("this server has not seen record {} yet", answer.sequence),
            "it catches up by itself; connect again",
        )),
    }
}

/// Starts the task that takes facts to the ledger and acknowledges them.
fn settle(
    shared: &Arc<Shared>,
    node: NodeId,
    hello: &Hello,
    outgoing: &Outgoing<DoorMessage>,
) -> (mpsc::Sender<Batch>, tokio::task::JoinHandle<()>) {
    let (batches, mut queued) = mpsc::channel::<Batch>(BATCHES);
    let (shared, outgoing, agent_id) = (Arc::clone(shared), outgoing.clone(), hello.agent_id.clone());
    let settling = tokio::spawn(async move {
        while let Some(batch) = queued.recv().await {
            let through = batch.through;
            facts::settle(&shared, node, &agent_id, batch).await;
            if !outgoing.send(DoorMessage::FactsAck { through }).await {
                return;
            }
        }
    });
    (batches, settling)
}

/// Starts the task that has the node emptied when its owner takes it back: as the node that speaks, never another.
fn let_go(
    shared: &Arc<Shared>,
    caller: &Caller,
    node: NodeId,
    outgoing: &Outgoing<DoorMessage>,
) -> (mpsc::Sender<Leave>, tokio::task::JoinHandle<()>) {
    let (leaves, mut asked) = mpsc::channel::<Leave>(1);
    let (shared, caller, outgoing) = (Arc::clone(shared), caller.clone(), outgoing.clone());
    let letting_go = tokio::spawn(async move {
        let mut count = 0_u64;
        while let Some(leave) = asked.recv().await {
            count += 1;
            let command = Command::DrainNode(DrainNode {
                node,
                cause: DrainCause::Leave,
                reason: translate_agent::shorten(leave.reason.trim()),
                deadline: leave.deadline_ms.map(Span::from_millis),
            });
            let envelope = caller.envelope_for(&format!("leave {count}"), command);
            let answered = shared.submit(envelope, shared.config.limits.submit_patience).await;
            let message = match answered {
                Ok(_) => DoorMessage::Leaving,
                Err(error) => {
                    let Refusal(problem) = error.into();
                    DoorMessage::LeaveRefused(*problem)
                }
            };
            if !outgoing.send(message).await {
                return;
            }
        }
    });
    (leaves, letting_go)
}

struct Session<'a> {
    shared: &'a Shared,
    node: NodeId,
    hello: Hello,
    latest: watch::Sender<Option<super::registry::Snapshot>>,
    outgoing: Outgoing<DoorMessage>,
    batches: mpsc::Sender<Batch>,
    leaves: mpsc::Sender<Leave>,
    logs: Arc<super::logs::LogTable>,
    beats: watch::Sender<()>,
}

impl Session<'_> {
    fn send_desired(&self) {
        let desired = self.shared.deps.view.read(|state| Desired {
            stamp: stamp(state),
            instances: work::node_work(state, self.node)
                .map(|work| translate_agent::desired(state, &work))
                .collect(),
        });
        if let Some(snapshot) = socket::encode(&DoorMessage::Desired(desired)) {
            self.latest.send_replace(Some(snapshot));
        }
    }

    /// Tells the agent that its node is out of the pool.
    async fn say_if_left(&self) {
        let left = self.shared.deps.view.read(|state| {
            let node = state.nodes.get(&self.node)?;
            (node.state == NodeState::Left).then(|| node.reason.clone())
        });
        if let Some(reason) = left {
            self.outgoing.send(DoorMessage::Left { reason }).await;
        }
    }

    async fn supersede(&self) -> String {
        let problem = Problem::new(
            409,
            "superseded",
            format!("another connection speaks for node `{}` now", self.hello.name),
            "if two agents run under one name, give one of them another --name",
        );
        self.outgoing.send(DoorMessage::Refused(problem)).await;
        "a newer connection took its place".to_owned()
    }

    fn hear(&self, text: &Bytes) {
        match serde_json::from_slice(text) {
            Ok(AgentMessage::Beat(_)) => {
                self.beats.send_replace(());
                let telemetry = match text.len() {
                    0..=MAX_TELEMETRY => text.clone(),
                    _ => Bytes::from_static(b"{}"),
                };
                let node = self.node;
                self.shared.observer.heard(&Body::NodeBeat { node, telemetry });
            }
            Ok(AgentMessage::Facts(facts)) => {
                let received = Instant::now();
                for batch in translate_agent::batches(facts.facts, self.hello.address.as_deref(), received) {
                    // What finds no room is sent again by the agent when no acknowledgement comes.
                    if self.batches.try_send(batch).is_err() {
                        tracing::debug!(node = %self.node, "facts wait already; the agent sends these again");
                        break;
                    }
                }
            }
            Ok(AgentMessage::Logs(part)) => {
                let request = part.request.clone();
                if !self.logs.part(part) {
                    self.outgoing.try_send(DoorMessage::LogsDone { request });
                }
            }
            Ok(AgentMessage::Leave(leave)) => {
                // One that finds no room comes while another is being decided; the agent asks again when it reconnects.
                let _ = self.leaves.try_send(leave);
            }
            Ok(AgentMessage::Goodbye(goodbye)) => self.shared.observer.heard(&Body::NodeGoodbye {
                node: self.node,
                leaving: goodbye.leaving,
                reason: translate_agent::shorten(&goodbye.reason),
            }),
            Ok(AgentMessage::Hello(_)) => tracing::debug!(node = %self.node, "a second greeting was skipped"),
            Ok(AgentMessage::Unknown) => tracing::debug!(node = %self.node, "a message of a newer agent was skipped"),
            Err(error) => {
                self.shared
                    .metrics
                    .malformed
                    .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tracing::debug!(node = %self.node, %error, "a message that does not parse was skipped");
            }
        }
    }
}
