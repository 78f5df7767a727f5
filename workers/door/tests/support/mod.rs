//! A cell in memory with a door before it: the real ledger trait, sequencer, view and door, and answers folded from the
//! ledger in place of read models.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tidemill_bus::commands::{Answer, Commands, SubmitError};
use tidemill_bus::identity::{CellName, Genesis, LedgerId};
use tidemill_bus::ledger::Ledger;
use tidemill_bus::memory::MemoryLedger;
use tidemill_bus::observations::{MemoryObservations, ObservationLimits, Observations};
use tidemill_bus::record::{CommitSlot, Record};
use tidemill_bus::sequencer::{Candidate, CandidateHandle, SequencerConfig, SequencerMetrics};
use tidemill_bus::view::StateView;
use tidemill_client::{Api, Token};
use tidemill_domain::command::{Command, Envelope};
use tidemill_domain::commit::{Actor, Cause, Commit};
use tidemill_domain::id::CommandId;
use tidemill_domain::state::State;
use tidemill_door::reads::{EventPage, EventQuery, ListKind, ListQuery, Point, Reads, ReadsError, ShowQuery};
use tidemill_door::{Check, Door, DoorConfig, DoorDeps, Health, Limits};
use tidemill_kit::observation::{Body, Seen};
use tidemill_projections::history::fold_rows;
use tidemill_projections::rows;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// Longest wait for anything.
pub const SOON: Duration = Duration::from_secs(10);

pub async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(SOON, future).await.expect("within ten seconds")
}

/// The cell.
pub struct Cell {
    pub handle: CandidateHandle,
    pub view: Arc<StateView>,
    pub observations: Arc<MemoryObservations>,
    pub commands: Arc<Faulty>,
    pub url: String,
    pub deps: DoorDeps,
    shutdown: CancellationToken,
    stop_door: CancellationToken,
    serving: Option<tokio::task::JoinHandle<()>>,
}

/// The sequencer with failures before it.
pub struct Faulty {
    inner: CandidateHandle,
    /// Errors to answer with first; true = the command is carried out all the same.
    pub faults: Mutex<Vec<(SubmitError, bool)>>,
    pub asked: Mutex<Vec<Envelope>>,
}

#[async_trait]
impl Commands for Faulty {
    async fn submit(&self, envelope: Envelope) -> Result<Answer, SubmitError> {
        self.asked.lock().await.push(envelope.clone());
        let fault = {
            let mut faults = self.faults.lock().await;
            (!faults.is_empty()).then(|| faults.remove(0))
        };
        match fault {
            Some((error, carried_out)) => {
                if carried_out {
                    self.inner.submit(envelope).await?;
                }
                Err(error)
            }
            None => self.inner.submit(envelope).await,
        }
    }
}

struct Well(CandidateHandle);

impl Health for Well {
    fn role(&self) -> String {
        "leader".to_owned()
    }

    fn checks(&self) -> Vec<Check> {
        vec![]
    }

    fn sequencer(&self) -> Option<SequencerMetrics> {
        Some(self.0.metrics())
    }
}

impl Cell {
    pub async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(configure: impl FnOnce(&mut DoorConfig)) -> Self {
        let genesis = Genesis::new(CellName::new("test").unwrap(), LedgerId::generate());
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryLedger::create(genesis));
        let shutdown = CancellationToken::new();
        let config = SequencerConfig::in_memory("test-server");
        let handle = Candidate::start(config, Arc::clone(&ledger), None, shutdown.clone()).unwrap();
        assert!(handle.wait_until_leading(SOON).await);
        let view = StateView::start(Arc::clone(&ledger), None, shutdown.clone())
            .await
            .unwrap();
        assert!(view.wait_for(1, SOON).await);
        let observations = Arc::new(MemoryObservations::new(ObservationLimits::default()));
        let commands = Arc::new(Faulty {
            inner: handle.clone(),
            faults: Mutex::default(),
            asked: Mutex::default(),
        });
        let mut config = DoorConfig::new("door-a", "127.0.0.1:0".parse().unwrap());
        config.limits = Limits {
            shutdown_grace: Duration::from_secs(2),
            submit_patience: Duration::from_secs(3),
            ..Limits::default()
        };
        configure(&mut config);
        let deps = DoorDeps {
            commands: commands.clone(),
            view: view.clone(),
            observations: observations.clone(),
            reads: Arc::new(Folded {
                ledger: Arc::clone(&ledger),
                view: view.clone(),
            }),
            ledger,
            health: Arc::new(Well(handle.clone())),
        };
        let door = Door::bind(config, deps.clone()).await.unwrap();
        let url = format!("http://{}", door.local_addr());
        let stop_door = CancellationToken::new();
        let serving = tokio::spawn(door.serve(stop_door.clone()));
        Self {
            handle,
            view,
            observations,
            commands,
            url,
            deps,
            shutdown,
            stop_door,
            serving: Some(serving),
        }
    }

    pub fn api(&self, token: Option<&str>) -> Api {
        let token = token.map(|text| Token::new(text).unwrap());
        Api::new(vec![self.url.parse().unwrap()], token)
    }

    /// Asks the sequencer directly and waits until the view shows it.
    pub async fn submit(&self, command: Command) -> Answer {
        let envelope = Envelope {
            id: CommandId(*uuid::Uuid::now_v7().as_bytes()),
            actor: Actor::Local,
            cause: Cause::Request,
            trace: None,
            command,
        };
        let answer = self.handle.submit(envelope).await.unwrap();
        assert!(self.view.wait_for(answer.sequence, SOON).await);
        answer
    }

    /// Waits until the state is as `wanted` says.
    pub async fn until<T>(&self, wanted: impl Fn(&State) -> Option<T>) -> T {
        let mut progress = self.view.progress();
        let wait = async {
            loop {
                progress.borrow_and_update();
                if let Some(found) = self.view.read(&wanted) {
                    return found;
                }
                progress.changed().await.unwrap();
            }
        };
        soon(wait).await
    }

    /// Everything heard so far that is no door's beat, waiting until `enough`.
    pub async fn heard(&self, enough: impl Fn(&[Body]) -> bool) -> Vec<Body> {
        let mut follow = self.observations.follow(1).await.unwrap();
        let mut bodies = Vec::new();
        let wait = async {
            while !enough(&bodies) {
                for stored in follow.next_batch(64).await.unwrap() {
                    let (seen, errors) = Seen::of_block(stored.sequence, &stored.decode().unwrap());
                    assert!(errors.is_empty(), "{errors:?}");
                    bodies.extend(
                        seen.into_iter()
                            .map(|seen| seen.body)
                            .filter(|body| *body != Body::DoorBeat),
                    );
                }
            }
        };
        soon(wait).await;
        bodies
    }

    /// Makes a token; its id and text.
    pub async fn token(&self, body: Value) -> (String, String) {
        let answer: Value = self.api(None).post_json("/v1/tokens", &body, &key()).await.unwrap();
        let sequence = answer["sequence"].as_u64().unwrap();
        assert!(self.view.wait_for(sequence, SOON).await);
        (
            answer["id"].as_str().unwrap().to_owned(),
            answer["token"].as_str().unwrap().to_owned(),
        )
    }

    /// Ends the door in order and waits for it.
    pub async fn stop_door(&mut self) {
        self.stop_door.cancel();
        soon(self.serving.take().unwrap()).await.unwrap();
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        self.stop_door.cancel();
        self.shutdown.cancel();
    }
}

