//! Reading the ledger file: a small pool of read-only connections, used from blocking threads.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, params};

use super::file::{self, FileId};
use crate::identity::Genesis;
use crate::ledger::{OpenError, RawRecord, ReadError, Tail};

/// Connections kept when idle; more are opened and closed as needed.
const MAX_IDLE: usize = 4;

pub(super) struct Readers {
    path: PathBuf,
    id: FileId,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let missing = || OpenError::Missing {
            place: path.display().to_string(),
        };
        let id = FileId::at(path).ok_or_else(missing)?;
        let connection = file::open_read_only(path)?;
        Ok(Self {
            path: path.to_owned(),
            id,
            idle: Mutex::new(vec![connection]),
        })
    }

    pub(super) fn genesis(&self) -> Result<Genesis, OpenError> {
        let connection = self.take_idle().map_or_else(|| file::open_read_only(&self.path), Ok)?;
        let genesis = file::read_genesis(&connection, &self.path);
        self.put_back(connection);
        genesis
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push(connection);
        }
    }

    fn with<T>(&self, work: impl FnOnce(&Connection) -> Result<T, ReadError>) -> Result<T, ReadError> {
        // An open file outlives its name; a ledger that was deleted or replaced must not look alive.
        if FileId::at(&self.path) != Some(self.id) {
            return Err(ReadError::Missing);
        }
        let connection = match self.take_idle() {
            Some(connection) => connection,
            None => file::open_read_only(&self.path).map_err(|error| ReadError::Unavailable {
                reason: error.to_string(),
            })?,
        };
        let out = work(&connection);
        self.put_back(connection);
        out
    }

    pub(super) fn last(&self) -> Result<u64, ReadError> {
        self.with(|connection| {
            let query = "SELECT COALESCE(MAX(sequence), 0) FROM record";
            let mut statement = connection.prepare_cached(query).map_err(unavailable)?;
            statement.query_row([], |row| row.get::<_, u64>(0)).map_err(unavailable)
        })
    }

    pub(super) fn tail(&self, genesis: &Genesis, capacity: Option<u64>) -> Result<Tail, ReadError> {
        self.with(|connection| {
            let query = "SELECT sequence, body, (SELECT page_count * page_size FROM pragma_page_count, pragma_page_size) \
                         FROM record ORDER BY sequence DESC LIMIT 1";
            let mut statement = connection.prepare_cached(query).map_err(unavailable)?;
            let mut rows = statement.query([]).map_err(unavailable)?;
            let Some(row) = rows.next().map_err(unavailable)? else {
                return Tail::of(genesis, None, 0, capacity);
            };
            let sequence: u64 = row.get(0).map_err(unavailable)?;
            let body = body(row, 1).map_err(|error| corrupt(sequence, &error))?;
            let used: u64 = row.get(2).map_err(unavailable)?;
            Tail::of(genesis, Some((sequence, &body)), used, capacity)
        })
    }

    pub(super) fn read(&self, from: u64, max_records: usize, max_bytes: usize) -> Result<Vec<RawRecord>, ReadError> {
        self.with(|connection| {
            let query = "SELECT sequence, body FROM record WHERE sequence >= ?1 ORDER BY sequence LIMIT ?2";
            let mut statement = connection.prepare_cached(query).map_err(unavailable)?;
            let limit = i64::try_from(max_records.max(1)).unwrap_or(i64::MAX);
            let mut rows = statement.query(params![from, limit]).map_err(unavailable)?;
            let mut out: Vec<RawRecord> = Vec::new();
            let mut left = max_bytes;
            loop {
                let sequence = from + out.len() as u64;
                let row = match rows.next() {
                    Ok(Some(row)) => row,
                    Ok(None) => break,
                    // What was read before the damage is still good; the next read meets the damage first.
                    Err(_) if !out.is_empty() => break,
                    Err(error) => return Err(corrupt(sequence, &error)),
                };
                let found: u64 = row.get(0).map_err(|error| corrupt(sequence, &error))?;
                let body = body(row, 1).map_err(|error| corrupt(sequence, &error))?;
                if found != sequence && out.is_empty() {
                    let reason = format!("it is missing; the next one stored is {found}");
                    return Err(ReadError::Corrupt { sequence, reason });
                }
                if found != sequence || (!out.is_empty() && body.len() > left) {
                    break;
                }
                left = left.saturating_sub(body.len());
                out.push(RawRecord { sequence, body });
            }
            Ok(out)
        })
    }
}

fn body(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    Ok(Bytes::copy_from_slice(row.get_ref(column)?.as_blob()?))
}

fn unavailable(error: rusqlite::Error) -> ReadError {
    ReadError::Unavailable {
        reason: error.to_string(),
    }
}

/// A record SQLite itself cannot read is damage where the file is malformed, and passing trouble otherwise.
fn corrupt(sequence: u64, error: &rusqlite::Error) -> ReadError {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, OutOfMemory, SystemIoFailure};
    match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked | OutOfMemory | SystemIoFailure) => ReadError::Unavailable {
            reason: error.to_string(),
        },
        _ => ReadError::Corrupt {
            sequence,
            reason: error.to_string(),
        },
    }
}
