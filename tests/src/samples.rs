//! One event of every kind, with every optional part present, from which the golden bytes are made. A sample never
//! changes once its kind is frozen.

use std::collections::BTreeMap;

use tidemill_domain::commit::{Actor, Address, Cause, CommitHeader, TraceContext};
use tidemill_domain::events::Event;
use tidemill_domain::events::breaker::{BreakerConfirmed, BreakerReset, BreakerTripped};
use tidemill_domain::events::cell::{EpochStarted, FeatureActivated, LedgerCreated, StateSealed};
use tidemill_domain::events::credential::{CredentialCreated, CredentialRevoked, Role};
use tidemill_domain::events::evidence::{
    InstanceTraffic, NodeBeats, ObservationWindowSealed, RequestCounts, TrafficMinuteClosed,
};
use tidemill_domain::events::instance::{
    Hold, InstanceFailed, InstanceMoveRequested, InstanceReady, InstanceStarted, InstanceStopped, InstanceUnready,
    InstancesCancelled, InstancesDrainRequested, InstancesInRotation, InstancesLost, InstancesPlaced,
    InstancesRequested, InstancesStopRequested, Placement, PlacementDeferred, StandbysPromoted, StopReason,
    v1 as instance_v1,
};
use tidemill_domain::events::node::{
    DeviceKind, DrainCause, InspectionFinding, JoinedDevice, NodeCordoned, NodeDrainRequested, NodeDrained,
    NodeInspected, NodeJoined, NodeLeft, NodeLost, NodeReady, NodeRecovered, NodeSuspected, NodeUncordoned, Supply,
    v1 as node_v1,
};
use tidemill_domain::events::placement::{
    Candidate, Explanation, Filter, FilterCount, Part, ScorePart, v1 as placement_v1,
};
use tidemill_domain::events::service::{
    Class, DesiredReason, DeviceRequest, FetchFile, FetchTarget, HostLimits, OnIsolation, PlacementRules, Retry, Route,
    Run, Runtime, Scale, ServiceApplied, ServiceDeleteRequested, ServiceDeleted, ServiceDesiredChanged,
    ServiceRolledBack, ServiceRolledOut, ServiceRolloutHalted, ServiceScaleOverridden, ServiceScaleReleased,
    ServiceSpec, ServiceStarted, ServiceStopRequested, Spread, v1,
};
use tidemill_domain::events::switch::{
    SwitchCause, SwitchClosed, SwitchEffect, SwitchOpened, SwitchOutcome, SwitchReplacementChosen,
};
use tidemill_domain::events::worker::WorkerTermGranted;
use tidemill_domain::id::{CommandId, CredentialId, DeviceId, InstanceId, LedgerId, NodeId, ServiceId, SwitchId};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::{Blake3, Milli};

use crate::make::name;

const AT: Timestamp = Timestamp(1_767_225_600_123_456);

/// A commit's header with every part present.
pub fn header() -> CommitHeader {
    CommitHeader {
        id: [1; 16],
        command: CommandId([2; 16]),
        body_hash: [3; 16],
        actor: Actor::Worker {
            role: "scheduler".into(),
            term: 4,
        },
        cause: Cause::Event(Address {
            sequence: 300,
            index: 5,
        }),
        trace: Some(TraceContext {
            trace_id: [6; 16],
            span_id: [7; 8],
            flags: 1,
        }),
        recorded_at: AT,
    }
}

fn explanation() -> Explanation {
    Explanation {
        devices: 8,
        fitting: 2,
        filtered: vec![
            FilterCount {
                filter: Filter::NodeNotReady,
                devices: 1,
            },
            FilterCount {
                filter: Filter::TooFewOnNode,
                devices: 5,
            },
        ],
        candidates: vec![Candidate {
            node: NodeId::from_bits(20),
            score: -7,
            parts: vec![
                ScorePart {
                    part: Part::Spread,
                    points: 10,
                },
                ScorePart {
                    part: Part::Fit,
                    points: -17,
                },
            ],
        }],
        dominant: "the fastest free device".into(),
        next_step: "add a node".into(),
    }
}

