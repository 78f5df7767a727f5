//! Reading the read models.
//!
//! Every query runs in one read transaction and says which record its rows are of, so that a page never mixes two
//! moments. Connections are read-only and few; whoever asks waits for one asynchronously, and the query itself runs on
//! a blocking thread. Writers and readers do not wait for each other (WAL).

mod events;
mod find;
mod lists;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use tidemill_bus::digest::{Anchor, Digest};
use tokio::sync::{Semaphore, watch};

use crate::engine::snapshots::{Snapshot, SnapshotSource};
use crate::engine::{Progress, snapshots};
use crate::filter::{EventFilter, Filter, FilterError, Page};
use crate::history::EventRow;
use crate::resolve::Resolution;
use crate::rows::{DeviceRow, InstanceRow, NodeRow, PoolRow, QueueRow, ServiceRow, SwitchRow};

/// Connections at a time. Reading is short; more would only spread the page cache thinner.
const CONNECTIONS: usize = 4;

/// A query that has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The list cannot be narrowed so.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// The page mark was not given out by this list.
    #[error("`{0}` is not a page mark")]
    BadPage(String),
    /// The file cannot be read.
    #[error("the read models' file: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A stored row cannot be read: the file was written by another release and is about to be built again.
    #[error("a stored row cannot be read: {0}")]
    Row(#[from] serde_json::Error),
    /// A stored event cannot be read.
    #[error("a stored event cannot be read: {0}")]
    Event(#[from] tidemill_domain::events::DecodeError),
    /// The program is ending.
    #[error("the program is shutting down")]
    ShuttingDown,
}

impl QueryError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            QueryError::Filter(error) => error.code(),
            QueryError::BadPage(_) => "bad_page",
            QueryError::Sqlite(_) | QueryError::Row(_) | QueryError::Event(_) => "read_models_file",
            QueryError::ShuttingDown => "shutting_down",
        }
    }

    /// What to do about it.
    pub fn next(&self) -> &'static str {
        match self {
            QueryError::Filter(error) => error.next(),
            QueryError::BadPage(_) => "begin again without it",
            QueryError::Sqlite(_) | QueryError::Row(_) | QueryError::Event(_) => {
                "try again; if it stays so, delete the read models' file, it is built again from the ledger"
            }
            QueryError::ShuttingDown => "ask another server",
        }
    }
}

/// The tables, for reading. Clones share the connections.
#[derive(Clone)]
pub struct ReadModels {
    shared: Arc<Shared>,
    progress: Option<watch::Receiver<Progress>>,
}

struct Shared {
    path: PathBuf,
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
    /// Counts how often the file may have been replaced: older connections are not used again.
    epoch: AtomicU64,
}

impl ReadModels {
    /// The tables in a data directory in which a server keeps them, without following anything.
    pub fn open(dir: &Path) -> Result<Self, QueryError> {
        let path = crate::engine::ProjectorConfig::in_dir(dir).path;
        let models = Self::at(path, None);
        models.shared.with(|_| Ok(()))?;
        Ok(models)
    }

    pub(crate) fn following(path: PathBuf, progress: watch::Receiver<Progress>) -> Self {
        Self::at(path, Some(progress))
    }

    fn at(path: PathBuf, progress: Option<watch::Receiver<Progress>>) -> Self {
        let shared = Shared {
            path,
            permits: Arc::new(Semaphore::new(CONNECTIONS)),
            idle: Mutex::new(Vec::new()),
            epoch: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
            progress,
        }
    }

    pub(crate) fn file_changed(&self) {
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        self.shared.idle().clear();
    }

    /// Where the tables stand, as it changes; none unless an engine in this process feeds them.
    pub fn progress(&self) -> Option<watch::Receiver<Progress>> {
        self.progress.clone()
    }

    /// The record that the tables are of now.
    pub async fn anchor(&self) -> Result<Anchor, QueryError> {
        self.query(cursor).await
    }

    /// Waits until the tables hold record `sequence`; false if they do not within `timeout`, or if nothing feeds them.
    pub async fn wait_for(&self, sequence: u64, timeout: Duration) -> bool {
        let Some(mut progress) = self.progress.clone() else {
            return self.anchor().await.is_ok_and(|anchor| anchor.sequence >= sequence);
        };
        let reached = progress.wait_for(|p| p.sequence >= sequence);
        matches!(tokio::time::timeout(timeout, reached).await, Ok(Ok(_)))
    }

