//! Read models and time travel: rebuilt = updated, wherever interrupted; the past = what stood there then.
#![allow(clippy::unwrap_used, missing_docs)]

mod projections_support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use projections_support::{Cell, Rng, genesis};
use tidemill_bus::ledger::RawRecord;
use tidemill_domain::state::Entity;
use tidemill_domain::time::Timestamp;
use tidemill_projections::engine::{
    Condition, Point, ProjectError, Projection, ProjectionOptions, Projector, ProjectorConfig, Stale,
};
use tidemill_projections::filter::{EventFilter, Filter, List, Page};
use tidemill_projections::query::ReadModels;
use tidemill_projections::travel::{At, Moment, TimeTravel};
use tokio_util::sync::CancellationToken;

const FILE: &str = "read-models.sqlite";

fn options(batch_events: usize) -> ProjectionOptions {
    ProjectionOptions {
        batch_events,
        snapshot_every: 150,
        interrupt: None,
    }
}

fn open(dir: &Path, options: ProjectionOptions) -> Projection {
    let (projection, stale) = Projection::open(&dir.join(FILE), &genesis(), options).unwrap();
    assert_eq!(stale, None);
    projection
}

/// The dump of tables built from these records in one go.
fn built(records: &[RawRecord], batch_events: usize) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut projection = open(dir.path(), options(batch_events));
    projection.apply(records, |_| {}).unwrap();
    projection.dump().unwrap()
}

/// Everything that lists show, as JSON.
fn moment_lists(moment: &Moment, filter: &Filter) -> Vec<serde_json::Value> {
    let lists = moment.lists();
    vec![
        json(lists.nodes(&for_nodes(filter)).unwrap()),
        json(lists.devices(&for_devices(filter)).unwrap()),
        json(lists.services(&for_services(filter)).unwrap()),
        json(lists.instances(&for_instances(filter)).unwrap()),
        json(lists.queue(&for_queue(filter)).unwrap()),
        serde_json::to_value(lists.pool()).unwrap(),
    ]
}

async fn model_lists(models: &ReadModels, filter: &Filter) -> Vec<serde_json::Value> {
    vec![
        json(models.nodes(for_nodes(filter)).await.unwrap()),
        json(models.devices(for_devices(filter)).await.unwrap()),
        json(models.services(for_services(filter)).await.unwrap()),
        json(models.instances(for_instances(filter)).await.unwrap()),
        json(models.queue(for_queue(filter)).await.unwrap()),
        serde_json::to_value(models.pool().await.unwrap().0).unwrap(),
    ]
}

fn json<T: serde::Serialize>(page: Page<T>) -> serde_json::Value {
    serde_json::json!({"rows": page.rows, "next": page.next, "anchor": page.anchor.to_string()})
}

/// Of the words asked for, those that `list` knows.
fn states(filter: &Filter, list: List) -> Vec<String> {
    let known = |word: &&String| list.states().contains(&word.as_str());
    filter.state.iter().filter(known).cloned().collect()
}

fn for_nodes(filter: &Filter) -> Filter {
    Filter {
        state: states(filter, List::Nodes),
        tenant: None,
        ..filter.clone()
    }
}

fn for_devices(filter: &Filter) -> Filter {
    Filter {
        state: states(filter, List::Devices),
        tenant: None,
        since: None,
        ..filter.clone()
    }
}

fn for_services(filter: &Filter) -> Filter {
    Filter {
        state: states(filter, List::Services),
        supply: vec![],
        provider: vec![],
        ..filter.clone()
    }
}

fn for_instances(filter: &Filter) -> Filter {
    Filter {
        state: states(filter, List::Instances),
        ..filter.clone()
    }
}

fn for_queue(filter: &Filter) -> Filter {
    Filter {
        state: vec![],
        ..for_services(filter)
    }
}

#[test]
fn rebuilt_equals_updated_whatever_the_batches() {
    for seed in 1..=12 {
        let cell = Cell::random(seed, 400);
        let whole = built(&cell.records, 4_000);
        assert!(whole.len() > 500, "seed {seed} made only {} rows", whole.len());
        assert_eq!(built(&cell.records, 1), whole, "seed {seed}: a record a batch");
        // In pieces, with the file closed between them: each time the state comes back from a snapshot and a tail.
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(seed);
        let mut from = 0;
        while from < cell.records.len() {
            let to = (from + 1 + rng.below(60)).min(cell.records.len());
            let mut projection = open(dir.path(), options(1 + rng.below(40)));
            let next = projection.next_sequence() as usize - 1;
            assert!(next <= from);
            projection.apply(&cell.records[next..to], |_| {}).unwrap();
            from = to;
        }
        let pieces = open(dir.path(), options(1)).dump().unwrap();
        assert_eq!(pieces, whole, "seed {seed}: in pieces");
    }
}

