//! Cordon, drain, move, and the switches that follow.

use tidemill_domain::command::{CloseSwitch, Command, DrainNode, FactBody};
use tidemill_domain::events::Event;
use tidemill_domain::events::instance::StopReason;
use tidemill_domain::events::node::DrainCause;
use tidemill_domain::events::switch::{SwitchCause, SwitchEffect, SwitchOutcome};
use tidemill_domain::id::{InstanceId, NodeId, SwitchId};
use tidemill_domain::state::node::{Intake, NodeState};
use tidemill_domain::time::Span;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{fact, failed, instances_of, join, no_explanation, started, whole};

use super::{code, names, node_id, service_id, serving};

fn drain(node: NodeId, cause: DrainCause, deadline: Option<Span>) -> Command {
    Command::DrainNode(DrainNode {
        node,
        cause,
        reason: "its fan rattles".into(),
        deadline,
    })
}

fn cordon(node: NodeId) -> Command {
    Command::CordonNode {
        node,
        reason: "its fan rattles".into(),
    }
}

fn uncordon(node: NodeId) -> Command {
    Command::UncordonNode {
        node,
        reason: "mended".into(),
    }
}

fn suspect(node: NodeId) -> Command {
    Command::SuspectNode {
        node,
        silent: Span::from_millis(2_500),
        closed: false,
        reason: "no heartbeat for 2.5s".into(),
    }
}

fn open(cell: &Cell) -> Vec<(InstanceId, SwitchCause)> {
    let open = cell.state.switches.values().filter(|s| s.is_open());
    let mut open: Vec<_> = open.map(|s| (s.instance, s.cause)).collect();
    open.sort_unstable_by_key(|(instance, _)| *instance);
    open
}

fn sorted(mut instances: Vec<InstanceId>) -> Vec<InstanceId> {
    instances.sort_unstable();
    instances
}

/// Both replicas end as asked.
fn stop(cell: &mut Cell, node: NodeId, instances: &[InstanceId]) {
    let all = || instances.to_vec();
    cell.given(Command::DrainInstances {
        instances: all(),
        reason: StopReason::NodeDraining,
    });
    cell.given(Command::ReleaseInstances { instances: all() });
    for instance in instances {
        cell.given(fact(node, *instance, FactBody::Stopped { killed: false }));
    }
}

#[test]
fn a_cordoned_node_gets_nothing_new_and_keeps_what_it_has() {
    let (mut cell, _, instances) = serving();
    cell.given(Command::JoinNode(join("n2", 1)));
    let node = node_id(&cell, "n2");
    assert_eq!(names(&cell.given(cordon(node))), ["NodeCordoned"]);
    assert!(cell.given(cordon(node)).is_empty(), "it is already");
    assert_eq!(cell.state.nodes[&node].state_name(), "cordoned");
    let service = service_id(&cell, "hello");
    cell.given(Command::ScaleService {
        service,
        replicas: 3,
        from: None,
        until: None,
    });
    cell.given(Command::RequestInstances {
        service,
        generation: 1,
        count: 1,
    });
    let all = instances_of(&cell.state, "hello");
    let new = all.into_iter().find(|id| !instances.contains(id)).unwrap();
    let place = || Command::PlaceInstances {
        service,
        placements: vec![whole(new, node, "GPU-n2-0")],
        explanation: no_explanation(),
    };
    assert_eq!(code(cell.ask(place())), "wrong_state");
    assert_eq!(names(&cell.given(uncordon(node))), ["NodeUncordoned"]);
    assert!(cell.given(uncordon(node)).is_empty());
    assert_eq!(names(&cell.given(place())), ["InstancesPlaced"]);
    assert!(cell.state.switches.is_empty(), "nothing moved");
}

#[test]
fn an_act_on_a_node_says_why_and_is_for_nodes_that_are_there() {
    let (mut cell, node, _) = serving();
    let mute = Command::CordonNode {
        node,
        reason: " ".into(),
    };
    assert_eq!(code(cell.ask(mute)), "invalid");
    let endless = drain(node, DrainCause::Operator, Some(Span::from_secs(10_000_000)));
    assert_eq!(code(cell.ask(endless)), "invalid");
    let unknown = NodeId::from_bits(1);
    for command in [
        cordon(unknown),
        uncordon(unknown),
        drain(unknown, DrainCause::Operator, None),
    ] {
        assert_eq!(code(cell.ask(command)), "not_found");
    }
    cell.given(Command::LeaveNode {
        node,
        reason: "bye".into(),
    });
    for command in [cordon(node), drain(node, DrainCause::Operator, None)] {
        assert_eq!(code(cell.ask(command)), "wrong_state");
    }
}

