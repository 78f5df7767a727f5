//! What `explain`, `resolve`, `status` and the lists say, word for word.
#![allow(clippy::unwrap_used, missing_docs)]

mod projections_support;

use std::sync::Arc;

use projections_support::{Cell, genesis, spec};
use tidemill_domain::command::{Command, FactBody};
use tidemill_domain::events::instance::StopReason;
use tidemill_domain::id::{InstanceId, ServiceId};
use tidemill_domain::state::Entity;
use tidemill_domain::time::Span;
use tidemill_domain::unit::Milli;
use tidemill_projections::engine::{Projection, ProjectionOptions};
use tidemill_projections::explain::explain;
use tidemill_projections::filter::{EventFilter, Filter};
use tidemill_projections::query::ReadModels;
use tidemill_projections::resolve::{Resolution, resolve};
use tidemill_projections::rows::{device_row, node_row, pool_row, queue_row, service_row};
use tidemill_projections::status::status;
use tidemill_projections::travel::{At, TimeTravel};

fn text(cell: &Cell, entity: Entity) -> String {
    explain(&cell.state, &entity).unwrap().to_string()
}

/// Two nodes, a service with two replicas that answer.
fn served() -> (Cell, ServiceId, Vec<InstanceId>) {
    let mut cell = Cell::new(1);
    cell.join("alpha", 2);
    cell.join("beta", 2);
    let chat = cell.declare("default", "chat", 2, 8);
    cell.pass(Span::from_secs(1));
    cell.request(chat);
    cell.pass(Span::from_millis(120));
    cell.place(chat, 9);
    cell.pass(Span::from_secs(2));
    cell.run_up(chat);
    cell.flush();
    let instances = cell.state.services[&chat].live.iter().copied().collect();
    (cell, chat, instances)
}

#[test]
fn a_service_that_answers() {
    let (cell, chat, _) = served();
    insta::assert_snapshot!(text(&cell, Entity::Service(chat)));
}

#[test]
fn a_service_that_waits_for_room() {
    let (mut cell, chat, _) = served();
    let _ = cell.ask(Command::ScaleService {
        service: chat,
        replicas: 6,
        from: None,
        until: None,
    });
    cell.pass(Span::from_secs(1));
    cell.request(chat);
    cell.place(chat, 9);
    cell.flush();
    let pending = cell.state.services[&chat]
        .live
        .iter()
        .copied()
        .find(|id| cell.state.instances[id].state == tidemill_domain::state::instance::InstanceState::Pending);
    insta::assert_snapshot!("service_waits", text(&cell, Entity::Service(chat)));
    insta::assert_snapshot!("instance_waits", text(&cell, Entity::Instance(pending.unwrap())));
    let row = queue_row(&cell.state, chat).unwrap();
    assert_eq!((row.waiting, row.held_back, row.fitting), (2, 0, 0));
    assert_eq!(
        row.devices,
        row.fitting + row.filters.iter().map(|f| f.devices).sum::<u32>()
    );
}

#[test]
fn an_override_that_is_to_come_says_from_when() {
    let (mut cell, chat, _) = served();
    let from = cell.now + Span::from_secs(3600);
    let _ = cell.ask(Command::ScaleService {
        service: chat,
        replicas: 4,
        from: Some(from),
        until: Some(from + Span::from_secs(60)),
    });
    cell.flush();
    let text = text(&cell, Entity::Service(chat));
    let until = from + Span::from_secs(60);
    assert!(
        text.contains(&format!("4 replicas set by hand from {from} until {until}")),
        "{text}"
    );
}

#[test]
fn a_stopped_service_does_not_show_where_it_was() {
    let (mut cell, chat, instances) = served();
    let before = explain(&cell.state, &Entity::Service(chat)).unwrap();
    assert!(!before.candidates.is_empty());
    let _ = cell.ask(Command::StopService { service: chat });
    let reason = StopReason::ServiceStopped;
    let _ = cell.ask(Command::DrainInstances {
        instances: instances.clone(),
        reason,
    });
    cell.flush();
    let stopping = explain(&cell.state, &Entity::Service(chat)).unwrap();
    assert_eq!(stopping.state, "stopping");
    assert!(stopping.candidates.is_empty(), "{stopping}");
    assert!(!stopping.to_string().contains("last placement"), "{stopping}");
}

