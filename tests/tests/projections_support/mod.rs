//! A cell without a server: random commands through `decide` and `apply`, sealed into real records.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

use std::collections::BTreeMap;

use tidemill_bus::digest::Digest;
use tidemill_bus::identity::{CellName, Genesis, LedgerId};
use tidemill_bus::ledger::RawRecord;
use tidemill_bus::memory::MemoryLedger;
use tidemill_bus::record::{RecordBuilder, RecordHeader};
use tidemill_domain::command::{
    Command, Context, CreateCredential, DeclaredService, FactBody, InstanceFact, JoinNode, OfferedDevice,
    OfferedFinding, OfferedInspection, ReportFacts,
};
use tidemill_domain::commit::{Actor, Address, Cause, Commit, CommitHeader, TraceContext};
use tidemill_domain::decide::decide;
use tidemill_domain::events::Event;
use tidemill_domain::events::cell::{EpochStarted, LedgerCreated};
use tidemill_domain::events::credential::Role;
use tidemill_domain::events::evidence::{ObservationWindowSealed, RequestCounts, TrafficMinuteClosed};
use tidemill_domain::events::instance::{Hold, Placement, StopReason};
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::events::placement::{Candidate, Explanation, Filter, FilterCount, Part, ScorePart};
use tidemill_domain::events::service::{
    Class, DeviceRequest, HostLimits, OnIsolation, PlacementRules, Retry, Route, Run, Runtime, Scale, ServiceSpec,
    Spread,
};
use tidemill_domain::id::{CommandId, InstanceId, NodeId, ServiceId};
use tidemill_domain::invariants;
use tidemill_domain::rejection::Rejection;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::state::{EventMeta, State};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::Milli;

/// 2026-01-01T00:00:00Z.
pub const START: Timestamp = Timestamp(1_767_225_600_000_000);

pub fn genesis() -> Genesis {
    Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(7)))
}

/// A small generator of its own: the same seed is the same ledger on every machine and in every release.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len()))
    }
}

pub struct Cell {
    pub genesis: Genesis,
    pub state: State,
    pub records: Vec<RawRecord>,
    pub now: Timestamp,
    pub rng: Rng,
    head: Digest,
    builder: RecordBuilder,
    index: u32,
    commands: u64,
}

impl Cell {
    pub fn new(seed: u64) -> Self {
        let genesis = genesis();
        let mut cell = Self {
            head: genesis.hash(),
            state: State::default(),
            records: Vec::new(),
            now: START,
            rng: Rng::new(seed),
            builder: RecordBuilder::new(),
            index: 0,
            commands: 0,
            genesis,
        };
        let ledger = tidemill_domain::id::LedgerId(*cell.genesis.ledger_id.0.as_bytes());
        let created = LedgerCreated {
            cell: "main".into(),
            ledger,
        };
        let epoch = EpochStarted {
            epoch: 1,
            leader: "server-1".into(),
            version: "0.1.0".into(),
        };
        cell.commit(Actor::Sequencer, Cause::Request, &[created.into(), epoch.into()]);
        cell.flush();
        cell
    }

    pub fn ledger(&self) -> MemoryLedger {
        MemoryLedger::with_records(self.genesis.clone(), self.records.iter().map(|r| r.body.clone()))
    }

    fn sequence(&self) -> u64 {
        self.records.len() as u64 + 1
    }

    fn commit(&mut self, actor: Actor, cause: Cause, events: &[Event]) {
        self.commands += 1;
        let mut id = [0; 16];
        id[8..].copy_from_slice(&self.commands.to_be_bytes());
        let traced = self.commands.is_multiple_of(3);
        let header = CommitHeader {
            id,
            command: CommandId(id),
            body_hash: [0; 16],
            actor,
            cause,
            trace: traced.then_some(TraceContext {
                trace_id: id,
                span_id: [7; 8],
                flags: 1,
            }),
            recorded_at: self.now,
        };
        let encoded = Commit {
            header: header.clone(),
            events: events.to_vec(),
        }
        .encode();
        if self.builder.push(&encoded).is_err() {
            self.seal();
            self.builder.push(&encoded).unwrap();
        }
        let mut touched = Vec::new();
        for event in events {
            let meta = EventMeta {
                address: Address {
                    sequence: self.sequence(),
                    index: self.index,
                },
                recorded_at: self.now,
                trace: header.trace,
            };
            self.state.apply(event, &meta, &mut touched).unwrap();
            self.index += 1;
        }
        invariants::check(&self.state, &touched).unwrap();
    }

