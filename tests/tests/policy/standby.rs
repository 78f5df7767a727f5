//! Given a service with standbys, when replicas are lost, moved, scaled or rolled over, then this becomes of both.

use tidemill_domain::command::{Command, DrainNode};
use tidemill_domain::events::Event;
use tidemill_domain::events::instance::StopReason;
use tidemill_domain::events::node::DrainCause;
use tidemill_domain::events::service::ServiceSpec;
use tidemill_domain::id::InstanceId;
use tidemill_domain::policy::replicas::ReplicaAction;
use tidemill_domain::time::Span;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{apply, fact, failed, recover, spec};

use crate::drive::*;

fn with_standbys(replicas: u32, standbys: u32) -> ServiceSpec {
    let mut spec = spec(replicas, 100);
    spec.scale.standby = standbys;
    spec
}

/// Two replicas that answer on n1 and n2 of one provider, and a standby that answers on n3 of another.
fn standing_by() -> Cell {
    let mut cell = Cell::new();
    cell.given(of_provider("n1", "own", 1));
    cell.given(of_provider("n2", "own", 2));
    cell.given(of_provider("n3", "lent", 2));
    cell.given(apply("hello", with_standbys(2, 1)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    schedule(&mut cell);
    let mut nodes: Vec<String> = live(&cell, "hello").iter().map(|i| node_of(&cell, i.id)).collect();
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2", "n3"], "each on a node of its own");
    cell
}

fn ready_replicas(cell: &Cell) -> Vec<InstanceId> {
    let live = live(cell, "hello").into_iter();
    live.filter(|i| i.serves()).map(|i| i.id).collect()
}

fn standbys(cell: &Cell) -> Vec<InstanceId> {
    let live = live(cell, "hello").into_iter();
    live.filter(|i| i.standby && !i.state.leaving()).map(|i| i.id).collect()
}

/// The node of a replica that answers.
fn node_of(cell: &Cell, instance: InstanceId) -> String {
    let node = cell.state.instances[&instance].node.unwrap();
    cell.state.nodes[&node].name.to_string()
}

/// Plays nodes and scheduler until nothing changes.
fn settle(cell: &mut Cell) {
    for _ in 0..8 {
        schedule(cell);
        all_ready(cell, "hello");
        finish_drains(cell, "hello");
        cell.wait(Span::from_secs(60));
    }
    schedule(cell);
    assert_eq!(actions(cell, "hello"), []);
}

#[test]
fn replicas_come_first_and_a_standby_where_they_are_not() {
    let mut cell = Cell::new();
    cell.given(of_provider("n1", "own", 4));
    cell.given(of_provider("n2", "lent", 2));
    let mut wanted = with_standbys(2, 1);
    wanted.placement.spread = tidemill_domain::events::service::Spread::None;
    cell.given(apply("hello", wanted));
    let id = service(&cell, "hello");
    let request = ReplicaAction::Request {
        service: id,
        generation: 1,
        count: 2,
    };
    assert_eq!(actions(&cell, "hello"), [request]);
    schedule(&mut cell);
    let standby = standbys(&cell)[0];
    let replicas: Vec<String> = live(&cell, "hello")
        .iter()
        .filter(|i| !i.standby)
        .map(|i| node_of(&cell, i.id))
        .collect();
    assert!(!replicas.contains(&node_of(&cell, standby)), "{replicas:?}");
    all_ready(&mut cell, "hello");
    assert_eq!(actions(&cell, "hello"), []);
    assert_eq!(cell.state.instances[&standby].state_name(), "standby");
    assert_eq!(ready_replicas(&cell).len(), 2);
}

#[test]
fn a_standby_serves_in_the_very_round_in_which_a_node_is_doubted() {
    let mut cell = standing_by();
    let standby = standbys(&cell)[0];
    let lost = ready_replicas(&cell)[0];
    let name = node_of(&cell, lost);
    falls_silent(&mut cell, &name);
    let promotes =
        |action: &ReplicaAction| matches!(action, ReplicaAction::Promote { promoted, .. } if *promoted == [standby]);
    assert!(
        actions(&cell, "hello").iter().any(promotes),
        "{:?}",
        actions(&cell, "hello")
    );
    schedule(&mut cell);
    assert!(ready_replicas(&cell).contains(&standby));
    let switch = cell.state.switches.values().find(|s| s.instance == lost).unwrap();
    assert_eq!(switch.replacement, Some(standby), "the switch says who took over");
    assert_eq!(standbys(&cell).len(), 1, "and another is being made");
    settle(&mut cell);
    assert_eq!(
        (ready_replicas(&cell).len(), standbys(&cell).len()),
        (3, 1),
        "two for certain, one perhaps"
    );
}

#[test]
fn a_node_that_comes_back_leaves_as_many_as_are_wanted() {
    let mut cell = standing_by();
    let lost = ready_replicas(&cell)[0];
    let name = node_of(&cell, lost);
    falls_silent(&mut cell, &name);
    schedule(&mut cell);
    let back = node(&cell, &name);
    cell.given(recover(back));
    settle(&mut cell);
    assert_eq!((ready_replicas(&cell).len(), standbys(&cell).len()), (2, 1));
    assert!(ready_replicas(&cell).contains(&lost), "what served longest stays");
}

#[test]
fn a_replica_on_its_way_stands_by_once_a_standby_has_its_place() {
    let mut cell = standing_by();
    let old = standbys(&cell)[0];
    // The standby dies, and while the next one starts, so does a replica.
    let at = cell.state.instances[&old].node.unwrap();
    cell.given(fact(at, old, failed()));
    cell.wait(Span::from_secs(400));
    schedule(&mut cell);
    let standby = standbys(&cell)[0];
    assert_ne!(standby, old);
    let lost = ready_replicas(&cell)[0];
    let name = node_of(&cell, lost);
    falls_silent(&mut cell, &name);
    schedule(&mut cell);
    let starting: Vec<InstanceId> = live(&cell, "hello")
        .into_iter()
        .filter(|i| !i.standby && i.ready_at.is_none())
        .map(|i| i.id)
        .collect();
    assert_eq!(starting.len(), 1, "nothing stands by, so a replica is made");
    make_ready(&mut cell, standby);
    schedule(&mut cell);
    assert!(ready_replicas(&cell).contains(&standby), "it answers first");
    assert_eq!(standbys(&cell), starting, "and they change places");
    let switch = cell.state.switches.values().find(|s| s.instance == lost).unwrap();
    assert_eq!(switch.replacement, Some(standby));
    settle(&mut cell);
    assert_eq!(standbys(&cell).len(), 1);
}

#[test]
fn a_standby_never_serves_where_nothing_is_missing() {
    let mut cell = standing_by();
    let standby = standbys(&cell);
    let drained = node_of(&cell, ready_replicas(&cell)[0]);
    let node = node(&cell, &drained);
    cell.given(Command::DrainNode(DrainNode {
        node,
        cause: DrainCause::Operator,
        reason: "new fan".into(),
        deadline: None,
    }));
    settle(&mut cell);
    assert_eq!(standbys(&cell), standby, "a planned move has the time to make another");
    assert_eq!(ready_replicas(&cell).len(), 2);
    let switch = cell.state.switches.values().next().unwrap();
    assert!(switch.replacement.is_some_and(|id| !standby.contains(&id)));
}

#[test]
fn a_deadline_with_no_room_is_met_by_the_standby() {
    let mut cell = Cell::new();
    cell.given(of_provider("n1", "own", 1));
    cell.given(of_provider("n2", "lent", 1));
    cell.given(apply("hello", with_standbys(1, 1)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    let standby = standbys(&cell)[0];
    let old = ready_replicas(&cell)[0];
    let name = node_of(&cell, old);
    let node = node(&cell, &name);
    cell.given(Command::DrainNode(DrainNode {
        node,
        cause: DrainCause::Reclaim,
        reason: "taken back".into(),
        deadline: Some(Span::from_secs(10)),
    }));
    schedule(&mut cell);
    assert_eq!(ready_replicas(&cell), [old], "there may yet be room");
    cell.wait(Span::from_secs(5));
    schedule(&mut cell);
    assert_eq!(ready_replicas(&cell), [standby]);
}

#[test]
fn the_standby_of_a_drained_node_is_made_anew_elsewhere() {
    let mut cell = standing_by();
    let old = standbys(&cell)[0];
    let name = node_of(&cell, old);
    let node = node(&cell, &name);
    cell.given(Command::DrainNode(DrainNode {
        node,
        cause: DrainCause::Operator,
        reason: "new fan".into(),
        deadline: None,
    }));
    assert_eq!(drains(&cell, "hello"), [(old, StopReason::NodeDraining)]);
    settle(&mut cell);
    let new = standbys(&cell)[0];
    assert_ne!(node_of(&cell, new), name);
    assert!(cell.state.switches.is_empty(), "nobody's work moved");
}

#[test]
fn a_rollout_takes_standbys_along_and_the_old_ones_last() {
    let mut cell = standing_by();
    let old = standbys(&cell)[0];
    let mut changed = with_standbys(2, 1);
    changed.run.command.push("--faster".into());
    cell.given(apply("hello", changed));
    let mut seen_old_serving_without_old_standby = false;
    for _ in 0..12 {
        schedule(&mut cell);
        all_ready(&mut cell, "hello");
        assert!(ready_replicas(&cell).len() >= 2);
        let serves_old = live(&cell, "hello").iter().any(|i| i.serves() && i.generation == 1);
        seen_old_serving_without_old_standby |= serves_old && !standbys(&cell).contains(&old);
        finish_drains(&mut cell, "hello");
        cell.wait(Span::from_secs(60));
    }
    assert!(!seen_old_serving_without_old_standby, "it could be needed until then");
    let of_new = |id: &InstanceId| cell.state.instances[id].generation == 2;
    assert!(ready_replicas(&cell).iter().all(of_new) && standbys(&cell).iter().all(of_new));
    assert_eq!((ready_replicas(&cell).len(), standbys(&cell).len()), (2, 1));
}

#[test]
fn a_service_scaled_to_nothing_or_stopped_keeps_none() {
    let mut cell = standing_by();
    let id = service(&cell, "hello");
    cell.given(Command::ScaleService {
        service: id,
        replicas: 0,
        from: None,
        until: None,
    });
    settle(&mut cell);
    assert!(live(&cell, "hello").is_empty());

    let mut cell = standing_by();
    let id = service(&cell, "hello");
    cell.given(Command::StopService { service: id });
    settle(&mut cell);
    assert!(live(&cell, "hello").is_empty());
}

#[test]
fn a_changed_number_of_standbys_is_followed() {
    let mut cell = standing_by();
    let before = ready_replicas(&cell);
    for (wanted, expected) in [(0, 0), (1, 1), (2, 2)] {
        cell.given(apply("hello", with_standbys(2, wanted)));
        settle(&mut cell);
        assert_eq!(standbys(&cell).len(), expected);
        assert_eq!(ready_replicas(&cell).len(), before.len());
    }
}

#[test]
fn promotion_is_refused_where_it_would_take_a_request_from_anyone() {
    let mut cell = standing_by();
    let id = service(&cell, "hello");
    let standby = standbys(&cell)[0];
    let replica = ready_replicas(&cell)[0];
    let promote = |promoted: Vec<InstanceId>, stood_by: Vec<InstanceId>| Command::PromoteStandbys {
        service: id,
        promoted,
        stood_by,
    };
    assert!(cell.ask(promote(vec![replica], vec![])).is_err(), "it serves already");
    assert!(cell.ask(promote(vec![], vec![replica])).is_err(), "it has served");
    assert!(cell.ask(promote(vec![InstanceId::from_bits(7)], vec![])).is_err());
    assert_eq!(cell.given(promote(vec![], vec![])), Vec::<Event>::new());
    let events = cell.given(promote(vec![standby], vec![]));
    assert!(matches!(events[..], [Event::StandbysPromoted(_)]), "{events:?}");
    let more = Command::RequestStandbys {
        service: id,
        generation: 1,
        count: 2,
    };
    assert!(cell.ask(more).is_err(), "one is wanted, not two");
}
