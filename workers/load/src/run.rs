//! Sending on schedule, and counting what comes back.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::Semaphore;

use crate::gap::Gap;
use crate::histogram::Histogram;
use crate::report::to_ms;
use crate::schedule::{Arrival, schedule};
use crate::{Lateness, LoadError, LoadOptions, LoadReport, Progress, Quantiles};

/// The timer fires up to this late without anybody being at fault; such lateness is not counted into latencies.
const TIMER_SLACK: Duration = Duration::from_millis(2);
/// Instances counted by name.
const INSTANCES: usize = 1000;
/// Unused connections close before common servers (4-5 s) close theirs.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

type HttpClient = Client<HttpConnector, Empty<Bytes>>;

/// Runs to the end of the schedule, or until [`LoadOptions::stop`].
///
/// # Errors
///
/// Only for input that cannot be used; failed requests are part of the report.
pub async fn run(options: LoadOptions) -> Result<LoadReport, LoadError> {
    run_with(options, |_| {}).await
}

/// The same, telling `each_second` how it goes.
///
/// # Errors
///
/// As [`run`].
pub async fn run_with(
    options: LoadOptions,
    mut each_second: impl FnMut(&Progress) + Send,
) -> Result<LoadReport, LoadError> {
    options.check()?;
    let target = Target::parse(&options.url)?;
    let read = {
        let options = options.clone();
        tokio::task::spawn_blocking(move || schedule(&options))
    };
    let schedule = read.await.map_err(|error| LoadError::File {
        path: options.url.clone().into(),
        source: io::Error::other(error),
    })??;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(options.timeout.min(Duration::from_secs(10))));
    let client = Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .build(connector);
    let sender = Arc::new(Sender {
        client,
        target,
        timeout: options.timeout,
        stats: Mutex::default(),
    });
    let room = Arc::new(Semaphore::new(options.max_in_flight.max(1)));

    let started = Instant::now();
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    seconds.tick().await;
    let sending = send_all(schedule, &options, &sender, &room, started);
    let mut sending = std::pin::pin!(sending);
    loop {
        tokio::select! {
            biased;
            () = sending.as_mut() => break,
            _ = seconds.tick() => each_second(&sender.progress(started)),
        }
    }
    let sent_in = started.elapsed();
    let all = u32::try_from(options.max_in_flight.max(1)).unwrap_or(u32::MAX);
    let mut idle = std::pin::pin!(room.acquire_many(all));
    loop {
        tokio::select! {
            biased;
            _ = idle.as_mut() => break,
            _ = seconds.tick() => each_second(&sender.progress(started)),
        }
    }
    Ok(sender.report(started, sent_in))
}

async fn send_all(
    schedule: impl Iterator<Item = Arrival>,
    options: &LoadOptions,
    sender: &Arc<Sender>,
    room: &Arc<Semaphore>,
    started: Instant,
) {
    let end = options.duration.unwrap_or(Duration::MAX);
    for arrival in schedule {
        if arrival.at >= end {
            // The last second counts too, although nothing more is due in it.
            let rest = tokio::time::sleep_until((started + end).into());
            tokio::select! { () = rest => {}, () = options.stop.cancelled() => {} }
            return;
        }
        let due = started + arrival.at;
        let permit = tokio::select! {
            biased;
            () = options.stop.cancelled() => return,
            permit = async {
                if due > Instant::now() {
                    tokio::time::sleep_until(due.into()).await;
                }
                Arc::clone(room).acquire_owned().await
            } => permit,
        };
        let Ok(permit) = permit else { return };
        let now = Instant::now();
        let late = now.saturating_duration_since(due);
        let from = if late > TIMER_SLACK { due } else { now };
        sender.stats().begin(now, late);
        let sender = Arc::clone(sender);
        tokio::spawn(async move {
            let _permit = permit;
            sender.send(arrival, from).await;
        });
    }
}

/// Where requests go.
#[derive(Debug)]
struct Target {
    /// Without the query's end.
    base: String,
    has_query: bool,
}

impl Target {
    fn parse(url: &str) -> Result<Self, LoadError> {
        let bad = |reason: String| LoadError::Url {
            url: url.to_owned(),
            reason,
        };
        let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| bad(e.to_string()))?;
        match (uri.scheme_str(), uri.host()) {
            (Some("http"), Some(host)) if !host.is_empty() => {}
            (Some("https"), _) => {
                return Err(LoadError::NotYet { url: url.to_owned() });
            }
            _ => return Err(bad("not an http:// URL with a host".to_owned())),
        }
        Ok(Self {
            base: uri.to_string(),
            has_query: uri.query().is_some(),
        })
    }

    fn uri(&self, arrival: &Arrival) -> Result<Uri, http::uri::InvalidUri> {
        let mut url = self.base.clone();
        let mut first = !self.has_query;
        for (name, value) in [("context", arrival.context), ("tokens", arrival.tokens)] {
            if let Some(value) = value {
                let joint = if std::mem::take(&mut first) { '?' } else { '&' };
                url.push_str(&format!("{joint}{name}={value}"));
            }
        }
        url.parse()
    }
}

