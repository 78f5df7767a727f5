//! What the clients of one service perceived, counted per second.
//!
//! A request *waits* from its arrival until its answer begins or it ends otherwise, in the queue or in a try. The gap
//! is the time in which at least one request waited and none succeeded; it starts anew with each success and ends when
//! nobody waits. A second that closes while a gap is open reports the gap so far, so the largest value over seconds is
//! the longest gap.
//!
//! Each request ends in exactly one outcome, so arrived = ok + application errors + failed + refused + cancelled +
//! still waiting. What happens to an answer after it began is counted besides (`cut_streams`). Rejected: one atomic per
//! counter, because waiting and the gap must change together with them, and the lock is held for a few additions only.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidemill_protocol::gateway::{LATENCY_BOUNDS_MS, TrafficSample};

/// How a request ended, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// An instance answered with a status below 500.
    Ok,
    /// An instance answered 5xx.
    ApplicationError,
    /// It failed for a platform reason, after retries.
    Failed,
    /// Queue full, deadline passed, service stopped.
    Refused,
    /// The client gave up.
    Cancelled,
}

/// Buckets of the latency histogram, the open one included.
pub(crate) const BUCKETS: usize = LATENCY_BOUNDS_MS.len() + 1;

/// Counts of one closed second (or of several, merged).
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Second {
    pub(crate) arrived: u64,
    pub(crate) ok: u64,
    pub(crate) application_errors: u64,
    pub(crate) failed: u64,
    pub(crate) refused: u64,
    pub(crate) cancelled: u64,
    pub(crate) cut_streams: u64,
    pub(crate) retries: u64,
    pub(crate) longest_gap: Duration,
    pub(crate) latency: [u64; BUCKETS],
}

impl Second {
    /// Nothing happened and nobody waited.
    pub(crate) fn is_quiet(&self) -> bool {
        *self == Self::default()
    }

    /// Adds a later or earlier second to this one.
    pub(crate) fn merge(&mut self, other: &Second) {
        self.arrived += other.arrived;
        self.ok += other.ok;
        self.application_errors += other.application_errors;
        self.failed += other.failed;
        self.refused += other.refused;
        self.cancelled += other.cancelled;
        self.cut_streams += other.cut_streams;
        self.retries += other.retries;
        self.longest_gap = self.longest_gap.max(other.longest_gap);
        for (mine, theirs) in self.latency.iter_mut().zip(other.latency) {
            *mine += theirs;
        }
    }

    /// The wire form; names, age, gauges and instances are the caller's to fill in.
    pub(crate) fn to_sample(&self) -> TrafficSample {
        TrafficSample {
            arrived: self.arrived,
            ok: self.ok,
            application_errors: self.application_errors,
            failed: self.failed,
            refused: self.refused,
            cancelled: self.cancelled,
            cut_streams: self.cut_streams,
            retries: self.retries,
            longest_gap_ms: self.longest_gap.as_millis() as u64,
            latency: self.latency.to_vec(),
            ..TrafficSample::default()
        }
    }
}

/// Counters of one service. Time comes in as an argument, so tests need no clock.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: u64,
    gap_since: Option<Instant>,
    second: Second,
}

impl Traffic {
    // Poisoning cannot leave counts half-changed in a way that matters more than going on.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request came in at `now`. Each call is paired with one [`Traffic::ended`].
    pub(crate) fn arrived(&self, now: Instant) {
        let mut inner = self.lock();
        inner.second.arrived += 1;
        inner.waiting += 1;
        inner.gap_since.get_or_insert(now);
    }

