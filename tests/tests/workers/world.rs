//! A cell with its sequencer, a view, observations, and nodes that the test plays.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidemill_bus::commands::{Answer, Commands, SubmitError};
use tidemill_bus::identity::{CellName, Genesis, LedgerId};
use tidemill_bus::ledger::Ledger;
use tidemill_bus::memory::MemoryLedger;
use tidemill_bus::observations::{Block, MemoryObservations, ObservationLimits, Observations};
use tidemill_bus::sequencer::{Candidate, CandidateHandle, Clock, SequencerConfig};
use tidemill_bus::view::StateView;
use tidemill_domain::command::{Command, Envelope, FactBody, InstanceFact, ReportFacts};
use tidemill_domain::commit::TraceContext;
use tidemill_domain::id::{CommandId, InstanceId, NodeId, ServiceId};
use tidemill_domain::policy::work::{Work, node_work};
use tidemill_domain::state::State;
use tidemill_domain::state::instance::{Instance, InstanceState};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::Name;
use tidemill_evidence::Evidence;
use tidemill_failover::Failover;
use tidemill_kit::observation::Body;
use tidemill_kit::{Setup, Worker, WorkerHandle, spawn};
use tidemill_scheduler::Scheduler;
use tidemill_tests::make::{envelope as untraced, name, ready, started};
use tokio_util::sync::CancellationToken;

/// Longest wait for something that should happen in milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the test plays nodes with.
#[derive(Default)]
struct Players {
    /// Nodes whose agents do nothing.
    dead: Mutex<BTreeSet<NodeId>>,
    /// Instances start and become ready by themselves.
    start: AtomicBool,
}

pub struct World {
    pub view: Arc<StateView>,
    pub commands: CandidateHandle,
    pub observations: MemoryObservations,
    pub ledger: MemoryLedger,
    players: Arc<Players>,
    /// How far the sequencer's clock is ahead of the wall clock, microseconds.
    ahead: Arc<AtomicI64>,
    asked: AtomicU64,
    /// The door's clock.
    door_now: Mutex<Timestamp>,
    shutdown: CancellationToken,
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl World {
    pub async fn new() -> Self {
        let genesis = Genesis::new(CellName::new("test").unwrap(), LedgerId(uuid::Uuid::from_u128(7)));
        let ledger = MemoryLedger::create(genesis);
        let shutdown = CancellationToken::new();
        let ahead = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&ahead);
        let config = SequencerConfig {
            clock: Clock::Manual(Arc::new(move || {
                let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
                Timestamp(wall.as_micros() as i64 + clock.load(Ordering::Relaxed))
            })),
            ..SequencerConfig::in_memory("test")
        };
        let commands = Candidate::start(config, Arc::new(ledger.clone()), None, shutdown.clone()).unwrap();
        assert!(commands.wait_until_leading(PATIENCE).await);
        let view = StateView::start(Arc::new(ledger.clone()) as Arc<dyn Ledger>, None, shutdown.clone())
            .await
            .unwrap();
        let world = Self {
            view,
            commands,
            observations: MemoryObservations::new(ObservationLimits::default()),
            ledger,
            players: Arc::default(),
            ahead,
            asked: AtomicU64::new(0),
            door_now: Mutex::new(Timestamp(1_767_225_600_000_000)),
            shutdown,
        };
        world.players.start.store(true, Ordering::Relaxed);
        tokio::spawn(play(
            Arc::clone(&world.view),
            world.commands.clone(),
            Arc::clone(&world.players),
            world.shutdown.clone(),
        ));
        world
    }

    pub fn spawn<W: Worker>(&self, worker: W, holder: &str) -> (WorkerHandle, CancellationToken) {
        let token = self.shutdown.child_token();
        let setup = Setup {
            view: Arc::clone(&self.view),
            commands: Arc::new(self.commands.clone()),
            observations: Arc::new(self.observations.clone()),
            holder: holder.to_owned(),
        };
        (spawn(worker, setup, token.clone()), token)
    }

    pub fn scheduler(&self) -> (WorkerHandle, CancellationToken) {
        self.spawn(Scheduler::default(), "test")
    }

    pub fn failover(&self) -> (WorkerHandle, CancellationToken) {
        self.spawn(Failover::default(), "test")
    }

