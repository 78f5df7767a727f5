//! Durable commits through the sequencer, beside raw durable publishing of equal records one in flight.
//!
//! `cargo bench -p tidemill-tests --bench commits [-- SECONDS [embedded|r1|r3]]`. For 1, 64 and 1,024 callers, each asking again as
//! soon as it is answered; each command writes one event. Raw = records of the sizes the sequencer has just written, one
//! after another, each durable before the next: one transaction into a plain SQLite table, or one JetStream publish with
//! its ack. Both run on the same disk right after one another, with an fsync probe, since disks have moods.
#![allow(clippy::unwrap_used, missing_docs)]

mod substrate;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use substrate::{fsync_probe, genesis, line, median};
use tidemill_bus::commands::Commands;
use tidemill_bus::embedded::EmbeddedLedger;
use tidemill_bus::jetstream::{JetStreamLedger, Nats, StreamLimits};
use tidemill_bus::ledger::Ledger;
use tidemill_bus::sequencer::{Candidate, CandidateHandle, SequencerConfig};
use tidemill_domain::events::Event;
use tidemill_domain::id::ServiceId;
use tidemill_tests::bulk::{ask, declare, minute};
use tidemill_tests::nats::{NatsCluster, NatsServer};
use tokio_util::sync::CancellationToken;

/// Callers, and instances in each command's event: the last makes commits of about 1 KiB.
const LOADS: [(u64, u64); 4] = [(1, 2), (64, 2), (1024, 2), (1024, 64)];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seconds = args.iter().find_map(|arg| arg.parse().ok());
    let seconds = seconds.unwrap_or(if cfg!(debug_assertions) { 0.2 } else { 2.0 });
    let wanted = |name: &str| {
        let named = ["embedded", "r1", "r3"]
            .iter()
            .any(|known| args.iter().any(|arg| arg == known));
        !named || args.iter().any(|arg| arg == name)
    };
    let duration = Duration::from_secs_f64(seconds);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        if wanted("embedded") {
            embedded(duration).await;
        }
        if wanted("r1") {
            let server = NatsServer::start().await;
            jetstream("r1", &server.url(), &server.store(), 1, duration).await;
        }
        if wanted("r3") {
            let cluster = NatsCluster::start().await;
            jetstream("r3", &cluster.urls(), &cluster.servers[0].store(), 3, duration).await;
        }
    });
}

async fn embedded(duration: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let ledger: Arc<dyn Ledger> =
        Arc::new(EmbeddedLedger::create(&dir.path().join("ledger.sqlite"), &genesis(), None).unwrap());
    let raw_path = dir.path().join("raw.sqlite");
    let connection = rusqlite::Connection::open(&raw_path).unwrap();
    connection.pragma_update(None, "page_size", 8192).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.pragma_update(None, "synchronous", "FULL").unwrap();
    connection
        .execute_batch("CREATE TABLE record (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")
        .unwrap();
    let mut stored = 0;
    let mut raw = async |sizes: &[usize]| {
        let filling = vec![7; 256 * 1024];
        sizes
            .iter()
            .map(|size| {
                let began = Instant::now();
                stored += 1;
                let insert = "INSERT INTO record (sequence, body) VALUES (?1, ?2)";
                connection
                    .prepare_cached(insert)
                    .unwrap()
                    .execute((stored, &filling[..*size]))
                    .unwrap();
                began.elapsed()
            })
            .collect()
    };
    compare("embedded", ledger, dir.path(), duration, &mut raw).await;
}

async fn jetstream(name: &str, urls: &str, store: &Path, replicas: usize, duration: Duration) {
    let nats = Nats::connect(urls, "bench", vec![]).await.unwrap();
    let limits = StreamLimits {
        replicas,
        ..StreamLimits::default()
    };
    let ledger: Arc<dyn Ledger> = Arc::new(JetStreamLedger::create(&nats, &genesis(), &limits).await.unwrap());
    let servers: Vec<async_nats::ServerAddr> = urls.split(',').map(|url| url.parse().unwrap()).collect();
    let context = async_nats::jetstream::new(async_nats::connect(servers).await.unwrap());
    let config = async_nats::jetstream::stream::Config {
        name: "RAW".into(),
        subjects: vec!["raw".into()],
        num_replicas: replicas,
        max_bytes: 4 << 30,
        ..Default::default()
    };
    context.create_stream(config).await.unwrap();
    let mut raw = async |sizes: &[usize]| {
        let filling = bytes::Bytes::from(vec![7; 256 * 1024]);
        let mut times = Vec::with_capacity(sizes.len());
        for size in sizes {
            let began = Instant::now();
            context
                .publish("raw", filling.slice(..*size))
                .await
                .unwrap()
                .await
                .unwrap();
            times.push(began.elapsed());
        }
        times
    };
    compare(name, ledger, store, duration, &mut raw).await;
}

