//! Given a service and its instances, when time or the declaration changes, then these actions.

use proptest::prelude::*;
use tidemill_domain::command::{CHUNK, Command};
use tidemill_domain::events::instance::StopReason;
use tidemill_domain::id::InstanceId;
use tidemill_domain::policy::replicas::{ReplicaAction, reconcile, surge};
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::time::Span;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{apply, fact, failed, join, recover, spec, started, suspect};

use crate::drive::*;

fn scale(cell: &mut Cell, replicas: u32) {
    let command = Command::ScaleService {
        service: service(cell, "hello"),
        replicas,
        from: None,
        until: None,
    };
    cell.given(command);
}

/// `ready` replicas that answer, on a pool of `devices` cards.
fn serving(devices: usize, ready: u32) -> Cell {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", devices)));
    cell.given(apply("hello", spec(ready, 1000)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    assert_eq!(in_state(&cell, "hello", InstanceState::Ready).len(), ready as usize);
    cell
}

/// The same declaration with another command: a new generation.
fn changed(min: u32) -> tidemill_domain::events::service::ServiceSpec {
    let mut spec = spec(min, 1000);
    spec.run.command.push("--faster".into());
    spec
}

#[test]
fn missing_instances_are_requested_in_chunks() {
    let mut cell = Cell::new();
    cell.given(apply("hello", spec(600, 1000)));
    let counts: Vec<u32> = actions(&cell, "hello")
        .into_iter()
        .map(|a| match a {
            ReplicaAction::Request { count, generation, .. } => {
                assert_eq!(generation, 1);
                count
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts, [CHUNK as u32, CHUNK as u32, 88]);
    for action in actions(&cell, "hello") {
        cell.given(action.into_command());
    }
    assert_eq!(actions(&cell, "hello"), []);
}

#[test]
fn nothing_is_needed_when_all_is_well() {
    let cell = serving(3, 3);
    let found = reconcile(&cell.state, service(&cell, "hello"), cell.now);
    assert_eq!((found.actions, found.next_wake), (vec![], None));
}

#[test]
fn scaled_from_2_to_6_to_3_while_4_start_the_starting_ones_go() {
    let mut cell = serving(8, 2);
    let serving = in_state(&cell, "hello", InstanceState::Ready);
    scale(&mut cell, 6);
    schedule(&mut cell);
    let starting = in_state(&cell, "hello", InstanceState::Placed);
    assert_eq!(starting.len(), 4);
    let node = node(&cell, "n1");
    for id in &starting[..2] {
        cell.given(fact(node, *id, started(id.bits() as u32)));
    }
    scale(&mut cell, 3);
    let drains = drains(&cell, "hello");
    assert_eq!(drains.len(), 3);
    assert!(
        drains
            .iter()
            .all(|(id, reason)| starting.contains(id) && *reason == StopReason::ScaledDown)
    );
    schedule(&mut cell);
    assert_eq!(in_state(&cell, "hello", InstanceState::Ready), serving);
}

#[test]
fn replicas_go_in_order_of_their_use() {
    // Two answer, one answered before, one starts, and with all cards taken one waits.
    let mut cell = serving(4, 3);
    scale(&mut cell, 5);
    schedule(&mut cell);
    let pending = in_state(&cell, "hello", InstanceState::Pending);
    let placed = in_state(&cell, "hello", InstanceState::Placed);
    let ready = in_state(&cell, "hello", InstanceState::Ready);
    let node = node(&cell, "n1");
    let unready = tidemill_domain::command::FactBody::Unready {
        reason: "timeout".into(),
    };
    cell.given(fact(node, ready[1], unready));
    let order = [pending[0], placed[0], ready[1]];
    for left in (2..5).rev() {
        scale(&mut cell, left);
        let gone: Vec<InstanceId> = drains(&cell, "hello").into_iter().map(|(id, _)| id).collect();
        assert_eq!(gone, order[..5 - left as usize]);
    }
}

#[test]
fn of_those_that_serve_the_newest_goes_and_one_on_a_doubted_node_waits_for_it() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 1)));
    cell.given(Command::JoinNode(join("n2", 1)));
    cell.given(apply("hello", spec(1, 9)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    let old = in_state(&cell, "hello", InstanceState::Ready)[0];
    cell.wait(Span::from_secs(5));
    scale(&mut cell, 2);
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    let new = in_state(&cell, "hello", InstanceState::Ready)
        .into_iter()
        .find(|id| *id != old)
        .unwrap();
    scale(&mut cell, 1);
    assert_eq!(drains(&cell, "hello"), [(new, StopReason::ScaledDown)]);
    let node = cell.state.instances[&old].node.unwrap();
    cell.given(suspect(node));
    assert_eq!(
        drains(&cell, "hello"),
        [],
        "the other one is all that serves for certain"
    );
    cell.given(recover(node));
    assert_eq!(drains(&cell, "hello"), [(new, StopReason::ScaledDown)]);
}

#[test]
fn a_service_that_keeps_failing_waits_and_says_until_when() {
    let mut cell = serving(2, 1);
    let mut waits = Vec::new();
    for _ in 0..5 {
        let id = live(&cell, "hello")[0].id;
        let node = node(&cell, "n1");
        cell.given(fact(node, id, failed()));
        let found = reconcile(&cell.state, service(&cell, "hello"), cell.now);
        if let Some(wake) = found.next_wake {
            assert_eq!(found.actions, [], "nothing is asked for before the back-off is over");
            waits.push(wake.since(cell.now).millis() / 1000);
            cell.now = wake;
        }
        schedule(&mut cell);
        assert_eq!(live(&cell, "hello").len(), 1);
    }
    // The first replica had served, so its end is made good at once.
    assert_eq!(waits, [2, 4, 8, 16]);
}

#[test]
fn an_override_begins_and_ends_by_itself() {
    let mut cell = serving(9, 2);
    let id = service(&cell, "hello");
    let (from, until) = (cell.now + Span::from_secs(60), cell.now + Span::from_secs(120));
    cell.given(Command::ScaleService {
        service: id,
        replicas: 5,
        from: Some(from),
        until: Some(until),
    });
    assert_eq!(reconcile(&cell.state, id, cell.now).next_wake, Some(from));
    assert_eq!(actions(&cell, "hello"), []);
    cell.now = from;
    assert_eq!(actions(&cell, "hello"), [ReplicaAction::Settle { service: id }]);
    schedule(&mut cell);
    assert_eq!(live(&cell, "hello").len(), 5);
    assert_eq!(reconcile(&cell.state, id, cell.now).next_wake, Some(until));
    cell.now = until;
    schedule(&mut cell);
    finish_drains(&mut cell, "hello");
    assert_eq!(live(&cell, "hello").len(), 2);
    assert_eq!(cell.state.services[&id].scale_override, None);
}

#[test]
fn a_stopped_service_loses_all_and_a_deleted_one_goes_when_nothing_is_left() {
    let mut cell = serving(3, 2);
    let id = service(&cell, "hello");
    cell.given(Command::StopService { service: id });
    assert!(
        drains(&cell, "hello")
            .iter()
            .all(|(_, r)| *r == StopReason::ServiceStopped)
    );
    schedule(&mut cell);
    assert!(live(&cell, "hello").iter().all(|i| i.state.leaving()));
    cell.given(Command::DeleteService { service: id });
    schedule(&mut cell);
    assert!(
        cell.state.services.contains_key(&id),
        "its replicas have not been confirmed stopped"
    );
    finish_drains(&mut cell, "hello");
    schedule(&mut cell);
    assert!(!cell.state.services.contains_key(&id));
}

#[test]
fn a_new_generation_comes_before_the_old_one_goes() {
    let mut cell = serving(5, 4);
    let old = in_state(&cell, "hello", InstanceState::Ready);
    cell.given(apply("hello", changed(4)));
    for round in 1..=4 {
        schedule(&mut cell);
        let fresh: Vec<InstanceId> = in_state(&cell, "hello", InstanceState::Placed);
        assert_eq!(fresh.len(), 1, "one at a time beyond what is wanted");
        assert_eq!(drains(&cell, "hello"), [], "nothing goes before the new one is ready");
        make_ready(&mut cell, fresh[0]);
        let gone = drains(&cell, "hello");
        assert_eq!(gone.len(), 1);
        assert!(old.contains(&gone[0].0) && gone[0].1 == StopReason::Replaced);
        schedule(&mut cell);
        assert_eq!(in_state(&cell, "hello", InstanceState::Ready).len(), 4);
        finish_drains(&mut cell, "hello");
        let new = live(&cell, "hello").iter().filter(|i| i.generation == 2).count();
        assert!(new >= round);
    }
    schedule(&mut cell);
    assert!(live(&cell, "hello").iter().all(|i| i.generation == 2));
    assert_eq!(actions(&cell, "hello"), []);
}

#[test]
fn a_new_generation_that_never_gets_ready_costs_no_old_one() {
    let mut cell = serving(5, 4);
    cell.given(apply("hello", changed(4)));
    for _ in 0..6 {
        schedule(&mut cell);
        for id in in_state(&cell, "hello", InstanceState::Placed) {
            let node = node(&cell, "n1");
            cell.given(fact(node, id, failed()));
        }
        assert_eq!(in_state(&cell, "hello", InstanceState::Ready).len(), 4);
        cell.wait(Span::from_secs(400));
    }
}

#[test]
fn old_replicas_that_do_not_serve_make_way_at_once() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 2)));
    cell.given(apply("hello", spec(2, 9)));
    schedule(&mut cell);
    cell.given(apply("hello", changed(2)));
    assert_eq!(drains(&cell, "hello").len(), 2);
    schedule(&mut cell);
    finish_drains(&mut cell, "hello");
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    assert!(
        live(&cell, "hello")
            .iter()
            .all(|i| i.generation == 2 && i.state == InstanceState::Ready)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever happens on the way, a rolling change never leaves fewer ready replicas than wanted or than there were.
    #[test]
    fn rolling_never_goes_below_what_is_wanted(
        desired in 1u32..12,
        spare in 1usize..4,
        steps in proptest::collection::vec(0u8..4, 1..60),
    ) {
        let mut cell = serving(desired as usize + spare, desired);
        cell.given(apply("hello", changed(desired)));
        for step in steps {
            match step {
                0 => schedule(&mut cell),
                1 => {
                    let placed = in_state(&cell, "hello", InstanceState::Placed);
                    if let Some(first) = placed.first() {
                        make_ready(&mut cell, *first);
                    }
                }
                2 => finish_drains(&mut cell, "hello"),
                _ => {
                    let placed = in_state(&cell, "hello", InstanceState::Placed);
                    if let Some(last) = placed.last() {
                        let node = node(&cell, "n1");
                        cell.given(fact(node, *last, failed()));
                    }
                    cell.wait(Span::from_secs(30));
                }
            }
            let ready = in_state(&cell, "hello", InstanceState::Ready).len();
            prop_assert!(ready >= desired as usize, "{ready} of {desired}");
            let staying = live(&cell, "hello").iter().filter(|i| !i.state.leaving()).count();
            prop_assert!(staying <= (desired + surge(desired)) as usize);
        }
    }
}
