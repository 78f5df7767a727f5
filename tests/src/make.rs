//! Short ways to make the things that tests talk about.

use std::collections::BTreeMap;

use tidemill_domain::command::{
    Command, DeclaredService, Envelope, FactBody, InstanceFact, JoinNode, OfferedDevice, ReportFacts,
};
use tidemill_domain::commit::{Actor, Cause};
use tidemill_domain::events::instance::{Hold, Placement};
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::events::placement::Explanation;
use tidemill_domain::events::service::{
    Class, DeviceRequest, HostLimits, OnIsolation, PlacementRules, Retry, Route, Run, Runtime, Scale, ServiceSpec,
    Spread,
};
use tidemill_domain::id::{CommandId, DeviceId, InstanceId, NodeId};
use tidemill_domain::state::State;
use tidemill_domain::time::Span;
use tidemill_domain::unit::{Milli, Name};

/// A name that is known to be good.
pub fn name(text: &str) -> Name {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

/// A node of the own data centre with `devices` simulated cards of 80 GiB.
pub fn join(node: &str, devices: usize) -> JoinNode {
    JoinNode {
        name: name(node),
        supply: Supply::Idc,
        provider: "own".into(),
        region: "east".into(),
        zone: "a".into(),
        address: Some("127.0.0.1".into()),
        boot_id: format!("boot-{node}"),
        runtimes: vec![tidemill_domain::events::service::Runtime::Process],
        machine_id: format!("machine-{node}"),
        agent_id: format!("agent-{node}"),
        credential: None,
        devices: (0..devices).map(|n| device(&format!("GPU-{node}-{n}"))).collect(),
        instances: vec![],
        inspection: None,
    }
}

/// A simulated card of 80 GiB.
pub fn device(uuid: &str) -> OfferedDevice {
    OfferedDevice {
        uuid: uuid.to_owned(),
        kind: DeviceKind::Cuda,
        model: "A100-80G".into(),
        memory_bytes: 80 << 30,
        speed_milli: 1000,
        simulated: true,
    }
}

/// A declaration of one whole device a replica, `min` to `max` replicas.
pub fn spec(min: u32, max: u32) -> ServiceSpec {
    ServiceSpec {
        class: Class::Standard,
        run: Run {
            runtime: Runtime::Process,
            command: vec!["serve".into()],
            image: None,
            env: BTreeMap::new(),
            fetch: vec![],
            limits: HostLimits::default(),
            ready_http: Some("/health".into()),
            ready_timeout: Span::from_secs(300),
            ready_hold: Span::ZERO,
            stop_grace: Span::from_secs(30),
        },
        devices: DeviceRequest {
            count: 1,
            share: Milli::WHOLE,
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
            supply: vec![Supply::Idc, Supply::Cloud, Supply::Enterprise],
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

/// The command that declares one service of the default tenant.
pub fn apply(service: &str, spec: ServiceSpec) -> Command {
    let declared = DeclaredService {
        tenant: Name::default_tenant(),
        name: name(service),
        spec,
    };
    Command::ApplyServices {
        services: vec![declared],
    }
}

/// The command that doubts a node which was silent for 3 s.
pub fn suspect(node: NodeId) -> Command {
    Command::SuspectNode {
        node,
        silent: Span::from_secs(3),
        closed: false,
        reason: "silent".into(),
    }
}

/// The command that trusts a doubted node again.
pub fn recover(node: NodeId) -> Command {
    Command::RecoverNode {
        node,
        reason: "heard".into(),
    }
}

/// An instance on one whole device.
pub fn whole(instance: InstanceId, node: NodeId, uuid: &str) -> Placement {
    let hold = Hold {
        device: DeviceId::of_uuid(uuid),
        share: Milli::WHOLE,
    };
    Placement {
        instance,
        node,
        holds: vec![hold],
    }
}

/// An explanation that says nothing: for tests of what is placed, not of why.
pub fn no_explanation() -> Explanation {
    Explanation {
        devices: 0,
        fitting: 0,
        filtered: vec![],
        candidates: vec![],
        dominant: "placed by the test".into(),
        next_step: String::new(),
    }
}

/// A report of one fact, just happened.
pub fn fact(node: NodeId, instance: InstanceId, body: FactBody) -> Command {
    Command::ReportFacts(ReportFacts {
        node,
        facts: vec![InstanceFact {
            instance,
            age: Span::ZERO,
            body,
        }],
    })
}

/// The fact that a process runs.
pub fn started(pid: u32) -> FactBody {
    FactBody::Started {
        pid,
        port: 4000,
        fetch: Span::ZERO,
        start: Span::from_millis(5),
    }
}

/// The fact that an instance answers.
pub fn ready() -> FactBody {
    FactBody::Ready {
        endpoint: Some("127.0.0.1:4000".into()),
        load: Span::from_millis(50),
    }
}

/// The fact that an instance ended by itself.
pub fn failed() -> FactBody {
    FactBody::Failed {
        code: "exited".into(),
        reason: "exit code 1".into(),
    }
}

/// The instances of a service of the default tenant, in order of id.
pub fn instances_of(state: &State, service: &str) -> Vec<InstanceId> {
    let service = state
        .service_named(&Name::default_tenant(), &name(service))
        .expect("the service exists");
    service.live.iter().copied().collect()
}

/// A command of this machine's own user, untraced.
pub fn envelope(id: CommandId, command: Command) -> Envelope {
    Envelope {
        id,
        actor: Actor::Local,
        cause: Cause::Request,
        trace: None,
        command,
    }
}