#[test]
fn a_service_whose_instances_fail() {
    let mut cell = Cell::new(2);
    cell.join("alpha", 1);
    let bad = cell.declare("acme", "bad", 1, 1);
    for _ in 0..3 {
        cell.pass(Span::from_secs(20));
        cell.request(bad);
        cell.place(bad, 1);
        let instance = *cell.state.services[&bad].live.iter().next().unwrap();
        cell.report(
            instance,
            FactBody::Failed {
                code: "command_not_found".into(),
                reason: "there is no program `serve-it`".into(),
            },
        );
    }
    cell.flush();
    insta::assert_snapshot!("service_fails", text(&cell, Entity::Service(bad)));
    let failed = *cell.state.services[&bad].ended.back().unwrap();
    insta::assert_snapshot!("instance_failed", text(&cell, Entity::Instance(failed)));
    let row = service_row(&cell.state, bad).unwrap();
    assert_eq!((row.state.as_str(), row.failures), ("failing", 3));
    assert_eq!(row.with_gateway("http://h:1/").url.unwrap(), "http://h:1/~acme/bad/");
}

#[test]
fn a_lost_node_and_what_was_on_it() {
    let (mut cell, chat, instances) = served();
    let node = cell.state.instances[&instances[0]].node.unwrap();
    for command in [
        Command::SuspectNode {
            node,
            silent: Span::from_secs(3),
            closed: false,
            reason: "no beat".into(),
        },
        Command::LoseNode {
            node,
            silent: Span::from_secs(10),
            reason: "no beat".into(),
        },
    ] {
        cell.pass(Span::from_secs(3));
        cell.ask(command).unwrap();
    }
    cell.flush();
    let device = cell.state.instances[&instances[0]].holds[0].device;
    insta::assert_snapshot!("node_lost", text(&cell, Entity::Node(node)));
    insta::assert_snapshot!("instance_lost", text(&cell, Entity::Instance(instances[0])));
    insta::assert_snapshot!("device_lost", text(&cell, Entity::Device(device)));
    let join = cell.joining("alpha", 2, 9, instances.clone());
    cell.ask(join).unwrap();
    let dirty = device_row(&cell.state, device).unwrap();
    assert_eq!((dirty.state.as_str(), dirty.free_milli), ("dirty", 0));
    insta::assert_snapshot!("device_dirty", text(&cell, Entity::Device(device)));
    assert_eq!(service_row(&cell.state, chat).unwrap().ready, 0);
}

#[test]
fn everything_that_a_state_has_is_explained() {
    for seed in 1..=20 {
        let mut cell = Cell::random(seed, 150);
        for _ in 0..60 {
            cell.step();
            for entity in cell.state.entities() {
                let told = explain(&cell.state, &entity).unwrap();
                assert!(
                    !told.reason.is_empty() && !told.next_step.is_empty() && !told.evidence.is_empty(),
                    "{told:?}"
                );
                assert!(!told.name.is_empty() && !told.state.is_empty(), "{told:?}");
            }
        }
    }
}

#[test]
fn shares_show_in_the_pool_in_thousandths() {
    let mut cell = Cell::new(3);
    let node = cell.join("alpha", 2);
    let services = vec![projections_support::declared(
        "default",
        "small",
        spec(3, 3, 1, Milli(250), "serve"),
    )];
    cell.ask(Command::ApplyServices { services }).unwrap();
    let small = *cell.state.services.keys().next().unwrap();
    cell.request(small);
    cell.place(small, 9);
    let pool = pool_row(&cell.state);
    assert_eq!((pool.devices.total, pool.devices.free, pool.devices.held), (2, 1, 1));
    assert_eq!(
        (
            pool.devices_milli.total,
            pool.devices_milli.free,
            pool.devices_milli.held
        ),
        (2000, 1250, 750)
    );
    assert_eq!(pool.by_model.values().map(|c| c.total).sum::<u64>(), 2);
    let row = node_row(&cell.state, node).unwrap();
    assert_eq!(
        (row.devices, row.free_devices, row.free_milli, row.instances),
        (2, 1, 1250, 3)
    );
}

