//! What the door counts, as Prometheus text (exposition format 0.0.4).
//!
//! Labels take their values from closed sets (routes of the table, command names, states), never from ids or tenants,
//! so that the number of series is a constant of the build;
//! only those of devices and hosts carry names, up to a bound. Gauges of the cell are read from the state when asked for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of latency buckets, seconds.
const BOUNDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

#[derive(Debug, Clone, Default)]
struct Histogram {
    buckets: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

/// Counters of one door.
#[derive(Debug, Default)]
pub struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    commands: Mutex<BTreeMap<(&'static str, String), Histogram>>,
    /// Agents connected.
    pub(crate) agents: AtomicI64,
    /// Gateways connected.
    pub(crate) gateways: AtomicI64,
    /// Streams open.
    pub(crate) streams: AtomicI64,
    /// Observations stored.
    pub(crate) observations: AtomicU64,
    /// Telemetry dropped because the store did not keep up.
    pub(crate) observations_dropped: AtomicU64,
    /// Messages that did not parse.
    pub(crate) malformed: AtomicU64,
}

impl Metrics {
    /// A request was answered.
    pub(crate) fn request(&self, route: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route, status)).or_default() += 1;
    }

    /// A command came to an end. `outcome` is `ok` or a stable code.
    pub(crate) fn command(&self, name: &'static str, outcome: &str, took: Duration) {
        let mut commands = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let histogram = commands.entry((name, outcome.to_owned())).or_default();
        let seconds = took.as_secs_f64();
        histogram.count += 1;
        histogram.sum += seconds;
        for (bucket, bound) in histogram.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    /// Everything counted here, as text.
    pub(crate) fn render(&self, out: &mut Text) {
        out.family(
            "tidemill_door_requests_total",
            "counter",
            "Answers by route and status.",
        );
        for ((route, status), count) in &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            out.sample(&format!("{{route=\"{route}\",status=\"{status}\"}}"), *count as f64);
        }
        let name = "tidemill_command_duration_seconds";
        out.family(
            name,
            "histogram",
            "Time from asking to the durable answer, by command and outcome.",
        );
        for ((command, outcome), h) in &*self.commands.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels = format!("command=\"{command}\",outcome=\"{outcome}\"");
            for (bucket, bound) in h.buckets.iter().zip(BOUNDS) {
                out.line(&format!("{name}_bucket{{{labels},le=\"{bound}\"}} {bucket}"));
            }
            out.line(&format!("{name}_bucket{{{labels},le=\"+Inf\"}} {}", h.count));
            out.line(&format!("{name}_sum{{{labels}}} {}", h.sum));
            out.line(&format!("{name}_count{{{labels}}} {}", h.count));
        }
        out.family("tidemill_door_connections", "gauge", "Open connections by kind.");
        for (kind, count) in [
            ("agent", &self.agents),
            ("gateway", &self.gateways),
            ("stream", &self.streams),
        ] {
            out.sample(&format!("{{kind=\"{kind}\"}}"), count.load(Ordering::Relaxed) as f64);
        }
        let counters = [
            (
                "tidemill_observations_published_total",
                "Observations stored.",
                &self.observations,
            ),
            (
                "tidemill_observations_dropped_total",
                "Telemetry dropped because the store did not keep up.",
                &self.observations_dropped,
            ),
            (
                "tidemill_door_malformed_messages_total",
                "Messages that did not parse.",
                &self.malformed,
            ),
        ];
        for (name, help, counter) in counters {
            out.family(name, "counter", help);
            out.sample("", counter.load(Ordering::Relaxed) as f64);
        }
    }
}

/// Text in the exposition format under construction.
#[derive(Debug, Default)]
pub(crate) struct Text {
    text: String,
    family: &'static str,
}

impl Text {
    pub(crate) fn family(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample of the family begun last; `labels` in braces or empty.
    pub(crate) fn sample(&mut self, labels: &str, value: f64) {
        let _ = writeln!(self.text, "{}{labels} {value}", self.family);
    }

    /// A counter with one sample.
    pub(crate) fn counter(&mut self, name: &'static str, help: &str, value: f64) {
        self.family(name, "counter", help);
        self.sample("", value);
    }

    /// A histogram whose `buckets` are upper bounds with how many values are at or under each.
    pub(crate) fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        buckets: impl Iterator<Item = (f64, u64)>,
        (count, sum): (u64, f64),
    ) {
        self.family(name, "histogram", help);
        for (bound, values) in buckets {
            self.line(&format!("{name}_bucket{{le=\"{bound}\"}} {values}"));
        }
        self.line(&format!("{name}_bucket{{le=\"+Inf\"}} {count}"));
        self.line(&format!("{name}_sum {sum}"));
        self.line(&format!("{name}_count {count}"));
    }

    /// A gauge with one sample.
    pub(crate) fn gauge(&mut self, name: &'static str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample("", value);
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }
}

/// Counts while it lives.
#[derive(Debug)]
pub(crate) struct Counted<'a>(&'a AtomicI64);

impl<'a> Counted<'a> {
    pub(crate) fn in_(counter: &'a AtomicI64) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