struct Sender {
    client: HttpClient,
    target: Target,
    timeout: Duration,
    stats: Mutex<Stats>,
}

/// What a request came to.
type Failure = &'static str;

impl Sender {
    fn stats(&self) -> MutexGuard<'_, Stats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, arrival: Arrival, from: Instant) {
        let mut waiting = true;
        let result = tokio::time::timeout(self.timeout, self.exchange(arrival, from, &mut waiting));
        let outcome = match result.await {
            Ok(outcome) => outcome,
            Err(_) => Err("timeout"),
        };
        let now = Instant::now();
        let mut stats = self.stats();
        if waiting {
            stats.gap.end(false, now);
        }
        stats.in_flight -= 1;
        match outcome {
            Ok(()) => {
                stats.ok += 1;
                stats.latency.record(micros(now, from));
            }
            Err(kind) => {
                stats.failed += 1;
                *stats.failures.entry(kind).or_default() += 1;
            }
        }
    }

    async fn exchange(&self, arrival: Arrival, from: Instant, waiting: &mut bool) -> Result<(), Failure> {
        let uri = self.target.uri(&arrival).map_err(|_| "other")?;
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri;
        let response = self.client.request(request).await.map_err(|e| kind(&e))?;
        let status = response.status();
        let good = status.as_u16() < 400;
        {
            let now = Instant::now();
            let mut stats = self.stats();
            stats.gap.end(good, now);
            *waiting = false;
            stats.answered(status.as_u16(), response.headers());
            if good {
                stats.first_byte.record(micros(now, from));
            }
        }
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if frame.is_err() {
                return Err("cut");
            }
        }
        match status.as_u16() {
            ..400 => Ok(()),
            400..500 => Err("status_4xx"),
            _ => Err("status_5xx"),
        }
    }

    fn progress(&self, started: Instant) -> Progress {
        let stats = self.stats();
        Progress {
            elapsed: started.elapsed(),
            sent: stats.sent,
            ok: stats.ok,
            failed: stats.failed,
            in_flight: stats.in_flight,
            p50_us: stats.latency.quantile(0.5),
            p99_us: stats.latency.quantile(0.99),
        }
    }

    fn report(&self, started: Instant, sent_in: Duration) -> LoadReport {
        let now = Instant::now();
        let stats = self.stats();
        let latency_us = Quantiles::from(&stats.latency);
        LoadReport {
            sent: stats.sent,
            ok: stats.ok,
            failed: stats.failed,
            p50_ms: to_ms(latency_us.p50),
            p90_ms: to_ms(latency_us.p90),
            p99_ms: to_ms(latency_us.p99),
            longest_gap_ms: stats.gap.longest(now).as_millis() as u64,
            duration_ms: now.duration_since(started).as_millis() as u64,
            rate_rps: (stats.sent as f64 / sent_in.as_secs_f64().max(1e-3) * 10.0).round() / 10.0,
            latency_us,
            first_byte_us: Quantiles::from(&stats.first_byte),
            by_status: stats.by_status.clone(),
            failures: stats.failures.clone(),
            instances: stats.instances.clone(),
            retried: stats.retried,
            lateness: stats.lateness.clone(),
        }
    }
}

#[derive(Default)]
struct Stats {
    sent: u64,
    ok: u64,
    failed: u64,
    in_flight: u64,
    retried: u64,
    latency: Histogram,
    first_byte: Histogram,
    gap: Gap,
    by_status: BTreeMap<u16, u64>,
    failures: BTreeMap<Failure, u64>,
    instances: BTreeMap<String, u64>,
    lateness: Lateness,
}

impl Stats {
    fn begin(&mut self, now: Instant, late: Duration) {
        self.sent += 1;
        self.in_flight += 1;
        self.gap.begin(now);
        self.lateness.over_10ms += u64::from(late > Duration::from_millis(10));
        self.lateness.max_ms = self.lateness.max_ms.max(late.as_millis() as u64);
    }

    fn answered(&mut self, status: u16, headers: &HeaderMap) {
        *self.by_status.entry(status).or_default() += 1;
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
        let tries = text("x-tidemill-attempts").and_then(|v| v.parse::<u32>().ok());
        self.retried += u64::from(tries.is_some_and(|n| n > 1));
        if let Some(instance) = text("x-tidemill-instance") {
            if let Some(count) = self.instances.get_mut(instance) {
                *count += 1;
            } else if self.instances.len() < INSTANCES {
                self.instances.insert(instance.to_owned(), 1);
            }
        }
    }
}

fn micros(now: Instant, from: Instant) -> u64 {
    now.saturating_duration_since(from).as_micros() as u64
}

/// Which kind of failure the client met.
fn kind(error: &hyper_util::client::legacy::Error) -> Failure {
    // EMFILE and ENFILE: this process or host has no file descriptor left.
    const OUT_OF_FILES: [i32; 2] = [24, 23];
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(io) = cause.downcast_ref::<io::Error>()
            && io.raw_os_error().is_some_and(|n| OUT_OF_FILES.contains(&n))
        {
            return "no_files";
        }
        source = cause.source();
    }
    if error.is_connect() { "connect" } else { "closed" }
}
