//! The embedded ledger: one SQLite file, for one machine, exported ledgers and tests.
//!
//! One thread owns the writing connection and takes appends from a bounded queue; each is one `BEGIN IMMEDIATE`
//! transaction that checks the expected last sequence inside, and one fsync (`synchronous = FULL`, WAL). Readers have
//! their own connections, in this process or another, with the writer running or not. A log file of our own was
//! rejected: SQLite's recovery has been tested longer than anything written here would be.
//!
//! Invariants: at most one process has the file open for writing (an operating-system lock beside it, gone with the
//! process however it ends). Rows are neither updated nor deleted, which triggers enforce. After an fsync fails nothing
//! more is written through that handle: what the kernel then says about the file proves nothing.

mod file;
mod reader;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::identity::Genesis;
use crate::ledger::{
    AppendError, Description, Finding, Follow, FollowStatus, Hints, Ledger, OpenError, RawRecord, ReadError, Tail,
};
use crate::record::MAX_RECORD_BYTES;
use reader::Readers;
use writer::Writer;

/// How often a follower in another process than the writer looks for new records.
const POLL: Duration = Duration::from_millis(100);

/// A ledger in a SQLite file. Cloning is cheap; clones share the writer.
#[derive(Clone)]
pub struct EmbeddedLedger {
    genesis: Genesis,
    path: PathBuf,
    capacity: Option<u64>,
    readers: Arc<Readers>,
    writer: Option<Arc<Writer>>,
}

impl EmbeddedLedger {
    /// Creates the ledger; the only thing that ever does. Fails if there is one. The directory must exist.
    ///
    /// `capacity` is the size in bytes at which appends answer [`AppendError::Full`]; `None` leaves it to the disk.
    /// Blocks on the disk: call it before serving.
    pub fn create(path: &Path, genesis: &Genesis, capacity: Option<u64>) -> Result<Self, OpenError> {
        let lock = file::lock(path)?;
        file::create(path, genesis)?;
        Self::open_locked(path, lock, capacity)
    }

    /// Opens an existing ledger for writing. Never creates one. Blocks on the disk: call it before serving.
    pub fn open(path: &Path, capacity: Option<u64>) -> Result<Self, OpenError> {
        file::require(path)?;
        let lock = file::lock(path)?;
        Self::open_locked(path, lock, capacity)
    }

    /// Opens an existing ledger for reading, whether or not a process writes to it.
    pub fn open_read_only(path: &Path) -> Result<Self, OpenError> {
        file::require(path)?;
        let readers = Readers::open(path)?;
        let genesis = readers.genesis()?;
        Ok(Self {
            genesis,
            path: path.to_owned(),
            capacity: None,
            readers: Arc::new(readers),
            writer: None,
        })
    }

    fn open_locked(path: &Path, lock: std::fs::File, capacity: Option<u64>) -> Result<Self, OpenError> {
        // Looking first keeps a stranger's file as it is: the writer's settings would change it.
        let readers = Readers::open(path)?;
        let genesis = readers.genesis()?;
        let writer = Writer::start(path, lock, capacity)?;
        let (readers, writer) = (Arc::new(readers), Some(Arc::new(writer)));
        Ok(Self {
            genesis,
            path: path.to_owned(),
            capacity,
            readers,
            writer,
        })
    }

    /// The ledger's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Readers) -> Result<T, ReadError> + Send + 'static,
    ) -> Result<T, ReadError> {
        let readers = Arc::clone(&self.readers);
        let done = tokio::task::spawn_blocking(move || work(&readers)).await;
        done.unwrap_or_else(|error| {
            Err(ReadError::Unavailable {
                reason: format!("the reading task ended: {error}"),
            })
        })
    }
}

#[async_trait]
impl Ledger for EmbeddedLedger {
    fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    async fn tail(&self) -> Result<Tail, ReadError> {
        let (genesis, capacity) = (self.genesis.clone(), self.capacity);
        self.blocking(move |readers| readers.tail(&genesis, capacity)).await
    }

    async fn append(&self, expected_last: u64, record: Bytes, _hints: &Hints) -> Result<(), AppendError> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(AppendError::TooLarge {
                bytes: record.len(),
                limit: MAX_RECORD_BYTES,
            });
        }
        match &self.writer {
            Some(writer) => writer.append(expected_last, record).await,
            None => Err(AppendError::ReadOnly),
        }
    }

    async fn read(&self, from: u64, max_records: usize, max_bytes: usize) -> Result<Vec<RawRecord>, ReadError> {
        self.blocking(move |readers| readers.read(from.max(1), max_records, max_bytes))
            .await
    }

    async fn follow(&self, from: u64) -> Result<Box<dyn Follow>, ReadError> {
        let next = from.max(1);
        let last = self.blocking(|readers| readers.last()).await?;
        if last + 1 < next {
            return Err(ReadError::Shorter { last, seen: next - 1 });
        }
        let tail = self.watch_tail();
        Ok(Box::new(EmbeddedFollow {
            ledger: self.clone(),
            next,
            tail,
            status: watch::Sender::new(FollowStatus::Live),
        }))
    }

    fn watch_tail(&self) -> Option<watch::Receiver<u64>> {
        self.writer.as_ref().map(|writer| writer.watch_tail())
    }

    async fn describe(&self) -> Description {
        let mut findings = Vec::new();
        if self.writer.is_some() {
            findings.push(Finding::verified(
                "ledger_sync",
                "each append is one fsync (WAL, synchronous = FULL)",
            ));
        }
        let directory = self
            .path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        findings.push(crate::disk::finding(directory));
        Description {
            backend: "embedded",
            place: self.path.display().to_string(),
            cell: self.genesis.cell.clone(),
            ledger_id: self.genesis.ledger_id,
            findings,
        }
    }
}

/// Largest piece a follower reads at once.
const FOLLOW_BYTES: usize = 4 << 20;

struct EmbeddedFollow {
    ledger: EmbeddedLedger,
    next: u64,
    /// Set in the writer's process; others poll.
    tail: Option<watch::Receiver<u64>>,
    status: watch::Sender<FollowStatus>,
}

#[async_trait]
impl Follow for EmbeddedFollow {
    async fn next_batch(&mut self, max: usize) -> Result<Vec<RawRecord>, ReadError> {
        loop {
            if let Some(tail) = &mut self.tail {
                tail.borrow_and_update();
            }
            let batch = self.ledger.read(self.next, max, FOLLOW_BYTES).await?;
            if !batch.is_empty() {
                self.next += batch.len() as u64;
                return Ok(batch);
            }
            let last = self.ledger.blocking(|readers| readers.last()).await?;
            if last + 1 < self.next {
                return Err(ReadError::Shorter {
                    last,
                    seen: self.next - 1,
                });
            }
            match &mut self.tail {
                // The sender lives as long as the ledger handle this follower holds.
                Some(tail) if last < self.next => drop(tail.changed().await),
                Some(_) => {}
                None => tokio::time::sleep(POLL).await,
            }
        }
    }

    fn next_sequence(&self) -> u64 {
        self.next
    }

    fn status(&self) -> watch::Receiver<FollowStatus> {
        self.status.subscribe()
    }
}

#[cfg(test)]
mod tests;
