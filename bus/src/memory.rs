//! A ledger in memory, for tests and simulation, that fails on request.
//!
//! It keeps the trait's contract exactly, in a plain vector behind a mutex, and adds what a test needs to be cruel: the
//! next appends can fail in each way a real store can, foreign records can slip in, stored bytes can be changed, the
//! tail cut off, the whole ledger removed. Faults are queued and taken one an append, so that a seeded simulation
//! replays to the same bytes; a fault drawn at random inside would not.
//!
//! Handles are clones over the same store: two writers race by holding one each.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use crate::identity::Genesis;
use crate::ledger::{AppendError, Description, Follow, FollowStatus, Hints, Ledger, RawRecord, ReadError, Tail};
use crate::record::MAX_RECORD_BYTES;

/// What the next append does instead of its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Stores the record and answers [`AppendError::Unknown`].
    UnknownStored,
    /// Stores nothing and answers [`AppendError::Unknown`].
    UnknownLost,
    /// Answers [`AppendError::Unknown`]; the record arrives just before the next append, as one still on the wire does.
    UnknownLate,
    /// Answers [`AppendError::Full`].
    Full,
    /// Answers [`AppendError::Unavailable`].
    Unavailable,
    /// Another writer's record is stored first, so that the append meets a conflict.
    Foreign(Bytes),
    /// Sleeps (tokio time, so virtual time counts) and then works as usual.
    Delay(Duration),
}

#[derive(Debug)]
struct Store {
    records: Vec<Bytes>,
    bytes_used: u64,
    capacity: Option<u64>,
    missing: bool,
    faults: VecDeque<Fault>,
    late: Option<(u64, Bytes)>,
    appends: u64,
}

impl Store {
    fn last(&self) -> u64 {
        self.records.len() as u64
    }

    fn push(&mut self, record: Bytes) {
        self.bytes_used += record.len() as u64;
        self.records.push(record);
    }

    fn append(&mut self, expected_last: u64, record: Bytes) -> Result<(), AppendError> {
        if self.missing {
            return Err(AppendError::Missing);
        }
        if self.last() != expected_last {
            return Err(AppendError::Conflict {
                last: Some(self.last()),
            });
        }
        if self
            .capacity
            .is_some_and(|capacity| self.bytes_used + record.len() as u64 > capacity)
        {
            return Err(AppendError::Full);
        }
        self.push(record);
        Ok(())
    }
}

/// A ledger in memory. Clones share the store.
#[derive(Debug, Clone)]
pub struct MemoryLedger {
    genesis: Genesis,
    store: Arc<Mutex<Store>>,
    tail: watch::Sender<u64>,
}

impl MemoryLedger {
    /// An empty ledger.
    #[must_use]
    pub fn create(genesis: Genesis) -> Self {
        let store = Store {
            records: Vec::new(),
            bytes_used: 0,
            capacity: None,
            missing: false,
            faults: VecDeque::new(),
            late: None,
            appends: 0,
        };
        Self {
            genesis,
            store: Arc::new(Mutex::new(store)),
            tail: watch::Sender::new(0),
        }
    }

    /// A ledger that already holds these records, taken as they are.
    #[must_use]
    pub fn with_records(genesis: Genesis, records: impl IntoIterator<Item = Bytes>) -> Self {
        let ledger = Self::create(genesis);
        ledger.change(|store| records.into_iter().for_each(|record| store.push(record)));
        ledger
    }

    /// Queues a fault for an append to come.
    pub fn inject(&self, fault: Fault) {
        self.change(|store| store.faults.push_back(fault));
    }

    /// Sets or lifts the size limit.
    pub fn set_capacity(&self, capacity: Option<u64>) {
        self.change(|store| store.capacity = capacity);
    }

    /// Removes the ledger, as if its stream had been deleted.
    pub fn remove(&self) {
        self.change(|store| store.missing = true);
    }

    /// Cuts the ledger to its first `len` records, as if an older backup had been restored.
    pub fn truncate(&self, len: u64) {
        self.change(|store| store.records.truncate(usize::try_from(len).unwrap_or(usize::MAX)));
    }

    /// Replaces the bytes stored at `sequence`. True if there was such a record.
    pub fn overwrite(&self, sequence: u64, body: Bytes) -> bool {
        self.change(|store| {
            let slot = index(sequence).and_then(|index| store.records.get_mut(index));
            slot.map(|slot| *slot = body).is_some()
        })
    }

    /// All stored records.
    #[must_use]
    pub fn records(&self) -> Vec<Bytes> {
        self.lock().records.clone()
    }

    /// How many appends were asked for, whatever came of them.
    #[must_use]
    pub fn appends(&self) -> u64 {
        self.lock().appends
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // Every change leaves the store whole, so a panic elsewhere does not spoil it.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the store and tells followers. The lock is held while they are told, so that they see tails in order.
    fn change<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let mut store = self.lock();
        let out = change(&mut store);
        self.tail.send_replace(store.last());
        out
    }