async fn compare(
    backend: &str,
    ledger: Arc<dyn Ledger>,
    place: &Path,
    duration: Duration,
    raw: &mut impl AsyncFnMut(&[usize]) -> Vec<Duration>,
) {
    let shutdown = CancellationToken::new();
    let config = SequencerConfig::in_memory("bench");
    let handle = Candidate::start(config, Arc::clone(&ledger), None, shutdown.clone()).unwrap();
    assert!(handle.wait_until_leading(Duration::from_secs(30)).await);
    let services = services(&handle, 1024).await;
    for (round, (callers, instances)) in LOADS.into_iter().enumerate() {
        // A quarter of the time to warm up, on other minutes.
        run(&handle, &services, (callers, instances), round as u64 * 2, duration / 4).await;
        let before = (handle.metrics(), ledger.tail().await.unwrap().sequence);
        let began = Instant::now();
        let latencies = run(&handle, &services, (callers, instances), round as u64 * 2 + 1, duration).await;
        let took = began.elapsed().as_secs_f64();
        let after = (handle.metrics(), ledger.tail().await.unwrap().sequence);
        let sizes = sizes(&*ledger, before.1 + 1, after.1).await;
        let fsync = fsync_probe(place);

        let began = Instant::now();
        let raw_times = raw(&sizes).await;
        let raw_took = began.elapsed().as_secs_f64();
        let raw_bytes = sizes.iter().sum::<usize>() as f64 / raw_took;
        let (events, bytes) = (after.0.events - before.0.events, after.0.bytes - before.0.bytes);
        let records = (after.0.records - before.0.records) as f64;
        let (latency, raw_latency) = (
            median(latencies).as_secs_f64() * 1e3,
            median(raw_times).as_secs_f64() * 1e3,
        );
        line(
            "commits",
            &format!(
                "{backend} {callers} callers{}",
                if instances > 2 { " 1 KiB" } else { "" }
            ),
            &[
                ("events_per_s", events as f64 / took),
                ("mb_per_s", bytes as f64 / took / 1e6),
                ("raw_mb_per_s", raw_bytes / 1e6),
                ("bytes_over_raw", bytes as f64 / took / raw_bytes),
                ("latency_ms", latency),
                ("raw_latency_ms", raw_latency),
                ("latency_over_raw", latency / raw_latency),
                ("commits_per_record", events as f64 / records),
                (
                    "decide_us_per_event",
                    (after.0.decide_micros - before.0.decide_micros) as f64 / events as f64,
                ),
                (
                    "append_ms",
                    (after.0.append_micros - before.0.append_micros) as f64 / records / 1e3,
                ),
                ("fsync_ms", fsync.as_secs_f64() * 1e3),
            ],
        );
    }
    shutdown.cancel();
    handle.ended().await;
}

async fn services(handle: &CandidateHandle, count: u64) -> Arc<[ServiceId]> {
    let mut ids = Vec::new();
    for envelope in declare(count) {
        let answer = handle.submit(envelope).await.unwrap();
        ids.extend(answer.events.iter().filter_map(|event| match event {
            Event::ServiceApplied(applied) => Some(applied.service),
            _ => None,
        }));
    }
    ids.into()
}

/// Every caller its own service, minute after minute; returns all latencies.
async fn run(
    handle: &CandidateHandle,
    services: &Arc<[ServiceId]>,
    (callers, instances): (u64, u64),
    round: u64,
    duration: Duration,
) -> Vec<Duration> {
    let until = Instant::now() + duration;
    let callers: Vec<_> = (0..callers)
        .map(|caller| {
            let (handle, services) = (handle.clone(), Arc::clone(services));
            tokio::spawn(async move {
                let mut times = Vec::new();
                for n in 0.. {
                    let command = minute(services[caller as usize], round * 10_000_000 + n, instances);
                    let began = Instant::now();
                    handle.submit(ask(&[round, caller, n], command)).await.unwrap();
                    times.push(began.elapsed());
                    if Instant::now() >= until {
                        break;
                    }
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await.unwrap());
    }
    times
}

/// Sizes of the records in a stretch, the first few thousand.
async fn sizes(ledger: &dyn Ledger, from: u64, to: u64) -> Vec<usize> {
    const MOST: usize = 3000;
    let mut sizes = Vec::new();
    let mut next = from;
    while next <= to && sizes.len() < MOST {
        for raw in ledger.read(next, 256, 8 << 20).await.unwrap() {
            next = raw.sequence + 1;
            if raw.sequence <= to && sizes.len() < MOST {
                sizes.push(raw.body.len());
            }
        }
    }
    sizes
}