pub fn key() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// A service that runs anything.
pub fn service(tenant: &str, name: &str) -> String {
    format!("kind: service\ntenant: {tenant}\nname: {name}\nrun: {{command: [serve]}}\n")
}

/// Answers folded from the ledger.
struct Folded {
    ledger: Arc<dyn Ledger>,
    view: Arc<StateView>,
}

fn json(row: impl serde::Serialize) -> Value {
    serde_json::to_value(row).unwrap()
}

#[async_trait]
impl Reads for Folded {
    async fn list(&self, kind: ListKind, query: ListQuery) -> Result<Vec<Value>, ReadsError> {
        assert_eq!(query.point, Point::Latest);
        let tenant = query.tenant.as_ref().map(ToString::to_string);
        let mut rows: Vec<Value> = self.view.read(|s| match kind {
            ListKind::Nodes => s
                .nodes
                .keys()
                .filter_map(|id| rows::node_row(s, *id))
                .map(json)
                .collect(),
            ListKind::Devices => s
                .devices
                .keys()
                .filter_map(|id| rows::device_row(s, *id))
                .map(json)
                .collect(),
            ListKind::Services => s
                .services
                .keys()
                .filter_map(|id| rows::service_row(s, *id))
                .map(json)
                .collect(),
            ListKind::Instances => s
                .instances
                .keys()
                .filter_map(|id| rows::instance_row(s, *id))
                .map(json)
                .collect(),
            ListKind::Queue | ListKind::Switches => vec![],
        });
        if let (Some(tenant), ListKind::Services) = (tenant, kind) {
            rows.retain(|row| row["tenant"] == tenant.as_str());
        }
        Ok(rows)
    }

    async fn pool(&self, _: Point) -> Result<Value, ReadsError> {
        Ok(self.view.read(|s| json(rows::pool_row(s))))
    }

    async fn status(&self, query: ShowQuery) -> Result<Value, ReadsError> {
        let rows = self
            .list(
                ListKind::Services,
                ListQuery {
                    tenant: query.tenant,
                    ..ListQuery::default()
                },
            )
            .await?;
        let found = rows.into_iter().find(|row| row["name"] == query.id.as_str());
        found.ok_or(ReadsError::NotFound { id: query.id })
    }

    async fn explain(&self, query: ShowQuery) -> Result<Value, ReadsError> {
        self.status(query).await
    }

    async fn events(&self, query: EventQuery) -> Result<EventPage, ReadsError> {
        let mut state = State::default();
        let mut page = EventPage::default();
        for raw in self.ledger.read(1, usize::MAX, usize::MAX).await.unwrap() {
            let record = Record::decode(&raw.body).unwrap();
            let commits: Vec<Commit> = record
                .commits
                .iter()
                .map(|slot| match slot {
                    CommitSlot::Full(bytes) => Commit::decode(bytes).unwrap(),
                    CommitSlot::StandIn(_) => panic!("a live ledger has every commit"),
                })
                .collect();
            let mut rows = Vec::new();
            fold_rows(&mut state, raw.sequence, &commits, |row, told| rows.push((row, told))).unwrap();
            for (row, told) in rows {
                let after = (query.after, query.index.unwrap_or(u32::MAX));
                let own = query.tenant.is_none() || told.tenant == query.tenant;
                if (row.seq, row.index) > after && own && page.rows.len() < query.limit {
                    page.rows.push(json(row));
                }
            }
            page.through = raw.sequence;
        }
        Ok(page)
    }

    fn applied(&self) -> u64 {
        self.view.progress().borrow().sequence
    }

    async fn wait_for(&self, sequence: u64, timeout: Duration) -> bool {
        self.view.wait_for(sequence, timeout).await
    }

    fn problem(&self) -> Option<String> {
        None
    }
}