#[test]
fn things_are_found_by_what_people_call_them() {
    let (mut cell, chat, instances) = served();
    let acme = cell.declare("acme", "chat", 0, 1);
    let only = cell.declare("acme", "only", 0, 1);
    let found = |text: &str| match resolve(&cell.state, text) {
        Resolution::Found(found) => found.entity,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(found("chat"), Entity::Service(chat));
    assert_eq!(found("acme/chat"), Entity::Service(acme));
    assert_eq!(found("service/~acme/chat"), Entity::Service(acme));
    assert_eq!(found("only"), Entity::Service(only));
    assert_eq!(found(&acme.to_string()), Entity::Service(acme));
    assert_eq!(found("node/alpha"), found("alpha"));
    assert_eq!(found(&instances[0].to_string()[..13]), Entity::Instance(instances[0]));
    assert_eq!(found("GPU-alpha-0"), found("device/GPU-alpha-0"));
    assert!(matches!(resolve(&cell.state, "inst-"), Resolution::Ambiguous(choices) if choices.len() == 2));
    assert!(matches!(resolve(&cell.state, "GPU-"), Resolution::Ambiguous(choices) if choices.len() == 4));
    assert_eq!(resolve(&cell.state, "nothing"), Resolution::NotFound);
    assert_eq!(resolve(&cell.state, ""), Resolution::NotFound);
    for entity in cell.state.entities() {
        let told = status(&cell.state, &entity);
        let shown = matches!(
            entity,
            Entity::Node(_) | Entity::Device(_) | Entity::Service(_) | Entity::Instance(_)
        );
        assert_eq!(told.is_some(), shown);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_stays_on_record() {
    let (mut cell, chat, instances) = served();
    cell.ask(Command::DeleteService { service: chat }).unwrap();
    cell.ask(Command::DrainInstances {
        instances: instances.clone(),
        reason: StopReason::ServiceDeleted,
    })
    .unwrap();
    cell.ask(Command::ReleaseInstances {
        instances: instances.clone(),
    })
    .unwrap();
    for id in &instances {
        cell.report(*id, FactBody::Stopped { killed: false });
    }
    cell.ask(Command::SettleService { service: chat }).unwrap();
    cell.flush();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("read-models.sqlite");
    let (mut projection, _) = Projection::open(&path, &genesis(), ProjectionOptions::default()).unwrap();
    projection.apply(&cell.records, |_| {}).unwrap();
    let models = ReadModels::open(dir.path()).unwrap();
    assert!(models.services(Filter::default()).await.unwrap().rows.is_empty());
    let forgotten = Filter {
        forgotten: true,
        ..Filter::default()
    };
    let services = models.services(forgotten.clone()).await.unwrap().rows;
    assert_eq!((services.len(), services[0].state.as_str()), (1, "deleted"));
    let over = models.instances(forgotten).await.unwrap().rows;
    assert_eq!(over.len(), 2);
    assert!(over.iter().all(|row| row.state == "stopped" && !row.holding));
    // Asking about the service finds its instances' events, after it is gone too.
    let Resolution::Found(found) = models.resolve("chat").await.unwrap() else {
        panic!("the deleted service is not found")
    };
    assert_eq!(found.entity, Entity::Service(chat));
    let about = EventFilter {
        about: Some(found.entity),
        ..EventFilter::default()
    };
    let events = models.events(about.clone()).await.unwrap();
    let lines: Vec<String> = events
        .rows
        .iter()
        .map(|e| format!("{} {} | {} | {}", e.kind, e.target_name, e.change, e.reason))
        .collect();
    insta::assert_snapshot!("events_about_a_service", lines.join("\n"));
    let travel = TimeTravel::new(Arc::new(cell.ledger()), vec![]);
    assert_eq!(travel.events(about, At::Latest).await.unwrap().rows, events.rows);
    assert!(matches!(
        models.resolve(&instances[1].to_string()[..14]).await.unwrap(),
        Resolution::Found(_)
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_a_list_cannot_honour_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("read-models.sqlite");
    drop(Projection::open(&path, &genesis(), ProjectionOptions::default()).unwrap());
    let models = ReadModels::open(dir.path()).unwrap();
    let tenant = Filter {
        tenant: Some("acme".parse().unwrap()),
        ..Filter::default()
    };
    let refused = models.devices(tenant.clone()).await.unwrap_err();
    assert_eq!(refused.code(), "filter_not_applicable");
    assert_eq!(refused.to_string(), "`devices` cannot be narrowed by `tenant`");
    assert!(models.services(tenant).await.is_ok());
    let marked = Filter {
        after: Some("x".into()),
        ..Filter::default()
    };
    assert_eq!(models.nodes(marked).await.unwrap_err().code(), "bad_page");
}

#[test]
fn the_contracts_keys_are_there() {
    let (cell, chat, instances) = served();
    let keys = |value: serde_json::Value, wanted: &str| {
        for key in wanted.split(' ') {
            assert!(value.get(key).is_some(), "{key} is missing in {value}");
        }
    };
    let node = *cell.state.nodes.keys().next().unwrap();
    let device = *cell.state.devices.keys().next().unwrap();
    let node = serde_json::to_value(node_row(&cell.state, node)).unwrap();
    keys(node, "id name supply provider region state devices free_devices reason");
    let device = serde_json::to_value(device_row(&cell.state, device)).unwrap();
    keys(device, "uuid node kind model memory_bytes speed state instance");
    let service = serde_json::to_value(service_row(&cell.state, chat)).unwrap();
    keys(service, "name tenant class desired ready standby state url");
    let instance = tidemill_projections::rows::instance_row(&cell.state, instances[0]).unwrap();
    let instance = serde_json::to_value(instance).unwrap();
    keys(
        instance["timings_ms"].clone(),
        "decide place fetch start load ready in_rotation",
    );
    keys(instance, "id workload node devices state reason timings_ms");
    let pool = serde_json::to_value(pool_row(&cell.state)).unwrap();
    keys(
        pool["devices"].clone(),
        "total free held draining dirty quarantined lost",
    );
    keys(pool, "devices by_model by_supply");
}

/// Seven nodes of two providers with a service on each, five of which fall silent at once.
#[test]
fn what_the_breaker_holds_says_so_and_what_helps() {
    use tidemill_domain::command::JoinNode;
    use tidemill_tests::make::{apply, fact, join, ready, spec, started, suspect};

    let mut cell = tidemill_tests::cell::Cell::new();
    for n in 0..7 {
        let provider = if n < 4 { "own" } else { "lent" };
        cell.given(Command::JoinNode(JoinNode {
            provider: provider.into(),
            ..join(&format!("n{n}"), 1)
        }));
    }
    cell.given(apply("chat", spec(7, 9)));
    let service = *cell.state.services.keys().next().unwrap();
    for action in tidemill_domain::policy::replicas::reconcile(&cell.state, service, cell.now).actions {
        cell.given(action.into_command());
    }
    for decision in tidemill_domain::policy::placement::round(&cell.state, cell.now) {
        cell.given(decision.into_command());
    }
    for instance in cell.state.services[&service].live.clone() {
        let node = cell.state.instances[&instance].node.unwrap();
        cell.given(fact(node, instance, started(7)));
        cell.given(fact(node, instance, ready()));
    }
    let node = |cell: &tidemill_tests::cell::Cell, n: usize| cell.state.node_named(&format!("n{n}")).unwrap().id;
    for n in 1..6 {
        let node = node(&cell, n);
        cell.given(suspect(node));
    }
    let silent = node(&cell, 5);
    let held = cell.state.nodes[&silent].instances.iter().next().copied().unwrap();
    for entity in [Entity::Service(service), Entity::Instance(held), Entity::Node(silent)] {
        let explained = explain(&cell.state, &entity).unwrap();
        assert!(
            explained.next_step.contains("tidemill breaker confirm"),
            "{}",
            explained.next_step
        );
    }
    let told = explain(&cell.state, &Entity::Service(service)).unwrap().to_string();
    assert!(told.contains("5 replicas on silent nodes not replaced"), "{told}");
}

#[test]
fn a_node_that_flapped_says_from_when_it_gets_work() {
    use tidemill_tests::make::{join, recover, suspect};

    let mut cell = tidemill_tests::cell::Cell::new();
    cell.given(Command::JoinNode(join("n1", 1)));
    let node = cell.state.node_named("n1").unwrap().id;
    for _ in 0..3 {
        cell.given(suspect(node));
        cell.given(recover(node));
    }
    let told = explain(&cell.state, &Entity::Node(node)).unwrap();
    assert!(told.to_string().contains("no new work before"), "{told}");
    assert!(told.next_step.contains("tidemill uncordon"), "{told}");
}