fn service_spec() -> ServiceSpec {
    ServiceSpec {
        class: Class::Standard,
        run: Run {
            runtime: Runtime::Docker,
            command: vec!["python3".into(), "serve.py".into()],
            image: Some("registry/chat:1".into()),
            env: BTreeMap::from([("MODEL".into(), "small".into())]),
            fetch: vec![
                FetchFile {
                    url: "https://example.com/weights.bin".into(),
                    blake3: Blake3([9; 32]),
                    target: FetchTarget::File("weights.bin".into()),
                },
                FetchFile {
                    url: "https://example.com/chat.tar".into(),
                    blake3: Blake3([10; 32]),
                    target: FetchTarget::Image,
                },
            ],
            limits: HostLimits {
                cpu: Some(Milli(2500)),
                memory_bytes: Some(8 << 30),
                processes: Some(512),
            },
            ready_http: Some("/health".into()),
            ready_timeout: Span::from_secs(300),
            ready_hold: Span::from_secs(5),
            stop_grace: Span::from_secs(30),
        },
        devices: DeviceRequest {
            count: 1,
            share: Milli(500),
            kinds: vec![DeviceKind::Cuda, DeviceKind::Cpu],
            models: vec!["A100-80G".into()],
            memory_bytes: 40 << 30,
        },
        scale: Scale {
            min: 1,
            max: 20,
            concurrency: Some(8),
            standby: 1,
            singleton: true,
        },
        placement: PlacementRules {
            supply: vec![Supply::Idc, Supply::Pc],
            regions: vec!["east".into()],
            spread: Spread::Provider,
        },
        route: Route {
            host: Some("chat.example.com".into()),
            retry: Retry::Any,
            queue: Some(200),
            queue_timeout: Some(Span::from_secs(20)),
        },
        on_isolation: OnIsolation::Continue,
    }
}

/// What [`explanation`] was in the first release.
fn explanation_v1() -> placement_v1::Explanation {
    placement_v1::Explanation {
        devices: 8,
        fitting: 2,
        filtered: vec![
            placement_v1::FilterCount {
                filter: placement_v1::Filter::NodeNotReady,
                devices: 1,
            },
            placement_v1::FilterCount {
                filter: placement_v1::Filter::TooFewOnNode,
                devices: 5,
            },
        ],
        candidates: vec![placement_v1::Candidate {
            node: NodeId::from_bits(20),
            score: -7,
            parts: vec![
                placement_v1::ScorePart {
                    part: placement_v1::Part::Spread,
                    points: 10,
                },
                placement_v1::ScorePart {
                    part: placement_v1::Part::Fit,
                    points: -17,
                },
            ],
        }],
        dominant: "the fastest free device".into(),
        next_step: "add a node".into(),
    }
}

/// A body as an earlier release wrote it.
pub struct EarlierSample {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What it reads as today.
    pub becomes: Event,
}

fn joined_device() -> JoinedDevice {
    JoinedDevice {
        device: DeviceId::from_bits(30),
        uuid: "GPU-1".into(),
        kind: DeviceKind::Rocm,
        model: "MI300X".into(),
        memory_bytes: 192 << 30,
        speed_milli: 930,
        simulated: true,
    }
}

