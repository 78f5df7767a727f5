//! Given/when/then tables of every command.
#![allow(clippy::unwrap_used)]

use tidemill_domain::command::{Command, CreateCredential, FactBody};
use tidemill_domain::commit::Actor;
use tidemill_domain::events::Event;
use tidemill_domain::events::credential::Role;
use tidemill_domain::events::evidence::{ObservationWindowSealed, RequestCounts, TrafficMinuteClosed};
use tidemill_domain::events::instance::StopReason;
use tidemill_domain::events::node::Supply;
use tidemill_domain::events::service::ServiceSpec;
use tidemill_domain::id::{InstanceId, NodeId, ServiceId};
use tidemill_domain::state::device::DeviceCondition;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::{Milli, Name};
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{
    apply, fact, failed, instances_of, join, name, no_explanation, ready, spec, started, whole,
};

#[path = "decide/forget.rs"]
mod forget;
#[path = "decide/switches.rs"]
mod switches;

fn names(events: &[Event]) -> Vec<&'static str> {
    events.iter().map(Event::name).collect()
}

fn code(result: Result<Vec<Event>, tidemill_domain::rejection::Rejection>) -> &'static str {
    result.expect_err("it must be refused").code()
}

fn node_id(cell: &Cell, node: &str) -> NodeId {
    cell.state.node_named(node).unwrap().id
}

fn service_id(cell: &Cell, service: &str) -> ServiceId {
    cell.state
        .service_named(&Name::default_tenant(), &name(service))
        .unwrap()
        .id
}

/// A cell with one node of two cards and a service of two pending replicas.
fn pending() -> (Cell, NodeId, Vec<InstanceId>) {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 2)));
    cell.given(apply("hello", spec(2, 4)));
    let service = service_id(&cell, "hello");
    cell.given(Command::RequestInstances {
        service,
        generation: 1,
        count: 2,
    });
    let node = node_id(&cell, "n1");
    let instances = instances_of(&cell.state, "hello");
    (cell, node, instances)
}

/// The same with both replicas placed.
fn placed() -> (Cell, NodeId, Vec<InstanceId>) {
    let (mut cell, node, instances) = pending();
    let service = service_id(&cell, "hello");
    let placements = vec![
        whole(instances[0], node, "GPU-n1-0"),
        whole(instances[1], node, "GPU-n1-1"),
    ];
    cell.given(Command::PlaceInstances {
        service,
        placements,
        explanation: no_explanation(),
    });
    (cell, node, instances)
}

/// The same with both ready.
fn serving() -> (Cell, NodeId, Vec<InstanceId>) {
    let (mut cell, node, instances) = placed();
    for (i, instance) in instances.iter().enumerate() {
        cell.given(fact(node, *instance, started(100 + i as u32)));
        cell.given(fact(node, *instance, ready()));
    }
    (cell, node, instances)
}

#[test]
fn a_node_joins_once_and_its_return_changes_nothing() {
    let mut cell = Cell::new();
    assert_eq!(
        names(&cell.given(Command::JoinNode(join("n1", 2)))),
        ["NodeJoined", "NodeReady"]
    );
    assert!(cell.given(Command::JoinNode(join("n1", 2))).is_empty());
    assert_eq!(cell.state.devices.len(), 2);
}

#[test]
fn a_living_nodes_name_and_devices_are_its_own() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 1)));
    let mut other = join("n1", 1);
    other.machine_id = "another".into();
    assert_eq!(code(cell.ask(Command::JoinNode(other))), "node_name_taken");
    let mut clone = join("n2", 1);
    clone.devices = join("n1", 1).devices;
    assert_eq!(code(cell.ask(Command::JoinNode(clone.clone()))), "device_elsewhere");
    let node = node_id(&cell, "n1");
    cell.given(Command::SuspectNode {
        node,
        silent: Span::from_secs(3),
        closed: false,
        reason: "silent".into(),
    });
    cell.given(Command::LoseNode {
        node,
        silent: Span::from_secs(10),
        reason: "silent".into(),
    });
    cell.given(Command::JoinNode(clone));
    assert_eq!(cell.state.devices.values().next().unwrap().node, node_id(&cell, "n2"));
}

