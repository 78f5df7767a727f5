//! Given a pool and waiting instances, when a round is held, then these placements and reasons.

use std::time::Instant;

use tidemill_domain::command::{Command, CreateCredential, OfferedDevice};
use tidemill_domain::events::credential::Role;
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::events::placement::Filter;
use tidemill_domain::events::service::{Class, Runtime, Spread};
use tidemill_domain::id::NodeId;
use tidemill_domain::policy::placement::{self, Decision};
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::time::Span;
use tidemill_domain::unit::Milli;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{apply, device, join, spec, suspect};

use crate::drive::*;

fn card(uuid: &str, model: &str, gib: u64) -> OfferedDevice {
    OfferedDevice {
        model: model.into(),
        memory_bytes: gib << 30,
        ..device(uuid)
    }
}

/// Nodes of the service's live instances, in order of request.
fn nodes_of(cell: &Cell, of: &str) -> Vec<String> {
    let mut live = live(cell, of);
    live.sort_by_key(|i| (i.requested_at, i.id));
    live.iter()
        .filter_map(|i| i.node)
        .map(|id: NodeId| cell.state.nodes[&id].name.to_string())
        .collect()
}

fn counts(nodes: &[String]) -> std::collections::BTreeMap<&str, usize> {
    let mut counts = std::collections::BTreeMap::new();
    for node in nodes {
        *counts.entry(node.as_str()).or_default() += 1;
    }
    counts
}

#[test]
fn replicas_spread_over_nodes_then_fill_them() {
    let mut cell = Cell::new();
    for node in ["n1", "n2", "n3"] {
        cell.given(Command::JoinNode(join(node, 4)));
    }
    cell.given(apply("hello", spec(6, 9)));
    schedule(&mut cell);
    assert_eq!(
        counts(&nodes_of(&cell, "hello")),
        [("n1", 2), ("n2", 2), ("n3", 2)].into()
    );
}

#[test]
fn replicas_spread_over_providers_even_where_one_has_more_nodes() {
    let mut cell = Cell::new();
    for (node, provider) in [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")] {
        let mut join = join(node, 8);
        join.provider = provider.into();
        cell.given(Command::JoinNode(join));
    }
    let mut spread = spec(6, 9);
    spread.placement.spread = Spread::Provider;
    cell.given(apply("hello", spread));
    schedule(&mut cell);
    assert_eq!(
        counts(&nodes_of(&cell, "hello")),
        [("a1", 1), ("a2", 1), ("a3", 1), ("b1", 3)].into()
    );
}

#[test]
fn nodes_of_a_revoked_token_get_no_new_work_and_say_so() {
    let mut cell = Cell::new();
    cell.given(Command::CreateCredential(CreateCredential {
        hash: [1; 32],
        role: Role::Node,
        supply: None,
        tenant: None,
        ttl: None,
    }));
    let credential = cell.state.credential_hashed(&[1; 32]).unwrap().id;
    let mut vouched = join("n1", 4);
    vouched.credential = Some(credential);
    cell.given(Command::JoinNode(vouched));
    cell.given(apply("hello", spec(2, 9)));
    schedule(&mut cell);
    assert_eq!(nodes_of(&cell, "hello"), ["n1", "n1"]);
    cell.given(Command::RevokeCredential { credential });
    cell.given(apply("hello", spec(3, 9)));
    schedule(&mut cell);
    assert_eq!(nodes_of(&cell, "hello"), ["n1", "n1"], "what runs stays");
    let service = cell.state.services.values().next().unwrap();
    let explained = service.pending.as_ref().expect("one waits, and why is on record");
    assert_eq!(explained.filtered.len(), 1);
    assert_eq!(explained.filtered[0].filter, Filter::TokenRevoked);
    assert_eq!(explained.filtered[0].devices, 4);
    assert!(
        explained.dominant.contains("token was revoked"),
        "{}",
        explained.dominant
    );
    cell.given(Command::JoinNode(join("n2", 1)));
    schedule(&mut cell);
    assert_eq!(nodes_of(&cell, "hello"), ["n1", "n1", "n2"]);
}

#[test]
fn without_spreading_replicas_fill_one_node_first() {
    let mut cell = Cell::new();
    for node in ["n1", "n2", "n3"] {
        cell.given(Command::JoinNode(join(node, 4)));
    }
    let mut packed = spec(5, 9);
    packed.placement.spread = Spread::None;
    cell.given(apply("hello", packed));
    schedule(&mut cell);
    let nodes = nodes_of(&cell, "hello");
    let mut sizes: Vec<usize> = counts(&nodes).into_values().collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 4]);
}

