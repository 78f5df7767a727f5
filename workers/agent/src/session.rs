//! The conversation with whichever door the link reached: greeting, beats, facts, desired state, output.
//!
//! It runs apart from the core, so that a thousand launches do not delay a beat. Facts go up in order, one batch at a
//! time; the next one leaves when the ledger has the last. A batch that was not acknowledged in time, or whose
//! connection went, is sent again: the door knows repeated batches by their ids.

use std::time::Duration;

use tidemill_client::{Connection, Link, LinkClosed, LinkConfig, LinkEvent};
use tidemill_protocol::{
    AGENT_PATH, PROTOCOL_VERSION, Problem,
    agent::{AgentMessage, Beat, DoorMessage, Facts, Goodbye, Hello, Welcome},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, Interval, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use crate::{
    AgentConfig, clock,
    core::Input,
    docker::Engine,
    inspection::Inspected,
    launch::Homes,
    leave::{LeaveStage, Wish},
    logs::LogReaders,
    machine::{self, CpuMeter, TrafficMeter},
    outbox::{Outbox, OutboxClosed},
    runner::{Question, Vitals},
};

/// Most facts in a message.
const BATCH: usize = 512;

/// How long an acknowledgement may take before the batch is sent again. A door answers after the ledger's fsync; this
/// covers a leader change.
const ACK_TIMEOUT: Duration = Duration::from_secs(15);

/// How long servers may say that they do not know a token before that is final: one that follows the ledger a little
/// late does not know a new one yet.
const TOKEN_PATIENCE: Duration = Duration::from_secs(10);

/// A session and what it needs.
pub(crate) struct Session {
    pub(crate) config: AgentConfig,
    pub(crate) boot_id: String,
    pub(crate) machine_id: String,
    pub(crate) homes: Homes,
    pub(crate) outbox: Outbox,
    pub(crate) inputs: mpsc::Sender<Input>,
    pub(crate) questions: mpsc::Sender<Question>,
    pub(crate) vitals: watch::Receiver<Vitals>,
    /// What the node measured of itself; the first greeting waits for it.
    pub(crate) inspected: watch::Receiver<Option<Inspected>>,
    /// What the machine's owner asks.
    pub(crate) wished: mpsc::Receiver<Wish>,
    /// How far that is.
    pub(crate) stage: watch::Sender<LeaveStage>,
    /// The wish under way: repeated on each connection, since a server that took it may be gone.
    pub(crate) leaving: Option<Wish>,
    pub(crate) engine: Engine,
    /// Whether the engine answers; the first greeting waits for it too.
    pub(crate) engine_there: watch::Receiver<Option<bool>>,
}

/// State of one connection.
struct Talk {
    connection: Connection<AgentMessage>,
    welcomed: bool,
    /// Highest id of the batch under way, and when to send it again.
    in_flight: Option<(u64, Instant)>,
    readers: LogReaders,
}

/// Why the agent ends.
enum Ending {
    /// It was told to, or the other side of a channel is gone.
    Told,
    /// The node is empty and out of the pool.
    Left,
    /// No server will ever take it as it is.
    Refused(Box<Problem>),
}

impl From<OutboxClosed> for Ending {
    fn from(_: OutboxClosed) -> Self {
        Self::Told
    }
}

/// Which refusals are final. Only before the first welcome: what once was taken holds running work, and goes on asking.
#[derive(Default)]
struct Refusals {
    welcomed: bool,
    /// Since when every answer was that the token is not known.
    unknown_token: Option<(Instant, Problem)>,
}

impl Refusals {
    /// Takes a refusal in; final if asking again cannot bring another answer.
    fn take(&mut self, problem: Option<Problem>) -> Result<(), Ending> {
        match problem {
            Some(problem) if !self.welcomed && problem.status == 403 => Err(Ending::Refused(Box::new(problem))),
            Some(problem) if !self.welcomed && problem.status == 401 => {
                self.unknown_token.get_or_insert_with(|| (Instant::now(), problem));
                Ok(())
            }
            _ => {
                self.unknown_token = None;
                Ok(())
            }
        }
    }

    /// When an unknown token is final, if nothing else is heard until then.
    fn deadline(&self) -> Option<Instant> {
        self.unknown_token.as_ref().map(|(since, _)| *since + TOKEN_PATIENCE)
    }
}

impl Session {
    /// Talks until `shutdown`, or until it is refused for good.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) -> Result<(), Box<Problem>> {
        let mut link = self.open_link();
        let mut talk = None;
        let mut beats = Beats::new();
        let mut refusals = Refusals::default();
        let ending = loop {
            let turn = self.turn(&mut link, &mut talk, &mut beats, &mut refusals, &shutdown);
            if let Err(ending) = turn.await {
                break ending;
            }
        };
        if let Some(talk) = talk {
            let left = matches!(ending, Ending::Left);
            let goodbye = Goodbye {
                reason: match left {
                    true => "the node has left the pool".to_owned(),
                    false => "the agent was asked to end; its instances run on".to_owned(),
                },
                leaving: left,
            };
            // Full or gone: the door then sees the connection end.
            let _ = talk.connection.try_send(AgentMessage::Goodbye(goodbye));
        }
        link.close().await;
        match ending {
            Ending::Told | Ending::Left => Ok(()),
            Ending::Refused(problem) => Err(problem),
        }
    }

    fn open_link(&self) -> Link<AgentMessage, DoorMessage> {
        let servers = self.config.servers.clone();
        Link::open(LinkConfig::new(servers, AGENT_PATH, self.config.token.clone()))
    }

    async fn turn(
        &mut self,
        link: &mut Link<AgentMessage, DoorMessage>,
        talk: &mut Option<Talk>,
        beats: &mut Beats,
        refusals: &mut Refusals,
        shutdown: &CancellationToken,
    ) -> Result<(), Ending> {
        let welcomed = talk.as_ref().is_some_and(|talk| talk.welcomed);
        let overdue = talk.as_ref().and_then(|talk| talk.in_flight).map(|(_, at)| at);
        let unknown = refusals.deadline();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return Err(Ending::Told),
            _ = beats.interval.tick(), if welcomed => {
                if let Some(talk) = talk {
                    let beat = self.beat(beats);
                    // A queue that is full says more than a late beat would.
                    if talk.connection.try_send(AgentMessage::Beat(beat)) == Err(LinkClosed::Full) {
                        tracing::warn!(code = "beat_skipped", "the server does not read; a beat was left out");
                    }
                }
            }
            event = link.next() => match event.ok_or(Ending::Told)? {
                LinkEvent::Connected(connection) => {
                    refusals.unknown_token = None;
                    *talk = Some(self.greet(connection, shutdown).await?);
                }
                LinkEvent::Disconnected { problem, .. } => {
                    *talk = None;
                    refusals.take(problem)?;
                }
                LinkEvent::Message(message) => {
                    if let Some(talk) = talk {
                        self.hear(talk, beats, refusals, message).await?;
                    }
                }
            },
            Some(wish) = self.wished.recv() => {
                self.leaving = Some(wish);
                self.stage.send_replace(LeaveStage::Asked);
                if let Some(talk) = talk {
                    self.pass_on(talk).await;
                }
            }
            Ok(()) = self.vitals.changed(), if self.leaving.is_some() => {
                let running = self.vitals.borrow_and_update().running;
                self.stage.send_if_modified(|stage| match stage {
                    LeaveStage::Draining { running: before } if *before != running => {
                        *before = running;
                        true
                    }
                    _ => false,
                });
            }
            changed = self.engine_there.changed(), if talk.is_some() => {
                changed.map_err(|_| Ending::Told)?;
                // What a node offers it says as it joins, so it joins again.
                *talk = None;
                let fresh = self.open_link();
                std::mem::replace(link, fresh).close().await;
            }
            changed = self.outbox.changed() => {
                changed?;
                if let Some(talk) = talk {
                    self.send_facts(talk).await?;
                }
            }
            () = tokio::time::sleep_until(overdue.unwrap_or_else(Instant::now)), if overdue.is_some() => {
                tracing::warn!(code = "facts_not_acknowledged", "sending the facts again");
                if let Some(talk) = talk {
                    talk.in_flight = None;
                    self.send_facts(talk).await?;
                }
            }
            () = tokio::time::sleep_until(unknown.unwrap_or_else(Instant::now)), if unknown.is_some() => {
                if let Some((_, problem)) = refusals.unknown_token.take() {
                    return Err(Ending::Refused(Box::new(problem)));
                }
            }
        }
        Ok(())
    }

    async fn greet(
        &mut self,
        connection: Connection<AgentMessage>,
        shutdown: &CancellationToken,
    ) -> Result<Talk, Ending> {
        let inspected = tokio::select! {
            () = shutdown.cancelled() => return Err(Ending::Told),
            // Gone without a word: the greeting goes without it too.
            inspected = self.inspected.wait_for(Option::is_some) => inspected.ok().and_then(|found| found.clone()),
        };
        let engine_there = tokio::select! {
            () = shutdown.cancelled() => return Err(Ending::Told),
            there = self.engine_there.wait_for(Option::is_some) => there.is_ok_and(|there| *there == Some(true)),
        };
        let (answer, answered) = oneshot::channel();
        self.questions
            .send(Question::Statuses(answer))
            .await
            .map_err(|_| Ending::Told)?;
        let instances = answered.await.map_err(|_| Ending::Told)?;
        let config = &self.config;
        let applied = self.vitals.borrow().applied.clone();
        let mut devices = config.devices.clone();
        if let Some(inspected) = &inspected {
            inspected.correct(&mut devices);
        }
        let hello = Hello {
            protocol: PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            name: config.name.clone(),
            supply: config.supply.clone(),
            provider: config.provider.clone(),
            region: config.region.clone(),
            zone: config.zone.clone(),
            address: config.address.clone(),
            boot_id: self.boot_id.clone(),
            machine_id: self.machine_id.clone(),
            agent_id: config.agent_id.clone(),
            devices,
            instances,
            applied,
            runtimes: match engine_there {
                true => vec!["process".to_owned(), "docker".to_owned()],
                false => vec!["process".to_owned()],
            },
            limitations: config.limitations.clone(),
            inspection: inspected.map(|inspected| Box::new(inspected.report)),
        };
        // Gone again already: the link says so next.
        let _ = connection.send(AgentMessage::Hello(hello)).await;
        Ok(Talk {
            connection,
            welcomed: false,
            in_flight: None,
            readers: LogReaders::default(),
        })
    }

    async fn hear(
        &mut self,
        talk: &mut Talk,
        beats: &mut Beats,
        refusals: &mut Refusals,
        message: DoorMessage,
    ) -> Result<(), Ending> {
        match message {
            DoorMessage::Welcome(welcome) => {
                tracing::info!(
                    node = welcome.node,
                    cell = welcome.stamp.cell,
                    server = talk.connection.server(),
                    "welcome"
                );
                talk.welcomed = true;
                self.engine.greeted_as(&welcome.node);
                refusals.welcomed = true;
                beats.every(&welcome);
                self.tell(Input::Connected).await?;
                self.send_facts(talk).await?;
                self.pass_on(talk).await;
            }
            DoorMessage::Desired(desired) => self.tell(Input::Desired(desired)).await?,
            DoorMessage::FactsAck { through } => {
                let ended = self.outbox.settle(through).await?;
                if !ended.is_empty() {
                    self.tell(Input::Settled(ended)).await?;
                }
                if talk.in_flight.is_some_and(|(last, _)| last <= through) {
                    talk.in_flight = None;
                }
                self.send_facts(talk).await?;
            }
            DoorMessage::LogsWanted(wanted) => {
                talk.readers.begin(&self.homes, wanted, talk.connection.clone());
            }
            DoorMessage::LogsDone { request } => talk.readers.end(&request),
            DoorMessage::Leaving => {
                let running = self.vitals.borrow().running;
                self.stage.send_replace(LeaveStage::Draining { running });
            }
            DoorMessage::LeaveRefused(problem) => {
                tracing::error!(code = problem.code, %problem, "the control plane does not let this node go");
                self.leaving = None;
                self.stage.send_replace(LeaveStage::Refused { problem });
            }
            DoorMessage::Left { reason } => {
                tracing::info!(reason, "this node has left the pool");
                self.stage.send_replace(LeaveStage::Left { reason });
                return Err(Ending::Left);
            }
            DoorMessage::Refused(problem) => {
                tracing::error!(code = problem.code, %problem, "the control plane refuses this node");
                refusals.take(Some(problem))?;
            }
            DoorMessage::Unknown => {
                tracing::debug!("a message of a newer server was skipped");
            }
        }
        Ok(())
    }

    async fn tell(&self, input: Input) -> Result<(), Ending> {
        self.inputs.send(input).await.map_err(|_| Ending::Told)
    }

    /// Tells the control plane what the owner wants, if anything.
    async fn pass_on(&self, talk: &Talk) {
        if let (true, Some(wish)) = (talk.welcomed, &self.leaving) {
            // Gone: it is told again after the next greeting.
            let _ = talk.connection.send(AgentMessage::Leave(wish.message())).await;
        }
    }

    async fn send_facts(&self, talk: &mut Talk) -> Result<(), Ending> {
        if !talk.welcomed || talk.in_flight.is_some() || self.outbox.waiting() == 0 {
            return Ok(());
        }
        let now_ms = clock::boottime_ms();
        let rows = self.outbox.read(BATCH).await?;
        let facts: Vec<_> = rows.iter().map(|row| row.fact(now_ms)).collect();
        let Some(last) = facts.last().map(|fact| fact.id) else {
            return Ok(());
        };
        talk.in_flight = Some((last, Instant::now() + ACK_TIMEOUT));
        // Gone: the batch is read again after the next greeting.
        let _ = talk.connection.send(AgentMessage::Facts(Facts { facts })).await;
        Ok(())
    }

    fn beat(&self, beats: &mut Beats) -> Beat {
        beats.number += 1;
        let memory = machine::memory();
        let vitals = self.vitals.borrow().clone();
        let (devices, devices_left_out) = self.config.telemetry.readings();
        Beat {
            number: beats.number,
            uptime_ms: u64::try_from(beats.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            cpu_milli: beats.cpu.read(),
            memory_used_bytes: memory.map(|memory| memory.used),
            memory_total_bytes: memory.map(|memory| memory.total),
            disk_free_bytes: machine::disk_free(&self.config.data_dir),
            running: vitals.running,
            outbox: self.outbox.waiting(),
            applied: vitals.applied,
            host: Some(beats.traffic.read(&self.config.data_dir)),
            devices,
            devices_left_out,
        }
    }
}

struct Beats {
    interval: Interval,
    began: Instant,
    number: u64,
    cpu: CpuMeter,
    traffic: TrafficMeter,
}

impl Beats {
    fn new() -> Self {
        Self {
            // Replaced by the first welcome, before which nothing beats.
            interval: tokio::time::interval(Duration::from_secs(1)),
            began: Instant::now(),
            number: 0,
            cpu: CpuMeter::default(),
            traffic: TrafficMeter::default(),
        }
    }

    fn every(&mut self, welcome: &Welcome) {
        // A door's slip must not make this a busy loop.
        let every = Duration::from_millis(welcome.beat_ms.max(50));
        self.interval = tokio::time::interval(every);
        self.interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
}
