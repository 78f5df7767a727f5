//! Given/when/then tables of who may join as whom: machines that were installed anew, disks that were copied, names and
//! addresses that were used before, and what a joining node found of itself.
#![allow(clippy::unwrap_used)]

use tidemill_domain::command::{Command, JoinNode, OfferedFinding, OfferedInspection};
use tidemill_domain::events::Event;
use tidemill_domain::id::NodeId;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::time::Span;
use tidemill_projections::rows::{device_row, node_row};
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{
    apply, device, fact, instances_of, join, name, no_explanation, ready, spec, started, whole,
};

/// A machine as its agent describes it.
fn machine(node: &str, machine: &str, boot: &str, cards: &[&str]) -> JoinNode {
    JoinNode {
        runtimes: vec![tidemill_domain::events::service::Runtime::Process],
        machine_id: machine.into(),
        boot_id: boot.into(),
        agent_id: format!("agent of {machine} in {boot}"),
        devices: cards.iter().map(|uuid| device(uuid)).collect(),
        ..join(node, 0)
    }
}

fn node(cell: &Cell, wanted: &str) -> NodeId {
    cell.state.node_named(wanted).unwrap().id
}

fn suspect(cell: &mut Cell, node: NodeId) {
    let (silent, reason) = (Span::from_secs(3), "silent".to_owned());
    cell.given(Command::SuspectNode {
        node,
        silent,
        closed: false,
        reason,
    });
}

fn lose(cell: &mut Cell, node: NodeId) {
    suspect(cell, node);
    let (silent, reason) = (Span::from_secs(10), "silent".to_owned());
    cell.given(Command::LoseNode { node, silent, reason });
}

/// State of the first when the second comes, and what the second is told: a code, or as which node it is taken.
#[test]
fn who_joins_as_whom() {
    let first = || machine("gpu-1", "m1", "b1", &["GPU-1"]);
    let (same, other) = (Ok(true), Ok(false));
    let cases: Vec<(&str, NodeState, JoinNode, Result<bool, &str>)> = vec![
        // The same machine.
        ("its agent was restarted", NodeState::Ready, first(), same),
        (
            "restarted, silence noticed",
            NodeState::Suspect,
            machine("gpu-1", "m1", "b2", &["GPU-1"]),
            same,
        ),
        (
            "restarted, given up",
            NodeState::Lost,
            machine("gpu-1", "m1", "b2", &["GPU-1"]),
            same,
        ),
        (
            "restarted before silence was noticed",
            NodeState::Ready,
            machine("gpu-1", "m1", "b2", &["GPU-1"]),
            Err("node_cloned"),
        ),
        // Its disk, copied to another host: the card there is another, the name and the data directory are the same.
        (
            "a copy while it lives",
            NodeState::Ready,
            machine("gpu-1", "m1", "b9", &["GPU-9"]),
            Err("node_cloned"),
        ),
        (
            "a copy after it is gone",
            NodeState::Lost,
            machine("gpu-1", "m1", "b9", &["GPU-9"]),
            same,
        ),
        (
            "a copy under a name of its own",
            NodeState::Ready,
            machine("gpu-2", "m1", "b9", &["GPU-9"]),
            other,
        ),
        // Installed anew: another machine id on the same hardware.
        (
            "installed anew while it lives",
            NodeState::Ready,
            machine("gpu-1", "m2", "b2", &["GPU-1"]),
            Err("node_name_taken"),
        ),
        (
            "installed anew, silence noticed",
            NodeState::Suspect,
            machine("gpu-1", "m2", "b2", &["GPU-1"]),
            Err("node_name_taken"),
        ),
        (
            "installed anew, given up",
            NodeState::Lost,
            machine("gpu-1", "m2", "b2", &["GPU-1"]),
            same,
        ),
        (
            "installed anew under another name",
            NodeState::Ready,
            machine("gpu-2", "m2", "b2", &["GPU-1"]),
            Err("device_elsewhere"),
        ),
        (
            "the same, given up",
            NodeState::Lost,
            machine("gpu-2", "m2", "b2", &["GPU-1"]),
            other,
        ),
        // Another machine.
        (
            "its name on another machine",
            NodeState::Ready,
            machine("gpu-1", "m3", "b3", &["GPU-3"]),
            Err("node_name_taken"),
        ),
        (
            "its address on another machine",
            NodeState::Ready,
            machine("gpu-3", "m3", "b3", &["GPU-3"]),
            other,
        ),
        (
            "its address after it was lost",
            NodeState::Lost,
            machine("gpu-3", "m3", "b3", &["GPU-3"]),
            other,
        ),
        (
            "its card, moved",
            NodeState::Lost,
            machine("gpu-3", "m3", "b3", &["GPU-1", "GPU-3"]),
            other,
        ),
    ];
    for (what, state, second, expected) in cases {
        let mut cell = Cell::new();
        cell.given(Command::JoinNode(first()));
        let id = node(&cell, "gpu-1");
        match state {
            NodeState::Suspect => suspect(&mut cell, id),
            NodeState::Lost => lose(&mut cell, id),
            _ => {}
        }
        // All of them are reached at one address: it tells nobody apart.
        assert_eq!(cell.state.nodes[&id].address, second.address);
        let joined = second.name.clone();
        match cell.ask(Command::JoinNode(second)) {
            Err(refused) => {
                assert_eq!(Err(refused.code()), expected, "{what}");
                assert!(!refused.next().is_empty());
                assert_eq!(cell.state.nodes[&id].boot_id, "b1", "{what}: the first is not touched");
            }
            Ok(_) => {
                let taken_as = cell.state.node_named(joined.as_str()).unwrap().id;
                assert_eq!(Ok(taken_as == id), expected, "{what}");
            }
        }
    }
}