#[test]
fn shares_fill_a_device_before_they_break_another() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 4)));
    let mut half = spec(3, 9);
    half.devices.share = Milli(500);
    cell.given(apply("hello", half));
    schedule(&mut cell);
    let mut free: Vec<u32> = cell.state.devices.values().map(|d| d.free().0).collect();
    free.sort_unstable();
    assert_eq!(free, [0, 500, 1000, 1000]);
}

#[test]
fn twenty_shares_of_a_twentieth_fill_a_card_and_the_next_waits() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 1)));
    let mut small = spec(21, 30);
    small.devices.share = Milli(50);
    cell.given(apply("hello", small));
    schedule(&mut cell);
    assert_eq!(in_state(&cell, "hello", InstanceState::Placed).len(), 20);
    assert_eq!(in_state(&cell, "hello", InstanceState::Pending).len(), 1);
    assert_eq!(cell.state.devices.values().next().unwrap().free(), Milli::ZERO);
}

#[test]
fn memory_of_a_share_is_counted_and_one_mebibyte_too_much_waits() {
    let mut cell = Cell::new();
    let mut node = join("n1", 0);
    node.devices = vec![OfferedDevice {
        memory_bytes: 46_068 << 20,
        ..device("GPU-0")
    }];
    cell.given(Command::JoinNode(node));
    let mut fits = spec(1, 2);
    fits.devices.share = Milli(500);
    fits.devices.memory_bytes = 23_034 << 20;
    cell.given(apply("fits", fits.clone()));
    fits.devices.memory_bytes += 1 << 20;
    cell.given(apply("waits", fits));
    schedule(&mut cell);
    assert_eq!(in_state(&cell, "fits", InstanceState::Placed).len(), 1);
    assert_eq!(in_state(&cell, "waits", InstanceState::Pending).len(), 1);
    let why = deferral(&cell, "waits");
    assert_eq!(
        why.dominant,
        "no device has 22.4 GiB: a share of 0.5 has at most 22.4 GiB"
    );
}

#[test]
fn many_devices_come_from_one_node_and_one_model() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 3)));
    let mut mixed = join("n2", 0);
    mixed.devices = vec![
        card("m0", "A100-80G", 80),
        card("m1", "H100", 80),
        card("m2", "A100-80G", 80),
        card("m3", "H100", 80),
        card("m4", "A100-80G", 80),
        card("m5", "A100-80G", 80),
    ];
    cell.given(Command::JoinNode(mixed));
    let mut four = spec(1, 2);
    four.devices.count = 4;
    cell.given(apply("four", four));
    schedule(&mut cell);
    let instance = live(&cell, "four")[0];
    assert_eq!(instance.holds.len(), 4);
    let models: Vec<&str> = instance
        .holds
        .iter()
        .map(|h| cell.state.devices[&h.device].model.as_str())
        .collect();
    assert_eq!(models, ["A100-80G"; 4]);
    assert_eq!(instance.node, Some(node(&cell, "n2")));
}

#[test]
fn the_smallest_device_that_suits_is_taken_and_reliable_supply_preferred() {
    let mut cell = Cell::new();
    let mut big = join("big", 0);
    big.devices = vec![card("b", "A100-80G", 80)];
    let mut small = join("small", 0);
    small.devices = vec![card("s", "L4", 24)];
    cell.given(Command::JoinNode(big));
    cell.given(Command::JoinNode(small));
    let mut modest = spec(1, 2);
    modest.devices.memory_bytes = 16 << 30;
    cell.given(apply("modest", modest));
    schedule(&mut cell);
    assert_eq!(nodes_of(&cell, "modest"), ["small"]);

    let mut cell = Cell::new();
    for (node, supply) in [
        ("cloudy", Supply::Cloud),
        ("own", Supply::Idc),
        ("corp", Supply::Enterprise),
    ] {
        let mut join = join(node, 1);
        join.supply = supply;
        cell.given(Command::JoinNode(join));
    }
    cell.given(apply("hello", spec(3, 3)));
    schedule(&mut cell);
    let why = cell.state.services[&service(&cell, "hello")].placed.clone().unwrap();
    let order: Vec<String> = why
        .candidates
        .iter()
        .map(|c| cell.state.nodes[&c.node].name.to_string())
        .collect();
    assert_eq!(order, ["own", "corp", "cloudy"]);
    assert_eq!(
        why.dominant,
        "3 devices on 3 nodes fit; `own` came first for its more reliable supply"
    );
}