#[test]
fn interrupted_anywhere_the_tables_are_the_same() {
    let cell = Cell::random(77, 250);
    let whole = built(&cell.records, 64);
    for run in 0..100 {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(run + 1);
        let mut interruptions = 0;
        loop {
            let mut left = rng.below(if run % 4 == 0 { 40 } else { 1_500 });
            let at = [None, Some(Point::Written), Some(Point::Committed), Some(Point::Record)][rng.below(4)];
            let interrupt = move |point| {
                left = left.saturating_sub(1);
                left == 0 && at.is_none_or(|at| at == point)
            };
            let give_up = interruptions >= 12;
            let mut projection = open(
                dir.path(),
                ProjectionOptions {
                    batch_events: 1 + rng.below(64),
                    snapshot_every: 100,
                    interrupt: (!give_up).then(|| Box::new(interrupt) as Box<_>),
                },
            );
            let next = projection.next_sequence() as usize - 1;
            match projection.apply(&cell.records[next..], |_| {}) {
                Err(ProjectError::Interrupted) => interruptions += 1,
                Ok(()) => {
                    assert_eq!(
                        projection.dump().unwrap(),
                        whole,
                        "run {run}, {interruptions} interruptions"
                    );
                    break;
                }
                Err(error) => panic!("run {run}: {error}"),
            }
        }
        assert!(interruptions > 0 || run % 4 != 0);
    }
}

