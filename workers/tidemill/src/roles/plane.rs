//! The control plane's part of a process: sequencer candidate, view, read models, door.
//!
//! `up` and `server` run the same one, over the embedded ledger or JetStream. Parts start in the order in which they
//! need each other and end in the opposite order: first nobody new is let in, then what was let in is answered, then
//! the checkpoint is written.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidemill_bus::sequencer::{Candidate, CandidateHandle, CandidateStatus, Role, SequencerConfig, SequencerMetrics};
use tidemill_bus::view::{StateView, ViewHealth};
use tidemill_door::{Check, CheckState, Door, DoorConfig, DoorDeps, Health};
use tidemill_kit::WorkerStatus;
use tidemill_projections::engine::{Projector, ProjectorConfig};
use tidemill_projections::travel::TimeTravel;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::reads::Answers;
use super::store::Store;
use crate::exit::{CliError, Exit};

/// A running control plane without its door.
pub struct Plane {
    /// The sequencer of this process.
    pub candidate: CandidateHandle,
    /// The state.
    pub view: Arc<StateView>,
    projector: Projector,
    stop_writing: CancellationToken,
    stop_reading: CancellationToken,
}

fn failed(code: &str, error: &dyn std::fmt::Display, next: &str) -> CliError {
    CliError::new(Exit::Error, code, error.to_string(), next)
}

impl Plane {
    /// Starts everything over `store`, keeping checkpoint, snapshots and read models in `data`.
    pub async fn start(name: &str, data: &Path, store: &Store) -> Result<Self, CliError> {
        let (stop_writing, stop_reading) = (CancellationToken::new(), CancellationToken::new());
        let genesis = store.ledger.genesis().clone();
        let config = SequencerConfig::in_directory(name, data, &genesis)
            .map_err(|e| failed(e.code(), &e, "check the data directory's owner, mode and disk"))?;
        let snapshots = config.snapshots.clone();
        let candidate = Candidate::start(
            config,
            store.ledger.clone(),
            store.transport.clone(),
            stop_writing.clone(),
        )
        .map_err(|e| failed(e.code(), &e, "check the limits of the process"))?;
        let view = StateView::start(store.ledger.clone(), snapshots, stop_reading.clone())
            .await
            .map_err(|e| failed(e.code(), &e, "run `tidemill verify` on this ledger"))?;
        let projector = Projector::start(
            store.ledger.clone(),
            ProjectorConfig::in_dir(data),
            stop_reading.clone(),
        )
        .await
        .map_err(|e| failed("read_models_failed", &e, "check the data directory's disk"))?;
        Ok(Self {
            candidate,
            view,
            projector,
            stop_writing,
            stop_reading,
        })
    }

    /// A door before this plane. `workers` are those of this process.
    pub async fn door(
        &self,
        name: &str,
        listen: SocketAddr,
        store: &Store,
        workers: Vec<watch::Receiver<WorkerStatus>>,
    ) -> Result<Door, CliError> {
        let models = self.projector.models();
        let travel = TimeTravel::new(store.ledger.clone(), vec![Arc::new(models.clone())]);
        let health = PlaneHealth {
            status: self.candidate.status(),
            candidate: self.candidate.clone(),
            view: self.view.clone(),
            workers,
        };
        let deps = DoorDeps {
            commands: Arc::new(self.candidate.clone()),
            view: self.view.clone(),
            observations: store.observations.clone(),
            reads: Arc::new(Answers::new(models, travel, self.view.clone())),
            ledger: store.ledger.clone(),
            health: Arc::new(health),
        };
        Door::bind(DoorConfig::new(name, listen), deps)
            .await
            .map_err(|e| failed(e.code(), &e, e.next()))
    }

    /// Waits until commands are taken (here or elsewhere) and the state shown is the ledger's.
    pub async fn ready(&self, patience: Duration) -> bool {
        let mut status = self.candidate.status();
        let settled = |s: &CandidateStatus| matches!(s.role, Role::Leader | Role::Standby);
        let Ok(Ok(sequence)) = tokio::time::timeout(patience, status.wait_for(settled))
            .await
            .map(|r| r.map(|s| s.sequence))
        else {
            return false;
        };
        self.view.wait_for(sequence, patience).await
    }

    /// Ends in order: the sequencer answers what it took, then the readers stop.
    pub async fn stop(self) {
        self.stop_writing.cancel();
        self.candidate.ended().await;
        self.stop_reading.cancel();
        self.projector.stopped().await;
    }
}

/// Serves a door in the background.
pub fn serve(door: Door) -> (CancellationToken, JoinHandle<()>) {
    let stop = CancellationToken::new();
    let serving = tokio::spawn(door.serve(stop.clone()));
    (stop, serving)
}

struct PlaneHealth {
    status: watch::Receiver<CandidateStatus>,
    candidate: CandidateHandle,
    view: Arc<StateView>,
    workers: Vec<watch::Receiver<WorkerStatus>>,
}

impl PlaneHealth {
    fn leadership(&self) -> Check {
        let status = self.status.borrow();
        let detail = format!(
            "epoch {}, led by {}, at sequence {}, {} commands wait",
            status.epoch,
            status.leader,
            status.sequence,
            self.candidate.waiting()
        );
        match &status.role {
            Role::Leader | Role::Standby => Check::ok("sequencer", detail),
            Role::ReadOnly { code, reason, next } => {
                Check::new("sequencer", CheckState::Fail, code, reason.clone(), next.clone())
            }
            Role::Starting | Role::Stopped => {
                let code = if status.role == Role::Starting {
                    "starting"
                } else {
                    "stopped"
                };
                Check::new("sequencer", CheckState::Fail, code, detail, "wait a few seconds")
            }
        }
    }

    fn view(&self) -> Check {
        match &*self.view.health().borrow() {
            ViewHealth::Live => Check::ok("view", "it follows the ledger"),
            ViewHealth::Stopped(error) => Check::new(
                "view",
                CheckState::Fail,
                error.code(),
                error.to_string(),
                error.next_step(),
            ),
        }
    }
}

impl Health for PlaneHealth {
    fn role(&self) -> String {
        match &self.status.borrow().role {
            Role::Leader => "leader",
            Role::Standby => "standby",
            Role::ReadOnly { .. } => "read_only",
            Role::Starting => "starting",
            Role::Stopped => "stopped",
        }
        .to_owned()
    }

    fn checks(&self) -> Vec<Check> {
        let mut checks = vec![self.leadership(), self.view()];
        for worker in &self.workers {
            let status = worker.borrow();
            let name = format!("worker_{}", status.role);
            checks.push(match &status.state {
                tidemill_kit::WorkerState::Holding | tidemill_kit::WorkerState::Waiting { .. } => {
                    Check::ok(&name, status.state.to_string())
                }
                state => Check::new(
                    &name,
                    CheckState::Warn,
                    state.name(),
                    status.last_error.clone().unwrap_or_else(|| state.to_string()),
                    "it tries again by itself; see the log if it stays so",
                ),
            });
        }
        checks
    }

    fn sequencer(&self) -> Option<SequencerMetrics> {
        Some(self.candidate.metrics())
    }
}