#[test]
fn a_token_enrols_only_its_supply_kind_and_speaks_only_for_its_nodes() {
    let mut cell = Cell::new();
    let create = |hash: u8, supply| {
        let ttl = Some(Span::from_secs(60));
        Command::CreateCredential(CreateCredential {
            hash: [hash; 32],
            role: Role::Node,
            supply,
            tenant: None,
            ttl,
        })
    };
    cell.given(create(1, Some(Supply::Cafe)));
    cell.given(create(2, None));
    let cafe = cell.state.credential_hashed(&[1; 32]).unwrap().id;
    let any = cell.state.credential_hashed(&[2; 32]).unwrap().id;
    let mut node = join("n1", 1);
    node.credential = Some(cafe);
    assert_eq!(code(cell.ask(Command::JoinNode(node.clone()))), "not_allowed");
    node.supply = Supply::Cafe;
    cell.given(Command::JoinNode(node.clone()));
    node.credential = Some(any);
    assert_eq!(code(cell.ask(Command::JoinNode(node.clone()))), "not_allowed");
    cell.given(Command::RevokeCredential { credential: cafe });
    assert!(cell.given(Command::RevokeCredential { credential: cafe }).is_empty());
    cell.given(Command::JoinNode(node));
}

#[test]
fn credentials_make_sense_or_are_refused() {
    let mut cell = Cell::new();
    let create = |role, supply, tenant| {
        Command::CreateCredential(CreateCredential {
            hash: [9; 32],
            role,
            supply,
            tenant,
            ttl: None,
        })
    };
    for (role, supply, tenant) in [
        (Role::Operator, Some(Supply::Idc), None),
        (Role::Tenant, None, None),
        (Role::Node, None, Some(name("acme"))),
        (Role::Gateway, None, Some(name("acme"))),
    ] {
        assert_eq!(code(cell.ask(create(role, supply, tenant))), "invalid", "{role:?}");
    }
    cell.given(create(Role::Tenant, None, Some(name("acme"))));
    assert_eq!(
        code(cell.ask(create(Role::Operator, None, None))),
        "invalid",
        "the same token twice"
    );
}

#[test]
fn a_role_has_one_holder_and_old_terms_are_refused() {
    let mut cell = Cell::new();
    let acquire = |holder: &str| Command::AcquireTerm {
        role: "scheduler".into(),
        holder: holder.into(),
    };
    let worker = |term| Actor::Worker {
        role: "scheduler".into(),
        term,
    };
    cell.given(Command::JoinNode(join("n1", 1)));
    let node = node_id(&cell, "n1");
    let doubt = || Command::SuspectNode {
        node,
        silent: Span::ZERO,
        closed: false,
        reason: "test".into(),
    };
    assert_eq!(code(cell.ask_as(worker(1), doubt())), "stale_term");
    cell.given(acquire("a"));
    assert!(cell.given(acquire("a")).is_empty(), "a renewal is not recorded");
    assert_eq!(code(cell.ask(acquire("b"))), "term_held");
    assert_eq!(
        names(&cell.ask_when(Actor::Local, acquire("b"), true).unwrap()),
        ["WorkerTermGranted"]
    );
    assert_eq!(code(cell.ask_as(worker(1), doubt())), "stale_term");
    assert_eq!(names(&cell.ask_as(worker(2), doubt()).unwrap()), ["NodeSuspected"]);
}

#[test]
fn applying_is_all_or_nothing_and_the_same_again_is_nothing() {
    let mut cell = Cell::new();
    assert_eq!(
        names(&cell.given(apply("hello", spec(2, 4)))),
        ["ServiceApplied", "ServiceDesiredChanged"]
    );
    assert!(cell.given(apply("hello", spec(2, 4))).is_empty());
    let Command::ApplyServices { mut services } = apply("good", spec(1, 1)) else {
        unreachable!()
    };
    let Command::ApplyServices { services: bad } = apply("bad", spec(3, 1)) else {
        unreachable!()
    };
    services.extend(bad);
    assert_eq!(code(cell.ask(Command::ApplyServices { services })), "invalid");
    assert_eq!(cell.state.services.len(), 1);
}

