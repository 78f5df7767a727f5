//! Observations in a SQLite file. One thread writes what has queued up as one transaction, without syncing each.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, params};
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    Block, Bounds, FollowObservations, ObservationLimits, Observations, ObservationsError, StoredBlock, encode_checked,
};
use crate::ledger::OpenError;

const SCHEMA: &str = include_str!("../../../migrations/observations/0001.sql");

/// Doors have few blocks in flight.
const QUEUE: usize = 64;

/// Rows pruned in one transaction, so that pruning never holds up publishing for long.
const PRUNE_CHUNK: u64 = 64;

const BUSY: Duration = Duration::from_secs(5);

const FOLLOW_BYTES: usize = 4 << 20;

type Answer = oneshot::Sender<Result<u64, ObservationsError>>;

struct Publish {
    received_at: i64,
    body: Bytes,
    answer: Answer,
}

/// Observations in a SQLite file. Cloning is cheap; the file is written by one process (the one that holds the ledger).
#[derive(Clone)]
pub struct EmbeddedObservations {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Option<mpsc::Sender<Publish>>,
    reader: Mutex<Connection>,
    bounds: watch::Receiver<Bounds>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl EmbeddedObservations {
    /// Opens the file, creating it if there is none: observations are expendable. Blocks on the disk.
    pub fn open(path: &Path, limits: ObservationLimits) -> Result<Self, OpenError> {
        let failed = |reason: String| OpenError::Unavailable {
            place: path.display().to_string(),
            reason,
        };
        let open = || -> rusqlite::Result<(State, Connection)> {
            let connection = Connection::open(path)?;
            connection.busy_timeout(BUSY)?;
            connection.pragma_update(None, "page_size", 8192)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
            if version == 0 {
                connection.execute_batch(&format!("BEGIN; {SCHEMA} PRAGMA user_version = 1; COMMIT"))?;
            }
            let bounds = load_bounds(&connection)?;
            let newest =
                connection.query_row("SELECT COALESCE(MAX(received_at), 0) FROM block", [], |row| row.get(0))?;
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let reader = Connection::open_with_flags(path, flags)?;
            reader.busy_timeout(BUSY)?;
            Ok((
                State {
                    connection,
                    limits,
                    bounds,
                    newest,
                },
                reader,
            ))
        };
        let (state, reader) = open().map_err(|error| failed(error.to_string()))?;
        let (queue, inbox) = mpsc::channel(QUEUE);
        let (sender, bounds) = watch::channel(state.bounds);
        let thread = std::thread::Builder::new()
            .name("observations".to_owned())
            .spawn(move || state.run(inbox, &sender))
            .map_err(|error| failed(error.to_string()))?;
        let shared = Shared {
            queue: Some(queue),
            reader: Mutex::new(reader),
            bounds,
            thread: Some(thread),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

fn load_bounds(connection: &Connection) -> rusqlite::Result<Bounds> {
    let query = "SELECT COALESCE(MIN(sequence), 0), COALESCE(SUM(LENGTH(body)), 0), \
                 COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'block'), 0) FROM block";
    connection.query_row(query, [], |row| {
        let (first, bytes, last): (u64, u64, u64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Bounds {
            first: if first == 0 { last + 1 } else { first },
            last,
            bytes,
        })
    })
}

fn unavailable(error: impl ToString) -> ObservationsError {
    ObservationsError::Unavailable {
        reason: error.to_string(),
    }
}

struct State {
    connection: Connection,
    limits: ObservationLimits,
    bounds: Bounds,
    newest: i64,
}

impl State {
    fn run(mut self, mut inbox: mpsc::Receiver<Publish>, bounds: &watch::Sender<Bounds>) {
        let mut group = Vec::new();
        loop {
            if inbox.blocking_recv_many(&mut group, QUEUE) == 0 {
                return;
            }
            let before = (self.bounds, self.newest);
            match self.write(&group) {
                Ok(first) => {
                    bounds.send_replace(self.bounds);
                    for (sequence, publish) in (first..).zip(group.drain(..)) {
                        let _ = publish.answer.send(Ok(sequence));
                    }
                }
                Err(error) => {
                    (self.bounds, self.newest) = before;
                    for publish in group.drain(..) {
                        let _ = publish.answer.send(Err(unavailable(&error)));
                    }
                }
            }
        }
    }

    /// Stores the group and prunes a chunk, all or nothing. Returns the group's first sequence.
    fn write(&mut self, group: &[Publish]) -> rusqlite::Result<u64> {
        let first = self.bounds.last + 1;
        let transaction = self.connection.transaction()?;
        {
            let insert = "INSERT INTO block (sequence, received_at, body) VALUES (?1, ?2, ?3)";
            let mut insert = transaction.prepare_cached(insert)?;
            for publish in group {
                self.bounds.last += 1;
                self.bounds.bytes += publish.body.len() as u64;
                self.newest = self.newest.max(publish.received_at);
                insert.execute(params![self.bounds.last, self.newest, publish.body.as_ref()])?;
            }
            let oldest_kept = self.limits.oldest_kept(self.newest);
            let mut oldest =
                transaction.prepare_cached("SELECT received_at, LENGTH(body) FROM block WHERE sequence = ?1")?;
            // At least as many as came in, or a burst would never be caught up with.
            let mut end = self.bounds.first;
            for _ in 0..PRUNE_CHUNK.max(2 * group.len() as u64) {
                if end == self.bounds.last {
                    break;
                }
                let (at, size): (i64, u64) = oldest.query_row([end], |row| Ok((row.get(0)?, row.get(1)?)))?;
                if at >= oldest_kept && self.bounds.bytes <= self.limits.max_bytes {
                    break;
                }
                self.bounds.bytes -= size;
                end += 1;
            }
            if end > self.bounds.first {
                transaction
                    .prepare_cached("DELETE FROM block WHERE sequence < ?1")?
                    .execute([end])?;
                self.bounds.first = end;
            }
        }
        transaction.commit()?;
        Ok(first)
    }
}

impl Shared {
    fn read(&self, from: u64, max_blocks: usize, max_bytes: usize) -> Result<Vec<StoredBlock>, ObservationsError> {
        let connection = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let query = "SELECT sequence, body FROM block WHERE sequence >= ?1 ORDER BY sequence LIMIT ?2";
        let mut statement = connection.prepare_cached(query).map_err(unavailable)?;
        let limit = i64::try_from(max_blocks.max(1)).unwrap_or(i64::MAX);
        let mut rows = statement.query(params![from, limit]).map_err(unavailable)?;
        let mut out: Vec<StoredBlock> = Vec::new();
        let mut left = max_bytes;
        while let Some(row) = rows.next().map_err(unavailable)? {
            let bytes = row
                .get_ref(1)
                .and_then(|value| value.as_blob().map_err(Into::into))
                .map_err(unavailable)?;
            if !out.is_empty() && bytes.len() > left {
                break;
            }
            left = left.saturating_sub(bytes.len());
            out.push(StoredBlock {
                sequence: row.get(0).map_err(unavailable)?,
                body: Bytes::copy_from_slice(bytes),
            });
        }
        Ok(out)
    }
}

#[async_trait]
impl Observations for EmbeddedObservations {
    async fn publish(&self, block: &Block) -> Result<u64, ObservationsError> {
        let body = encode_checked(block)?;
        let ended = || unavailable("the writing thread ended");
        let (answer, answered) = oneshot::channel();
        let queue = self.shared.queue.as_ref().ok_or_else(ended)?;
        let received_at = block.newest().unwrap_or(i64::MIN);
        queue
            .send(Publish {
                received_at,
                body,
                answer,
            })
            .await
            .map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }

    async fn read(
        &self,
        from: u64,
        max_blocks: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredBlock>, ObservationsError> {
        let shared = Arc::clone(&self.shared);
        let read = tokio::task::spawn_blocking(move || shared.read(from, max_blocks, max_bytes));
        read.await.map_err(unavailable)?
    }

    async fn follow(&self, from: u64) -> Result<Box<dyn FollowObservations>, ObservationsError> {
        let bounds = self.shared.bounds.clone();
        let next = from.min(bounds.borrow().last + 1);
        Ok(Box::new(Position {
            store: self.clone(),
            next,
            bounds,
        }))
    }

    async fn bounds(&self) -> Result<Bounds, ObservationsError> {
        Ok(*self.shared.bounds.borrow())
    }
}

struct Position {
    store: EmbeddedObservations,
    next: u64,
    bounds: watch::Receiver<Bounds>,
}

#[async_trait]
impl FollowObservations for Position {
    async fn next_batch(&mut self, max: usize) -> Result<Vec<StoredBlock>, ObservationsError> {
        loop {
            self.bounds.borrow_and_update();
            let batch = self.store.read(self.next, max, FOLLOW_BYTES).await?;
            if let Some(last) = batch.last() {
                self.next = last.sequence + 1;
                return Ok(batch);
            }
            self.bounds
                .changed()
                .await
                .map_err(|_| unavailable("the writing thread ended"))?;
        }
    }

    fn next_sequence(&self) -> u64 {
        self.next
    }
}