    pub fn evidence(&self) -> (WorkerHandle, CancellationToken) {
        self.spawn(Evidence::default(), "test")
    }

    pub async fn submit(&self, command: Command) -> Result<Answer, SubmitError> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        self.commands.submit(envelope(number, command)).await
    }

    pub async fn given(&self, command: Command) -> Answer {
        let answer = self.submit(command).await.unwrap();
        assert!(self.view.wait_for(answer.sequence, PATIENCE).await);
        answer
    }

    /// The sequencer's clock jumps ahead, and a record says so.
    pub async fn skip(&self, span: Span) {
        self.ahead.fetch_add(span.micros() as i64, Ordering::Relaxed);
        self.given(Command::CreateCredential(tidemill_domain::command::CreateCredential {
            hash: *blake3::hash(&self.asked.load(Ordering::Relaxed).to_le_bytes()).as_bytes(),
            role: tidemill_domain::events::credential::Role::Node,
            supply: None,
            tenant: None,
            ttl: None,
        }))
        .await;
    }

    /// Whether instances start and become ready by themselves.
    pub fn let_start(&self, start: bool) {
        self.players.start.store(start, Ordering::Relaxed);
    }

    pub fn kill(&self, node: NodeId) {
        self.players.dead.lock().unwrap().insert(node);
    }

    pub fn revive(&self, node: NodeId) {
        self.players.dead.lock().unwrap().remove(&node);
    }

    /// Waits until the state is as `look` wants it; fails with `what` and what there is.
    pub async fn until(&self, what: &str, look: impl Fn(&State) -> bool) {
        let mut progress = self.view.progress();
        let wait = async {
            loop {
                progress.borrow_and_update();
                if self.view.read(&look) {
                    return;
                }
                progress.changed().await.unwrap();
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            let instances = self.view.read(|s| s.instances.values().cloned().collect::<Vec<_>>());
            let nodes = self.view.read(|s| {
                let nodes = s.nodes.values();
                nodes
                    .map(|n| (n.name.clone(), n.state, n.reason.clone()))
                    .collect::<Vec<_>>()
            });
            let short: Vec<_> = instances
                .iter()
                .map(|i| (i.id, i.state, i.generation, i.reason.clone()))
                .collect();
            panic!("not in time: {what}\n{nodes:#?}\n{short:#?}");
        }
    }

    pub fn node(&self, node: &str) -> NodeId {
        self.view.read(|s| s.node_named(node).unwrap().id)
    }

    pub fn service(&self, of: &str) -> ServiceId {
        self.view.read(|s| service(s, of).unwrap())
    }

    pub fn in_state(&self, of: &str, state: InstanceState) -> Vec<InstanceId> {
        self.view.read(|s| {
            let live = live(s, of).into_iter();
            live.filter(|i| i.state == state).map(|i| i.id).collect()
        })
    }

    /// The node reports a fact.
    pub async fn report(&self, instance: InstanceId, body: FactBody) {
        let node = self.view.read(|s| s.instances[&instance].node.unwrap());
        let facts = vec![InstanceFact {
            instance,
            age: Span::ZERO,
            body,
        }];
        self.given(Command::ReportFacts(ReportFacts { node, facts })).await;
    }

    /// `seconds` pass at the door "a": it beats, and so do `nodes`; `more` adds to each second's block.
    pub async fn beats(&self, seconds: u64, nodes: &[NodeId], more: impl Fn(Timestamp) -> Vec<Body>) {
        for _ in 0..seconds {
            let now = {
                let mut now = self.door_now.lock().unwrap();
                *now = *now + Span::from_secs(1);
                *now
            };
            let mut bodies = vec![Body::DoorBeat];
            bodies.extend(nodes.iter().map(|node| Body::NodeBeat {
                node: *node,
                telemetry: bytes::Bytes::from_static(b"{}"),
            }));
            bodies.extend(more(now));
            let block = Block {
                door: "a".into(),
                observations: bodies.iter().map(|b| b.to_observation("a", now)).collect(),
            };
            self.observations.publish(&block).await.unwrap();
        }
    }

    /// The door's clock goes on, and nobody hears of it.
    pub fn door_away(&self, seconds: u64) {
        let mut now = self.door_now.lock().unwrap();
        *now = *now + Span::from_secs(seconds);
    }

    pub fn door_now(&self) -> Timestamp {
        *self.door_now.lock().unwrap()
    }
}