#[test]
fn a_change_of_scale_keeps_the_generation_and_a_change_of_command_does_not() {
    let mut cell = Cell::new();
    cell.given(apply("hello", spec(2, 4)));
    cell.given(apply("hello", spec(3, 4)));
    let service = service_id(&cell, "hello");
    assert_eq!(
        (
            cell.state.services[&service].generation,
            cell.state.services[&service].desired
        ),
        (1, 3)
    );
    let mut changed = spec(3, 4);
    changed.run.command.push("--new".into());
    cell.given(apply("hello", changed));
    assert_eq!(cell.state.services[&service].generation, 2);
}

/// Makes a good declaration bad.
type Spoil = Box<dyn Fn(&mut ServiceSpec)>;

#[test]
fn impossible_declarations_name_their_key() {
    let cases: Vec<(&str, Spoil)> = vec![
        ("run.command", Box::new(|s| s.run.command.clear())),
        ("run.command", Box::new(|s| s.run.command = vec![" ".into()])),
        ("run.command", Box::new(|s| s.run.command.push("a\0b".into()))),
        ("run", Box::new(|s| s.run.command.push("x".repeat(40_000)))),
        (
            "run.env",
            Box::new(|s| drop(s.run.env.insert("A=B".into(), String::new()))),
        ),
        (
            "run.env",
            Box::new(|s| drop(s.run.env.insert("TIDEMILL_FENCE".into(), "1".into()))),
        ),
        ("route.host", Box::new(|s| s.route.host = Some("localhost".into()))),
        ("route.host", Box::new(|s| s.route.host = Some("127.0.0.1".into()))),
        ("run.ready.http", Box::new(|s| s.run.ready_http = Some("health".into()))),
        ("run.ready.timeout", Box::new(|s| s.run.ready_timeout = Span::ZERO)),
        (
            "run.stop.grace",
            Box::new(|s| s.run.stop_grace = Span::from_secs(1 << 40)),
        ),
        ("devices.count", Box::new(|s| s.devices.count = 0)),
        ("devices.count", Box::new(|s| s.devices.count = u32::MAX)),
        ("devices.share", Box::new(|s| s.devices.share = Milli(0))),
        ("devices.share", Box::new(|s| s.devices.share = Milli(1500))),
        (
            "devices.share",
            Box::new(|s| (s.devices.count, s.devices.share) = (2, Milli(500))),
        ),
        ("scale.max", Box::new(|s| (s.scale.min, s.scale.max) = (0, 0))),
        ("scale.max", Box::new(|s| s.scale.max = u32::MAX)),
        ("scale.min", Box::new(|s| s.scale.min = 9)),
        ("scale.target.concurrency", Box::new(|s| s.scale.concurrency = Some(0))),
        ("placement.supply", Box::new(|s| s.placement.supply.clear())),
        ("route.host", Box::new(|s| s.route.host = Some("A b".into()))),
    ];
    for (key, spoil) in cases {
        let mut cell = Cell::new();
        let mut bad = spec(1, 4);
        spoil(&mut bad);
        match cell.ask(apply("hello", bad)) {
            Err(tidemill_domain::rejection::Rejection::Invalid { key: named, .. }) => assert_eq!(named, key),
            other => panic!("{key}: {other:?}"),
        }
        assert!(cell.state.services.is_empty(), "{key}");
    }
}

#[test]
fn a_host_belongs_to_one_service() {
    let mut cell = Cell::new();
    let mut routed = spec(1, 1);
    routed.route.host = Some("chat.example.com".into());
    cell.given(apply("one", routed.clone()));
    assert!(cell.given(apply("one", routed.clone())).is_empty());
    assert_eq!(code(cell.ask(apply("two", routed))), "host_taken");
}