/// The samples of earlier versions, in the order of their table.
pub fn earlier() -> Vec<EarlierSample> {
    let spec = v1::ServiceSpec {
        class: Class::Standard,
        run: v1::Run {
            runtime: v1::Runtime::Process,
            command: vec!["python3".into(), "serve.py".into()],
            env: BTreeMap::from([("MODEL".into(), "small".into())]),
            ready_http: Some("/health".into()),
            ready_timeout: Span::from_secs(300),
            stop_grace: Span::from_secs(30),
        },
        devices: service_spec().devices,
        scale: v1::Scale {
            min: 1,
            max: 20,
            concurrency: Some(8),
        },
        placement: service_spec().placement,
        route: v1::Route {
            host: Some("chat.example.com".into()),
            retry: Retry::Any,
        },
    };
    let mut now = service_spec();
    now.run.runtime = Runtime::Process;
    now.run.image = None;
    now.run.fetch = vec![];
    now.run.limits = HostLimits::default();
    now.run.ready_hold = Span::ZERO;
    (now.scale.standby, now.scale.singleton) = (0, false);
    (now.route.queue, now.route.queue_timeout) = (None, None);
    now.on_isolation = OnIsolation::Stop;
    let service = ServiceId::from_bits(40);
    let applied = v1::ServiceApplied {
        service,
        tenant: name("acme"),
        name: name("chat"),
        generation: 2,
        spec: spec.clone(),
    };
    let back = v1::ServiceRolledBack {
        service,
        from: 4,
        to: 3,
        spec,
    };
    let drained = instance_v1::InstancesDrainRequested {
        instances: vec![InstanceId::from_bits(60), InstanceId::from_bits(61)],
        reason: instance_v1::StopReason::Replaced,
    };
    let cancelled = instance_v1::InstancesCancelled {
        instances: vec![InstanceId::from_bits(60), InstanceId::from_bits(61)],
        reason: instance_v1::StopReason::ScaledDown,
    };
    let requested = instance_v1::InstancesRequested {
        service,
        generation: 2,
        instances: vec![InstanceId::from_bits(60), InstanceId::from_bits(61)],
    };
    let placed = placement_v1::InstancesPlaced {
        service,
        placements: vec![Placement {
            instance: InstanceId::from_bits(60),
            node: NodeId::from_bits(20),
            holds: vec![Hold {
                device: DeviceId::from_bits(30),
                share: Milli(500),
            }],
        }],
        explanation: explanation_v1(),
    };
    let deferred = placement_v1::PlacementDeferred {
        service,
        waiting: 2,
        explanation: explanation_v1(),
    };
    let joined = node_v1::NodeJoined {
        node: NodeId::from_bits(20),
        name: name("gpu-1"),
        supply: Supply::Cloud,
        provider: "own".into(),
        region: "east".into(),
        zone: "a".into(),
        address: Some("127.0.0.1".into()),
        boot_id: "boot".into(),
        machine_id: "machine".into(),
        agent_id: "agent".into(),
        credential: Some(CredentialId::from_bits(10)),
        devices: vec![joined_device()],
    };
    let bytes = |body: &dyn Fn() -> postcard::Result<Vec<u8>>| body().expect("bodies encode");
    vec![
        EarlierSample {
            bytes: bytes(&|| postcard::to_allocvec(&joined)),
            becomes: NodeJoined {
                runtimes: vec![Runtime::Process],
                ..NodeJoined::from(joined.clone())
            }
            .into(),
        },
        EarlierSample {
            bytes: bytes(&|| postcard::to_allocvec(&applied)),
            becomes: ServiceApplied {
                service,
                tenant: name("acme"),
                name: name("chat"),
                generation: 2,
                spec: now.clone(),
            }
            .into(),
        },
        EarlierSample {
            bytes: bytes(&|| postcard::to_allocvec(&back)),
            becomes: ServiceRolledBack {
                service,
                from: 4,
                to: 3,
                spec: now,
            }
            .into(),
        },
        EarlierSample {
            bytes: bytes(&|| postcard::to_allocvec(&requested)),
            becomes: InstancesRequested {
                service,
                generation: 2,
                instances: requested.instances.clone(),
                standby: false,
            }
            .into(),
        },
        EarlierSample {
            bytes: bytes(&|| postcard::to_allocvec(&placed)),
            becomes: InstancesPlaced {
                service,
                placements: placed.placements.clone(),
                explanation: explanation(),
            }
            .into(),
        },
        EarlierSample {
            bytes: bytes(&|| postcard::to_allocvec(&deferred)),
            becomes: PlacementDeferred {
                service,
                waiting: 2,
                explanation: explanation(),
            }
            .into(),
        },
        EarlierSample {
            bytes: bytes(&|| postcard::to_allocvec(&drained)),
            becomes: InstancesDrainRequested {
                instances: drained.instances.clone(),
                reason: StopReason::Replaced,
            }
            .into(),
        },
        EarlierSample {
            bytes: bytes(&|| postcard::to_allocvec(&cancelled)),
            becomes: InstancesCancelled {
                instances: cancelled.instances.clone(),
                reason: StopReason::ScaledDown,
            }
            .into(),
        },
    ]
}