#[test]
fn suspect_nodes_get_nothing() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 4)));
    let node = node(&cell, "n1");
    cell.given(suspect(node));
    cell.given(apply("hello", spec(1, 1)));
    schedule(&mut cell);
    let why = deferral(&cell, "hello");
    assert_eq!(
        why.dominant,
        "no device is in reach: 4 of that sort are on nodes that are not ready"
    );
    assert_eq!(why.next_step, "see `tidemill nodes` for why they are not ready");
}

#[test]
fn an_infeasible_head_holds_up_nobody() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 3)));
    let mut four = spec(1, 1);
    four.devices.count = 4;
    cell.given(apply("four", four));
    cell.wait(Span::from_secs(60));
    let mut three = spec(1, 1);
    three.devices.count = 3;
    cell.given(apply("three", three));
    schedule(&mut cell);
    assert_eq!(in_state(&cell, "three", InstanceState::Placed).len(), 1);
    assert_eq!(in_state(&cell, "four", InstanceState::Pending).len(), 1);
    let waiting = cell.state.services[&service(&cell, "four")].pending.clone().unwrap();
    assert_eq!(waiting.devices, 3);
}

#[test]
fn critical_work_goes_first_and_then_what_has_waited_longest() {
    let mut cell = Cell::new();
    for (name, class) in [
        ("first", Class::Standard),
        ("second", Class::Standard),
        ("vital", Class::Critical),
    ] {
        let mut spec = spec(1, 1);
        spec.class = class;
        cell.given(apply(name, spec));
        schedule(&mut cell);
        cell.wait(Span::from_secs(1));
    }
    let mut served = Vec::new();
    for n in 0..3 {
        cell.given(Command::JoinNode(join(&format!("n{n}"), 1)));
        schedule(&mut cell);
        for name in ["first", "second", "vital"] {
            if !served.contains(&name) && !in_state(&cell, name, InstanceState::Placed).is_empty() {
                served.push(name);
            }
        }
    }
    assert_eq!(served, ["vital", "first", "second"]);
}

/// Whoever waits is told why, in words, and what would help.
#[test]
fn every_way_to_wait_has_a_reason_and_a_next_step() {
    let mut empty = Cell::new();
    empty.given(apply("hello", spec(1, 1)));
    schedule(&mut empty);
    assert_eq!(deferral(&empty, "hello").dominant, "the pool has no devices");

    let mut cell = Cell::new();
    let mut node = join("n1", 8);
    node.devices.push(OfferedDevice {
        kind: DeviceKind::Cpu,
        model: "x86".into(),
        memory_bytes: 8 << 30,
        ..device("cpu-0")
    });
    cell.given(Command::JoinNode(node));
    let mut all = spec(8, 8);
    all.devices.models = vec!["A100-80G".into()];
    cell.given(apply("all", all.clone()));
    schedule(&mut cell);

    type Change = fn(&mut tidemill_domain::events::service::ServiceSpec);
    let cases: [(&str, Change, &str, &str); 7] = [
        (
            "busy",
            |s| s.devices.models = vec!["A100-80G".into()],
            "no device of model A100-80G is free: 8 of 8 are held",
            "add a node with such devices, or scale another service down",
        ),
        (
            "model",
            |s| s.devices.models = vec!["H100".into()],
            "the pool has no device of model H100",
            "add one, or change devices.model: the pool has A100-80G, x86",
        ),
        (
            "kind",
            |s| s.devices.kinds = vec![DeviceKind::Rocm, DeviceKind::Ascend],
            "the pool has no rocm or ascend device",
            "add one, or change devices.kind: the pool has cpu, cuda",
        ),
        (
            "memory",
            |s| s.devices.memory_bytes = 100 << 30,
            "no device has 100.0 GiB: the largest has at most 80.0 GiB",
            "lower devices.memory, or add a node with larger devices",
        ),
        (
            "region",
            |s| s.placement.regions = vec!["west".into()],
            "no node is in west",
            "add a node there, or change placement.region: the pool has east",
        ),
        (
            "supply",
            |s| s.placement.supply = vec![Supply::Cafe],
            "no node is of supply cafe",
            "add one, or change placement.supply: the pool has idc",
        ),
        (
            "together",
            |s| {
                s.devices.count = 2;
                s.devices.kinds = vec![DeviceKind::Cpu];
            },
            "no node has 2 free devices together (cpu device): the most is 1, on `n1`",
            "wait until more is free on one node, add a node with enough devices, or lower devices.count",
        ),
    ];
    for (name, change, dominant, next) in cases {
        let mut spec = spec(1, 1);
        change(&mut spec);
        cell.given(apply(name, spec));
        schedule(&mut cell);
        let why = deferral(&cell, name);
        assert_eq!((why.dominant.as_str(), why.next_step.as_str()), (dominant, next));
        assert_eq!(why.devices, 9);
        let instance = live(&cell, name)[0];
        assert_eq!(instance.reason, dominant, "the instance itself says it");
    }
}