/// The first of two machines with one disk is cut off, the second takes its name; the first comes back.
#[test]
fn of_two_copies_one_at_a_time_is_the_node() {
    let mut cell = Cell::new();
    let (first, copy) = (
        machine("gpu-1", "m1", "b1", &["GPU-1"]),
        machine("gpu-1", "m1", "b9", &["GPU-9"]),
    );
    cell.given(Command::JoinNode(first.clone()));
    let id = node(&cell, "gpu-1");
    suspect(&mut cell, id);
    cell.given(Command::JoinNode(copy));
    assert_eq!(cell.ask(Command::JoinNode(first)).unwrap_err().code(), "node_cloned");
    assert_eq!(
        (cell.state.nodes[&id].state, cell.state.nodes[&id].boot_id.as_str()),
        (NodeState::Ready, "b9")
    );
}

/// What ran before the machine was installed anew does not run now, whatever its devices say.
#[test]
fn a_machine_installed_anew_brings_nothing_back() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(machine("gpu-1", "m1", "b1", &["GPU-1"])));
    cell.given(apply("hello", spec(1, 1)));
    let service = cell.state.services.keys().next().copied().unwrap();
    let (generation, count) = (1, 1);
    cell.given(Command::RequestInstances {
        service,
        generation,
        count,
    });
    let (id, instance) = (node(&cell, "gpu-1"), instances_of(&cell.state, "hello")[0]);
    let (placements, explanation) = (vec![whole(instance, id, "GPU-1")], no_explanation());
    cell.given(Command::PlaceInstances {
        service,
        placements,
        explanation,
    });
    cell.given(fact(id, instance, started(7)));
    cell.given(fact(id, instance, ready()));
    lose(&mut cell, id);
    cell.given(Command::JoinNode(machine("gpu-1", "m2", "b2", &["GPU-1"])));
    assert_eq!(cell.state.instances[&instance].state, InstanceState::Lost);
    let device = cell.state.devices.values().next().unwrap();
    assert_eq!(
        (device.state_name(), device.holds.len()),
        ("free", 0),
        "nothing of it can be left"
    );
}

