//! Read models and time travel on a million events: events per second beside raw SQLite upserts, and `--at`.
//!
//! `cargo bench -p tidemill-tests --bench read_models [-- EVENTS]`. JSON lines on stdout, a table on stderr. The ledger
//! is what instances coming and going on 1,000 devices leave: each event changes an instance, and with it its service,
//! its devices, its node. Raw = one upsert an event, of a body as long as an instance's row, into one table, in
//! transactions of the same size on the same disk.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/projections_support/mod.rs"]
mod projections_support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use projections_support::{Cell, Rng, genesis, ready, started};
use tidemill_bus::embedded::EmbeddedLedger;
use tidemill_bus::ledger::Ledger;
use tidemill_domain::command::{Command, FactBody, InstanceFact, ReportFacts};
use tidemill_domain::events::instance::StopReason;
use tidemill_domain::id::InstanceId;
use tidemill_domain::time::Span;
use tidemill_projections::engine::{Projection, ProjectionOptions};
use tidemill_projections::filter::{EventFilter, Filter};
use tidemill_projections::query::ReadModels;
use tidemill_projections::travel::{At, TimeTravel};

/// Instances that come and go together.
const WAVE: u32 = 200;

fn main() {
    // `cargo test --benches` passes flags; the full size is for `cargo bench`.
    let asked = std::env::args().skip(1).find_map(|arg| arg.parse::<u64>().ok());
    let events = asked.unwrap_or(if cfg!(debug_assertions) { 20_000 } else { 1_000_000 });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(run(events));
}

fn line(name: &str, value: serde_json::Value) {
    eprintln!("{name:<34} {value}");
    println!(
        "{}",
        serde_json::json!({"bench": "read_models", "case": name, "value": value})
    );
}

async fn run(events: u64) {
    let dir = tempfile::tempdir().unwrap();
    let cell = churn(events);
    line("events", cell.state.events.into());
    line("records", cell.records.len().into());

    // CPU time beside wall time: the first does not depend on who else is using the machine.
    let (raw, raw_cpu) = timed(cell.state.events, || raw_upserts(dir.path(), cell.state.events));
    line("raw_upserts_per_s", (raw as u64).into());
    line("raw_upserts_per_cpu_s", (raw_cpu as u64).into());
    let (rate, rate_cpu) = timed(cell.state.events, || read_models(dir.path(), &cell));
    line("read_models_events_per_s", (rate as u64).into());
    line("read_models_events_per_cpu_s", (rate_cpu as u64).into());
    line("read_models_over_raw", ((rate / raw * 100.0).round() / 100.0).into());
    let bytes = std::fs::metadata(dir.path().join("read-models.sqlite")).unwrap().len();
    line("read_models_bytes_per_event", (bytes / cell.state.events).into());

    let path = dir.path().join("ledger.sqlite");
    let ledger: Arc<dyn Ledger> = Arc::new(EmbeddedLedger::create(&path, &genesis(), None).unwrap());
    for record in &cell.records {
        ledger
            .append(record.sequence - 1, record.body.clone(), &Default::default())
            .await
            .unwrap();
    }
    let models = ReadModels::open(dir.path()).unwrap();
    let bare = TimeTravel::new(ledger.clone(), vec![]);
    let near = TimeTravel::new(ledger, vec![Arc::new(models.clone())]);
    let whole = Instant::now();
    bare.moment(At::Latest).await.unwrap();
    line("fold_whole_ledger_ms", millis(whole.elapsed()));
    at(&near, &cell).await;
    queries(&models).await;
}

