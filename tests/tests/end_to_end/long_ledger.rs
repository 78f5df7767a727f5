//! Two servers on a long ledger, and the leader killed under a stream of commands. In full (`TIDEMILL_LONG`) the ledger
//! holds a million events, and what the sequencer remembers a million commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidemill_bus::audit::verify;
use tidemill_bus::fold::decode_commits;
use tidemill_bus::identity::{CellName, Genesis, LedgerId};
use tidemill_bus::jetstream::{JetStreamLedger, Nats, StreamLimits};
use tidemill_bus::ledger::{Hints, Ledger};
use tidemill_bus::record::Record;
use tidemill_client::{Api, Call, ServerUrl};
use tidemill_domain::events::Event;
use tidemill_domain::time::Timestamp;
use tidemill_tests::bulk;
use tidemill_tests::nats::NatsServer;
use tidemill_tests::product::get;

use crate::on_nats::Cluster;

/// Clients that send at the same time.
const STREAMS: u64 = 8;

/// Commands before the leader is killed, and at least as many after it.
const COMMANDS: u64 = 200;

/// Longest wait for read models of a million events.
const CAUGHT_UP: Duration = Duration::from_secs(900);

/// What the clients saw.
#[derive(Default)]
struct Seen {
    accepted: std::sync::Mutex<Vec<(String, Instant, Instant)>>,
    count: AtomicU64,
    stop: AtomicBool,
}

async fn long_ledger(nats: &NatsServer, events: u64) -> u64 {
    let connection = Nats::connect(&nats.url(), "test", vec![]).await.unwrap();
    let genesis = Genesis::new(CellName::new("main").unwrap(), LedgerId::generate());
    let ledger = JetStreamLedger::create(&connection, &genesis, &StreamLimits::default())
        .await
        .unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // Within the time for which command ids are remembered.
    let from = Timestamp(i64::try_from(now.as_micros()).unwrap() - 3_600_000_000);
    let records = bulk::records(&genesis, events, from);
    for raw in &records {
        ledger
            .append(raw.sequence - 1, raw.body.clone(), &Hints::default())
            .await
            .unwrap();
    }
    records.len() as u64
}

async fn stream(api: Api, number: u64, seen: Arc<Seen>) {
    let mut n = 0;
    while !seen.stop.load(Ordering::Relaxed) {
        let name = format!("k{number}-{n}");
        let text = format!("kind: service\nname: {name}\nrun: {{command: [sleep]}}\nscale: {{min: 0, max: 1}}\n");
        let began = Instant::now();
        let call = Call::post("/v1/apply", "application/yaml", text.into(), &name);
        let answer = api.send(&call).await;
        answer.unwrap_or_else(|error| panic!("{name} after {:?}: {error}", began.elapsed()));
        seen.accepted.lock().unwrap().push((name, began, Instant::now()));
        seen.count.fetch_add(1, Ordering::Relaxed);
        n += 1;
    }
}

async fn until(what: &str, patience: Duration, mut reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < patience, "waited in vain for {what}");
        // tidy: waits for what other processes do
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_long_ledger_the_standby_answers_within_seconds_and_each_command_counts_once() {
    let long = std::env::var_os("TIDEMILL_LONG").is_some();
    let events = if long { 1_000_000 } else { 20_000 };
    let nats = NatsServer::start().await;
    let began = Instant::now();
    let last = long_ledger(&nats, events).await;
    println!("{events} events in {last} records, written in {:?}", began.elapsed());
    let began = Instant::now();
    let mut cluster = Cluster::on(nats);
    let leader = cluster.leader();
    println!("two servers started and one leads after {:?}", began.elapsed());
    for (_, api) in &cluster.servers {
        let path = format!("{api}/v1/services?min_seq={last}");
        until("read models", CAUGHT_UP, || get(&path).0 == 200).await;
    }
    println!("read models hold it after {:?}", began.elapsed());

    let servers: Vec<ServerUrl> = cluster.servers.iter().map(|(_, api)| api.parse().unwrap()).collect();
    let seen = Arc::new(Seen::default());
    let streams: Vec<_> = (0..STREAMS)
        .map(|n| tokio::spawn(stream(Api::new(servers.clone(), None), n, Arc::clone(&seen))))
        .collect();
    let count = || seen.count.load(Ordering::Relaxed);
    until("commands", Duration::from_secs(120), || count() >= COMMANDS).await;
    let killed = Instant::now();
    cluster.servers[leader].0.kill();
    let before = count();
    until("commands after the kill", Duration::from_secs(120), || {
        count() >= before + COMMANDS || streams.iter().any(tokio::task::JoinHandle::is_finished)
    })
    .await;
    seen.stop.store(true, Ordering::Relaxed);
    for stream in streams {
        stream.await.unwrap();
    }

    let accepted = std::mem::take(&mut *seen.accepted.lock().unwrap());
    let first = accepted
        .iter()
        .filter(|(_, began, _)| *began >= killed)
        .map(|(_, _, answered)| *answered - killed)
        .min();
    let first_any = accepted
        .iter()
        .filter(|(_, _, at)| *at > killed)
        .map(|(_, _, at)| *at - killed)
        .min();
    let slowest = accepted.iter().map(|(_, began, answered)| *answered - *began).max();
    let connection = Nats::connect(&cluster.nats.url(), "test", vec![]).await.unwrap();
    let cell = CellName::new("main").unwrap();
    let ledger = JetStreamLedger::open(&connection, &cell).await.unwrap();
    let times = declared(&ledger, last).await;
    let lost = accepted.iter().filter(|(name, ..)| !times.contains_key(name)).count();
    let doubled = times.values().filter(|n| **n > 1).count();
    println!(
        "sent and accepted {}; on the ledger {}; lost {lost}; doubled {doubled}; first answer {first_any:?} after the kill, \
         to a command sent after it {first:?}; slowest answer {slowest:?}",
        accepted.len(),
        times.len()
    );
    assert_eq!((lost, doubled, times.len()), (0, 0, accepted.len()));
    let report = verify(&ledger, None, |_, _| {}).await.unwrap();
    assert!(report.ok && report.events >= events, "{report:?}");
    if long {
        let first = first_any.expect("commands were answered after the kill");
        assert!(first < Duration::from_secs(5), "{first:?}");
    }
}

/// How often each service of the streams was declared.
async fn declared(ledger: &dyn Ledger, after: u64) -> BTreeMap<String, u32> {
    let end = ledger.tail().await.unwrap().sequence;
    let mut times = BTreeMap::new();
    let mut next = after + 1;
    while next <= end {
        for raw in ledger.read(next, 512, 4 << 20).await.unwrap() {
            let record = Record::decode(&raw.body).unwrap();
            for commit in decode_commits(&record).unwrap() {
                for event in &commit.events {
                    if let Event::ServiceApplied(e) = event {
                        *times.entry(e.name.to_string()).or_default() += 1;
                    }
                }
            }
            next = raw.sequence + 1;
        }
    }
    times
}
