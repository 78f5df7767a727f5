//! Workers: inside `up`, or as a process of their own (`worker`).
//!
//! Both start the same cores on the same kit. A worker needs a view of the ledger, a way to submit commands and the
//! observations; on NATS all three are there without a `server` in the process.

use std::sync::Arc;

use tidemill_bus::commands::Commands;
use tidemill_bus::remote::RemoteCommands;
use tidemill_bus::sequencer::snapshots_path;
use tidemill_bus::snapshots::SnapshotStore;
use tidemill_bus::view::StateView;
use tidemill_evidence::Evidence;
use tidemill_failover::Failover;
use tidemill_kit::{Setup, WorkerHandle, WorkerStatus, spawn};
use tidemill_scheduler::Scheduler;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::store::{self, JetStreamOptions, Store};
use super::{WorkerName, WorkerOptions, until_told_to_end};
use crate::exit::{CliError, Exit};
use crate::output::note;

/// Running workers.
pub struct Workers {
    handles: Vec<WorkerHandle>,
    stop: CancellationToken,
}

impl Workers {
    /// Starts these, as `holder`.
    pub fn start(
        names: &[WorkerName],
        holder: &str,
        view: &Arc<StateView>,
        commands: Arc<dyn Commands>,
        store: &Store,
    ) -> Self {
        let stop = CancellationToken::new();
        let setup = Setup {
            view: view.clone(),
            commands,
            observations: store.observations.clone(),
            holder: holder.to_owned(),
        };
        let start = |name: &WorkerName| match name {
            WorkerName::Scheduler => spawn(Scheduler::default(), setup.clone(), stop.clone()),
            WorkerName::Failover => spawn(Failover::default(), setup.clone(), stop.clone()),
            WorkerName::Evidence => spawn(Evidence::default(), setup.clone(), stop.clone()),
        };
        let handles = names.iter().map(start).collect();
        Self { handles, stop }
    }

    /// How each is doing.
    pub fn statuses(&self) -> Vec<watch::Receiver<WorkerStatus>> {
        self.handles.iter().map(|handle| handle.status.clone()).collect()
    }

    /// Ends them.
    pub async fn stop(self) {
        self.stop.cancel();
        for handle in self.handles {
            handle.ended().await;
        }
    }
}

/// Runs workers as a process of their own until told to end.
pub async fn worker(options: WorkerOptions) -> Result<(), CliError> {
    let shutdown = until_told_to_end()?;
    let urls = options.nats.ok_or_else(|| {
        CliError::usage(
            "workers of their own need a ledger they can reach",
            "give --nats; with the embedded ledger they run inside `tidemill up`",
        )
    })?;
    let _lock = store::lock_dir(&options.data)?;
    let jetstream = JetStreamOptions {
        urls,
        monitors: Vec::new(),
        replicas: 1,
        cell: options.cell,
    };
    let store = store::open_jetstream(&options.data, &jetstream, false).await?;
    let holder = store::stable_name(&options.data, "worker")?;
    let transport = store.transport.clone().expect("JetStream stores come with a transport");
    let genesis = store.ledger.genesis().clone();
    let snapshots = SnapshotStore::open(&snapshots_path(&options.data), &genesis)
        .map_err(|e| CliError::new(Exit::Error, e.code(), e.to_string(), "check the data directory"))?;
    let stop_reading = CancellationToken::new();
    let view = StateView::start(store.ledger.clone(), Some(snapshots), stop_reading.clone())
        .await
        .map_err(|e| {
            CliError::new(
                Exit::Error,
                e.code(),
                e.to_string(),
                "run `tidemill verify` on this ledger",
            )
        })?;
    let commands: Arc<dyn Commands> = Arc::new(RemoteCommands::new(&transport));
    let workers = Workers::start(&options.names, &holder, &view, commands, &store);
    let names: Vec<&str> = options.names.iter().map(|name| name.as_str()).collect();
    note(&format!("{holder} runs {}", names.join(", ")));
    shutdown.cancelled().await;
    workers.stop().await;
    stop_reading.cancel();
    Ok(())
}