    fn read_now(&self, from: u64, max_records: usize, max_bytes: usize) -> Result<Vec<RawRecord>, ReadError> {
        let store = self.lock();
        if store.missing {
            return Err(ReadError::Missing);
        }
        let start = index(from.max(1)).unwrap_or(usize::MAX);
        let stored = store.records.get(start..).unwrap_or_default();
        let mut left = max_bytes;
        let mut out = Vec::new();
        for (sequence, body) in (from.max(1)..).zip(stored).take(max_records.max(1)) {
            if !out.is_empty() && body.len() > left {
                break;
            }
            left = left.saturating_sub(body.len());
            out.push(RawRecord {
                sequence,
                body: body.clone(),
            });
        }
        Ok(out)
    }
}

fn index(sequence: u64) -> Option<usize> {
    usize::try_from(sequence.checked_sub(1)?).ok()
}

#[async_trait]
impl Ledger for MemoryLedger {
    fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    async fn tail(&self) -> Result<Tail, ReadError> {
        let store = self.lock();
        if store.missing {
            return Err(ReadError::Missing);
        }
        let last = store.records.last().map(|body| (store.last(), body));
        Tail::of(&self.genesis, last, store.bytes_used, store.capacity)
    }

    async fn append(&self, expected_last: u64, record: Bytes, _hints: &Hints) -> Result<(), AppendError> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(AppendError::TooLarge {
                bytes: record.len(),
                limit: MAX_RECORD_BYTES,
            });
        }
        let fault = self.change(|store| {
            store.appends += 1;
            if let Some((expected, late)) = store.late.take() {
                // A late record meets the same check as any other; refused, it is simply gone.
                let _ = store.append(expected, late);
            }
            store.faults.pop_front()
        });
        let unknown = || AppendError::Unknown {
            reason: "injected".to_owned(),
        };
        match fault {
            None => {}
            Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
            Some(Fault::Foreign(foreign)) => self.change(|store| store.push(foreign)),
            Some(Fault::Full) => return Err(AppendError::Full),
            Some(Fault::Unavailable) => {
                return Err(AppendError::Unavailable {
                    reason: "injected".to_owned(),
                });
            }
            Some(Fault::UnknownLost) => return Err(unknown()),
            Some(Fault::UnknownStored) => {
                return self
                    .change(|store| store.append(expected_last, record))
                    .and(Err(unknown()));
            }
            Some(Fault::UnknownLate) => {
                self.change(|store| store.late = Some((expected_last, record)));
                return Err(unknown());
            }
        }
        self.change(|store| store.append(expected_last, record))
    }

    async fn read(&self, from: u64, max_records: usize, max_bytes: usize) -> Result<Vec<RawRecord>, ReadError> {
        self.read_now(from, max_records, max_bytes)
    }

    async fn follow(&self, from: u64) -> Result<Box<dyn Follow>, ReadError> {
        let next = from.max(1);
        let last = self.tail().await?.sequence;
        if last + 1 < next {
            return Err(ReadError::Shorter { last, seen: next - 1 });
        }
        let status = watch::Sender::new(FollowStatus::Live);
        Ok(Box::new(MemoryFollow {
            ledger: self.clone(),
            next,
            tail: self.tail.subscribe(),
            status,
        }))
    }

    fn watch_tail(&self) -> Option<watch::Receiver<u64>> {
        Some(self.tail.subscribe())
    }

    async fn describe(&self) -> Description {
        Description {
            backend: "memory",
            place: "memory".to_owned(),
            cell: self.genesis.cell.clone(),
            ledger_id: self.genesis.ledger_id,
            findings: Vec::new(),
        }
    }
}

struct MemoryFollow {
    ledger: MemoryLedger,
    next: u64,
    tail: watch::Receiver<u64>,
    status: watch::Sender<FollowStatus>,
}

#[async_trait]
impl Follow for MemoryFollow {
    async fn next_batch(&mut self, max: usize) -> Result<Vec<RawRecord>, ReadError> {
        loop {
            let last = *self.tail.borrow_and_update();
            if last + 1 < self.next {
                return Err(ReadError::Shorter {
                    last,
                    seen: self.next - 1,
                });
            }
            let batch = self.ledger.read_now(self.next, max, usize::MAX)?;
            if !batch.is_empty() {
                self.next += batch.len() as u64;
                return Ok(batch);
            }
            // The sender lives in our own handle, so waiting cannot fail.
            let _ = self.tail.changed().await;
        }
    }

    fn next_sequence(&self) -> u64 {
        self.next
    }

    fn status(&self) -> watch::Receiver<FollowStatus> {
        self.status.subscribe()
    }
}