/// What `work` does of `number` things a second, by the clock and by this thread's CPU time.
fn timed(number: u64, work: impl FnOnce()) -> (f64, f64) {
    let cpu = || Duration::from(nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
    let (begin, cpu_begin) = (Instant::now(), cpu());
    work();
    let (wall, cpu) = (begin.elapsed(), cpu() - cpu_begin);
    (number as f64 / wall.as_secs_f64(), number as f64 / cpu.as_secs_f64())
}

fn millis(time: Duration) -> serde_json::Value {
    ((time.as_secs_f64() * 10_000.0).round() / 10.0).into()
}

/// Waves of instances that are requested, placed, start, serve and end, until there are so many events.
fn churn(events: u64) -> Cell {
    let mut cell = Cell::new(1);
    let nodes: Vec<_> = (0..10).map(|n| cell.join(&format!("node-{n}"), 100)).collect();
    let services: Vec<_> = (0..5)
        .map(|n| cell.declare("default", &format!("service-{n}"), WAVE, WAVE))
        .collect();
    cell.flush();
    let mut turn = 0;
    while cell.state.events < events {
        let service = services[turn % services.len()];
        turn += 1;
        cell.pass(Span::from_millis(700));
        cell.request(service);
        cell.flush();
        cell.place(service, WAVE as usize);
        cell.flush();
        let live: Vec<InstanceId> = cell.state.services[&service].live.iter().copied().collect();
        facts(&mut cell, &nodes, &live, |_| vec![started(), ready()]);
        let _ = cell.ask(Command::ReportInRotation {
            gateway: "gw-1".into(),
            instances: live.clone(),
        });
        cell.flush();
        cell.pass(Span::from_secs(60));
        for command in [
            Command::DrainInstances {
                instances: live.clone(),
                reason: StopReason::Replaced,
            },
            Command::ReleaseInstances {
                instances: live.clone(),
            },
        ] {
            cell.ask(command).unwrap();
            cell.flush();
        }
        facts(&mut cell, &nodes, &live, |_| vec![FactBody::Stopped { killed: false }]);
    }
    cell
}

/// What each node reports of its instances, in reports of at most 32 instances, a record each.
fn facts(
    cell: &mut Cell,
    nodes: &[tidemill_domain::id::NodeId],
    live: &[InstanceId],
    bodies: impl Fn(InstanceId) -> Vec<FactBody>,
) {
    for node in nodes {
        let on_it = |id: &&InstanceId| cell.state.instances.get(*id).is_some_and(|i| i.node == Some(*node));
        let here: Vec<InstanceId> = live.iter().filter(on_it).copied().collect();
        for some in here.chunks(32) {
            let facts = some.iter().flat_map(|id| {
                let fact = |body| InstanceFact {
                    instance: *id,
                    age: Span::from_millis(5),
                    body,
                };
                bodies(*id).into_iter().map(fact)
            });
            let report = ReportFacts {
                node: *node,
                facts: facts.collect(),
            };
            cell.ask(Command::ReportFacts(report)).unwrap();
            cell.flush();
        }
    }
}

fn raw_upserts(dir: &Path, events: u64) {
    let conn = rusqlite::Connection::open(dir.join("raw.sqlite")).unwrap();
    conn.pragma_update(None, "journal_mode", "WAL").unwrap();
    conn.pragma_update(None, "synchronous", "NORMAL").unwrap();
    conn.execute_batch("CREATE TABLE rows (id TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT")
        .unwrap();
    let body = "x".repeat(700);
    let mut rng = Rng::new(3);
    let mut left = events;
    while left > 0 {
        let tx = conn.unchecked_transaction().unwrap();
        let batch = left.min(ProjectionOptions::default().batch_events as u64);
        {
            let mut upsert = tx
                .prepare_cached(
                    "INSERT INTO rows (id, body) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET body = excluded.body",
                )
                .unwrap();
            for _ in 0..batch {
                let id = InstanceId::from_bits(rng.next() % 10_000).to_string();
                upsert.execute(rusqlite::params![id, body]).unwrap();
            }
        }
        tx.commit().unwrap();
        left -= batch;
    }
}

fn read_models(dir: &Path, cell: &Cell) {
    let path = dir.join("read-models.sqlite");
    let (mut projection, _) = Projection::open(&path, &genesis(), ProjectionOptions::default()).unwrap();
    projection.apply(&cell.records, |_| {}).unwrap();
}

async fn at(near: &TimeTravel, cell: &Cell) {
    let mut rng = Rng::new(9);
    let (mut by_sequence, mut by_time) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let sequence = 1 + rng.below(cell.records.len()) as u64;
        let begin = Instant::now();
        let moment = near.moment(At::Sequence(sequence)).await.unwrap();
        assert_eq!(
            moment.lists().nodes(&Filter::default()).unwrap().rows.len(),
            moment.state.nodes.len()
        );
        by_sequence.push(begin.elapsed());
        let begin = Instant::now();
        let instances = near.moment(At::Time(moment.recorded_at)).await.unwrap();
        instances.lists().instances(&Filter::default()).unwrap();
        by_time.push(begin.elapsed());
    }
    for (name, mut times) in [("at_sequence", by_sequence), ("at_time", by_time)] {
        times.sort_unstable();
        line(&format!("{name}_median_ms"), millis(times[times.len() / 2]));
        line(&format!("{name}_worst_ms"), millis(*times.last().unwrap()));
    }
}

async fn queries(models: &ReadModels) {
    let begin = Instant::now();
    models.pool().await.unwrap();
    line("query_pool_ms", millis(begin.elapsed()));
    let begin = Instant::now();
    let devices = models.devices(Filter::default()).await.unwrap();
    line(
        &format!("query_{}_devices_ms", devices.rows.len()),
        millis(begin.elapsed()),
    );
    let begin = Instant::now();
    let last = EventFilter {
        newest: true,
        limit: Some(100),
        ..EventFilter::default()
    };
    models.events(last).await.unwrap();
    line("query_last_100_events_ms", millis(begin.elapsed()));
}