    /// `nodes`.
    pub async fn nodes(&self, filter: Filter) -> Result<Page<NodeRow>, QueryError> {
        self.query(move |conn| lists::nodes(conn, &filter)).await
    }

    /// `devices`.
    pub async fn devices(&self, filter: Filter) -> Result<Page<DeviceRow>, QueryError> {
        self.query(move |conn| lists::devices(conn, &filter)).await
    }

    /// `services`, without addresses ([`ServiceRow::with_gateway`]).
    pub async fn services(&self, filter: Filter) -> Result<Page<ServiceRow>, QueryError> {
        self.query(move |conn| lists::services(conn, &filter)).await
    }

    /// `instances`.
    pub async fn instances(&self, filter: Filter) -> Result<Page<InstanceRow>, QueryError> {
        self.query(move |conn| lists::instances(conn, &filter)).await
    }

    /// `queue`.
    pub async fn queue(&self, filter: Filter) -> Result<Page<QueueRow>, QueryError> {
        self.query(move |conn| lists::queue(conn, &filter)).await
    }

    /// `switches`, those closed long ago too.
    pub async fn switches(&self, filter: Filter) -> Result<Page<SwitchRow>, QueryError> {
        self.query(move |conn| lists::switches(conn, &filter)).await
    }

    /// `pool`, and the record it is of.
    pub async fn pool(&self) -> Result<(PoolRow, Anchor), QueryError> {
        self.query(lists::pool).await
    }

    /// `events`, oldest first.
    pub async fn events(&self, filter: EventFilter) -> Result<Page<EventRow>, QueryError> {
        self.query(move |conn| events::events(conn, &filter)).await
    }

    /// What people mean by `text`: as [`crate::resolve::resolve`], and if the state does not know it, among what is
    /// over.
    pub async fn resolve(&self, text: &str) -> Result<Resolution, QueryError> {
        let text = text.to_owned();
        self.query(move |conn| find::resolve(conn, &text)).await
    }

    async fn query<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, QueryError> + Send + 'static,
    ) -> Result<T, QueryError> {
        // The permit's semaphore is never closed.
        let permit = self.shared.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|_| QueryError::ShuttingDown)?;
        let shared = self.shared.clone();
        let answer = tokio::task::spawn_blocking(move || {
            let answer = shared.with(work);
            drop(permit);
            answer
        });
        answer.await.map_err(|_| QueryError::ShuttingDown)?
    }
}

impl SnapshotSource for ReadModels {
    fn nearest(&self, sequence: u64) -> Option<Snapshot> {
        let found = self.shared.with(|conn| Ok(snapshots::nearest(conn, sequence)?));
        found
            .inspect_err(|error| tracing::debug!(%error, "no snapshot can be read"))
            .ok()?
    }
}

impl Shared {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` in a read transaction.
    fn with<T>(&self, work: impl FnOnce(&Connection) -> Result<T, QueryError>) -> Result<T, QueryError> {
        let epoch = self.epoch.load(Ordering::SeqCst);
        let idle = self.idle().pop();
        let conn = match idle {
            Some(conn) => conn,
            None => {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
                let conn = Connection::open_with_flags(&self.path, flags)?;
                conn.busy_timeout(Duration::from_secs(5))?;
                conn.set_prepared_statement_cache_capacity(64);
                conn
            }
        };
        let tx = conn.unchecked_transaction()?;
        let answer = work(&tx)?;
        tx.finish()?;
        if self.epoch.load(Ordering::SeqCst) == epoch {
            self.idle().push(conn);
        }
        Ok(answer)
    }
}

/// The record that the tables are of.
fn cursor(conn: &Connection) -> Result<Anchor, QueryError> {
    let row = conn
        .prepare_cached("SELECT sequence, hash FROM cursor")?
        .query_row([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 32]>(1)?)))
        .optional()?;
    let (sequence, hash) = row.unwrap_or((0, [0; 32]));
    Ok(Anchor {
        sequence: sequence.cast_unsigned(),
        hash: Digest(hash),
    })
}