    /// The request that arrived at `arrived` was answered, or ended without an answer.
    pub(crate) fn ended(&self, outcome: Outcome, arrived: Instant, now: Instant) {
        let mut inner = self.lock();
        inner.waiting = inner.waiting.saturating_sub(1);
        match outcome {
            Outcome::Ok => inner.second.ok += 1,
            Outcome::ApplicationError => inner.second.application_errors += 1,
            Outcome::Failed => inner.second.failed += 1,
            Outcome::Refused => inner.second.refused += 1,
            Outcome::Cancelled => inner.second.cancelled += 1,
        }
        if matches!(outcome, Outcome::Ok | Outcome::ApplicationError) {
            inner.second.latency[bucket(now.saturating_duration_since(arrived))] += 1;
        }
        if outcome == Outcome::Ok || inner.waiting == 0 {
            if let Some(since) = inner.gap_since.take() {
                let gap = now.saturating_duration_since(since);
                inner.second.longest_gap = inner.second.longest_gap.max(gap);
            }
            inner.gap_since = (inner.waiting > 0).then_some(now);
        }
    }

    /// A second or further try begins.
    pub(crate) fn retried(&self) {
        self.lock().second.retries += 1;
    }

    /// An answer that had begun was cut.
    pub(crate) fn stream_cut(&self) {
        self.lock().second.cut_streams += 1;
    }

    /// Closes the second at `now` and starts the next.
    pub(crate) fn close(&self, now: Instant) -> Second {
        let mut inner = self.lock();
        let mut second = std::mem::take(&mut inner.second);
        if let Some(since) = inner.gap_since {
            let so_far = now.saturating_duration_since(since);
            second.longest_gap = second.longest_gap.max(so_far);
        }
        second
    }

    /// Requests that arrived and are not yet answered.
    pub(crate) fn waiting(&self) -> u64 {
        self.lock().waiting
    }
}

fn bucket(latency: Duration) -> usize {
    let us = latency.as_micros() as u64;
    LATENCY_BOUNDS_MS.partition_point(|bound| bound * 1000 < us)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn gap_runs_from_first_waiter_to_first_success() {
        let t = Traffic::default();
        let t0 = Instant::now();
        t.arrived(t0);
        t.arrived(t0 + ms(100));
        t.ended(Outcome::Failed, t0, t0 + ms(900));
        t.ended(Outcome::Ok, t0 + ms(100), t0 + ms(1500));
        assert_eq!(t.close(t0 + ms(1600)).longest_gap, ms(1500));
        assert_eq!(t.close(t0 + ms(9000)).longest_gap, ms(0), "nobody waits");
    }

    #[test]
    fn success_restarts_the_gap_while_others_wait() {
        let t = Traffic::default();
        let t0 = Instant::now();
        t.arrived(t0);
        t.arrived(t0);
        t.ended(Outcome::Ok, t0, t0 + ms(300));
        t.ended(Outcome::Ok, t0, t0 + ms(1000));
        assert_eq!(t.close(t0 + ms(1000)).longest_gap, ms(700));
    }

    #[test]
    fn open_gap_is_reported_so_far_in_each_second() {
        let t = Traffic::default();
        let t0 = Instant::now();
        t.arrived(t0);
        assert_eq!(t.close(t0 + ms(1000)).longest_gap, ms(1000));
        assert_eq!(t.close(t0 + ms(2000)).longest_gap, ms(2000));
        t.ended(Outcome::Cancelled, t0, t0 + ms(2500));
        assert_eq!(t.close(t0 + ms(3000)).longest_gap, ms(2500));
        assert_eq!(t.waiting(), 0);
    }

    #[test]
    fn an_application_error_is_no_success() {
        let t = Traffic::default();
        let t0 = Instant::now();
        t.arrived(t0);
        t.arrived(t0);
        t.ended(Outcome::ApplicationError, t0, t0 + ms(200));
        t.ended(Outcome::Ok, t0, t0 + ms(500));
        let second = t.close(t0 + ms(600));
        assert_eq!(second.longest_gap, ms(500));
        assert_eq!(
            second.arrived,
            second.ok + second.application_errors + second.failed + second.refused + second.cancelled
        );
    }

    #[test]
    fn bucket_bounds_are_inclusive() {
        assert_eq!(bucket(ms(1)), 0);
        assert_eq!(bucket(Duration::from_micros(1001)), 1);
        assert_eq!(bucket(ms(60_000)), BUCKETS - 2);
        assert_eq!(bucket(ms(60_001)), BUCKETS - 1);
    }
}
