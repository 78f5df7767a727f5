//! The ledger on JetStream: one stream a cell, one message a record, the stream's sequence being the record's.
//!
//! An append is one request with `Nats-Expected-Last-Sequence` and the ledger's stream named, and its answer is judged by
//! error code, never by wording. What must be authoritative (the tail, the last record) is asked of the stream's
//! leader; bulk reads may come from any replica, since records never change. Appends are not sent while the connection
//! is down: the client would keep them and deliver them later. Rejected: message ids for deduplication, which forget
//! after minutes, and atomic batches, which cost two milliseconds each.
//!
//! Invariants: a stream is created only by `create`, and a missing one is an error for ever after. Every setting of
//! `migrations/jetstream/topology.json` is read back and compared. A server older than 2.12 is refused, since it drops
//! settings it does not know without a word.

mod append;
mod connection;
mod describe;
mod follow;
mod monitor;
mod read;
mod topology;

use async_trait::async_trait;
use bytes::Bytes;

pub use connection::{MIN_SERVER_VERSION, Nats};
pub use topology::StreamLimits;

pub(crate) use connection::ApiError;
pub(crate) use follow::{CursorError, StreamCursor};
pub(crate) use read::StreamReader;
pub(crate) use topology::{Role, StreamSpec};

use crate::identity::{CellName, Genesis};
use crate::ledger::{
    AppendError, Description, Follow, FollowStatus, Hints, Ledger, OpenError, RawRecord, ReadError, Tail,
};
use crate::record::MAX_RECORD_BYTES;

/// A ledger in a JetStream stream. Cloning is cheap.
#[derive(Clone)]
pub struct JetStreamLedger {
    nats: Nats,
    genesis: Genesis,
    spec: StreamSpec,
    reader: StreamReader,
}

impl JetStreamLedger {
    /// Creates the cell's ledger stream; the only thing that ever does. Fails if there is one.
    pub async fn create(nats: &Nats, genesis: &Genesis, limits: &StreamLimits) -> Result<Self, OpenError> {
        nats.require_version()?;
        let spec = StreamSpec::new(Role::Ledger, &genesis.cell, limits);
        topology::create(nats, &spec, genesis).await?;
        Self::open(nats, &genesis.cell).await
    }

    /// Opens the cell's ledger stream. Never creates one.
    pub async fn open(nats: &Nats, cell: &CellName) -> Result<Self, OpenError> {
        nats.require_version()?;
        let (spec, genesis) = topology::open(nats, Role::Ledger, cell).await?;
        let reader = StreamReader::new(nats, &spec, &genesis);
        Ok(Self {
            nats: nats.clone(),
            genesis,
            spec,
            reader,
        })
    }
}

#[async_trait]
impl Ledger for JetStreamLedger {
    fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    async fn tail(&self) -> Result<Tail, ReadError> {
        let state = self.reader.state().await?;
        let capacity = state.max_bytes;
        if state.last == 0 {
            return Tail::of(&self.genesis, None, state.bytes, capacity);
        }
        let body = self.reader.leader_get(state.last).await?;
        Tail::of(&self.genesis, Some((state.last, &body)), state.bytes, capacity)
    }

    async fn append(&self, expected_last: u64, record: Bytes, hints: &Hints) -> Result<(), AppendError> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(AppendError::TooLarge {
                bytes: record.len(),
                limit: MAX_RECORD_BYTES,
            });
        }
        append::append(&self.nats, &self.spec, &self.reader, expected_last, record, hints).await
    }

    async fn read(&self, from: u64, max_records: usize, max_bytes: usize) -> Result<Vec<RawRecord>, ReadError> {
        self.reader.read(from.max(1), max_records, max_bytes).await
    }

    async fn follow(&self, from: u64) -> Result<Box<dyn Follow>, ReadError> {
        let next = from.max(1);
        let last = self.reader.state().await?.last;
        if last + 1 < next {
            return Err(ReadError::Shorter { last, seen: next - 1 });
        }
        Ok(Box::new(JetStreamFollow {
            cursor: StreamCursor::new(self.reader.clone(), next, true),
        }))
    }

    async fn describe(&self) -> Description {
        describe::describe(&self.nats, &self.spec, &self.genesis).await
    }
}

struct JetStreamFollow {
    cursor: StreamCursor,
}

#[async_trait]
impl Follow for JetStreamFollow {
    async fn next_batch(&mut self, max: usize) -> Result<Vec<RawRecord>, ReadError> {
        Ok(self.cursor.next_batch(max).await?)
    }

    fn next_sequence(&self) -> u64 {
        self.cursor.next_sequence()
    }

    fn status(&self) -> tokio::sync::watch::Receiver<FollowStatus> {
        self.cursor.status()
    }
}

impl From<CursorError> for ReadError {
    fn from(error: CursorError) -> Self {
        match error {
            CursorError::Missing => Self::Missing,
            CursorError::Shorter { last, seen } => Self::Shorter { last, seen },
            CursorError::OtherLedger { expected, found } => Self::OtherLedger { expected, found },
            CursorError::Gap { missing, found } => Self::Corrupt {
                sequence: missing,
                reason: format!("it is missing; the next one stored is {found}"),
            },
        }
    }
}
