//! Commands: what can be asked of a cell.
//!
//! A command is one value that says everything its decision needs; `decide` answers with events or a typed rejection
//! and looks at nothing else but the state and the [`Context`]. Commands are not persisted, only a hash of them, so
//! they may change freely between releases; between processes they travel as JSON, unknown fields ignored.

use serde::{Deserialize, Serialize};

use crate::commit::{Actor, Cause, TraceContext};
use crate::events::credential::Role;
use crate::events::evidence::{ObservationWindowSealed, TrafficMinuteClosed};
use crate::events::instance::{Placement, StopReason};
use crate::events::node::{DeviceKind, DrainCause, Supply};
use crate::events::placement::Explanation;
use crate::events::service::{Runtime, ServiceSpec};
use crate::events::switch::{SwitchEffect, SwitchOutcome};
use crate::id::{CommandId, CredentialId, InstanceId, NodeId, ServiceId, SwitchId};
use crate::time::{Span, Timestamp};
use crate::unit::Name;

/// Most instances that one command requests, places or drains: larger changes are made in chunks, so that no commit
/// outgrows a record and nothing else waits long.
pub const CHUNK: usize = 256;

/// A command with its identity and provenance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// Chosen by who asks; the same id is the same request.
    pub id: CommandId,
    /// Who asks, as authenticated by the door or the worker kit.
    pub actor: Actor,
    /// What it answers to.
    #[serde(default)]
    pub cause: Cause,
    /// Trace it belongs to.
    #[serde(default)]
    pub trace: Option<TraceContext>,
    /// What is asked.
    pub command: Command,
}

impl Envelope {
    /// First 16 bytes of the BLAKE3 over the command's encoding: tells a repeated command from another under its id.
    pub fn body_hash(&self) -> [u8; 16] {
        // Hashing one long input is many times faster than hashing it number by number.
        let bytes = postcard::to_extend(&self.command, Vec::with_capacity(512))
            .expect("a Vec takes any number of bytes and commands hold no unsized sequences");
        let mut out = [0; 16];
        out.copy_from_slice(&blake3::hash(&bytes).as_bytes()[..16]);
        out
    }
}