fn inspected(findings: Vec<OfferedFinding>) -> OfferedInspection {
    OfferedInspection {
        took: Span::from_millis(300),
        disk_write_bps: Some(200_000_000),
        findings,
        ..OfferedInspection::default()
    }
}

fn slow(uuid: &str) -> OfferedFinding {
    OfferedFinding {
        uuid: Some(uuid.to_owned()),
        code: "slow_device".into(),
        detail: "it runs at 0.50 of its model's speed".into(),
        next: "look at its cooling".into(),
    }
}

#[test]
fn what_a_node_found_of_itself_is_on_record_and_shown_once() {
    let mut cell = Cell::new();
    let mut joining = machine("gpu-1", "m1", "b1", &["GPU-1", "GPU-2"]);
    joining.inspection = Some(inspected(vec![slow("GPU-2")]));
    let names = |events: &[Event]| events.iter().map(Event::name).collect::<Vec<_>>();
    let events = cell.given(Command::JoinNode(joining.clone()));
    assert_eq!(names(&events), ["NodeJoined", "NodeReady", "NodeInspected"]);
    assert!(
        cell.given(Command::JoinNode(joining.clone())).is_empty(),
        "the same again is nothing"
    );
    let row = node_row(&cell.state, node(&cell, "gpu-1")).unwrap();
    assert!(
        row.reason.contains("slow_device") && row.findings[0].device.as_deref() == Some("GPU-2"),
        "{row:?}"
    );
    let reasons = |cell: &Cell| -> Vec<String> {
        let mut rows: Vec<_> = cell
            .state
            .devices
            .keys()
            .filter_map(|id| device_row(&cell.state, *id))
            .collect();
        rows.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        rows.into_iter().map(|row| row.reason).collect()
    };
    assert!(
        !reasons(&cell)[0].contains("slow") && reasons(&cell)[1].contains("0.50"),
        "{:?}",
        reasons(&cell)
    );
    // It was repaired; its agent was started again.
    joining.agent_id = "next".into();
    joining.inspection = Some(inspected(vec![]));
    let events = cell.given(Command::JoinNode(joining));
    assert_eq!(names(&events), ["NodeJoined", "NodeReady", "NodeInspected"]);
    assert!(!reasons(&cell)[1].contains("slow"), "{:?}", reasons(&cell));
}

#[test]
fn a_copied_installation_is_told_apart_and_told_so() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(machine("gpu-1", "m1", "b1", &["GPU-1"])));
    cell.given(Command::JoinNode(machine("gpu-2", "m1", "b9", &["GPU-9"])));
    let row = node_row(&cell.state, node(&cell, "gpu-2")).unwrap();
    assert!(
        row.reason.contains("machine_cloned") && row.reason.contains("gpu-1"),
        "{}",
        row.reason
    );
    // Two agents of one machine in one boot are two nodes of it, and nobody's copies.
    cell.given(Command::JoinNode(machine("gpu-1b", "m1", "b1", &["GPU-1b"])));
    let beside = cell.state.node_named("gpu-1b").unwrap();
    assert!(
        beside
            .inspection
            .as_ref()
            .is_some_and(|i| i.findings.iter().all(|f| f.detail.contains("gpu-2")))
    );
    assert_eq!(cell.state.node_named(name("gpu-1").as_str()).unwrap().inspection, None);
}

#[test]
fn an_inspection_cannot_be_endless_or_speak_of_others_devices() {
    let mut cell = Cell::new();
    let mut joining = machine("gpu-1", "m1", "b1", &["GPU-1"]);
    joining.inspection = Some(inspected(vec![slow("GPU-of-somebody-else")]));
    cell.given(Command::JoinNode(joining.clone()));
    assert_eq!(cell.state.node_named("gpu-1").unwrap().findings(None).count(), 1);
    joining.inspection = Some(inspected(vec![slow("GPU-1"); 300]));
    assert_eq!(cell.ask(Command::JoinNode(joining)).unwrap_err().code(), "too_many");
}