    /// Decides and records, in the record under way.
    pub fn ask(&mut self, command: Command) -> Result<Vec<Event>, Rejection> {
        let actor = match self.rng.below(4) {
            0 => Actor::Local,
            1 => Actor::Gateway("gw-1".into()),
            _ => match self.state.credentials.keys().next() {
                Some(id) => Actor::Credential(*id),
                None => Actor::Local,
            },
        };
        let mut id = [0; 16];
        id[8..].copy_from_slice(&(self.commands + 1).to_be_bytes());
        let context = Context {
            now: self.now,
            command: CommandId(id),
            actor: &actor,
            term_lapsed: true,
        };
        let events = decide(&self.state, &context, command)?;
        if !events.is_empty() {
            let cause = match self.rng.below(3) {
                0 => Cause::Event(Address {
                    sequence: self.sequence() - 1,
                    index: 0,
                }),
                1 => Cause::Observations { first: 3, last: 9 },
                _ => Cause::Request,
            };
            self.commit(actor, cause, &events);
        }
        Ok(events)
    }

    fn seal(&mut self) {
        let header = RecordHeader {
            cell: self.genesis.cell.clone(),
            ledger_id: self.genesis.ledger_id,
            sequence: self.sequence(),
            epoch: 1,
            recorded_at: self.now.0,
        };
        let sealed = self.builder.seal(&header, &self.head);
        self.head = sealed.anchor.hash;
        self.records.push(RawRecord {
            sequence: sealed.anchor.sequence,
            body: sealed.bytes,
        });
        self.index = 0;
    }

    /// Ends the record under way.
    pub fn flush(&mut self) {
        if !self.builder.is_empty() {
            self.seal();
        }
    }

    pub fn pass(&mut self, span: Span) {
        self.now = self.now + span;
    }

    pub fn join(&mut self, name: &str, devices: usize) -> NodeId {
        let join = self.joining(name, devices, 1, Vec::new());
        self.ask(join).unwrap();
        self.state.node_named(name).unwrap().id
    }

    pub fn joining(&mut self, name: &str, devices: usize, agent: u64, instances: Vec<InstanceId>) -> Command {
        let number: usize = name.bytes().map(usize::from).sum();
        let supplies = [Supply::Idc, Supply::Cloud, Supply::Cafe];
        let models = ["A100-80G", "L4"];
        Command::JoinNode(JoinNode {
            name: name.parse().unwrap(),
            supply: supplies[number % 3],
            provider: format!("provider-{}", number % 2),
            region: "east".into(),
            zone: "a".into(),
            address: Some(format!("10.0.0.{number}")),
            boot_id: "boot".into(),
            runtimes: vec![tidemill_domain::events::service::Runtime::Process],
            machine_id: format!("machine-{name}"),
            agent_id: format!("agent-{agent}"),
            credential: None,
            devices: (0..devices)
                .map(|d| OfferedDevice {
                    uuid: format!("GPU-{name}-{d}"),
                    kind: DeviceKind::Cuda,
                    model: models[(number + d) % 2].into(),
                    memory_bytes: 80 << 30,
                    speed_milli: 930,
                    simulated: true,
                })
                .collect(),
            instances,
            // Every other start of an agent finds the first device slow, the next one finds it well again.
            inspection: Some(OfferedInspection {
                findings: (0..agent % 2)
                    .map(|_| OfferedFinding {
                        uuid: Some(format!("GPU-{name}-0")),
                        code: "slow_device".into(),
                        detail: "it is slow".into(),
                        next: "look at it".into(),
                    })
                    .collect(),
                ..OfferedInspection::default()
            }),
        })
    }

    pub fn declare(&mut self, tenant: &str, name: &str, min: u32, max: u32) -> ServiceId {
        let spec = spec(min, max, 1, Milli::WHOLE, "serve");
        let services = vec![declared(tenant, name, spec)];
        self.ask(Command::ApplyServices { services }).unwrap();
        self.state
            .service_named(&tenant.parse().unwrap(), &name.parse().unwrap())
            .unwrap()
            .id
    }