/// What `decide` may know besides the state.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The sequencer's time, never decreasing.
    pub now: Timestamp,
    /// The command's id: new entities' ids are derived from it.
    pub command: CommandId,
    /// Who asks.
    pub actor: &'a Actor,
    /// For [`Command::AcquireTerm`]: the present holder's lease has run out (kept in memory by the sequencer).
    pub term_lapsed: bool,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(
    clippy::large_enum_variant,
    reason = "a command lives for one decision, and few do at a time"
)]
pub enum Command {
    /// Allow event kinds of a feature to be written from now on.
    ActivateFeature {
        /// Its name.
        feature: String,
    },
    /// Make a token's record.
    CreateCredential(CreateCredential),
    /// End a token's validity.
    RevokeCredential {
        /// Its record.
        credential: CredentialId,
    },
    /// Hold a worker role, or renew holding it.
    AcquireTerm {
        /// Role.
        role: String,
        /// Process.
        holder: String,
    },
    /// Enrol a node, or bring it back.
    JoinNode(JoinNode),
    /// What happened on a node.
    ReportFacts(ReportFacts),
    /// Doubt a silent node.
    SuspectNode {
        /// Which.
        node: NodeId,
        /// Silent for how long.
        silent: Span,
        /// Its connection was closed as well.
        #[serde(default)]
        closed: bool,
        /// What was seen.
        reason: String,
    },
    /// Trust a node again.
    RecoverNode {
        /// Which.
        node: NodeId,
        /// What was seen.
        reason: String,
    },
    /// Give a node up.
    LoseNode {
        /// Which.
        node: NodeId,
        /// Silent for how long.
        silent: Span,
        /// What was seen.
        reason: String,
    },
    /// Take a node out of the pool.
    LeaveNode {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// Declare that a lost node will not come back. Work on it may still run: nobody will say that it ended.
    ForgetNode {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// Give a node no new work.
    CordonNode {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// Give a node work again; withdraws a drain too.
    UncordonNode {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// Empty a node.
    DrainNode(DrainNode),
    /// Put on record that a draining node is empty.
    SettleDrain {
        /// Which.
        node: NodeId,
    },
    /// Replace an instance elsewhere, then stop it.
    MoveInstance {
        /// Which.
        instance: InstanceId,
        /// Why.
        reason: String,
    },
    /// Say that the nodes for which the breaker tripped are gone: their work moves.
    ConfirmBreaker {
        /// Why.
        reason: String,
    },
    /// Close the breaker: every node is judged by itself again.
    ResetBreaker {
        /// Why.
        reason: String,
    },
    /// Put the end of a switch on record.
    CloseSwitch(CloseSwitch),
    /// Declare services, all or none.
    ApplyServices {
        /// The declarations.
        services: Vec<DeclaredService>,
    },
    /// Want no replicas of a service.
    StopService {
        /// Which.
        service: ServiceId,
    },
    /// Want a stopped service to run.
    StartService {
        /// Which.
        service: ServiceId,
    },
    /// Want a service gone.
    DeleteService {
        /// Which.
        service: ServiceId,
    },
    /// Set the replica count by hand.
    ScaleService {
        /// Which.
        service: ServiceId,
        /// Replicas.
        replicas: u32,
        /// Begin; now if none.
        from: Option<Timestamp>,
        /// End; until released if none.
        until: Option<Timestamp>,
    },
    /// Give the replica count back to policy.
    ReleaseScale {
        /// Which.
        service: ServiceId,
    },
    /// Bring a service's replica count up to date with the time, and finish its deletion when nothing is left.
    SettleService {
        /// Which.
        service: ServiceId,
    },
    /// Start no more instances of a generation that does not get ready.
    HaltRollout {
        /// Which service.
        service: ServiceId,
        /// Of which generation; refused when it is not the present one.
        generation: u64,
    },
    /// Go back to the generation that served before.
    RollBackService {
        /// Which.
        service: ServiceId,
    },
    /// Want more instances.
    RequestInstances {
        /// Of which service.
        service: ServiceId,
        /// Of which generation; refused when it is not the one that is to be made.
        generation: u64,
        /// How many, at most [`CHUNK`].
        count: u32,
    },
    /// Want more instances that are kept warm and out of rotation.
    RequestStandbys {
        /// Of which service.
        service: ServiceId,
        /// Of which generation; refused when it is not the one that is to be made.
        generation: u64,
        /// How many, at most [`CHUNK`].
        count: u32,
    },
    /// Bring standbys into rotation.
    PromoteStandbys {
        /// Of which service.
        service: ServiceId,
        /// Which become replicas, at most [`CHUNK`].
        promoted: Vec<InstanceId>,
        /// Which replicas, of those that do not answer yet, stand by instead.
        stood_by: Vec<InstanceId>,
    },
    /// Give waiting instances their devices; all or none.
    PlaceInstances {
        /// Of which service.
        service: ServiceId,
        /// Who gets what, at most [`CHUNK`].
        placements: Vec<Placement>,
        /// Why there.
        explanation: Explanation,
    },
    /// Say why a service's instances wait.
    DeferPlacement {
        /// Of which service.
        service: ServiceId,
        /// How many wait.
        waiting: u32,
        /// Why.
        explanation: Explanation,
    },
    /// Take instances out of rotation; those never placed end at once.
    DrainInstances {
        /// Which, at most [`CHUNK`].
        instances: Vec<InstanceId>,
        /// Why.
        reason: StopReason,
    },
    /// Stop drained instances: no gateway sends to them any more.
    ReleaseInstances {
        /// Which, at most [`CHUNK`].
        instances: Vec<InstanceId>,
    },
    /// A gateway sends requests to these now.
    ReportInRotation {
        /// Which gateway.
        gateway: String,
        /// Which instances.
        instances: Vec<InstanceId>,
    },
    /// Put a minute of traffic on record.
    CloseTrafficMinute(TrafficMinuteClosed),
    /// Put a window of observations on record.
    SealObservationWindow(ObservationWindowSealed),
}

impl Command {
    /// Its name, as in logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Command::ActivateFeature { .. } => "ActivateFeature",
            Command::CreateCredential(_) => "CreateCredential",
            Command::RevokeCredential { .. } => "RevokeCredential",
            Command::AcquireTerm { .. } => "AcquireTerm",
            Command::JoinNode(_) => "JoinNode",
            Command::ReportFacts(_) => "ReportFacts",
            Command::SuspectNode { .. } => "SuspectNode",
            Command::RecoverNode { .. } => "RecoverNode",
            Command::LoseNode { .. } => "LoseNode",
            Command::LeaveNode { .. } => "LeaveNode",
            Command::ForgetNode { .. } => "ForgetNode",
            Command::CordonNode { .. } => "CordonNode",
            Command::UncordonNode { .. } => "UncordonNode",
            Command::DrainNode(_) => "DrainNode",
            Command::SettleDrain { .. } => "SettleDrain",
            Command::MoveInstance { .. } => "MoveInstance",
            Command::ConfirmBreaker { .. } => "ConfirmBreaker",
            Command::ResetBreaker { .. } => "ResetBreaker",
            Command::CloseSwitch(_) => "CloseSwitch",
            Command::ApplyServices { .. } => "ApplyServices",
            Command::StopService { .. } => "StopService",
            Command::StartService { .. } => "StartService",
            Command::DeleteService { .. } => "DeleteService",
            Command::ScaleService { .. } => "ScaleService",
            Command::ReleaseScale { .. } => "ReleaseScale",
            Command::SettleService { .. } => "SettleService",
            Command::HaltRollout { .. } => "HaltRollout",
            Command::RollBackService { .. } => "RollBackService",
            Command::RequestInstances { .. } => "RequestInstances",
            Command::RequestStandbys { .. } => "RequestStandbys",
            Command::PromoteStandbys { .. } => "PromoteStandbys",
            Command::PlaceInstances { .. } => "PlaceInstances",
            Command::DeferPlacement { .. } => "DeferPlacement",
            Command::DrainInstances { .. } => "DrainInstances",
            Command::ReleaseInstances { .. } => "ReleaseInstances",
            Command::ReportInRotation { .. } => "ReportInRotation",
            Command::CloseTrafficMinute(_) => "CloseTrafficMinute",
            Command::SealObservationWindow(_) => "SealObservationWindow",
        }
    }
}

/// Parameters of a token's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CreateCredential {
    /// BLAKE3 of the token's text.
    pub hash: [u8; 32],
    /// What it allows.
    pub role: Role,
    /// For nodes: the only supply kind it enrols.
    pub supply: Option<Supply>,
    /// For tenants: whose workloads.
    pub tenant: Option<Name>,
    /// How long it is valid.
    pub ttl: Option<Span>,
}

/// A node as it introduces itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JoinNode {
    /// Name.
    pub name: Name,
    /// Supply kind.
    pub supply: Supply,
    /// Provider.
    pub provider: String,
    /// Region.
    pub region: String,
    /// Zone.
    pub zone: String,
    /// Where gateways reach its instances.
    pub address: Option<String>,
    /// Kernel boot.
    pub boot_id: String,
    /// Installation.
    pub machine_id: String,
    /// Start of the agent process.
    pub agent_id: String,
    /// Token it came with; none over loopback.
    pub credential: Option<CredentialId>,
    /// Inventory.
    pub devices: Vec<OfferedDevice>,
    /// How it can run instances.
    #[serde(default = "Runtime::unsaid")]
    pub runtimes: Vec<Runtime>,
    /// Instances of which the agent still has anything.
    pub instances: Vec<InstanceId>,
    /// What it measured of itself; none of an older agent.
    #[serde(default)]
    pub inspection: Option<OfferedInspection>,
}

