//! What came of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::histogram::Histogram;

/// Result of a run. Latencies are those of requests that succeeded, from the moment a request was due (its wait for a
/// free place in this client included) to the last byte of its answer; `None` if none succeeded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LoadReport {
    /// Requests sent; ok + failed.
    pub sent: u64,
    /// Answered whole, with a status below 400.
    pub ok: u64,
    /// All others.
    pub failed: u64,
    /// Median latency, milliseconds.
    pub p50_ms: Option<u64>,
    /// 90th percentile of latency, milliseconds.
    pub p90_ms: Option<u64>,
    /// 99th percentile of latency, milliseconds.
    pub p99_ms: Option<u64>,
    /// Longest time in which no request succeeded while at least one waited, milliseconds.
    pub longest_gap_ms: u64,
    /// From the first request due to the last one ended, milliseconds.
    pub duration_ms: u64,
    /// Requests sent a second while sending.
    pub rate_rps: f64,
    /// Latency in microseconds.
    pub latency_us: Quantiles,
    /// Time to the first byte of the answer, microseconds.
    pub first_byte_us: Quantiles,
    /// Requests by HTTP status.
    pub by_status: BTreeMap<u16, u64>,
    /// Failed requests by kind: `status_4xx`, `status_5xx`, `connect`, `closed`, `cut`, `timeout`, `no_files`, `other`.
    pub failures: BTreeMap<&'static str, u64>,
    /// Answers by the instance that gave them, where a gateway says so (at most 1,000 of them).
    pub instances: BTreeMap<String, u64>,
    /// Answers for which the gateway needed more than one try.
    pub retried: u64,
    /// How well the schedule was kept.
    pub lateness: Lateness,
}

/// Quantiles in microseconds; `None` where nothing was recorded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: Option<u64>,
    /// 90th percentile.
    pub p90: Option<u64>,
    /// 99th percentile.
    pub p99: Option<u64>,
    /// 99.9th percentile.
    pub p999: Option<u64>,
    /// Largest.
    pub max: Option<u64>,
}

/// How far behind their schedule requests were sent.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Lateness {
    /// Requests sent over 10 ms late.
    pub over_10ms: u64,
    /// Latest of all, milliseconds.
    pub max_ms: u64,
}

/// State of a run, told each second.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Since the start.
    pub elapsed: Duration,
    /// Sent so far.
    pub sent: u64,
    /// Succeeded so far.
    pub ok: u64,
    /// Failed so far.
    pub failed: u64,
    /// Sent and not ended.
    pub in_flight: u64,
    /// Median latency so far, microseconds.
    pub p50_us: Option<u64>,
    /// 99th percentile so far, microseconds.
    pub p99_us: Option<u64>,
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |us: Option<u64>| us.map_or("-".to_owned(), |us| format!("{:.1}", us as f64 / 1e3));
        write!(
            f,
            "{:>4} s  sent {}  ok {}  failed {}  in flight {}  p50 {} ms  p99 {} ms",
            self.elapsed.as_secs(),
            self.sent,
            self.ok,
            self.failed,
            self.in_flight,
            ms(self.p50_us),
            ms(self.p99_us),
        )
    }
}

impl From<&Histogram> for Quantiles {
    fn from(histogram: &Histogram) -> Self {
        Self {
            p50: histogram.quantile(0.5),
            p90: histogram.quantile(0.9),
            p99: histogram.quantile(0.99),
            p999: histogram.quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// Rounded to the nearest millisecond.
pub(crate) fn to_ms(us: Option<u64>) -> Option<u64> {
    us.map(|us| us.saturating_add(500) / 1000)
}
