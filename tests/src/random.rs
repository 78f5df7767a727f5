//! Random commands against a cell: numbers choose what is asked next among what the state makes interesting, so that
//! long runs reach deep states and a shrunk sequence of numbers is a shrunk story.

use tidemill_domain::command::{
    CloseSwitch, Command, CreateCredential, DrainNode, FactBody, InstanceFact, OfferedFinding, OfferedInspection,
    ReportFacts,
};
use tidemill_domain::events::credential::Role;
use tidemill_domain::events::instance::{Hold, Placement, StopReason};
use tidemill_domain::events::node::DrainCause;
use tidemill_domain::events::switch::{SwitchEffect, SwitchOutcome};
use tidemill_domain::id::{InstanceId, NodeId, ServiceId, SwitchId};
use tidemill_domain::policy::placement;
use tidemill_domain::policy::replicas::reconcile;
use tidemill_domain::time::Span;
use tidemill_domain::unit::Milli;

use crate::cell::Cell;
use crate::make::{apply, join, no_explanation, ready, spec, started, suspect};

/// Runs one command per number, with its checks, and returns the cell.
pub fn run(numbers: &[u64]) -> Cell {
    let mut cell = Cell::new();
    for number in numbers {
        step(&mut cell, *number);
    }
    cell
}

struct Choice(u64);

impl Choice {
    /// A number below `bound`, consuming entropy.
    fn below(&mut self, bound: usize) -> usize {
        let bound = bound.max(1) as u64;
        let value = self.0 % bound;
        self.0 = (self.0 / bound) ^ self.0.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value as usize
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.below(items.len())])
    }
}

/// Asks one command. Refusals are part of the game; panics and breaches are not.
pub fn step(cell: &mut Cell, number: u64) {
    let mut choice = Choice(number);
    cell.wait(Span::from_millis([0, 1, 700, 5_000, 90_000][choice.below(5)]));
    let nodes: Vec<NodeId> = cell.state.nodes.keys().copied().collect();
    let services: Vec<ServiceId> = cell.state.services.keys().copied().collect();
    let instances: Vec<InstanceId> = cell.state.instances.keys().copied().collect();
    let command = match choice.below(28) {
        0 | 1 => Some(joining(cell, &mut choice)),
        2 => choice.of(&nodes).map(|node| node_command(node, &mut choice)),
        3 => {
            let mut declared = spec(choice.below(4) as u32, 4);
            declared.scale.standby = [0, 0, 1, 2][choice.below(4)].min(declared.scale.max);
            declared.devices.share = [Milli::WHOLE, Milli(500), Milli(334)][choice.below(3)];
            declared.run.command = vec![["serve", "serve2"][choice.below(2)].to_owned()];
            Some(apply(["alpha", "beta", "gamma"][choice.below(3)], declared))
        }
        4 => choice
            .of(&services)
            .map(|service| service_command(service, cell.state.services[&service].generation, &mut choice)),
        5 | 6 => choice.of(&services).map(|service| {
            let generation = cell.state.services[&service].generation;
            Command::RequestInstances {
                service,
                generation,
                count: choice.below(4) as u32,
            }
        }),
        7..=10 => choice.of(&services).map(|service| placing(cell, service, &mut choice)),
        11..=15 => choice
            .of(&instances)
            .and_then(|instance| facts(cell, instance, &instances, &mut choice)),
        16 => choice.of(&instances).map(|instance| match choice.below(3) {
            0 => Command::MoveInstance {
                instance,
                reason: "chosen".to_owned(),
            },
            n => Command::DrainInstances {
                instances: vec![instance],
                reason: [StopReason::ScaledDown, StopReason::Replaced][n - 1],
            },
        }),
        23 => {
            let open: Vec<SwitchId> = cell
                .state
                .switches
                .values()
                .filter(|s| s.is_open())
                .map(|s| s.id)
                .collect();
            choice.of(&open).map(|switch| {
                Command::CloseSwitch(CloseSwitch {
                    switch,
                    outcome: [
                        SwitchOutcome::Replaced,
                        SwitchOutcome::Recovered,
                        SwitchOutcome::NotNeeded,
                    ][choice.below(3)],
                    effect: SwitchEffect::default(),
                })
            })
        }
        24 => choice
            .of(&services)
            .map(|service| standby_command(cell, service, &mut choice)),
        25 if choice.below(2) == 0 => {
            for node in nodes {
                let _ = cell.ask(suspect(node));
            }
            None
        }
        25 => {
            let reason = "chosen".to_owned();
            Some(match choice.below(2) {
                0 => Command::ConfirmBreaker { reason },
                _ => Command::ResetBreaker { reason },
            })
        }
        17 => Some(Command::ReleaseInstances {
            instances: instances.clone().into_iter().take(200).collect(),
        }),
        18 => Some(Command::ReportInRotation {
            gateway: "g".into(),
            instances,
        }),
        19..=22 => {
            scheduler(cell);
            None
        }
        _ => Some(Command::CreateCredential(CreateCredential {
            hash: [choice.below(250) as u8; 32],
            role: Role::Operator,
            supply: None,
            tenant: None,
            ttl: None,
        })),
    };
    if let Some(command) = command {
        // A refusal leaves everything as it was, which `Cell` relies on: it folds only what was decided.
        let _ = cell.ask(command);
    }
}

/// One turn of the policies, as the scheduler takes it: rollouts get nowhere without.
fn scheduler(cell: &mut Cell) {
    let services: Vec<ServiceId> = cell.state.services.keys().copied().collect();
    for service in services {
        for action in reconcile(&cell.state, service, cell.now).actions {
            let _ = cell.ask(action.into_command());
        }
    }
    for decision in placement::round(&cell.state, cell.now) {
        let _ = cell.ask(decision.into_command());
    }
}