#[test]
fn stop_start_and_delete_follow_through() {
    let (mut cell, node, instances) = serving();
    let service = service_id(&cell, "hello");
    assert_eq!(
        names(&cell.given(Command::StopService { service })),
        ["ServiceStopRequested", "ServiceDesiredChanged"]
    );
    assert!(cell.given(Command::StopService { service }).is_empty());
    assert_eq!(cell.state.services[&service].desired, 0);
    assert_eq!(
        code(cell.ask(Command::RequestInstances {
            service,
            generation: 1,
            count: 1
        })),
        "wrong_state"
    );
    cell.given(Command::StartService { service });
    assert_eq!(cell.state.services[&service].desired, 2);
    cell.given(Command::DeleteService { service });
    assert_eq!(code(cell.ask(apply("hello", spec(2, 4)))), "wrong_state");
    assert!(
        cell.given(Command::SettleService { service }).is_empty(),
        "its instances have not ended"
    );
    cell.given(Command::DrainInstances {
        instances: instances.clone(),
        reason: StopReason::ServiceDeleted,
    });
    cell.given(Command::ReleaseInstances {
        instances: instances.clone(),
    });
    for instance in &instances {
        cell.given(fact(node, *instance, FactBody::Stopped { killed: false }));
    }
    assert_eq!(
        names(&cell.given(Command::SettleService { service })),
        ["ServiceDeleted"]
    );
    assert!(cell.state.services.is_empty() && cell.state.instances.is_empty());
    assert!(cell.given(Command::SettleService { service }).is_empty());
}

#[test]
fn an_override_holds_for_its_time_within_the_ceiling() {
    let mut cell = Cell::new();
    cell.given(apply("hello", spec(2, 4)));
    let service = service_id(&cell, "hello");
    let scale = |replicas, from, until| Command::ScaleService {
        service,
        replicas,
        from,
        until,
    };
    assert_eq!(code(cell.ask(scale(5, None, None))), "invalid");
    let now = cell.now;
    assert_eq!(code(cell.ask(scale(3, None, Some(now)))), "invalid");
    let (from, until) = (now + Span::from_secs(10), now + Span::from_secs(20));
    assert_eq!(
        names(&cell.given(scale(4, Some(from), Some(until)))),
        ["ServiceScaleOverridden"]
    );
    assert!(cell.given(Command::SettleService { service }).is_empty());
    cell.wait(Span::from_secs(10));
    assert_eq!(
        names(&cell.given(Command::SettleService { service })),
        ["ServiceDesiredChanged"]
    );
    assert_eq!(cell.state.services[&service].desired, 4);
    cell.wait(Span::from_secs(10));
    assert_eq!(
        names(&cell.given(Command::SettleService { service })),
        ["ServiceScaleReleased", "ServiceDesiredChanged"]
    );
    assert_eq!(cell.state.services[&service].desired, 2);
    cell.given(scale(3, None, None));
    assert_eq!(
        names(&cell.given(Command::ReleaseScale { service })),
        ["ServiceScaleReleased", "ServiceDesiredChanged"]
    );
    assert!(cell.given(Command::ReleaseScale { service }).is_empty());
}

#[test]
fn no_more_instances_than_wanted_and_none_of_an_old_generation() {
    let (mut cell, ..) = pending();
    let service = service_id(&cell, "hello");
    let request = |generation, count| Command::RequestInstances {
        service,
        generation,
        count,
    };
    assert_eq!(code(cell.ask(request(1, 1))), "wrong_state");
    assert_eq!(code(cell.ask(request(2, 1))), "stale_generation");
    assert_eq!(code(cell.ask(request(1, 257))), "too_many");
    let mut changed = spec(2, 4);
    changed.run.command.push("--new".into());
    cell.given(apply("hello", changed));
    assert_eq!(
        names(&cell.given(request(2, 2))),
        ["InstancesRequested"],
        "a new generation starts beside the old one"
    );
}