/// The samples, one a kind, in order of kind.
pub fn samples() -> Vec<Event> {
    let credential = CredentialId::from_bits(10);
    let node = NodeId::from_bits(20);
    let service = ServiceId::from_bits(40);
    let instance = InstanceId::from_bits(60);
    let instances = vec![instance, InstanceId::from_bits(61)];
    let hold = Hold {
        device: DeviceId::from_bits(30),
        share: Milli(500),
    };
    vec![
        LedgerCreated {
            cell: "main".into(),
            ledger: LedgerId([9; 16]),
        }
        .into(),
        EpochStarted {
            epoch: 2,
            leader: "server-1".into(),
            version: "0.1.0".into(),
        }
        .into(),
        StateSealed {
            state_version: 1,
            hash: [8; 32],
            entities: 300,
            events: 10_000,
        }
        .into(),
        FeatureActivated {
            feature: "switches".into(),
        }
        .into(),
        CredentialCreated {
            credential,
            hash: [5; 32],
            role: Role::Node,
            supply: Some(Supply::Cafe),
            tenant: Some(name("acme")),
            expires_at: Some(AT),
        }
        .into(),
        CredentialRevoked { credential }.into(),
        WorkerTermGranted {
            role: "failover".into(),
            holder: "server-1".into(),
            term: 3,
        }
        .into(),
        NodeJoined {
            node,
            name: name("gpu-1"),
            supply: Supply::Cloud,
            provider: "own".into(),
            region: "east".into(),
            zone: "a".into(),
            address: Some("127.0.0.1".into()),
            boot_id: "boot".into(),
            machine_id: "machine".into(),
            agent_id: "agent".into(),
            credential: Some(credential),
            devices: vec![joined_device()],
            runtimes: vec![Runtime::Process, Runtime::Docker],
        }
        .into(),
        NodeReady { node }.into(),
        NodeSuspected {
            node,
            silent: Span::from_millis(3000),
            reason: "silent".into(),
        }
        .into(),
        NodeRecovered {
            node,
            reason: "heard".into(),
        }
        .into(),
        NodeLost {
            node,
            silent: Span::from_secs(10),
            reason: "silent".into(),
            instances: instances.clone(),
        }
        .into(),
        NodeLeft {
            node,
            reason: "reclaimed".into(),
            instances: instances.clone(),
        }
        .into(),
        NodeInspected {
            node,
            took: Span::from_millis(420),
            memory_bps: Some(9_000_000_000),
            disk_write_bps: None,
            disk_sync: Some(Span::from_micros(900)),
            round_trip: Some(Span::from_micros(210)),
            findings: vec![InspectionFinding {
                device: Some(DeviceId::from_bits(30)),
                code: "slow_device".into(),
                detail: "it runs at 0.50 of its model's speed".into(),
                next: "look at its cooling".into(),
            }],
        }
        .into(),
        NodeCordoned {
            node,
            reason: "its fan rattles".into(),
        }
        .into(),
        NodeUncordoned {
            node,
            reason: "the fan was changed".into(),
        }
        .into(),
        NodeDrainRequested {
            node,
            cause: DrainCause::Reclaim,
            reason: "the provider takes it back".into(),
            deadline: Some(AT + Span::from_secs(120)),
        }
        .into(),
        NodeDrained { node }.into(),
        ServiceApplied {
            service,
            tenant: name("acme"),
            name: name("chat"),
            generation: 2,
            spec: service_spec(),
        }
        .into(),
        ServiceStopRequested { service }.into(),
        ServiceStarted { service }.into(),
        ServiceDeleteRequested { service }.into(),
        ServiceDeleted { service }.into(),
        ServiceScaleOverridden {
            service,
            replicas: 9,
            from: Some(AT),
            until: Some(AT + Span::from_secs(60)),
        }
        .into(),
        ServiceScaleReleased { service }.into(),
        ServiceDesiredChanged {
            service,
            desired: 9,
            reason: DesiredReason::Override,
        }
        .into(),
        ServiceRolledOut {
            service,
            generation: 3,
            took: Span::from_secs(40),
        }
        .into(),
        ServiceRolloutHalted {
            service,
            generation: 4,
            serving: 3,
            reason: "exited".into(),
        }
        .into(),
        ServiceRolledBack {
            service,
            from: 4,
            to: 3,
            spec: service_spec(),
        }
        .into(),
        InstancesRequested {
            service,
            generation: 2,
            instances: instances.clone(),
            standby: true,
        }
        .into(),
        InstancesPlaced {
            service,
            placements: vec![Placement {
                instance,
                node,
                holds: vec![hold],
            }],
            explanation: explanation(),
        }
        .into(),
        PlacementDeferred {
            service,
            waiting: 2,
            explanation: explanation(),
        }
        .into(),
        InstanceStarted {
            instance,
            occurred_at: AT,
            pid: 4321,
            port: 40_000,
            fetch: Span::from_millis(1),
            start: Span::from_millis(2),
        }
        .into(),
        InstanceReady {
            instance,
            occurred_at: AT,
            endpoint: Some("127.0.0.1:40000".into()),
            load: Span::from_millis(3),
        }
        .into(),
        InstanceUnready {
            instance,
            occurred_at: AT,
            reason: "503".into(),
        }
        .into(),
        InstancesInRotation {
            instances: instances.clone(),
            gateway: "g1".into(),
        }
        .into(),
        InstancesDrainRequested {
            instances: instances.clone(),
            reason: StopReason::Replaced,
        }
        .into(),
        InstancesStopRequested {
            instances: instances.clone(),
        }
        .into(),
        InstanceStopped {
            instance,
            occurred_at: AT,
            killed: true,
        }
        .into(),
        InstanceFailed {
            instance,
            occurred_at: AT,
            code: "exited".into(),
            reason: "exit code 1".into(),
            failures: 2,
            retry_at: AT + Span::from_secs(2),
        }
        .into(),
        InstancesLost {
            instances: instances.clone(),
            reason: "its agent came back without it".into(),
        }
        .into(),
        InstancesCancelled {
            instances,
            reason: StopReason::ScaledDown,
        }
        .into(),
        InstanceMoveRequested {
            instance,
            reason: "its neighbour is noisy".into(),
        }
        .into(),
        TrafficMinuteClosed {
            service,
            minute: Timestamp(1_767_225_600_000_000),
            requests: RequestCounts {
                arrived: 3000,
                ok: 2990,
                application_errors: 1,
                failed: 2,
                refused: 3,
                cancelled: 4,
                cut_streams: 5,
                retries: 6,
            },
            bad_seconds: 1,
            covered_seconds: 60,
            longest_gap: Span::from_millis(250),
            peak_queued: 7,
            latency: vec![0, 1, 2990],
            instances: vec![InstanceTraffic {
                instance,
                sent: 3006,
                ok: 2990,
                errors: 1,
                broken: 8,
            }],
        }
        .into(),
        ObservationWindowSealed {
            first: 1,
            last: 500,
            digest: [4; 32],
            beats: vec![NodeBeats { node, beats: 300 }],
            from: AT,
            to: AT + Span::from_secs(300),
        }
        .into(),
        SwitchOpened {
            switch: SwitchId::from_bits(70),
            service,
            instance,
            node,
            cause: SwitchCause::NodeSilent,
            detail: "no heartbeat for 3s".into(),
            detect: Some(Span::from_millis(3_010)),
        }
        .into(),
        SwitchReplacementChosen {
            switch: SwitchId::from_bits(70),
            instance: InstanceId::from_bits(61),
        }
        .into(),
        SwitchClosed {
            switch: SwitchId::from_bits(70),
            outcome: SwitchOutcome::Replaced,
            replacement: Some(InstanceId::from_bits(61)),
            to_node: Some(NodeId::from_bits(21)),
            replace: Some(Span::from_millis(900)),
            effect: SwitchEffect {
                covered_seconds: 7,
                failed_requests: 1,
                cut_streams: 2,
                longest_gap: Span::from_millis(340),
            },
        }
        .into(),
        StandbysPromoted {
            service,
            promoted: vec![InstanceId::from_bits(60)],
            stood_by: vec![InstanceId::from_bits(61)],
        }
        .into(),
        BreakerTripped {
            nodes: vec![node, NodeId::from_bits(21)],
            of: 6,
            providers: 2,
        }
        .into(),
        BreakerConfirmed {
            reason: "the site has no power".into(),
        }
        .into(),
        BreakerReset {
            reason: "the switch was replaced".into(),
        }
        .into(),
    ]
}