fn joining(cell: &Cell, choice: &mut Choice) -> Command {
    const NAMES: [&str; 12] = ["n1", "n2", "n3", "n1", "n2", "n3", "n1", "n2", "n4", "n5", "n6", "n7"];
    let node = NAMES[choice.below(NAMES.len())];
    let mut joining = join(node, 1 + choice.below(3));
    joining.provider = if node > "n4" { "lent".into() } else { "own".into() };
    if choice.below(4) == 0 {
        joining.agent_id = format!("agent-{}", choice.below(9));
    }
    if choice.below(8) == 0 {
        joining.machine_id = "another".into();
    }
    if choice.below(8) == 0 {
        joining.boot_id = "another".into();
    }
    if choice.below(8) == 0 {
        joining.devices = join("n1", 1).devices;
    }
    if choice.below(4) == 0 {
        let slow = OfferedFinding {
            uuid: Some(format!("GPU-{node}-{}", choice.below(3))),
            code: "slow_device".into(),
            detail: "it is slow".into(),
            next: "look at it".into(),
        };
        joining.inspection = Some(OfferedInspection {
            findings: vec![slow; choice.below(2)],
            ..OfferedInspection::default()
        });
    }
    let on_node = cell
        .state
        .node_named(node)
        .map(|n| n.instances.iter().copied().collect::<Vec<_>>());
    joining.instances = on_node.unwrap_or_default();
    let keep = choice.below(joining.instances.len() + 1);
    joining.instances.truncate(keep);
    Command::JoinNode(joining)
}

fn node_command(node: NodeId, choice: &mut Choice) -> Command {
    let (silent, reason) = (Span::from_secs(3), "chosen".to_owned());
    match choice.below(14) {
        9 => Command::CordonNode { node, reason },
        10 | 11 => Command::UncordonNode { node, reason },
        12 => Command::SettleDrain { node },
        13 => Command::DrainNode(DrainNode {
            node,
            cause: [DrainCause::Operator, DrainCause::Reclaim, DrainCause::Leave][choice.below(3)],
            reason,
            deadline: [None, Some(Span::from_secs(10)), Some(Span::from_secs(600))][choice.below(3)],
        }),
        0..=2 => Command::SuspectNode {
            node,
            silent,
            closed: false,
            reason,
        },
        3 | 4 => Command::LoseNode { node, silent, reason },
        5 | 6 => Command::RecoverNode { node, reason },
        7 => Command::LeaveNode { node, reason },
        _ => Command::ForgetNode { node, reason },
    }
}

fn service_command(service: ServiceId, generation: u64, choice: &mut Choice) -> Command {
    match choice.below(11) {
        0 => Command::StopService { service },
        1 | 2 => Command::StartService { service },
        3 => Command::DeleteService { service },
        4 => Command::ScaleService {
            service,
            replicas: choice.below(6) as u32,
            from: None,
            until: None,
        },
        5 => Command::ReleaseScale { service },
        6 => Command::RollBackService { service },
        7 => Command::HaltRollout { service, generation },
        _ => Command::SettleService { service },
    }
}

/// Asks for standbys, or changes the places of any two of its instances: often of the wrong kind.
fn standby_command(cell: &Cell, service: ServiceId, choice: &mut Choice) -> Command {
    let found = &cell.state.services[&service];
    let live: Vec<InstanceId> = found.live.iter().copied().collect();
    match choice.below(3) {
        0 => Command::RequestStandbys {
            service,
            generation: found.generation,
            count: choice.below(3) as u32,
        },
        n => Command::PromoteStandbys {
            service,
            promoted: choice.of(&live).into_iter().collect(),
            stood_by: choice.of(&live).into_iter().take(n - 1).collect(),
        },
    }
}

/// Places up to three instances on devices drawn at random: often impossible, sometimes just possible.
fn placing(cell: &Cell, service: ServiceId, choice: &mut Choice) -> Command {
    let state = &cell.state;
    let devices: Vec<_> = state.devices.values().map(|d| (d.node, d.id)).collect();
    let waiting: Vec<InstanceId> = state.services[&service]
        .live
        .iter()
        .copied()
        .filter(|i| state.instances[i].node.is_none())
        .take(1 + choice.below(3))
        .collect();
    let share = state.services[&service].spec().devices.share;
    let placements = waiting
        .into_iter()
        .filter_map(|instance| {
            let (node, device) = choice.of(&devices)?;
            Some(Placement {
                instance,
                node,
                holds: vec![Hold { device, share }],
            })
        })
        .collect();
    Command::PlaceInstances {
        service,
        placements,
        explanation: no_explanation(),
    }
}

fn facts(cell: &Cell, first: InstanceId, all: &[InstanceId], choice: &mut Choice) -> Option<Command> {
    let node = cell.state.instances[&first].node?;
    let mut facts = vec![];
    for _ in 0..=choice.below(4) {
        let instance = if choice.below(3) == 0 { choice.of(all)? } else { first };
        let body = match choice.below(7) {
            0 | 1 => started(choice.below(5) as u32),
            2 | 3 => ready(),
            4 => FactBody::Unready { reason: "503".into() },
            5 => FactBody::Failed {
                code: "exited".into(),
                reason: "exit code 1".into(),
            },
            _ => FactBody::Stopped {
                killed: choice.below(2) == 0,
            },
        };
        facts.push(InstanceFact {
            instance,
            age: Span::from_millis(choice.below(9_000) as u64),
            body,
        });
    }
    Some(Command::ReportFacts(ReportFacts { node, facts }))
}
