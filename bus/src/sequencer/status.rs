//! How a candidate for leadership is doing, for `/readyz`, metrics and whoever waits for it.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// What a candidate is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "role")]
pub enum Role {
    /// It folds the ledger for the first time.
    Starting,
    /// It folds along and takes over when the leader goes.
    Standby,
    /// It decides.
    Leader,
    /// Nothing is decided here until something is mended; it goes on by itself then, unless `next` says otherwise.
    ReadOnly {
        /// Stable code.
        code: String,
        /// What happened.
        reason: String,
        /// What to do.
        next: String,
    },
    /// It has ended.
    Stopped,
}

/// A candidate's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CandidateStatus {
    /// What it is.
    #[serde(flatten)]
    pub role: Role,
    /// Epoch on the ledger, as far as this candidate has folded.
    pub epoch: u64,
    /// Last record folded or appended here.
    pub sequence: u64,
    /// Who leads, as far as is known here; empty if nobody ever did.
    pub leader: String,
}

impl CandidateStatus {
    /// True if it decides now.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.role == Role::Leader
    }
}

/// Counters since the process started.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) records: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) repeated: AtomicU64,
    pub(crate) overloaded: AtomicU64,
    pub(crate) takeovers: AtomicU64,
    pub(crate) decide_micros: AtomicU64,
    pub(crate) append_micros: AtomicU64,
    pub(crate) append_times: Buckets<13>,
    pub(crate) group_commits: Buckets<13>,
}

/// Upper bounds of the buckets of append times, microseconds.
pub const APPEND_MICROS: [u64; 13] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 10_000_000,
];

/// Upper bounds of the buckets of commits in a record.
pub const GROUP_COMMITS: [u64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096];

/// How many values fell at or under each bound, and under none below it. What is above the last bound is not in any
/// bucket, only in the total beside it.
#[derive(Debug)]
pub(crate) struct Buckets<const N: usize>([AtomicU64; N]);

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl<const N: usize> Buckets<N> {
    pub(crate) fn note(&self, bounds: &[u64; N], value: u64) {
        if let Some(bucket) = self.0.get(bounds.partition_point(|bound| *bound < value)) {
            Counters::add(bucket, 1);
        }
    }

    /// Values at or under each bound.
    fn cumulated(&self) -> [u64; N] {
        let mut sum = 0;
        std::array::from_fn(|n| {
            sum += self.0[n].load(Ordering::Relaxed);
            sum
        })
    }
}

/// The counters at one moment; all only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct SequencerMetrics {
    /// Records appended.
    pub records: u64,
    /// Commands answered.
    pub commands: u64,
    /// Events appended.
    pub events: u64,
    /// Bytes of records appended.
    pub bytes: u64,
    /// Commands rejected.
    pub rejected: u64,
    /// Commands answered with an earlier answer.
    pub repeated: u64,
    /// Commands turned away because too many waited.
    pub overloaded: u64,
    /// Times this process took over.
    pub takeovers: u64,
    /// Time spent deciding, microseconds.
    pub decide_micros: u64,
    /// Time spent waiting for appends, microseconds.
    pub append_micros: u64,
    /// Commits in the records appended.
    pub commits: u64,
    /// Appends that took at most [`APPEND_MICROS`].
    pub append_times: [u64; 13],
    /// Records that held at most [`GROUP_COMMITS`].
    pub group_commits: [u64; 13],
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> SequencerMetrics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SequencerMetrics {
            records: get(&self.records),
            commands: get(&self.commands),
            events: get(&self.events),
            bytes: get(&self.bytes),
            rejected: get(&self.rejected),
            repeated: get(&self.repeated),
            overloaded: get(&self.overloaded),
            takeovers: get(&self.takeovers),
            decide_micros: get(&self.decide_micros),
            append_micros: get(&self.append_micros),
            commits: get(&self.commits),
            append_times: self.append_times.cumulated(),
            group_commits: self.group_commits.cumulated(),
        }
    }
}