#[test]
fn a_drain_opens_a_switch_an_instance_and_ends_when_all_is_confirmed() {
    let (mut cell, node, instances) = serving();
    let events = cell.given(drain(node, DrainCause::Operator, None));
    assert_eq!(names(&events), ["NodeDrainRequested", "SwitchOpened", "SwitchOpened"]);
    assert!(cell.given(drain(node, DrainCause::Operator, None)).is_empty());
    let moved: Vec<_> = sorted(instances.clone())
        .into_iter()
        .map(|i| (i, SwitchCause::Drain))
        .collect();
    assert_eq!(open(&cell), moved);
    assert!(cell.given(Command::SettleDrain { node }).is_empty(), "it is not empty");
    stop(&mut cell, node, &instances[..1]);
    assert!(cell.given(Command::SettleDrain { node }).is_empty(), "one is left");
    stop(&mut cell, node, &instances[1..]);
    assert_eq!(cell.state.nodes[&node].state_name(), "draining");
    assert_eq!(names(&cell.given(Command::SettleDrain { node })), ["NodeDrained"]);
    assert!(cell.given(Command::SettleDrain { node }).is_empty());
    assert!(matches!(cell.state.nodes[&node].intake, Intake::Drained(_)));
    assert_eq!(cell.state.nodes[&node].state_name(), "drained");
    cell.given(uncordon(node));
    assert_eq!(cell.state.nodes[&node].state_name(), "ready");
}

#[test]
fn an_empty_node_is_drained_at_once_and_one_whose_owner_takes_it_leaves() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 1)));
    let node = node_id(&cell, "n1");
    let events = cell.given(drain(node, DrainCause::Leave, Some(Span::from_secs(60))));
    assert_eq!(names(&events), ["NodeDrainRequested", "NodeDrained", "NodeLeft"]);
    assert_eq!(cell.state.nodes[&node].state, NodeState::Left);
    cell.given(Command::JoinNode(join("n1", 1)));
    assert_eq!(
        cell.state.nodes[&node].state_name(),
        "ready",
        "its owner brought it back"
    );
    cell.given(drain(node, DrainCause::Operator, None));
    cell.given(Command::LeaveNode {
        node,
        reason: "bye".into(),
    });
    cell.given(Command::JoinNode(join("n1", 1)));
    assert_eq!(
        cell.state.nodes[&node].state_name(),
        "drained",
        "an operator's word outlives a return"
    );
}

#[test]
fn a_doubted_node_opens_switches_once_and_its_loss_none() {
    let (mut cell, node, instances) = serving();
    let events = cell.given(suspect(node));
    assert_eq!(names(&events), ["NodeSuspected", "SwitchOpened", "SwitchOpened"]);
    let Event::SwitchOpened(opened) = &events[1] else {
        panic!()
    };
    assert_eq!(opened.detect, Some(Span::from_millis(2_500)));
    cell.given(Command::RecoverNode {
        node,
        reason: "heard".into(),
    });
    assert_eq!(
        names(&cell.given(suspect(node))),
        ["NodeSuspected"],
        "they are open still"
    );
    let lose = Command::LoseNode {
        node,
        silent: Span::from_secs(10),
        reason: "silent".into(),
    };
    assert_eq!(names(&cell.given(lose)), ["NodeLost"]);
    assert_eq!(open(&cell).len(), instances.len());
}

#[test]
fn what_served_and_failed_moves_and_what_never_served_does_not() {
    let (mut cell, node, instances) = serving();
    let events = cell.given(fact(node, instances[0], failed()));
    assert_eq!(names(&events), ["InstanceFailed", "SwitchOpened"]);
    assert_eq!(open(&cell), [(instances[0], SwitchCause::InstanceFailed)]);

    let (mut cell, node, instances) = super::placed();
    cell.given(fact(node, instances[0], started(1)));
    assert_eq!(
        names(&cell.given(fact(node, instances[0], failed()))),
        ["InstanceFailed"]
    );
}

