//! What the door hears, bundled into blocks for the observations' log.
//!
//! Everything heard on any connection goes into one queue with its receive time; one task turns what has gathered into a
//! block every [`FLUSH`], or sooner when there is enough, and stores it. A thousand nodes thus cost ten messages a
//! second. Storing per connection was rejected: it would cost a thousand.
//!
//! Invariants: the queue is bounded. When the store does not keep up, the oldest telemetry goes first, the door's own
//! beats of the same time with it (so that a beat lost here never reads as a node's silence); what connections did is
//! never dropped, and new connections are refused instead while too much of it waits. Receive times are those of
//! hearing, however late a block is stored.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidemill_bus::observations::{Block, Observation, Observations};
use tidemill_kit::observation::{BEAT, Body};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::metrics::Metrics;

/// Longest time something heard waits for company.
const FLUSH: Duration = Duration::from_millis(100);
/// Gathered bytes that are stored at once.
const ENOUGH_BYTES: usize = 64 * 1024;
/// Bytes of one block, well below what the log takes.
const BLOCK_BYTES: usize = 512 * 1024;
/// Bytes of telemetry that may wait: about ten seconds of ten thousand nodes.
const TELEMETRY_BYTES: usize = 32 * 1024 * 1024;
/// Connection facts that may wait before new connections are refused.
const FACTS: usize = 65_536;
/// Bytes an observation takes besides its payload.
const OVERHEAD: usize = 48;
/// Pauses after the store failed.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Queue {
    /// Numbers everything in order of hearing, so that both queues can be merged.
    next: u64,
    telemetry: VecDeque<(u64, Observation)>,
    telemetry_bytes: usize,
    facts: VecDeque<(u64, Observation)>,
    fact_bytes: usize,
}

impl Queue {
    fn bytes(&self) -> usize {
        self.telemetry_bytes + self.fact_bytes
    }

    /// The oldest of both.
    fn pop(&mut self) -> Option<Observation> {
        let telemetry_first = match (self.telemetry.front(), self.facts.front()) {
            (Some((a, _)), Some((b, _))) => a < b,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let (queue, bytes) = match telemetry_first {
            true => (&mut self.telemetry, &mut self.telemetry_bytes),
            false => (&mut self.facts, &mut self.fact_bytes),
        };
        let (_, observation) = queue.pop_front()?;
        *bytes -= size(&observation);
        Some(observation)
    }

    fn take(&mut self) -> Vec<Observation> {
        let mut block = Vec::new();
        let mut bytes = 0;
        while bytes < BLOCK_BYTES {
            let Some(observation) = self.pop() else { break };
            bytes += size(&observation);
            block.push(observation);
        }
        block
    }
}

fn size(observation: &Observation) -> usize {
    observation.payload.len() + observation.source.len() + OVERHEAD
}

/// Takes what is heard. Never waits.
pub(crate) struct Observer {
    door: String,
    clock: Clock,
    queue: Mutex<Queue>,
    wake: Notify,
    metrics: Arc<Metrics>,
}

impl Observer {
    pub(crate) fn new(door: &str, clock: Clock, metrics: Arc<Metrics>) -> Self {
        Self {
            door: door.to_owned(),
            clock,
            queue: Mutex::default(),
            wake: Notify::new(),
            metrics,
        }
    }

    /// Notes what was heard now.
    pub(crate) fn heard(&self, body: &Body) {
        let observation = body.to_observation(&self.door, self.clock.now());
        let bytes = size(&observation);
        let telemetry = matches!(body, Body::DoorBeat | Body::NodeBeat { .. } | Body::GatewayBeat(_));
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let number = queue.next;
        queue.next += 1;
        if telemetry {
            queue.telemetry.push_back((number, observation));
            queue.telemetry_bytes += bytes;
        } else {
            queue.facts.push_back((number, observation));
            queue.fact_bytes += bytes;
        }
        let mut dropped = 0;
        while queue.telemetry_bytes > TELEMETRY_BYTES {
            let Some((_, oldest)) = queue.telemetry.pop_front() else {
                break;
            };
            queue.telemetry_bytes -= size(&oldest);
            dropped += 1;
        }
        let enough = queue.bytes() >= ENOUGH_BYTES || !telemetry;
        drop(queue);
        if dropped > 0 {
            self.metrics.observations_dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        if enough {
            self.wake.notify_one();
        }
    }

    /// Too much waits: new connections are to be refused.
    pub(crate) fn congested(&self) -> bool {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).facts.len() >= FACTS
    }

