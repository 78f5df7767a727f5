//! Given a service whose declaration changed, when its new replicas do or do not get ready, then this becomes of it.

use tidemill_domain::command::Command;
use tidemill_domain::decide::ROLLOUT_TRIES;
use tidemill_domain::events::service::ServiceSpec;
use tidemill_domain::id::InstanceId;
use tidemill_domain::policy::replicas::reconcile;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::service::Service;
use tidemill_domain::time::Span;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{apply, fact, failed, join, spec};

use crate::drive::*;

const REPLICAS: u32 = 4;

/// Four replicas of generation 1 serve, with a card to spare.
fn serving() -> Cell {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", REPLICAS as usize + 1)));
    cell.given(apply("hello", version(1)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    cell
}

fn version(number: u32) -> ServiceSpec {
    let mut spec = spec(REPLICAS, 100);
    spec.run.command.push(format!("--version={number}"));
    spec
}

fn entry(cell: &Cell) -> &Service {
    &cell.state.services[&service(cell, "hello")]
}

fn roll_back(cell: &mut Cell) -> Vec<tidemill_domain::events::Event> {
    let service = service(cell, "hello");
    cell.given(Command::RollBackService { service })
}

/// Plays nodes and scheduler until nothing changes: what is placed gets ready, what drains stops.
fn roll(cell: &mut Cell) {
    for _ in 0..20 {
        schedule(cell);
        all_ready(cell, "hello");
        finish_drains(cell, "hello");
    }
    schedule(cell);
}

/// Plays until nothing changes, with replicas of `generation` failing as soon as they are placed.
fn fail(cell: &mut Cell, generation: u64) -> usize {
    let mut tries = 0;
    for _ in 0..10 {
        schedule(cell);
        let placed: Vec<InstanceId> = live(cell, "hello")
            .into_iter()
            .filter(|i| i.state == InstanceState::Placed && i.generation == generation)
            .map(|i| i.id)
            .collect();
        for id in placed {
            tries += 1;
            let node = node(cell, "n1");
            cell.given(fact(node, id, failed()));
        }
        finish_drains(cell, "hello");
        cell.wait(Span::from_secs(400));
    }
    tries
}

fn ready_of(cell: &Cell, generation: u64) -> usize {
    let ready = |i: &&&_| is_ready_of(i, generation);
    live(cell, "hello").iter().filter(ready).count()
}

fn is_ready_of(instance: &tidemill_domain::state::instance::Instance, generation: u64) -> bool {
    instance.state == InstanceState::Ready && instance.generation == generation
}

#[test]
fn a_rollout_that_is_through_is_on_record() {
    let mut cell = serving();
    assert_eq!((entry(&cell).settled, entry(&cell).previous), (Some(1), None));
    cell.given(apply("hello", version(2)));
    assert_eq!(entry(&cell).rolling_from(), Some(1));
    roll(&mut cell);
    assert_eq!((entry(&cell).settled, entry(&cell).previous), (Some(2), Some(1)));
    assert_eq!(ready_of(&cell, 2), REPLICAS as usize);
    assert_eq!(actions(&cell, "hello"), []);
}

#[test]
fn what_never_gets_ready_is_tried_twice_and_the_old_serves_on() {
    let mut cell = serving();
    cell.given(apply("hello", version(2)));
    let tries = fail(&mut cell, 2);
    assert_eq!(tries, ROLLOUT_TRIES as usize, "one at a time, and then no more");
    assert!(entry(&cell).halted.is_some());
    assert_eq!(ready_of(&cell, 1), REPLICAS as usize);

    // A replica of the serving generation that fails is replaced by its like.
    let gone = in_state(&cell, "hello", InstanceState::Ready)[0];
    let node = node(&cell, "n1");
    cell.given(fact(node, gone, failed()));
    cell.wait(Span::from_secs(400));
    roll(&mut cell);
    assert_eq!(ready_of(&cell, 1), REPLICAS as usize);
    assert!(entry(&cell).halted.is_some(), "that says nothing of the rollout");
}

#[test]
fn what_dies_soon_after_it_was_ready_replaces_nothing() {
    let mut cell = serving();
    let old = in_state(&cell, "hello", InstanceState::Ready);
    let mut next = version(2);
    next.run.ready_hold = Span::from_secs(2);
    cell.given(apply("hello", next));
    let mut tries = 0;
    for _ in 0..10 {
        schedule(&mut cell);
        all_ready(&mut cell, "hello");
        cell.wait(Span::from_secs(1));
        schedule(&mut cell);
        assert_eq!(
            ready_of(&cell, 1),
            REPLICAS as usize,
            "none goes before its replacement is proven"
        );
        let new: Vec<InstanceId> = live(&cell, "hello")
            .into_iter()
            .filter(|i| is_ready_of(i, 2))
            .map(|i| i.id)
            .collect();
        for id in new {
            tries += 1;
            let node = node(&cell, "n1");
            cell.given(fact(node, id, failed()));
        }
        finish_drains(&mut cell, "hello");
        cell.wait(Span::from_secs(400));
    }
    assert_eq!(tries, ROLLOUT_TRIES as usize);
    assert!(entry(&cell).halted.is_some());
    assert_eq!(in_state(&cell, "hello", InstanceState::Ready), old);
}

#[test]
fn what_stays_ready_for_its_hold_replaces_the_old() {
    let mut cell = serving();
    let mut next = version(2);
    next.run.ready_hold = Span::from_secs(2);
    cell.given(apply("hello", next));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    schedule(&mut cell);
    assert_eq!((ready_of(&cell, 1), ready_of(&cell, 2)), (REPLICAS as usize, 1));
    let wake = reconcile(&cell.state, service(&cell, "hello"), cell.now).next_wake;
    assert!(
        wake.is_some_and(|at| at <= cell.now + Span::from_secs(2)),
        "it wakes when the hold is over"
    );
    for _ in 0..20 {
        cell.wait(Span::from_secs(2));
        roll(&mut cell);
    }
    assert_eq!((entry(&cell).settled, ready_of(&cell, 2)), (Some(2), REPLICAS as usize));
}

#[test]
fn a_rollout_that_halts_half_way_keeps_what_serves() {
    let mut cell = serving();
    cell.given(apply("hello", version(2)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    schedule(&mut cell);
    finish_drains(&mut cell, "hello");
    fail(&mut cell, 2);
    assert!(entry(&cell).halted.is_some());
    assert_eq!(ready_of(&cell, 1) + ready_of(&cell, 2), REPLICAS as usize);
    assert_eq!(ready_of(&cell, 2), 1);
    assert_eq!(actions(&cell, "hello"), []);
}

#[test]
fn the_way_back_keeps_the_instances_that_still_serve() {
    let mut cell = serving();
    let old = in_state(&cell, "hello", InstanceState::Ready);
    cell.given(apply("hello", version(2)));
    fail(&mut cell, 2);
    assert!(!roll_back(&mut cell).is_empty());
    roll(&mut cell);
    assert_eq!(in_state(&cell, "hello", InstanceState::Ready), old);
    assert_eq!((entry(&cell).generation, entry(&cell).newest), (1, 2));
    assert_eq!(entry(&cell).halted, None);

    // The next declaration gets a number of its own.
    cell.given(apply("hello", version(3)));
    roll(&mut cell);
    assert_eq!((entry(&cell).settled, ready_of(&cell, 3)), (Some(3), REPLICAS as usize));
}

#[test]
fn the_way_back_from_a_rollout_that_is_through_rolls_too() {
    let mut cell = serving();
    cell.given(apply("hello", version(2)));
    roll(&mut cell);
    // Scale, class and route stay as declared last.
    let mut wider = version(2);
    wider.scale.max = 50;
    cell.given(apply("hello", wider));
    roll_back(&mut cell);
    schedule(&mut cell);
    assert_eq!(ready_of(&cell, 2), REPLICAS as usize, "ready before drain");
    roll(&mut cell);
    assert_eq!(ready_of(&cell, 1), REPLICAS as usize);
    assert_eq!(entry(&cell).spec().scale.max, 50);
    assert!(entry(&cell).spec().run.command.contains(&"--version=1".to_owned()));

    // And forth again.
    roll_back(&mut cell);
    roll(&mut cell);
    assert_eq!(ready_of(&cell, 2), REPLICAS as usize);
}

#[test]
fn there_is_no_way_back_from_the_first() {
    let mut cell = serving();
    let service = service(&cell, "hello");
    let refused = cell.ask(Command::RollBackService { service });
    assert_eq!(refused.unwrap_err().code(), "wrong_state");
}

#[test]
fn the_same_file_again_tries_a_halted_rollout_again() {
    let mut cell = serving();
    cell.given(apply("hello", version(2)));
    fail(&mut cell, 2);
    assert!(!cell.given(apply("hello", version(2))).is_empty());
    assert_eq!((entry(&cell).generation, entry(&cell).halted.is_some()), (3, false));
    roll(&mut cell);
    assert_eq!(ready_of(&cell, 3), REPLICAS as usize);
}

#[test]
fn only_a_failing_rollout_is_halted() {
    let mut cell = serving();
    let id = service(&cell, "hello");
    let halt = |generation| Command::HaltRollout {
        service: id,
        generation,
    };
    assert!(cell.given(halt(1)).is_empty(), "nothing rolls");
    cell.given(apply("hello", version(2)));
    assert_eq!(cell.ask(halt(1)).unwrap_err().code(), "stale_generation");
    assert_eq!(cell.ask(halt(2)).unwrap_err().code(), "wrong_state");
}
