//! What holds for any pool and any requests.

use proptest::prelude::*;
use tidemill_domain::command::{Command, OfferedDevice};
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::events::placement::Explanation;
use tidemill_domain::events::service::{ServiceSpec, Spread};
use tidemill_domain::policy::placement::{self, Decision};
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::time::Span;
use tidemill_domain::unit::Milli;
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{apply, device, join, spec, suspect};

use crate::drive::*;

const SUPPLIES: [Supply; 6] = [
    Supply::Idc,
    Supply::Cloud,
    Supply::Enterprise,
    Supply::Cafe,
    Supply::Pc,
    Supply::Partner,
];
const SHARES: [u32; 6] = [50, 125, 300, 333, 500, 1000];

/// A node: supply, region, devices as (kind, memory in GiB), and whether it is doubted.
type NodeShape = (usize, bool, Vec<(bool, u64)>, bool);
/// A service: replicas, share, devices, memory in GiB, kind, region, spread.
type ServiceShape = (u32, usize, u32, u64, bool, bool, usize);

fn pool() -> impl Strategy<Value = (Vec<NodeShape>, Vec<ServiceShape>)> {
    let device = (any::<bool>(), 1u64..100);
    let node = (
        0usize..6,
        any::<bool>(),
        proptest::collection::vec(device, 0..9),
        prop::bool::weighted(0.2),
    );
    let service = (
        1u32..12,
        0usize..SHARES.len(),
        1u32..4,
        0u64..60,
        any::<bool>(),
        any::<bool>(),
        0usize..4,
    );
    (
        proptest::collection::vec(node, 0..8),
        proptest::collection::vec(service, 1..5),
    )
}

fn cell_of(nodes: &[NodeShape]) -> Cell {
    let mut cell = Cell::new();
    for (n, (supply, west, devices, doubted)) in nodes.iter().enumerate() {
        let mut join = join(&format!("n{n}"), 0);
        join.supply = SUPPLIES[*supply];
        join.provider = format!("p{}", n % 3);
        if *west {
            join.region = "west".into();
        }
        let devices = devices.iter().enumerate();
        join.devices = devices
            .map(|(d, (cuda, gib))| OfferedDevice {
                kind: if *cuda { DeviceKind::Cuda } else { DeviceKind::Rocm },
                memory_bytes: gib << 30,
                ..device(&format!("GPU-{n}-{d}"))
            })
            .collect();
        cell.given(Command::JoinNode(join));
        if *doubted {
            let node = node(&cell, &format!("n{n}"));
            cell.given(suspect(node));
        }
    }
    cell
}

fn declared(shape: &ServiceShape) -> ServiceSpec {
    let (replicas, share, count, gib, cuda, west, spread) = *shape;
    let mut spec = spec(replicas, 100);
    spec.devices.share = Milli(SHARES[share]);
    spec.devices.count = if SHARES[share] == 1000 { count } else { 1 };
    spec.devices.memory_bytes = gib << 30;
    if cuda {
        spec.devices.kinds = vec![DeviceKind::Cuda];
    }
    if west {
        spec.placement.regions = vec!["west".into()];
    }
    spec.placement.spread = [Spread::Node, Spread::Provider, Spread::Region, Spread::None][spread];
    spec
}

fn sums_up(explanation: &Explanation, devices: usize) {
    let out: u32 = explanation.filtered.iter().map(|f| f.devices).sum();
    assert_eq!(explanation.devices as usize, devices);
    assert_eq!(out + explanation.fitting, explanation.devices, "{explanation:#?}");
    let order: Vec<_> = explanation.filtered.iter().map(|f| f.filter).collect();
    assert!(
        order.is_sorted(),
        "in the order in which they apply, each once: {order:?}"
    );
    assert!(!explanation.dominant.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Counts sum to all devices; each round's decisions are accepted as they are; a wait has no room left for it.
    #[test]
    fn rounds_are_sound((nodes, services) in pool()) {
        let mut cell = cell_of(&nodes);
        for (n, shape) in services.iter().enumerate() {
            cell.given(apply(&format!("s{n}"), declared(shape)));
            for action in actions(&cell, &format!("s{n}")) {
                cell.given(action.into_command());
            }
            cell.wait(Span::from_millis(10));
        }
        let devices = cell.state.devices.len();
        let before = cell.state.clone();
        for decision in placement::round(&cell.state, cell.now) {
            match &decision {
                Decision::Place { placements, explanation, .. } => {
                    sums_up(explanation, devices);
                    assert!(explanation.fitting > 0 && explanation.next_step.is_empty());
                    let scores: Vec<i32> = explanation.candidates.iter().map(|c| c.score).collect();
                    assert!(scores.is_sorted_by(|a, b| a >= b));
                    for candidate in &explanation.candidates {
                        assert_eq!(candidate.parts.iter().map(|p| p.points).sum::<i32>(), candidate.score);
                    }
                    assert!(!placements.is_empty());
                }
                Decision::Defer { explanation, waiting, .. } => {
                    sums_up(explanation, devices);
                    assert!(*waiting > 0 && explanation.fitting == 0 && !explanation.next_step.is_empty());
                }
            }
            cell.given(decision.into_command());
        }
        for device in cell.state.devices.values() {
            assert!(device.holds.iter().map(|h| h.share.0).sum::<u32>() <= 1000);
        }
        // Placing is final for the round: another one has nothing to place.
        let again = placement::round(&cell.state, cell.now);
        assert!(again.iter().all(|d| matches!(d, Decision::Defer { .. })), "{again:#?}");
        // And a round does not depend on when it is held.
        assert_eq!(placement::round(&before, cell.now), placement::round(&before.clone(), cell.now));
    }

    /// Many shares at once: no card over its thousandths, and what sums to the capacity fits to the last one.
    #[test]
    fn shares_fill_exactly(parts in 1u32..=64, cards in 1usize..5, extra in 0u32..3) {
        let share = 1000 / parts;
        let fit = cards as u32 * (1000 / share);
        let mut cell = Cell::new();
        cell.given(Command::JoinNode(join("n1", cards)));
        let mut small = spec(fit + extra, 10_000);
        small.devices.share = Milli(share);
        cell.given(apply("small", small));
        schedule(&mut cell);
        prop_assert_eq!(in_state(&cell, "small", InstanceState::Placed).len() as u32, fit);
        prop_assert_eq!(in_state(&cell, "small", InstanceState::Pending).len() as u32, extra);
    }
}

#[test]
fn sixty_four_shares_at_once_go_onto_one_card_without_overfilling_it() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 2)));
    for n in 0..64 {
        let mut small = spec(1, 1);
        small.devices.share = Milli(15);
        cell.given(apply(&format!("s{n}"), small));
    }
    schedule(&mut cell);
    let mut free: Vec<u32> = cell.state.devices.values().map(|d| d.free().0).collect();
    free.sort_unstable();
    assert_eq!(free, [40, 1000]);
}