#[test]
fn a_placement_is_checked_where_it_cannot_race() {
    let (mut cell, node, i) = pending();
    let service = service_id(&cell, "hello");
    let place = |placements| Command::PlaceInstances {
        service,
        placements,
        explanation: no_explanation(),
    };
    let mut half = whole(i[0], node, "GPU-n1-0");
    half.holds[0].share = Milli(500);
    let mut two = whole(i[0], node, "GPU-n1-0");
    two.holds.push(two.holds[0]);
    let nowhere = NodeId::from_bits(1);
    for (placements, expected) in [
        (
            vec![whole(i[0], node, "GPU-n1-0"), whole(i[1], node, "GPU-n1-0")],
            "device_busy",
        ),
        (
            vec![whole(i[0], node, "GPU-n1-0"), whole(i[0], node, "GPU-n1-1")],
            "invalid",
        ),
        (vec![half], "invalid"),
        (vec![two], "invalid"),
        (vec![whole(i[0], nowhere, "GPU-n1-0")], "not_found"),
        (vec![whole(i[0], node, "GPU-elsewhere")], "not_found"),
        (vec![whole(InstanceId::from_bits(1), node, "GPU-n1-0")], "not_found"),
    ] {
        assert_eq!(code(cell.ask(place(placements))), expected);
    }
    cell.given(place(vec![whole(i[0], node, "GPU-n1-0")]));
    assert_eq!(
        code(cell.ask(place(vec![whole(i[0], node, "GPU-n1-1")]))),
        "wrong_state",
        "placed once"
    );
    assert_eq!(
        code(cell.ask(place(vec![whole(i[1], node, "GPU-n1-0")]))),
        "device_busy"
    );
    cell.given(Command::SuspectNode {
        node,
        silent: Span::ZERO,
        closed: false,
        reason: "test".into(),
    });
    assert_eq!(
        code(cell.ask(place(vec![whole(i[1], node, "GPU-n1-1")]))),
        "wrong_state"
    );
}

#[test]
fn an_instance_goes_from_placed_to_ready_and_repeats_change_nothing() {
    let (mut cell, node, i) = placed();
    assert_eq!(names(&cell.given(fact(node, i[0], started(7)))), ["InstanceStarted"]);
    assert!(cell.given(fact(node, i[0], started(7))).is_empty());
    assert_eq!(names(&cell.given(fact(node, i[0], ready()))), ["InstanceReady"]);
    assert!(cell.given(fact(node, i[0], ready())).is_empty());
    assert_eq!(
        names(&cell.given(fact(node, i[0], FactBody::Unready { reason: "500".into() }))),
        ["InstanceUnready"]
    );
    assert_eq!(cell.state.instances[&i[0]].state, InstanceState::Starting);
    assert_eq!(names(&cell.given(fact(node, i[0], ready()))), ["InstanceReady"]);
    let rotate = || Command::ReportInRotation {
        gateway: "g".into(),
        instances: i.clone(),
    };
    assert_eq!(names(&cell.given(rotate())), ["InstancesInRotation"]);
    assert!(cell.given(rotate()).is_empty());
}

#[test]
fn a_node_is_heard_only_about_its_own_instances() {
    let (mut cell, _, i) = placed();
    cell.given(Command::JoinNode(join("n2", 1)));
    let other = node_id(&cell, "n2");
    assert!(cell.given(fact(other, i[0], failed())).is_empty());
    assert_eq!(code(cell.ask(fact(NodeId::from_bits(1), i[0], failed()))), "not_found");
}

