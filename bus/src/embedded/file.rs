//! The ledger file: creation, identity, and the lock beside it.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use crate::identity::{CellName, Genesis, LedgerId};
use crate::ledger::OpenError;

const SCHEMA: &str = include_str!("../../../migrations/ledger/0001.sql");

/// `PRAGMA user_version` of the schema above; 0 is a file whose creation did not finish.
const SCHEMA_VERSION: i64 = 1;

/// "TMLG": tells `file(1)`, and us, what this is.
const APPLICATION_ID: i64 = 0x544D_4C47;

/// How long a statement waits for another connection's lock before it gives up.
const BUSY: Duration = Duration::from_secs(5);

/// A path beside the ledger file.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(suffix);
    name.into()
}

fn unavailable(path: &Path, reason: impl ToString) -> OpenError {
    OpenError::Unavailable {
        place: path.display().to_string(),
        reason: reason.to_string(),
    }
}

fn missing(path: &Path) -> OpenError {
    OpenError::Missing {
        place: path.display().to_string(),
    }
}

/// Fails with `Missing` if there is no file.
pub(super) fn require(path: &Path) -> Result<(), OpenError> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(missing(path)),
        Err(error) => Err(unavailable(path, error)),
    }
}

/// Takes the writer's lock. The kernel gives it back when the process ends, however it ends; the file stays.
pub(super) fn lock(path: &Path) -> Result<File, OpenError> {
    let lock_path = beside(path, ".lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&lock_path);
    let file = file.map_err(|error| unavailable(&lock_path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::DataInUse { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(unavailable(&lock_path, error)),
    }
}

/// Lays out an empty ledger, all or nothing.
pub(super) fn create(path: &Path, genesis: &Genesis) -> Result<(), OpenError> {
    let failed = |error: rusqlite::Error| unavailable(path, error);
    let mut connection = Connection::open(path).map_err(failed)?;
    configure(&connection).map_err(failed)?;
    if version(&connection).map_err(failed)? != 0 {
        return Err(OpenError::Exists {
            place: path.display().to_string(),
        });
    }
    let lay_out = |connection: &mut Connection| -> rusqlite::Result<()> {
        let transaction = connection.transaction()?;
        transaction.execute_batch(SCHEMA)?;
        let mut insert = transaction.prepare("INSERT INTO meta (key, value) VALUES (?1, ?2)")?;
        insert.execute(params!["cell", genesis.cell.as_str()])?;
        insert.execute(params!["ledger_id", genesis.ledger_id.to_string()])?;
        drop(insert);
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        transaction.commit()
    };
    lay_out(&mut connection).map_err(failed)?;
    drop(connection);
    // The file's name must be as durable as its content.
    let directory = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(directory)
        .and_then(|d| d.sync_all())
        .map_err(|error| unavailable(directory, error))
}

/// The writer's settings.
pub(super) fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY)?;
    // Records are read and written whole; larger pages mean fewer overflow pages for each.
    connection.pragma_update(None, "page_size", 8192)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // A checkpoint costs two more fsyncs: have them rarely (8 MiB of log) instead of every 32 full records.
    connection.pragma_update(None, "wal_autocheckpoint", 1024)
}

/// Opens the file for reading. Falls back to `immutable` where SQLite could not lay its shared-memory file beside it,
/// as on read-only media: nobody writes there.
pub(super) fn open_read_only(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let failed = |error: rusqlite::Error| unavailable(path, error);
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY).map_err(failed)?;
    if version(&connection).is_ok() || beside(path, "-wal").exists() {
        return Ok(connection);
    }
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri.push_str("?immutable=1");
    Connection::open_with_flags(uri, flags).map_err(failed)
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Checks that the file is a ledger this build reads, and says which.
pub(super) fn read_genesis(connection: &Connection, path: &Path) -> Result<Genesis, OpenError> {
    let unreadable = |reason: String| OpenError::Unreadable {
        place: path.display().to_string(),
        reason,
    };
    let found = version(connection).map_err(|error| unreadable(error.to_string()))?;
    let application: i64 = connection
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .map_err(|error| unreadable(error.to_string()))?;
    match (application, found) {
        (0, 0) => return Err(missing(path)),
        (APPLICATION_ID, SCHEMA_VERSION) => {}
        (APPLICATION_ID, newer) => {
            return Err(unreadable(format!("its schema is version {newer}")));
        }
        _ => return Err(unreadable("it is another kind of SQLite file".to_owned())),
    }
    let value = |key: &str| -> Result<String, OpenError> {
        let query = "SELECT value FROM meta WHERE key = ?1";
        let value = connection.query_row(query, [key], |row| row.get(0)).optional();
        value
            .map_err(|error| unreadable(error.to_string()))?
            .ok_or_else(|| unreadable(format!("it lacks {key}")))
    };
    let cell = CellName::new(&value("cell")?).map_err(|error| unreadable(error.to_string()))?;
    let ledger_id: LedgerId = value("ledger_id")?
        .parse()
        .map_err(|error| unreadable(format!("ledger_id: {error}")))?;
    Ok(Genesis { cell, ledger_id })
}

/// Which file on disk a path meant when it was opened: tells a deleted or replaced file from the open one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file at `path` now, if there is one.
    pub(super) fn at(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        Some(Self {
            device: meta.dev(),
            inode: meta.ino(),
        })
    }
}
