//! Instances: from request to end.

pub mod v1;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::{DeviceId, InstanceId, NodeId, ServiceId};
use crate::time::{Span, Timestamp};
use crate::unit::Milli;

use super::placement::Explanation;

/// Instances are wanted; they wait for placement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesRequested {
    /// Of which service.
    pub service: ServiceId,
    /// Which generation of its declaration.
    pub generation: u64,
    /// The new instances.
    pub instances: Vec<InstanceId>,
    /// They are to be kept warm and out of rotation.
    pub standby: bool,
}

/// Standbys come into rotation, and replicas that do not answer yet stand by in their place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct StandbysPromoted {
    /// Of which service.
    pub service: ServiceId,
    /// Replicas from now on.
    pub promoted: Vec<InstanceId>,
    /// Standbys from now on.
    pub stood_by: Vec<InstanceId>,
}

/// Instances got devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesPlaced {
    /// Of which service.
    pub service: ServiceId,
    /// Who got what.
    pub placements: Vec<Placement>,
    /// Why there: one explanation for the round.
    pub explanation: Explanation,
}

/// One instance's place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Placement {
    /// Which.
    pub instance: InstanceId,
    /// Where.
    pub node: NodeId,
    /// What it holds.
    pub holds: Vec<Hold>,
}

/// A device, or a share of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct Hold {
    /// Which.
    pub device: DeviceId,
    /// How much of it.
    pub share: Milli,
}

/// Instances of the service still wait, for a reason that is new.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct PlacementDeferred {
    /// Of which service.
    pub service: ServiceId,
    /// How many wait.
    pub waiting: u32,
    /// Why.
    pub explanation: Explanation,
}

/// Its process runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstanceStarted {
    /// Which.
    pub instance: InstanceId,
    /// When, by its node's monotonic age.
    pub occurred_at: Timestamp,
    /// Process id on the node.
    pub pid: u32,
    /// Port it was given.
    pub port: u16,
    /// Time spent fetching.
    pub fetch: Span,
    /// From order to running process.
    pub start: Span,
}

/// It answers its readiness check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstanceReady {
    /// Which.
    pub instance: InstanceId,
    /// When.
    pub occurred_at: Timestamp,
    /// `HOST:PORT`; only by tunnel if none.
    pub endpoint: Option<String>,
    /// From running process to ready.
    pub load: Span,
}

/// Its readiness check fails, though it runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstanceUnready {
    /// Which.
    pub instance: InstanceId,
    /// When.
    pub occurred_at: Timestamp,
    /// What the check saw.
    pub reason: String,
}

/// A gateway sends requests to these now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesInRotation {
    /// Which.
    pub instances: Vec<InstanceId>,
    /// The first gateway that does.
    pub gateway: String,
}

/// These get no new requests; what they have in flight finishes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesDrainRequested {
    /// Which.
    pub instances: Vec<InstanceId>,
    /// Why.
    pub reason: StopReason,
}

/// No gateway sends to these any more: their nodes are to stop them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesStopRequested {
    /// Which.
    pub instances: Vec<InstanceId>,
}

/// Why an instance is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// More replicas than wanted.
    ScaledDown,
    /// A newer generation took its place.
    Replaced,
    /// Its service was stopped.
    ServiceStopped,
    /// Its service was deleted.
    ServiceDeleted,
    /// Its node is being emptied.
    NodeDraining,
    /// It was asked to move.
    Moved,
    /// Its node is doubted, and it never served there.
    NodeDoubted,
}

/// Somebody wants it elsewhere: it is replaced, then stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstanceMoveRequested {
    /// Which.
    pub instance: InstanceId,
    /// Why.
    pub reason: String,
}

/// Its node confirms: nothing of it is left, and its devices are clean.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstanceStopped {
    /// Which.
    pub instance: InstanceId,
    /// When.
    pub occurred_at: Timestamp,
    /// It had to be killed after its grace.
    pub killed: bool,
}

/// It ended by itself or could not be started; nothing of it is left on its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstanceFailed {
    /// Which.
    pub instance: InstanceId,
    /// When.
    pub occurred_at: Timestamp,
    /// Stable code, such as `exited`, `command_not_found`, `not_ready_in_time`.
    pub code: String,
    /// One sentence.
    pub reason: String,
    /// Failures of its service in a row, this one included.
    pub failures: u32,
    /// The service gets no new instance before this.
    pub retry_at: Timestamp,
}

/// Their node has nothing of them any more, though it should.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesLost {
    /// Which.
    pub instances: Vec<InstanceId>,
    /// Why that is believed.
    pub reason: String,
}

/// They were never placed and are not wanted any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesCancelled {
    /// Which.
    pub instances: Vec<InstanceId>,
    /// Why.
    pub reason: StopReason,
}
