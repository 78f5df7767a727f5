//! Given instances that are to leave where they are, what is asked for and in which order.

use tidemill_domain::command::{Command, DrainNode};
use tidemill_domain::events::instance::StopReason;
use tidemill_domain::events::node::DrainCause;
use tidemill_domain::id::InstanceId;
use tidemill_domain::policy::replicas::{ReplicaAction, reconcile};
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::time::Span;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{apply, join, recover, spec, suspect};

use crate::drive::*;

/// `replicas` that answer on n1, and an empty n2 of as many cards.
fn two_nodes(replicas: u32) -> Cell {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", replicas as usize)));
    cell.given(apply("hello", spec(replicas, 1000)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    cell.given(Command::JoinNode(join("n2", replicas as usize)));
    cell
}

fn drain(cell: &mut Cell, of: &str, deadline: Option<Span>) {
    let node = node(cell, of);
    cell.given(Command::DrainNode(DrainNode {
        node,
        cause: DrainCause::Reclaim,
        reason: "taken back".into(),
        deadline,
    }));
}

fn requested(cell: &Cell) -> u32 {
    let requests = actions(cell, "hello").into_iter().map(|action| match action {
        ReplicaAction::Request { count, .. } => count,
        _ => 0,
    });
    requests.sum()
}

fn on(cell: &Cell, name: &str, state: InstanceState) -> Vec<InstanceId> {
    let node = Some(node(cell, name));
    let live = live(cell, "hello").into_iter();
    live.filter(|i| i.node == node && i.state == state)
        .map(|i| i.id)
        .collect()
}

#[test]
fn all_of_a_drained_node_is_replaced_at_once_and_each_goes_as_soon_as_one_is_ready() {
    let mut cell = two_nodes(4);
    drain(&mut cell, "n1", None);
    assert_eq!(requested(&cell), 4);
    assert_eq!(drains(&cell, "hello"), []);
    schedule(&mut cell);
    let new = on(&cell, "n2", InstanceState::Placed);
    assert_eq!(new.len(), 4);
    make_ready(&mut cell, new[0]);
    let gone = drains(&cell, "hello");
    assert_eq!(gone.len(), 1);
    assert_eq!(gone[0].1, StopReason::NodeDraining);
    schedule(&mut cell);
    for instance in &new[1..] {
        make_ready(&mut cell, *instance);
    }
    schedule(&mut cell);
    finish_drains(&mut cell, "hello");
    assert_eq!(on(&cell, "n2", InstanceState::Ready).len(), 4);
    assert!(on(&cell, "n1", InstanceState::Ready).is_empty());
    assert_eq!(actions(&cell, "hello"), []);
}

#[test]
fn a_drain_with_nowhere_to_go_waits_and_one_with_a_deadline_does_not_wait_past_it() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 2)));
    cell.given(apply("hello", spec(2, 1000)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    drain(&mut cell, "n1", None);
    schedule(&mut cell);
    cell.wait(Span::from_secs(86_400));
    assert_eq!(drains(&cell, "hello"), [], "without a deadline it waits for ever");
    // The grace is 30 s, so it has to begin 33 s before.
    drain(&mut cell, "n1", Some(Span::from_secs(120)));
    schedule(&mut cell);
    let found = reconcile(&cell.state, service(&cell, "hello"), cell.now);
    assert_eq!(found.actions, []);
    assert_eq!(found.next_wake, Some(cell.now + Span::from_secs(87)));
    cell.wait(Span::from_secs(87));
    assert_eq!(drains(&cell, "hello").len(), 2);
}

#[test]
fn half_of_a_short_notice_is_for_the_replacement() {
    let mut cell = two_nodes(1);
    drain(&mut cell, "n1", Some(Span::from_secs(10)));
    schedule(&mut cell);
    let found = reconcile(&cell.state, service(&cell, "hello"), cell.now);
    assert_eq!(found.next_wake, Some(cell.now + Span::from_secs(5)));
    assert_eq!(found.actions, []);
}

#[test]
fn a_withdrawn_drain_keeps_what_is_there() {
    let mut cell = two_nodes(2);
    let old = on(&cell, "n1", InstanceState::Ready);
    drain(&mut cell, "n1", None);
    schedule(&mut cell);
    let node = node(&cell, "n1");
    cell.given(Command::UncordonNode {
        node,
        reason: "not after all".into(),
    });
    let gone: Vec<_> = drains(&cell, "hello").into_iter().map(|(id, _)| id).collect();
    assert_eq!(gone.len(), 2);
    assert!(gone.iter().all(|id| !old.contains(id)), "what serves stays");
}

#[test]
fn what_serves_on_a_doubted_node_is_replaced_and_kept_until_it_is_known_better() {
    let mut cell = two_nodes(2);
    let node = node(&cell, "n1");
    let old = on(&cell, "n1", InstanceState::Ready);
    cell.given(suspect(node));
    assert_eq!(requested(&cell), 2);
    cell.wait(Span::from_secs(1));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    assert_eq!(actions(&cell, "hello"), [], "two serve for certain, two perhaps");
    cell.given(recover(node));
    let gone: Vec<_> = drains(&cell, "hello").into_iter().map(|(id, _)| id).collect();
    assert_eq!(gone.len(), 2);
    assert!(gone.iter().all(|id| !old.contains(id)), "the newest go");
}

#[test]
fn what_never_served_on_a_doubted_node_is_only_in_the_way() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 1)));
    cell.given(apply("hello", spec(1, 1000)));
    schedule(&mut cell);
    let node = node(&cell, "n1");
    cell.given(suspect(node));
    assert_eq!(drains(&cell, "hello")[0].1, StopReason::NodeDoubted);
    assert_eq!(requested(&cell), 1);
}

#[test]
fn a_moved_instance_goes_when_another_is_ready_and_to_another_place_if_there_is_one() {
    let mut cell = two_nodes(1);
    let old = on(&cell, "n1", InstanceState::Ready)[0];
    cell.given(Command::MoveInstance {
        instance: old,
        reason: "noisy".into(),
    });
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    assert_eq!(drains(&cell, "hello"), [(old, StopReason::Moved)]);
    schedule(&mut cell);
    finish_drains(&mut cell, "hello");
    assert_eq!(on(&cell, "n2", InstanceState::Ready).len(), 1);
    assert_eq!(actions(&cell, "hello"), []);
}

#[test]
fn a_drain_during_a_rollout_ends_both() {
    let mut cell = two_nodes(2);
    let mut changed = spec(2, 1000);
    changed.run.command.push("--faster".into());
    cell.given(apply("hello", changed));
    drain(&mut cell, "n1", None);
    for _ in 0..8 {
        schedule(&mut cell);
        all_ready(&mut cell, "hello");
        schedule(&mut cell);
        finish_drains(&mut cell, "hello");
        cell.wait(Span::from_secs(60));
    }
    let instances = live(&cell, "hello");
    assert_eq!(instances.len(), 2);
    let n2 = node(&cell, "n2");
    assert!(instances.iter().all(|i| i.generation == 2 && i.node == Some(n2)));
    assert_eq!(actions(&cell, "hello"), []);
}