#[test]
fn dirty_and_lost_devices_are_not_given_away() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 2)));
    cell.given(apply("hello", spec(2, 2)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    let node = node(&cell, "n1");
    for command in [
        suspect(node),
        Command::LoseNode {
            node,
            silent: Span::from_secs(10),
            reason: "silent".into(),
        },
        Command::RecoverNode {
            node,
            reason: "back".into(),
        },
    ] {
        cell.given(command);
    }
    schedule(&mut cell);
    let why = deferral(&cell, "hello");
    assert_eq!(why.filtered[0].filter, Filter::DeviceNotHealthy);
    assert_eq!(
        why.dominant,
        "no device is in order: 2 of 2 are lost or not confirmed clean"
    );
}

#[test]
fn a_rollout_without_room_says_so() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 2)));
    cell.given(apply("hello", spec(2, 2)));
    schedule(&mut cell);
    all_ready(&mut cell, "hello");
    let mut changed = spec(2, 2);
    changed.run.command.push("--new".into());
    cell.given(apply("hello", changed));
    schedule(&mut cell);
    assert!(
        deferral(&cell, "hello")
            .next_step
            .contains("a rolling change needs room")
    );
    assert_eq!(in_state(&cell, "hello", InstanceState::Ready).len(), 2);
}

#[test]
fn equal_states_give_equal_rounds_and_large_ones_are_quick() {
    for (nodes, devices, instances) in [(1, 1000, 1000), (125, 8, 1000), (1250, 8, 1000), (1250, 8, 10_000)] {
        let mut cell = Cell::new();
        for n in 0..nodes {
            cell.given(Command::JoinNode(join(&format!("n{n}"), devices)));
        }
        cell.given(apply("wide", spec(instances, 10_000)));
        for action in actions(&cell, "wide") {
            cell.given(action.into_command());
        }
        let begun = Instant::now();
        let decisions = placement::round(&cell.state, cell.now);
        let took = begun.elapsed();
        println!(
            "{instances} instances on {} devices of {nodes} nodes: {took:?}",
            nodes * devices
        );
        assert_eq!(decisions, placement::round(&cell.state, cell.now));
        let placed: usize = decisions
            .iter()
            .map(|d| match d {
                Decision::Place { placements, .. } => placements.len(),
                Decision::Defer { .. } => 0,
            })
            .sum();
        assert_eq!(placed, instances as usize);
        // A tenth of a second on an idle machine; the bound leaves room for a busy one.
        assert!(took.as_millis() < 2_000, "{took:?}");
        for decision in decisions {
            cell.given(decision.into_command());
        }
    }
}

#[test]
fn the_outlook_says_what_a_round_would_without_holding_one() {
    let mut cell = Cell::new();
    assert_eq!(
        placement::outlook(&cell.state, &spec(1, 1), cell.now).dominant,
        "the pool has no devices"
    );
    cell.given(Command::JoinNode(join("n1", 2)));
    let free = placement::outlook(&cell.state, &spec(1, 1), cell.now);
    assert_eq!(
        (free.fitting, free.dominant.as_str()),
        (2, "`n1` is the only node that fits")
    );
}

#[test]
fn a_container_goes_to_a_node_with_an_engine_or_waits_and_says_so() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 4)));
    let mut contained = spec(1, 2);
    contained.run.runtime = Runtime::Docker;
    contained.run.image = Some("chat:1".into());
    contained.run.command = vec![];
    cell.given(apply("hello", contained));
    schedule(&mut cell);
    let why = deferral(&cell, "hello");
    assert_eq!(why.dominant, "no node that is allowed has a Docker engine");
    assert!(
        why.filtered
            .iter()
            .any(|count| count.filter == Filter::RuntimeMissing && count.devices == 4)
    );
    // The same agent finds an engine: it joins anew, and what waited is placed.
    let mut offers = join("n1", 4);
    offers.runtimes = vec![Runtime::Docker, Runtime::Process];
    cell.given(Command::JoinNode(offers));
    schedule(&mut cell);
    assert_eq!(nodes_of(&cell, "hello"), ["n1"]);
}
