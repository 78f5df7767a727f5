//! Observations in memory, for tests and simulation. Clones share the store.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

use super::{
    Block, Bounds, FollowObservations, ObservationLimits, Observations, ObservationsError, StoredBlock, encode_checked,
};

#[derive(Debug, Default)]
struct Store {
    /// Receive time and bytes; the last has sequence `last`.
    blocks: VecDeque<(i64, Bytes)>,
    last: u64,
    bytes: u64,
}

impl Store {
    fn first(&self) -> u64 {
        self.last + 1 - self.blocks.len() as u64
    }
}

/// Observations in memory.
#[derive(Debug, Clone)]
pub struct MemoryObservations {
    store: Arc<Mutex<Store>>,
    limits: ObservationLimits,
    tail: watch::Sender<u64>,
}

impl MemoryObservations {
    /// An empty store.
    #[must_use]
    pub fn new(limits: ObservationLimits) -> Self {
        Self {
            store: Arc::default(),
            limits,
            tail: watch::Sender::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // Every change leaves the store whole.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_now(&self, from: u64, max_blocks: usize, max_bytes: usize) -> Vec<StoredBlock> {
        let store = self.lock();
        let first = store.first();
        let skip = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
        let mut left = max_bytes;
        let mut out = Vec::new();
        for (index, (_, body)) in store.blocks.iter().enumerate().skip(skip).take(max_blocks.max(1)) {
            if !out.is_empty() && body.len() > left {
                break;
            }
            left = left.saturating_sub(body.len());
            out.push(StoredBlock {
                sequence: first + index as u64,
                body: body.clone(),
            });
        }
        out
    }
}

#[async_trait]
impl Observations for MemoryObservations {
    async fn publish(&self, block: &Block) -> Result<u64, ObservationsError> {
        let body = encode_checked(block)?;
        let mut store = self.lock();
        let newest = store
            .blocks
            .back()
            .map_or(i64::MIN, |(at, _)| *at)
            .max(block.newest().unwrap_or(i64::MIN));
        store.bytes += body.len() as u64;
        store.last += 1;
        store.blocks.push_back((newest, body));
        let oldest_kept = self.limits.oldest_kept(newest);
        while let Some((at, body)) = store.blocks.front() {
            if store.blocks.len() == 1 || (*at >= oldest_kept && store.bytes <= self.limits.max_bytes) {
                break;
            }
            let size = body.len() as u64;
            store.bytes -= size;
            store.blocks.pop_front();
        }
        self.tail.send_replace(store.last);
        Ok(store.last)
    }

    async fn read(
        &self,
        from: u64,
        max_blocks: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredBlock>, ObservationsError> {
        Ok(self.read_now(from, max_blocks, max_bytes))
    }

    async fn follow(&self, from: u64) -> Result<Box<dyn FollowObservations>, ObservationsError> {
        let next = from.min(self.lock().last + 1);
        Ok(Box::new(Position {
            store: self.clone(),
            next,
            tail: self.tail.subscribe(),
        }))
    }

    async fn bounds(&self) -> Result<Bounds, ObservationsError> {
        let store = self.lock();
        Ok(Bounds {
            first: store.first(),
            last: store.last,
            bytes: store.bytes,
        })
    }
}

struct Position {
    store: MemoryObservations,
    next: u64,
    tail: watch::Receiver<u64>,
}

#[async_trait]
impl FollowObservations for Position {
    async fn next_batch(&mut self, max: usize) -> Result<Vec<StoredBlock>, ObservationsError> {
        loop {
            self.tail.borrow_and_update();
            let batch = self.store.read_now(self.next, max, usize::MAX);
            if let Some(last) = batch.last() {
                self.next = last.sequence + 1;
                return Ok(batch);
            }
            // The sender lives in our own handle.
            let _ = self.tail.changed().await;
        }
    }

    fn next_sequence(&self) -> u64 {
        self.next
    }
}
