//! Bodies of instances as releases before drains, moves and standbys wrote them. Read only.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::{InstanceId, ServiceId};

/// Version 1 of [`super::InstancesRequested`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesRequested {
    /// Of which service.
    pub service: ServiceId,
    /// Which generation of its declaration.
    pub generation: u64,
    /// The new instances.
    pub instances: Vec<InstanceId>,
}

/// Version 1 of [`super::InstancesDrainRequested`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesDrainRequested {
    /// Which.
    pub instances: Vec<InstanceId>,
    /// Why.
    pub reason: StopReason,
}

/// Version 1 of [`super::InstancesCancelled`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesCancelled {
    /// Which.
    pub instances: Vec<InstanceId>,
    /// Why.
    pub reason: StopReason,
}

/// Version 1 of [`super::StopReason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub enum StopReason {
    /// More replicas than wanted.
    ScaledDown,
    /// A newer generation took its place.
    Replaced,
    /// Its service was stopped.
    ServiceStopped,
    /// Its service was deleted.
    ServiceDeleted,
}

impl From<StopReason> for super::StopReason {
    fn from(old: StopReason) -> Self {
        match old {
            StopReason::ScaledDown => Self::ScaledDown,
            StopReason::Replaced => Self::Replaced,
            StopReason::ServiceStopped => Self::ServiceStopped,
            StopReason::ServiceDeleted => Self::ServiceDeleted,
        }
    }
}

impl From<InstancesRequested> for super::InstancesRequested {
    fn from(old: InstancesRequested) -> Self {
        Self {
            service: old.service,
            generation: old.generation,
            instances: old.instances,
            standby: false,
        }
    }
}

impl From<InstancesDrainRequested> for super::InstancesDrainRequested {
    fn from(old: InstancesDrainRequested) -> Self {
        Self {
            instances: old.instances,
            reason: old.reason.into(),
        }
    }
}

impl From<InstancesCancelled> for super::InstancesCancelled {
    fn from(old: InstancesCancelled) -> Self {
        Self {
            instances: old.instances,
            reason: old.reason.into(),
        }
    }
}