#[test]
fn a_redelivery_changes_nothing() {
    let cell = Cell::random(5, 300);
    let dir = tempfile::tempdir().unwrap();
    let mut projection = open(dir.path(), options(50));
    projection.apply(&cell.records, |_| {}).unwrap();
    let before = projection.dump().unwrap();
    let last = &cell.records[cell.records.len() - 100..];
    projection
        .apply(last, |_| panic!("a redelivery committed something"))
        .unwrap();
    assert_eq!(projection.dump().unwrap(), before);
    drop(projection);
    let mut reopened = open(dir.path(), options(50));
    let next = reopened.next_sequence() as usize - 1;
    reopened.apply(&cell.records[next..], |_| {}).unwrap();
    reopened
        .apply(last, |_| panic!("a redelivery committed something"))
        .unwrap();
    assert_eq!(reopened.dump().unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_what_stood_there_then() {
    for seed in [3, 9, 31] {
        let cell = Cell::random(seed, 400);
        let dir = tempfile::tempdir().unwrap();
        let mut projection = open(dir.path(), options(10));
        let models = ReadModels::open(dir.path()).unwrap();
        let bare = TimeTravel::new(Arc::new(cell.ledger()), vec![]);
        let near = TimeTravel::new(Arc::new(cell.ledger()), vec![Arc::new(models.clone())]);
        let mut rng = Rng::new(seed);
        let mut at = 0;
        while at < cell.records.len() {
            let to = (at + 1 + rng.below(40)).min(cell.records.len());
            projection.apply(&cell.records[at..to], |_| {}).unwrap();
            at = to;
            let sequence = cell.records[at - 1].sequence;
            let moment = bare.moment(At::Sequence(sequence)).await.unwrap();
            let nearby = near.moment(At::Sequence(sequence)).await.unwrap();
            assert!(nearby.folded <= moment.folded);
            let filters = [
                Filter::default(),
                Filter {
                    state: ["ready", "held", "lost", "pending"].map(str::to_owned).to_vec(),
                    tenant: Some("acme".parse().unwrap()),
                    limit: Some(1 + rng.below(4)),
                    ..Filter::default()
                },
                Filter {
                    supply: vec![tidemill_domain::events::node::Supply::Cloud],
                    provider: vec!["provider-1".into()],
                    since: Some(Timestamp(moment.recorded_at.0 - 30_000_000)),
                    ..Filter::default()
                },
            ];
            for filter in &filters {
                let stood = model_lists(&models, filter).await;
                assert_eq!(moment_lists(&moment, filter), stood, "seed {seed} at {sequence}");
                assert_eq!(
                    moment_lists(&nearby, filter),
                    stood,
                    "seed {seed} at {sequence}, from a snapshot"
                );
            }
            // A time is the last record not recorded later.
            let time = recorded_at(&cell.records[at - 1]);
            let by_time = bare.moment(At::Time(time)).await.unwrap();
            let same_time = cell.records[at..].iter().take_while(|r| recorded_at(r) == time).count();
            assert_eq!(by_time.anchor.sequence, sequence + same_time as u64);
        }
        events_agree(&models, &bare, &near, &mut rng).await;
    }
}

fn recorded_at(raw: &RawRecord) -> Timestamp {
    Timestamp(
        tidemill_bus::record::Record::decode(&raw.body)
            .unwrap()
            .header
            .recorded_at,
    )
}

/// Events from the tables, from the ledger, and from the ledger behind a snapshot are the same.
async fn events_agree(models: &ReadModels, bare: &TimeTravel, near: &TimeTravel, rng: &mut Rng) {
    let all = models.events(EventFilter::default()).await.unwrap();
    assert_eq!(bare.events(EventFilter::default(), At::Latest).await.unwrap(), all);
    for row in &all.rows {
        assert!(
            !row.target.is_empty() && !row.target_name.is_empty() && !row.change.is_empty() && !row.reason.is_empty(),
            "{row:?}"
        );
    }
    let moment = bare.moment(At::Latest).await.unwrap();
    let entities: Vec<Entity> = moment.state.entities().collect();
    for _ in 0..25 {
        let filter = EventFilter {
            after: rng.below(all.rows.len() / 2) as u64,
            about: rng.chance(60).then(|| rng.pick(&entities).unwrap().clone()),
            tenant: rng.chance(20).then(|| "acme".parse().unwrap()),
            kinds: if rng.chance(20) {
                vec!["InstancesPlaced".into(), "nodejoined".into()]
            } else {
                vec![]
            },
            since: rng.chance(30).then(|| all.rows[rng.below(all.rows.len())].time),
            newest: rng.chance(30),
            limit: Some(1 + rng.below(30)),
            ..EventFilter::default()
        };
        let page = models.events(filter.clone()).await.unwrap();
        assert_eq!(
            bare.events(filter.clone(), At::Latest).await.unwrap().rows,
            page.rows,
            "{filter:?}"
        );
        assert_eq!(
            near.events(filter.clone(), At::Latest).await.unwrap().rows,
            page.rows,
            "{filter:?}"
        );
        // Pages add up to the whole.
        let whole = EventFilter {
            limit: None,
            newest: false,
            ..filter.clone()
        };
        let whole = models.events(whole).await.unwrap().rows;
        let (mut paged, mut mark) = (Vec::new(), None);
        loop {
            let filter = EventFilter {
                newest: false,
                page: mark.clone(),
                ..filter.clone()
            };
            let page = models.events(filter.clone()).await.unwrap();
            assert_eq!(near.events(filter, At::Latest).await.unwrap().rows, page.rows);
            paged.extend(page.rows);
            mark = page.next;
            if mark.is_none() {
                break;
            }
        }
        assert_eq!(paged, whole);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_before_the_ledger_and_a_record_behind_it_are_refused() {
    let cell = Cell::random(4, 20);
    let travel = TimeTravel::new(Arc::new(cell.ledger()), vec![]);
    let last = cell.records.len() as u64;
    let code = |at| {
        let travel = travel.clone();
        async move { travel.moment(at).await.unwrap_err().code() }
    };
    assert_eq!(code(At::Sequence(last + 1)).await, "after_end");
    assert_eq!(code(At::Time(Timestamp(0))).await, "before_begin");
    assert_eq!(travel.moment(At::Sequence(0)).await.unwrap().state.events, 0);
    assert_eq!(travel.moment(At::Latest).await.unwrap().anchor.sequence, last);
}

async fn settled(projector: &Projector, sequence: u64) {
    assert!(projector.models().wait_for(sequence, Duration::from_secs(20)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_follows_and_resumes() {
    let cell = Cell::random(21, 300);
    let dir = tempfile::tempdir().unwrap();
    let config = ProjectorConfig {
        batch_events: 100,
        ..ProjectorConfig::in_dir(dir.path())
    };
    let half = cell.records.len() / 2;
    let ledger = tidemill_bus::memory::MemoryLedger::with_records(
        genesis(),
        cell.records[..half].iter().map(|r| r.body.clone()),
    );
    for round in 0..2 {
        let shutdown = CancellationToken::new();
        let projector = Projector::start(Arc::new(ledger.clone()), config.clone(), shutdown.clone())
            .await
            .unwrap();
        settled(&projector, half as u64).await;
        if round == 1 {
            use tidemill_bus::ledger::Ledger as _;
            for record in &cell.records[half..] {
                ledger
                    .append(record.sequence - 1, record.body.clone(), &Default::default())
                    .await
                    .unwrap();
            }
            settled(&projector, cell.records.len() as u64).await;
            let progress = projector.models().progress().unwrap().borrow().clone();
            assert_eq!((progress.condition.clone(), progress.lag()), (Condition::Following, 0));
        }
        shutdown.cancel();
        projector.stopped().await;
    }
    let dump = open(dir.path(), options(1)).dump().unwrap();
    assert_eq!(dump, built(&cell.records, 4_000));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_a_shorter_or_a_forked_ledger_is_noticed_and_built_anew() {
    let cell = Cell::random(8, 300);
    let other = Cell::random(9, 200);
    let dir = tempfile::tempdir().unwrap();
    let config = ProjectorConfig::in_dir(dir.path());
    // The same genesis, another history: longer, and shorter.
    let shorter = &cell.records[..cell.records.len() / 2];
    for (records, why) in [
        (&cell.records[..], ""),
        (&other.records[..], "ends at"),
        (&cell.records[..], "replaced"),
        (shorter, "ends at"),
    ] {
        let ledger =
            tidemill_bus::memory::MemoryLedger::with_records(genesis(), records.iter().map(|r| r.body.clone()));
        let shutdown = CancellationToken::new();
        let projector = Projector::start(Arc::new(ledger), config.clone(), shutdown.clone())
            .await
            .unwrap();
        let last = records.last().unwrap();
        let hash = tidemill_bus::record::Record::decode(&last.body).unwrap().hash;
        let mut progress = projector.models().progress().unwrap();
        let reached = progress.wait_for(|p| p.sequence == last.sequence && p.hash == hash);
        tokio::time::timeout(Duration::from_secs(20), reached)
            .await
            .expect(why)
            .unwrap();
        shutdown.cancel();
        projector.stopped().await;
        assert_eq!(
            open(dir.path(), options(1)).dump().unwrap(),
            built(records, 4_000),
            "{why}"
        );
    }
    // Another ledger id is told at once.
    let foreign = tidemill_bus::identity::Genesis {
        ledger_id: tidemill_bus::identity::LedgerId(uuid::Uuid::from_u128(8)),
        ..genesis()
    };
    let (_, stale) = Projection::open(&dir.path().join(FILE), &foreign, options(1)).unwrap();
    assert!(matches!(stale, Some(Stale::OtherLedger { .. })), "{stale:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_cut_under_the_engine_is_noticed() {
    let cell = Cell::random(13, 200);
    let ledger = cell.ledger();
    let dir = tempfile::tempdir().unwrap();
    let shutdown = CancellationToken::new();
    let config = ProjectorConfig::in_dir(dir.path());
    let projector = Projector::start(Arc::new(ledger.clone()), config, shutdown.clone())
        .await
        .unwrap();
    settled(&projector, cell.records.len() as u64).await;
    let cut = cell.records.len() as u64 / 2;
    ledger.truncate(cut);
    let mut progress = projector.models().progress().unwrap();
    let rebuilt = progress.wait_for(|p| p.sequence == cut && p.condition == Condition::Following);
    tokio::time::timeout(Duration::from_secs(20), rebuilt)
        .await
        .unwrap()
        .unwrap();
    shutdown.cancel();
    projector.stopped().await;
    assert_eq!(
        open(dir.path(), options(1)).dump().unwrap(),
        built(&cell.records[..cut as usize], 4_000)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_stops_the_engine_visibly_and_a_damaged_file_is_built_anew() {
    let cell = Cell::random(14, 120);
    let ledger = cell.ledger();
    let bad = cell.records.len() as u64 - 3;
    let mut body = cell.records[bad as usize - 1].body.to_vec();
    let last = body.len() - 40;
    body[last] ^= 1;
    ledger.overwrite(bad, body.into());
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(FILE), vec![b'x'; 8192]).unwrap();
    let shutdown = CancellationToken::new();
    let config = ProjectorConfig::in_dir(dir.path());
    let projector = Projector::start(Arc::new(ledger.clone()), config, shutdown.clone())
        .await
        .unwrap();
    let mut progress = projector.models().progress().unwrap();
    let stalled = progress.wait_for(|p| matches!(&p.condition, Condition::Stalled { code, .. } if code.starts_with("ledger_") || code.starts_with("record_")));
    tokio::time::timeout(Duration::from_secs(20), stalled)
        .await
        .unwrap()
        .unwrap();
    // Mended, it goes on by itself.
    ledger.overwrite(bad, cell.records[bad as usize - 1].body.clone());
    settled(&projector, cell.records.len() as u64).await;
    shutdown.cancel();
    projector.stopped().await;
    assert_eq!(
        open(dir.path(), options(1)).dump().unwrap(),
        built(&cell.records, 4_000)
    );
}