    /// Requests what is missing of a service.
    pub fn request(&mut self, service: ServiceId) {
        let entry = &self.state.services[&service];
        let staying = entry
            .live
            .iter()
            .filter(|id| {
                let instance = &self.state.instances[id];
                instance.generation == entry.generation && !instance.state.leaving()
            })
            .count() as u32;
        let (generation, count) = (entry.generation, entry.desired.saturating_sub(staying).min(256));
        let _ = self.ask(Command::RequestInstances {
            service,
            generation,
            count,
        });
    }

    /// Places what fits of a service, and defers the rest.
    pub fn place(&mut self, service: ServiceId, most: usize) {
        let Some(entry) = self.state.services.get(&service) else {
            return;
        };
        let mut free: BTreeMap<_, _> = self
            .state
            .devices
            .values()
            .filter(|d| self.state.nodes[&d.node].state == NodeState::Ready)
            .map(|d| (d.id, (d.node, d.free())))
            .collect();
        let looked_at = free.len() as u32;
        let pending: Vec<InstanceId> = entry
            .live
            .iter()
            .filter(|id| self.state.instances[id].state == InstanceState::Pending)
            .copied()
            .collect();
        let mut placements = Vec::new();
        for instance in &pending {
            let spec = &entry.specs[&self.state.instances[instance].generation].devices;
            let mut by_node: BTreeMap<NodeId, Vec<_>> = BTreeMap::new();
            for (device, (node, milli)) in &free {
                if *milli >= spec.share {
                    by_node.entry(*node).or_default().push(*device);
                }
            }
            let fits = by_node.into_iter().find(|(_, d)| d.len() >= spec.count as usize);
            if let Some((node, devices)) = fits.filter(|_| placements.len() < most) {
                let holds: Vec<Hold> = devices
                    .into_iter()
                    .take(spec.count as usize)
                    .map(|device| Hold {
                        device,
                        share: spec.share,
                    })
                    .collect();
                for hold in &holds {
                    let slot = free.get_mut(&hold.device).unwrap();
                    slot.1 = slot.1.minus(hold.share);
                }
                placements.push(Placement {
                    instance: *instance,
                    node,
                    holds,
                });
            }
        }
        let waiting = (pending.len() - placements.len()) as u32;
        if let Some(first) = placements.first() {
            let explanation = Explanation {
                devices: looked_at,
                fitting: looked_at,
                filtered: vec![],
                candidates: vec![Candidate {
                    node: first.node,
                    score: 42,
                    parts: vec![
                        ScorePart {
                            part: Part::Spread,
                            points: 30,
                        },
                        ScorePart {
                            part: Part::Packing,
                            points: 12,
                        },
                    ],
                }],
                dominant: "the emptiest node that fits".into(),
                next_step: String::new(),
            };
            self.ask(Command::PlaceInstances {
                service,
                placements,
                explanation,
            })
            .unwrap();
        }
        if waiting > 0 {
            let explanation = no_room(looked_at);
            self.ask(Command::DeferPlacement {
                service,
                waiting,
                explanation,
            })
            .unwrap();
        }
    }

    pub fn report(&mut self, instance: InstanceId, body: FactBody) {
        let Some(node) = self.state.instances.get(&instance).and_then(|i| i.node) else {
            return;
        };
        let age = Span::from_millis(self.rng.below(50) as u64);
        let facts = vec![InstanceFact { instance, age, body }];
        self.ask(Command::ReportFacts(ReportFacts { node, facts })).unwrap();
    }

    /// Brings every placed instance of a service to ready.
    pub fn run_up(&mut self, service: ServiceId) {
        let live: Vec<_> = self.state.services[&service].live.iter().copied().collect();
        for id in live {
            if self.state.instances[&id].state == InstanceState::Placed {
                self.report(id, started());
                self.report(id, ready());
            }
        }
    }