    /// Stores what is heard until `shutdown`, beating in between; then says that the door stops and stores the rest, at
    /// most for `grace`.
    pub(crate) async fn run(
        self: Arc<Self>,
        store: Arc<dyn Observations>,
        shutdown: CancellationToken,
        grace: Duration,
    ) {
        let mut flush = tokio::time::interval(FLUSH);
        flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut beat = tokio::time::interval(BEAT.to_std());
        beat.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut unsent = None;
        let mut retry = Retry::default();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                _ = beat.tick() => self.heard(&Body::DoorBeat),
                () = self.wake.notified() => {}
                _ = flush.tick() => {}
            }
            if retry.waiting() {
                continue;
            }
            // A shutdown does not cut a store short: what is in flight may be stored already.
            self.flush(&*store, &mut unsent, &mut retry).await;
        }
        self.heard(&Body::DoorStopping);
        let end = Instant::now() + grace;
        while Instant::now() < end {
            if self.flush(&*store, &mut unsent, &mut retry).await && unsent.is_none() {
                return;
            }
            tokio::time::sleep(RETRY_MIN).await;
        }
        tracing::warn!("the last observations could not be stored before the door ended");
    }

    /// Stores one block; true if nothing is left to store.
    async fn flush(&self, store: &dyn Observations, unsent: &mut Option<Block>, retry: &mut Retry) -> bool {
        if unsent.is_none() {
            let observations = self.queue.lock().unwrap_or_else(PoisonError::into_inner).take();
            if observations.is_empty() {
                return true;
            }
            *unsent = Some(Block {
                door: self.door.clone(),
                observations,
            });
        }
        let Some(block) = unsent.as_ref() else { return true };
        match store.publish(block).await {
            Ok(_) => {
                let stored = block.observations.len() as u64;
                self.metrics.observations.fetch_add(stored, Ordering::Relaxed);
                retry.succeeded();
                *unsent = None;
            }
            Err(error) => retry.failed(error.code(), &error),
        }
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let more = queue.bytes() >= ENOUGH_BYTES;
        let empty = queue.bytes() == 0 && unsent.is_none();
        drop(queue);
        if more && unsent.is_none() {
            self.wake.notify_one();
        }
        empty
    }
}

/// Back-off of the store; one log line a change of state.
#[derive(Default)]
struct Retry {
    pause: Duration,
    not_before: Option<Instant>,
}

impl Retry {
    fn waiting(&self) -> bool {
        self.not_before.is_some_and(|at| Instant::now() < at)
    }

    fn failed(&mut self, code: &str, error: &dyn std::fmt::Display) {
        if self.not_before.is_none() {
            tracing::warn!(code, %error, "observations cannot be stored; what is heard waits, the oldest telemetry goes first");
        }
        self.pause = (self.pause * 2).clamp(RETRY_MIN, RETRY_MAX);
        self.not_before = Some(Instant::now() + self.pause);
    }

    fn succeeded(&mut self) {
        if self.not_before.take().is_some() {
            tracing::info!("observations are stored again");
        }
        self.pause = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use tidemill_domain::id::NodeId;

    use super::*;

    fn observer() -> Observer {
        Observer::new("door", Clock::start(), Arc::default())
    }

    fn beat(bytes: usize) -> Body {
        Body::NodeBeat {
            node: NodeId::from_bits(1),
            telemetry: Bytes::from(vec![b' '; bytes]),
        }
    }

    fn connected(connection: u64) -> Body {
        Body::NodeConnected {
            node: NodeId::from_bits(1),
            connection,
        }
    }

    #[test]
    fn the_oldest_telemetry_goes_first_and_connections_stay() {
        let observer = observer();
        for number in 0..100 {
            observer.heard(&connected(number));
            observer.heard(&beat(1024 * 1024));
        }
        let dropped = observer.metrics.observations_dropped.load(Ordering::Relaxed);
        assert!((68..=69).contains(&dropped), "{dropped}");
        let mut seen = Vec::new();
        let mut queue = observer.queue.lock().unwrap();
        while let Some(observation) = queue.pop() {
            seen.push(Body::of_observation(&observation).unwrap().unwrap());
        }
        assert_eq!(queue.bytes(), 0);
        let kept: Vec<_> = seen
            .iter()
            .filter(|b| matches!(b, Body::NodeConnected { .. }))
            .cloned()
            .collect();
        assert_eq!(kept, (0..100).map(connected).collect::<Vec<_>>());
        assert!(
            matches!(seen.last(), Some(Body::NodeBeat { .. })),
            "order of hearing is kept"
        );
    }
}