/// Waits until a worker has taken in every block there is, and taken a step after it.
pub async fn caught_up(worker: &mut WorkerHandle, observations: &MemoryObservations) {
    let last = observations.bounds().await.unwrap().last;
    let caught_up = worker.status.wait_for(|s| s.observed >= last);
    tokio::time::timeout(PATIENCE, caught_up).await.unwrap().unwrap();
    let steps = worker.status.borrow().steps;
    let stepped = worker.status.wait_for(|s| s.steps > steps);
    // Where nothing more comes there is no further step: the last one has seen it all.
    let _ = tokio::time::timeout(Duration::from_millis(100), stepped).await;
}

pub async fn holding(worker: &mut WorkerHandle) {
    let holds = worker.status.wait_for(|s| s.term.is_some() && s.steps > 0);
    tokio::time::timeout(PATIENCE, holds).await.unwrap().unwrap();
}

fn envelope(number: u64, command: Command) -> Envelope {
    let id = CommandId::derived(&[b"test", &number.to_le_bytes()]);
    Envelope {
        trace: Some(trace(number)),
        ..untraced(id, command)
    }
}

/// Each request's own trace.
fn trace(number: u64) -> TraceContext {
    let mut trace_id = [7; 16];
    trace_id[..8].copy_from_slice(&number.to_le_bytes());
    TraceContext {
        trace_id,
        span_id: [1; 8],
        flags: 1,
    }
}

pub fn service(state: &State, of: &str) -> Option<ServiceId> {
    state.service_named(&Name::default_tenant(), &name(of)).map(|s| s.id)
}

pub fn live<'a>(state: &'a State, of: &str) -> Vec<&'a Instance> {
    let Some(id) = service(state, of) else { return vec![] };
    state.services[&id].live.iter().map(|id| &state.instances[id]).collect()
}

pub fn count(state: &State, of: &str, wanted: InstanceState) -> usize {
    live(state, of).iter().filter(|i| i.state == wanted).count()
}

/// Plays all agents: what is placed starts and answers, what is to stop stops.
async fn play(view: Arc<StateView>, commands: CandidateHandle, players: Arc<Players>, shutdown: CancellationToken) {
    let mut progress = view.progress();
    let mut number = 1 << 32;
    loop {
        progress.borrow_and_update();
        let dead = players.dead.lock().unwrap().clone();
        let start = players.start.load(Ordering::Relaxed);
        let reports: Vec<ReportFacts> = view.read(|state| {
            let nodes = state.nodes.keys().filter(|n| !dead.contains(n));
            nodes
                .filter_map(|node| {
                    let facts: Vec<InstanceFact> = node_work(state, *node)
                        .flat_map(|work| facts_for(work.instance, work.work, start))
                        .take(512)
                        .collect();
                    (!facts.is_empty()).then_some(ReportFacts { node: *node, facts })
                })
                .collect()
        });
        let mut reached = 0;
        for report in reports {
            number += 1;
            let answer = commands.submit(envelope(number, Command::ReportFacts(report))).await;
            match answer {
                Ok(answer) => reached = answer.sequence,
                Err(_) if shutdown.is_cancelled() => return,
                Err(error) => panic!("{error}"),
            }
        }
        view.wait_for(reached, PATIENCE).await;
        if view.progress().borrow().sequence > reached && reached > 0 {
            continue;
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = progress.changed() => if changed.is_err() { return },
            // tidy: waits for what the state shows without a record, such as time passing
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
}

fn facts_for(instance: &Instance, work: Work, start: bool) -> Vec<InstanceFact> {
    let fact = |body| InstanceFact {
        instance: instance.id,
        age: Span::ZERO,
        body,
    };
    match (work, instance.state) {
        (Work::Run, InstanceState::Placed) if start => {
            vec![fact(started(instance.id.bits() as u32)), fact(ready())]
        }
        (Work::Stop, _) => vec![fact(FactBody::Stopped { killed: false })],
        _ => vec![],
    }
}