    /// One random step. Whatever is refused is refused; nothing here looks first whether it makes sense.
    pub fn step(&mut self) {
        let span = Span::from_micros(1 + self.rng.next() % 3_000_000);
        self.pass(span);
        let names = ["alpha", "beta", "gamma", "delta"];
        let services: Vec<ServiceId> = self.state.services.keys().copied().collect();
        let service = self.rng.pick(&services).copied().unwrap_or(ServiceId::from_bits(1));
        let nodes: Vec<NodeId> = self.state.nodes.keys().copied().collect();
        let node = self.rng.pick(&nodes).copied().unwrap_or(NodeId::from_bits(1));
        let instances: Vec<InstanceId> = self.state.instances.keys().copied().collect();
        let instance = self.rng.pick(&instances).copied().unwrap_or(InstanceId::from_bits(1));
        match self.rng.below(36) {
            0..=2 => {
                let name = names[self.rng.below(4)];
                let (devices, agent) = (self.rng.below(5), self.rng.next() % 3);
                let kept: Vec<_> = self
                    .state
                    .node_named(name)
                    .map(|n| n.instances.iter().copied().collect::<Vec<_>>())
                    .unwrap_or_default()
                    .into_iter()
                    .filter(|_| self.rng.chance(70))
                    .collect();
                let join = self.joining(name, devices, agent, kept);
                let _ = self.ask(join);
            }
            3..=5 => {
                let tenant = ["default", "acme"][self.rng.below(2)];
                let name = ["chat", "embed", "wide"][self.rng.below(3)];
                let min = [0, 1, 3, 40][self.rng.below(4)];
                let share = [1000, 1000, 500, 250][self.rng.below(4)];
                let program = ["serve", "serve-2"][self.rng.below(2)];
                let spec = spec(min, 60, 1 + self.rng.below(2) as u32, Milli(share), program);
                let services = vec![declared(tenant, name, spec)];
                let _ = self.ask(Command::ApplyServices { services });
            }
            6 => _ = self.ask(Command::StopService { service }),
            7 => _ = self.ask(Command::StartService { service }),
            8 if self.rng.chance(50) => _ = self.ask(Command::DeleteService { service }),
            9..=10 => _ = self.ask(Command::SettleService { service }),
            11 => {
                let until = self.rng.chance(50).then(|| self.now + Span::from_secs(60));
                let replicas = self.rng.below(50) as u32;
                let _ = self.ask(Command::ScaleService {
                    service,
                    replicas,
                    from: None,
                    until,
                });
            }
            12 => _ = self.ask(Command::ReleaseScale { service }),
            13..=15 if !services.is_empty() => self.request(service),
            16..=18 => {
                let most = 1 + self.rng.below(8);
                self.place(service, most);
            }
            19..=22 => {
                let body = match self.rng.below(7) {
                    0 => FactBody::Unready {
                        reason: "the check timed out".into(),
                    },
                    1 => FactBody::Failed {
                        code: "exited".into(),
                        reason: "it exited with status 3".into(),
                    },
                    2 => FactBody::Stopped { killed: true },
                    3..=4 => started(),
                    _ => ready(),
                };
                self.report(instance, body);
            }
            23..=25 => {
                let most = [1, 1, 3, 60][self.rng.below(4)];
                let instances = self
                    .state
                    .services
                    .get(&service)
                    .map(|s| s.live.iter().copied().take(most).collect());
                let reason = [StopReason::ScaledDown, StopReason::Replaced][self.rng.below(2)];
                let instances = instances.unwrap_or_default();
                let _ = self.ask(Command::DrainInstances { instances, reason });
            }
            26 => _ = self.ask(Command::ReleaseInstances { instances }),
            27 => {
                let gateway = "gw-1".into();
                let _ = self.ask(Command::ReportInRotation { gateway, instances });
            }
            28..=29 => self.trouble(node),
            30 => {
                let holder = ["server-1", "server-2"][self.rng.below(2)].into();
                let role = "scheduler".into();
                let _ = self.ask(Command::AcquireTerm { role, holder });
            }
            31 => {
                let mut hash = [0; 32];
                hash[..8].copy_from_slice(&self.rng.next().to_le_bytes());
                let _ = self.ask(Command::CreateCredential(CreateCredential {
                    hash,
                    role: Role::Operator,
                    supply: None,
                    tenant: None,
                    ttl: None,
                }));
            }
            32 => self.traffic(service),
            33 => {
                let first = self.state.cell.observations_through + 1;
                let window = ObservationWindowSealed {
                    first,
                    last: first + 9,
                    digest: [1; 32],
                    beats: vec![],
                    from: self.now,
                    to: self.now,
                };
                let _ = self.ask(Command::SealObservationWindow(window));
            }
            _ => {
                for _ in 0..6 {
                    let all: Vec<_> = self
                        .state
                        .instances
                        .values()
                        .filter(|i| i.holding)
                        .map(|i| i.id)
                        .collect();
                    if let Some(id) = self.rng.pick(&all).copied() {
                        let body = if self.state.instances[&id].state == InstanceState::Placed {
                            started()
                        } else {
                            FactBody::Stopped { killed: false }
                        };
                        self.report(id, body);
                    }
                }
            }
        }
        if self.rng.chance(60) {
            self.flush();
        }
    }