/// What a joining node measured of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OfferedInspection {
    /// How long it took.
    pub took: Span,
    /// Bytes a second one core copies in memory.
    pub memory_bps: Option<u64>,
    /// Bytes a second written to its disk and synced.
    pub disk_write_bps: Option<u64>,
    /// One small synced write.
    pub disk_sync: Option<Span>,
    /// The shortest time to connect to a server.
    pub round_trip: Option<Span>,
    /// What is wrong; devices by UUID.
    pub findings: Vec<OfferedFinding>,
}

/// Something wrong with a joining node or one of its devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfferedFinding {
    /// Vendor UUID; none for the node as a whole.
    pub uuid: Option<String>,
    /// Stable code.
    pub code: String,
    /// What was seen.
    pub detail: String,
    /// What to do.
    pub next: String,
}

/// A device as its node reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OfferedDevice {
    /// Vendor UUID.
    pub uuid: String,
    /// Kind.
    pub kind: DeviceKind,
    /// Model.
    pub model: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Measured over nominal speed in thousandths.
    pub speed_milli: u32,
    /// No hardware behind it.
    pub simulated: bool,
}

/// How a node is to be emptied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrainNode {
    /// Which.
    pub node: NodeId,
    /// Who wants that.
    pub cause: DrainCause,
    /// Why.
    pub reason: String,
    /// In what time it has to be empty, replacements or not.
    pub deadline: Option<Span>,
}

/// How a switch ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CloseSwitch {
    /// Which.
    pub switch: SwitchId,
    /// How.
    pub outcome: SwitchOutcome,
    /// What the gateways saw meanwhile.
    pub effect: SwitchEffect,
}

/// Facts from one node, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportFacts {
    /// Which node; facts about instances of other nodes are ignored.
    pub node: NodeId,
    /// The facts, at most 512.
    pub facts: Vec<InstanceFact>,
}

/// One fact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceFact {
    /// About which instance.
    pub instance: InstanceId,
    /// How long ago, by the node's monotonic clock and the door's waiting.
    pub age: Span,
    /// What happened.
    pub body: FactBody,
}

/// What happened to an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FactBody {
    /// Its process runs.
    Started {
        /// Process id.
        pid: u32,
        /// Port.
        port: u16,
        /// Time spent fetching.
        fetch: Span,
        /// From order to running process.
        start: Span,
    },
    /// It answers.
    Ready {
        /// `HOST:PORT`.
        endpoint: Option<String>,
        /// From running process to ready.
        load: Span,
    },
    /// It does not answer, though it runs.
    Unready {
        /// What was seen.
        reason: String,
    },
    /// It ended by itself or could not be started; nothing of it is left.
    Failed {
        /// Stable code.
        code: String,
        /// One sentence.
        reason: String,
    },
    /// It was stopped as asked; nothing of it is left.
    Stopped {
        /// It had to be killed.
        killed: bool,
    },
}

/// One service's declaration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeclaredService {
    /// Whose.
    pub tenant: Name,
    /// Name.
    pub name: Name,
    /// What.
    pub spec: ServiceSpec,
}