#[test]
fn a_failure_frees_the_device_and_backs_off_further_each_time() {
    let (mut cell, node, _) = placed();
    let service = service_id(&cell, "hello");
    let mut waits = vec![];
    for round in 1..=12 {
        for id in instances_of(&cell.state, "hello") {
            cell.given(fact(node, id, failed()));
        }
        let s = &cell.state.services[&service];
        assert_eq!(s.failures, round, "instances of one try count once");
        waits.push(s.retry_at.unwrap().since(cell.now).millis() / 1000);
        let request = || Command::RequestInstances {
            service,
            generation: 1,
            count: 2,
        };
        assert_eq!(code(cell.ask(request())), "wrong_state");
        cell.now = s_retry(&cell, service);
        cell.given(request());
        let i = instances_of(&cell.state, "hello");
        let placements = vec![whole(i[0], node, "GPU-n1-0"), whole(i[1], node, "GPU-n1-1")];
        cell.given(Command::PlaceInstances {
            service,
            placements,
            explanation: no_explanation(),
        });
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
}

fn s_retry(cell: &Cell, service: ServiceId) -> Timestamp {
    cell.state.services[&service].retry_at.unwrap()
}

#[test]
fn an_instance_that_served_is_replaced_at_once() {
    let (mut cell, node, i) = serving();
    let service = service_id(&cell, "hello");
    cell.given(fact(node, i[0], failed()));
    assert_eq!(s_retry(&cell, service), cell.now);
    cell.given(Command::RequestInstances {
        service,
        generation: 1,
        count: 1,
    });
}

#[test]
fn a_drain_is_asked_released_and_confirmed_each_on_its_own() {
    let (mut cell, node, i) = serving();
    let drain = || Command::DrainInstances {
        instances: vec![i[0]],
        reason: StopReason::ScaledDown,
    };
    assert!(
        cell.given(Command::ReleaseInstances { instances: vec![i[0]] })
            .is_empty(),
        "it is not draining"
    );
    assert_eq!(names(&cell.given(drain())), ["InstancesDrainRequested"]);
    assert!(cell.given(drain()).is_empty());
    assert_eq!(
        cell.state.devices.values().map(|d| d.classes().draining.0).sum::<u32>(),
        1000
    );
    assert_eq!(
        names(&cell.given(Command::ReleaseInstances { instances: vec![i[0]] })),
        ["InstancesStopRequested"]
    );
    assert!(
        cell.given(Command::ReleaseInstances { instances: vec![i[0]] })
            .is_empty()
    );
    assert_eq!(
        names(&cell.given(fact(node, i[0], failed()))),
        ["InstanceStopped"],
        "an exit on the way out is not a failure"
    );
    assert!(
        cell.given(fact(node, i[0], FactBody::Stopped { killed: true }))
            .is_empty()
    );
    assert_eq!(cell.state.devices.values().map(|d| d.free().0).sum::<u32>(), 1000);
}

#[test]
fn what_was_never_placed_is_cancelled_without_its_node() {
    let (mut cell, _, i) = pending();
    let drain = Command::DrainInstances {
        instances: i,
        reason: StopReason::ScaledDown,
    };
    assert_eq!(names(&cell.given(drain)), ["InstancesCancelled"]);
}

#[test]
fn a_lost_nodes_devices_return_only_when_it_says_that_nothing_is_left() {
    let (mut cell, node, i) = serving();
    let lose = || Command::LoseNode {
        node,
        silent: Span::from_secs(10),
        reason: "silent".into(),
    };
    assert_eq!(code(cell.ask(lose())), "wrong_state", "it is suspected first");
    cell.given(Command::SuspectNode {
        node,
        silent: Span::from_secs(3),
        closed: false,
        reason: "silent".into(),
    });
    assert_eq!(names(&cell.given(lose())), ["NodeLost"]);
    assert!(cell.given(lose()).is_empty());
    assert!(i.iter().all(|i| cell.state.instances[i].state == InstanceState::Lost));
    assert!(
        cell.state
            .devices
            .values()
            .all(|d| d.condition == DeviceCondition::Lost && d.free().0 == 0)
    );
    cell.given(Command::RecoverNode {
        node,
        reason: "heard again".into(),
    });
    assert_eq!(cell.state.nodes[&node].state, NodeState::Ready);
    assert!(
        cell.state.devices.values().all(|d| d.classes().dirty == Milli::WHOLE),
        "the processes may still run"
    );
    cell.given(fact(node, i[0], FactBody::Stopped { killed: false }));
    cell.given(fact(node, i[1], failed()));
    assert!(cell.state.devices.values().all(|d| d.free() == Milli::WHOLE));
}

#[test]
fn an_agent_that_returns_without_its_instances_has_lost_them() {
    let (mut cell, node, i) = serving();
    let mut back = join("n1", 2);
    back.agent_id = "restarted".into();
    back.instances = vec![i[1]];
    assert_eq!(
        names(&cell.given(Command::JoinNode(back))),
        ["NodeJoined", "NodeReady", "SwitchOpened", "InstancesLost"]
    );
    assert_eq!(cell.state.instances[&i[0]].state, InstanceState::Lost);
    assert_eq!(cell.state.instances[&i[1]].state, InstanceState::Ready);
    assert_eq!(cell.state.devices.values().map(|d| d.free().0).sum::<u32>(), 1000);
    assert_eq!(cell.state.nodes[&node].instances.len(), 1);
}

#[test]
fn an_agent_that_returns_without_what_it_was_stopping_has_stopped_it() {
    let (mut cell, _, i) = serving();
    cell.given(Command::DrainInstances {
        instances: vec![i[0]],
        reason: StopReason::ScaledDown,
    });
    cell.given(Command::ReleaseInstances { instances: vec![i[0]] });
    let mut back = join("n1", 2);
    back.instances = vec![i[1]];
    assert_eq!(names(&cell.given(Command::JoinNode(back))), ["InstanceStopped"]);
}

#[test]
fn a_node_that_leaves_takes_its_instances_along() {
    let (mut cell, node, _) = serving();
    let leave = || Command::LeaveNode {
        node,
        reason: "the owner wants it back".into(),
    };
    assert_eq!(
        names(&cell.given(leave())),
        ["NodeLeft", "SwitchOpened", "SwitchOpened"]
    );
    assert!(cell.given(leave()).is_empty());
    assert!(instances_of(&cell.state, "hello").is_empty());
}

#[test]
fn a_reason_to_wait_is_recorded_once() {
    let (mut cell, ..) = pending();
    let service = service_id(&cell, "hello");
    let defer = |waiting| Command::DeferPlacement {
        service,
        waiting,
        explanation: no_explanation(),
    };
    assert_eq!(names(&cell.given(defer(2))), ["PlacementDeferred"]);
    assert!(cell.given(defer(2)).is_empty());
    assert_eq!(names(&cell.given(defer(1))), ["PlacementDeferred"]);
}

#[test]
fn evidence_is_taken_once() {
    let mut cell = Cell::new();
    cell.given(apply("hello", spec(1, 1)));
    let service = service_id(&cell, "hello");
    let minute = |at: i64| {
        Command::CloseTrafficMinute(TrafficMinuteClosed {
            service,
            minute: Timestamp(at),
            requests: RequestCounts::default(),
            bad_seconds: 0,
            covered_seconds: 60,
            longest_gap: Span::ZERO,
            peak_queued: 0,
            latency: vec![],
            instances: vec![],
        })
    };
    assert_eq!(code(cell.ask(minute(1))), "invalid");
    assert_eq!(cell.given(minute(60_000_000)).len(), 1);
    assert!(cell.given(minute(60_000_000)).is_empty());
    assert!(cell.given(minute(0)).is_empty());
    let window = |first, last| {
        let at = Timestamp(0);
        let sealed = ObservationWindowSealed {
            first,
            last,
            digest: [0; 32],
            beats: vec![],
            from: at,
            to: at,
        };
        Command::SealObservationWindow(sealed)
    };
    assert_eq!(cell.given(window(1, 10)).len(), 1);
    assert!(cell.given(window(1, 10)).is_empty());
    assert_eq!(code(cell.ask(window(12, 11))), "invalid");
}

#[test]
fn unknown_names_are_not_found() {
    let mut cell = Cell::new();
    let (service, node) = (ServiceId::from_bits(1), NodeId::from_bits(1));
    for command in [
        Command::StopService { service },
        Command::StartService { service },
        Command::DeleteService { service },
        Command::ReleaseScale { service },
        Command::RequestInstances {
            service,
            generation: 1,
            count: 1,
        },
        Command::LeaveNode {
            node,
            reason: String::new(),
        },
        Command::RecoverNode {
            node,
            reason: String::new(),
        },
        Command::ForgetNode {
            node,
            reason: "scrapped".into(),
        },
        Command::DrainInstances {
            instances: vec![InstanceId::from_bits(1)],
            reason: StopReason::ScaledDown,
        },
        Command::ActivateFeature { feature: "none".into() },
    ] {
        assert_eq!(code(cell.ask(command)), "not_found");
    }
}
