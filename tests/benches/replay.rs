//! Replay by fold: from stored records to state, beside reading the same bytes and doing nothing with them.
//!
//! `cargo bench -p tidemill-tests --bench replay [-- EVENTS]`. Records are full, as a loaded sequencer writes them. Raw = the same
//! records read through plain SQLite, or through a plain ordered consumer of async-nats; the fold checks the chain, decodes
//! and applies.
#![allow(clippy::unwrap_used, missing_docs)]

mod substrate;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use substrate::{fsync_probe, genesis, line};
use tidemill_bus::embedded::EmbeddedLedger;
use tidemill_bus::jetstream::{JetStreamLedger, Nats, StreamLimits};
use tidemill_bus::ledger::{Hints, Ledger, RawRecord};
use tidemill_bus::view::StateView;
use tidemill_domain::time::Timestamp;
use tidemill_tests::bulk::records;
use tidemill_tests::nats::NatsServer;
use tokio_util::sync::CancellationToken;

fn main() {
    let asked = std::env::args().skip(1).find_map(|arg| arg.parse::<u64>().ok());
    let events = asked.unwrap_or(if cfg!(debug_assertions) { 20_000 } else { 1_000_000 });
    let records = records(&genesis(), events, Timestamp(1_767_225_600_000_000));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        embedded(&records).await;
        jetstream(&records).await;
    });
}

fn report(case: &str, records: &[RawRecord], events: u64, fold: Duration, raw: Duration, fsync: Duration) {
    let bytes = records.iter().map(|raw| raw.body.len()).sum::<usize>() as f64;
    let (fold, raw) = (fold.as_secs_f64(), raw.as_secs_f64());
    line(
        "replay",
        case,
        &[
            ("events", events as f64),
            ("events_per_s", events as f64 / fold),
            ("mb_per_s", bytes / fold / 1e6),
            ("raw_mb_per_s", bytes / raw / 1e6),
            ("bytes_over_raw", raw / fold),
            ("fsync_ms", fsync.as_secs_f64() * 1e3),
        ],
    );
}

/// A view of the ledger from its start until it stands at `last`.
async fn fold(ledger: &Arc<dyn Ledger>, last: u64) -> (Duration, u64) {
    let began = Instant::now();
    let shutdown = CancellationToken::new();
    let view = StateView::start(Arc::clone(ledger), None, shutdown.clone())
        .await
        .unwrap();
    assert!(view.wait_for(last, Duration::from_secs(600)).await);
    let took = began.elapsed();
    shutdown.cancel();
    (took, view.read(|state| state.events))
}

async fn embedded(records: &[RawRecord]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.sqlite");
    let ledger: Arc<dyn Ledger> = Arc::new(EmbeddedLedger::create(&path, &genesis(), None).unwrap());
    for raw in records {
        ledger
            .append(raw.sequence - 1, raw.body.clone(), &Hints::default())
            .await
            .unwrap();
    }
    let last = records.len() as u64;
    let began = Instant::now();
    let connection = rusqlite::Connection::open(&path).unwrap();
    let mut statement = connection.prepare("SELECT body FROM record ORDER BY sequence").unwrap();
    let bodies = statement.query_map([], |row| row.get::<_, Vec<u8>>(0)).unwrap();
    assert_eq!(
        bodies.map(|body| body.unwrap()).filter(|body| !body.is_empty()).count() as u64,
        last
    );
    let raw = began.elapsed();
    let (took, events) = fold(&ledger, last).await;
    report("embedded", records, events, took, raw, fsync_probe(dir.path()));
}

async fn jetstream(records: &[RawRecord]) {
    let server = NatsServer::start().await;
    let nats = Nats::connect(&server.url(), "bench", vec![]).await.unwrap();
    let ledger: Arc<dyn Ledger> = Arc::new(
        JetStreamLedger::create(&nats, &genesis(), &StreamLimits::default())
            .await
            .unwrap(),
    );
    for raw in records {
        ledger
            .append(raw.sequence - 1, raw.body.clone(), &Hints::default())
            .await
            .unwrap();
    }
    let last = records.len() as u64;
    let context = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let stream = context.get_stream("LEDGER_bench").await.unwrap();
    let mut rounds = Vec::new();
    // Each side twice, in turns: the second of each finds everything warm.
    for _ in 0..2 {
        let began = Instant::now();
        let config = async_nats::jetstream::consumer::pull::OrderedConfig::default();
        let consumer = stream.create_consumer(config).await.unwrap();
        let mut messages = consumer.messages().await.unwrap().take(records.len());
        let mut bytes = 0;
        while let Some(message) = messages.next().await {
            bytes += message.unwrap().payload.len();
        }
        assert!(bytes > 0);
        let raw = began.elapsed();
        rounds.push((raw, fold(&ledger, last).await));
    }
    let (raw, (took, events)) = rounds[1];
    report("jetstream r1", records, events, took, raw, fsync_probe(&server.store()));
}