#[test]
fn what_is_on_its_way_out_or_not_wanted_does_not_move() {
    let (mut cell, node, instances) = serving();
    cell.given(Command::DrainInstances {
        instances: vec![instances[0]],
        reason: StopReason::ScaledDown,
    });
    assert_eq!(names(&cell.given(suspect(node))), ["NodeSuspected", "SwitchOpened"]);

    let (mut cell, node, _) = serving();
    let service = service_id(&cell, "hello");
    cell.given(Command::StopService { service });
    assert_eq!(names(&cell.given(suspect(node))), ["NodeSuspected"]);
}

#[test]
fn those_requested_next_take_over_the_oldest_first_and_again_if_they_fail() {
    let (mut cell, node, instances) = serving();
    cell.given(Command::JoinNode(join("n2", 2)));
    let other = node_id(&cell, "n2");
    let service = service_id(&cell, "hello");
    cell.given(Command::MoveInstance {
        instance: instances[1],
        reason: "its neighbour is noisy".into(),
    });
    cell.wait(Span::from_secs(1));
    cell.given(drain(node, DrainCause::Reclaim, Some(Span::from_secs(60))));
    let request = |count| Command::RequestInstances {
        service,
        generation: 1,
        count,
    };
    let events = cell.given(request(1));
    assert_eq!(names(&events), ["InstancesRequested", "SwitchReplacementChosen"]);
    let first = cell.state.open_switch_of(instances[1]).unwrap();
    let replacement = first.replacement.expect("it was asked for first");
    assert!(cell.state.open_switch_of(instances[0]).unwrap().replacement.is_none());
    assert_eq!(
        names(&cell.given(request(1))),
        ["InstancesRequested", "SwitchReplacementChosen"]
    );
    assert_eq!(code(cell.ask(request(1))), "wrong_state", "nothing is missing any more");
    cell.given(Command::PlaceInstances {
        service,
        placements: vec![whole(replacement, other, "GPU-n2-0")],
        explanation: no_explanation(),
    });
    cell.given(fact(other, replacement, failed()));
    cell.wait(Span::from_secs(600));
    cell.given(request(1));
    let again = cell.state.open_switch_of(instances[1]).unwrap().replacement;
    assert!(again.is_some_and(|again| again != replacement));
}

#[test]
fn a_move_is_asked_once_and_only_of_what_runs() {
    let (mut cell, _, instances) = serving();
    let ask = |instance| Command::MoveInstance {
        instance,
        reason: "its neighbour is noisy".into(),
    };
    assert_eq!(
        names(&cell.given(ask(instances[0]))),
        ["InstanceMoveRequested", "SwitchOpened"]
    );
    assert!(cell.given(ask(instances[0])).is_empty());
    assert_eq!(code(cell.ask(ask(InstanceId::from_bits(1)))), "not_found");
    let (mut cell, _, pending) = super::pending();
    assert_eq!(code(cell.ask(ask(pending[0]))), "wrong_state");
}

#[test]
fn a_switch_is_closed_once_and_forgotten_an_hour_after() {
    let (mut cell, node, instances) = serving();
    cell.given(suspect(node));
    let close = |switch: SwitchId| {
        Command::CloseSwitch(CloseSwitch {
            switch,
            outcome: SwitchOutcome::Recovered,
            effect: SwitchEffect {
                covered_seconds: 4,
                ..SwitchEffect::default()
            },
        })
    };
    let id = |cell: &Cell, instance| cell.state.open_switch_of(instance).unwrap().id;
    let first = id(&cell, instances[0]);
    assert_eq!(names(&cell.given(close(first))), ["SwitchClosed"]);
    assert!(cell.given(close(first)).is_empty());
    let closed = cell.state.switches[&first].closed.unwrap();
    assert!(!closed.effect.is_perceived() && closed.replace.is_none());
    cell.wait(Span::from_secs(3_601));
    assert_eq!(cell.state.switches.len(), 2);
    let second = id(&cell, instances[1]);
    cell.given(close(second));
    assert_eq!(cell.state.switches.keys().collect::<Vec<_>>(), [&second]);
    assert_eq!(code(cell.ask(close(first))), "not_found");
}
