//! The thread that owns the writing connection.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use tokio::sync::{mpsc, oneshot, watch};

use super::file::{self, FileId};
use crate::ledger::{AppendError, OpenError};

/// A writer keeps one append in flight; a few more places let a stranger's append fail by conflict, not by waiting.
const QUEUE: usize = 8;

struct Append {
    expected_last: u64,
    record: Bytes,
    answer: oneshot::Sender<Result<(), AppendError>>,
}

/// Handle of the writing thread; dropping the last one waits for it to end and lets go of the file.
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Append>>,
    tail: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(path: &Path, lock: File, capacity: Option<u64>) -> Result<Self, OpenError> {
        let failed = |reason: String| OpenError::Unavailable {
            place: path.display().to_string(),
            reason,
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || -> rusqlite::Result<(Connection, u64)> {
            let connection = Connection::open_with_flags(path, flags)?;
            file::configure(&connection)?;
            limit_size(&connection, capacity)?;
            let last = last(&connection)?;
            Ok((connection, last))
        };
        let id = FileId::at(path).ok_or_else(|| OpenError::Missing {
            place: path.display().to_string(),
        })?;
        let (connection, last) = open().map_err(|error| failed(error.to_string()))?;

        let (queue, inbox) = mpsc::channel(QUEUE);
        let (tail_sender, tail) = watch::channel(last);
        let state = State {
            connection,
            path: path.to_owned(),
            id,
            tail: tail_sender,
            sync_failed: false,
            _lock: lock,
        };
        let thread = std::thread::Builder::new()
            .name("ledger-writer".to_owned())
            .spawn(move || state.run(inbox))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            queue: Some(queue),
            tail,
            thread: Some(thread),
        })
    }

    pub(super) fn watch_tail(&self) -> watch::Receiver<u64> {
        self.tail.clone()
    }

    pub(super) async fn append(&self, expected_last: u64, record: Bytes) -> Result<(), AppendError> {
        let ended = || AppendError::Unknown {
            reason: "the ledger's writing thread ended".to_owned(),
        };
        let (answer, answered) = oneshot::channel();
        let queue = self.queue.as_ref().ok_or_else(ended)?;
        queue
            .send(Append {
                expected_last,
                record,
                answer,
            })
            .await
            .map_err(|_| AppendError::Unavailable {
                reason: "the ledger's writing thread ended".to_owned(),
            })?;
        answered.await.map_err(|_| ended())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // Appends it has taken are finished first; it holds no more than the queue.
            let _ = thread.join();
        }
    }
}

/// Makes SQLite answer "full" at the limit by itself, as it does for a full disk.
fn limit_size(connection: &Connection, capacity: Option<u64>) -> rusqlite::Result<()> {
    let page_size: u64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let pages = capacity.map_or(u64::from(u32::MAX - 1), |bytes| (bytes / page_size).max(1));
    connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
}

fn last(connection: &Connection) -> rusqlite::Result<u64> {
    let mut statement = connection.prepare_cached("SELECT COALESCE(MAX(sequence), 0) FROM record")?;
    statement.query_row([], |row| row.get(0))
}

struct State {
    connection: Connection,
    path: PathBuf,
    id: FileId,
    tail: watch::Sender<u64>,
    sync_failed: bool,
    /// Held until the connection is closed: fields drop in this order.
    _lock: File,
}

impl State {
    fn run(mut self, mut inbox: mpsc::Receiver<Append>) {
        while let Some(Append {
            expected_last,
            record,
            answer,
        }) = inbox.blocking_recv()
        {
            let result = self.append(expected_last, &record);
            if result.is_ok() {
                self.tail.send_replace(expected_last + 1);
            }
            // The caller may have gone; the outcome stands all the same.
            let _ = answer.send(result);
        }
    }

    fn append(&mut self, expected_last: u64, record: &Bytes) -> Result<(), AppendError> {
        if self.sync_failed {
            return Err(AppendError::Unavailable {
                reason: "an earlier sync of the ledger file failed; check the disk and restart".to_owned(),
            });
        }
        if FileId::at(&self.path) != Some(self.id) {
            return Err(AppendError::Missing);
        }
        let outcome = self.insert(expected_last, record).and_then(|()| {
            let committed = self.connection.execute_batch("COMMIT");
            committed.map_err(|error| self.commit_failed(&error))
        });
        if outcome.is_err() && !self.connection.is_autocommit() {
            // Nothing to add if this fails too: the transaction dies with the connection.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        outcome
    }

    fn insert(&self, expected_last: u64, record: &Bytes) -> Result<(), AppendError> {
        self.connection
            .execute_batch("BEGIN IMMEDIATE")
            .map_err(|error| not_stored(&error))?;
        let last = last(&self.connection).map_err(|error| not_stored(&error))?;
        if last != expected_last {
            return Err(AppendError::Conflict { last: Some(last) });
        }
        let insert = "INSERT INTO record (sequence, body) VALUES (?1, ?2)";
        let mut statement = self
            .connection
            .prepare_cached(insert)
            .map_err(|error| not_stored(&error))?;
        let inserted = statement.execute(params![expected_last + 1, record.as_ref()]);
        inserted.map(drop).map_err(|error| not_stored(&error))
    }

    fn commit_failed(&mut self, error: &rusqlite::Error) -> AppendError {
        match error.sqlite_error_code() {
            // Refused before the commit frame was complete.
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy) => not_stored(error),
            _ => {
                self.sync_failed = true;
                tracing::error!(code = "ledger_sync_failed", %error, "the ledger file could not be synced; no more is written");
                AppendError::Unknown {
                    reason: error.to_string(),
                }
            }
        }
    }
}

fn not_stored(error: &rusqlite::Error) -> AppendError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => AppendError::Full,
        _ => AppendError::Unavailable {
            reason: error.to_string(),
        },
    }
}