    fn trouble(&mut self, node: NodeId) {
        let silent = Span::from_secs(5);
        let reason: String = "no beat".into();
        let command = match self.rng.below(6) {
            0 => Command::LeaveNode { node, reason },
            5 => Command::ForgetNode { node, reason },
            1 => Command::RecoverNode { node, reason },
            2 => Command::SuspectNode {
                node,
                silent,
                closed: false,
                reason,
            },
            _ => {
                let _ = self.ask(Command::SuspectNode {
                    node,
                    silent,
                    closed: false,
                    reason: reason.clone(),
                });
                Command::LoseNode { node, silent, reason }
            }
        };
        let _ = self.ask(command);
    }

    fn traffic(&mut self, service: ServiceId) {
        let minute = Timestamp(self.now.0 - self.now.0.rem_euclid(60_000_000));
        let _ = self.ask(Command::CloseTrafficMinute(TrafficMinuteClosed {
            service,
            minute,
            requests: RequestCounts {
                arrived: 10,
                ok: 9,
                failed: 1,
                ..RequestCounts::default()
            },
            bad_seconds: 1,
            covered_seconds: 60,
            longest_gap: Span::from_millis(120),
            peak_queued: 2,
            latency: vec![0; 20],
            instances: vec![],
        }));
    }

    /// A cell after so many random steps.
    pub fn random(seed: u64, steps: usize) -> Self {
        let mut cell = Self::new(seed);
        for name in ["alpha", "beta"] {
            cell.join(name, 4);
        }
        for _ in 0..steps {
            cell.step();
        }
        cell.flush();
        cell
    }
}

pub fn started() -> FactBody {
    FactBody::Started {
        pid: 100,
        port: 9000,
        fetch: Span::ZERO,
        start: Span::from_millis(20),
    }
}

pub fn ready() -> FactBody {
    FactBody::Ready {
        endpoint: Some("10.0.0.1:9000".into()),
        load: Span::from_millis(300),
    }
}

pub fn no_room(devices: u32) -> Explanation {
    Explanation {
        devices,
        fitting: 0,
        filtered: vec![FilterCount {
            filter: Filter::Busy,
            devices,
        }],
        candidates: vec![],
        dominant: "every device is held by others".into(),
        next_step: "add a node, or scale another service down".into(),
    }
}

pub fn spec(min: u32, max: u32, count: u32, share: Milli, program: &str) -> ServiceSpec {
    ServiceSpec {
        class: Class::Standard,
        run: Run {
            runtime: Runtime::Process,
            command: vec![program.into()],
            image: None,
            env: BTreeMap::new(),
            fetch: vec![],
            limits: HostLimits::default(),
            ready_http: None,
            ready_timeout: Span::from_secs(60),
            ready_hold: Span::ZERO,
            stop_grace: Span::from_secs(5),
        },
        devices: DeviceRequest {
            count,
            share: if count > 1 { Milli::WHOLE } else { share },
            kinds: vec![],
            models: vec![],
            memory_bytes: 0,
        },
        scale: Scale {
            min,
            max,
            concurrency: None,
            standby: 0,
            singleton: false,
        },
        placement: PlacementRules {
            supply: vec![Supply::Idc, Supply::Cloud, Supply::Cafe],
            regions: vec![],
            spread: Spread::Node,
        },
        route: Route {
            host: None,
            retry: Retry::Idempotent,
            queue: None,
            queue_timeout: None,
        },
        on_isolation: OnIsolation::Stop,
    }
}

pub fn declared(tenant: &str, name: &str, spec: ServiceSpec) -> DeclaredService {
    DeclaredService {
        tenant: tenant.parse().unwrap(),
        name: name.parse().unwrap(),
        spec,
    }
}
