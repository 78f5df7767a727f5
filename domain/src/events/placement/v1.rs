//! Explanations as releases before node switches wrote them. Read only.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::events::instance::Placement;
use crate::id::{NodeId, ServiceId};

/// Version 1 of [`InstancesPlaced`](crate::events::instance::InstancesPlaced).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstancesPlaced {
    /// Of which service.
    pub service: ServiceId,
    /// Who got what.
    pub placements: Vec<Placement>,
    /// Why there.
    pub explanation: Explanation,
}

/// Version 1 of [`PlacementDeferred`](crate::events::instance::PlacementDeferred).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct PlacementDeferred {
    /// Of which service.
    pub service: ServiceId,
    /// How many wait.
    pub waiting: u32,
    /// Why.
    pub explanation: Explanation,
}

/// Version 1 of [`super::Explanation`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Explanation {
    /// Devices in the pool.
    pub devices: u32,
    /// Devices that could take one more instance when the round began.
    pub fitting: u32,
    /// Devices ruled out, by reason.
    pub filtered: Vec<FilterCount>,
    /// The best candidates, best first, at most five.
    pub candidates: Vec<Candidate>,
    /// One sentence: why here, or why not yet.
    pub dominant: String,
    /// What would help; empty when placed.
    pub next_step: String,
}

/// Version 1 of [`super::FilterCount`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct FilterCount {
    /// The reason.
    pub filter: Filter,
    /// How many.
    pub devices: u32,
}

/// Version 1 of [`super::Filter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[allow(missing_docs, reason = "the same words as today's")]
pub enum Filter {
    NodeNotReady,
    SupplyNotAllowed,
    RegionNotAllowed,
    WrongKind,
    WrongModel,
    TooLittleMemory,
    DeviceNotHealthy,
    Busy,
    TooFewOnNode,
    TokenRevoked,
}

/// Version 1 of [`super::Candidate`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Candidate {
    /// Which.
    pub node: NodeId,
    /// Sum of the parts; higher is better.
    pub score: i32,
    /// What the score is made of.
    pub parts: Vec<ScorePart>,
}

/// Version 1 of [`super::ScorePart`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ScorePart {
    /// What it measures.
    pub part: Part,
    /// Its points.
    pub points: i32,
}

/// Version 1 of [`super::Part`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[allow(missing_docs, reason = "the same words as today's")]
pub enum Part {
    Spread,
    Packing,
    Speed,
    Supply,
    Fit,
}

impl From<InstancesPlaced> for crate::events::instance::InstancesPlaced {
    fn from(old: InstancesPlaced) -> Self {
        Self {
            service: old.service,
            placements: old.placements,
            explanation: old.explanation.into(),
        }
    }
}

impl From<PlacementDeferred> for crate::events::instance::PlacementDeferred {
    fn from(old: PlacementDeferred) -> Self {
        Self {
            service: old.service,
            waiting: old.waiting,
            explanation: old.explanation.into(),
        }
    }
}

impl From<Explanation> for super::Explanation {
    fn from(old: Explanation) -> Self {
        let filtered = old.filtered.into_iter().map(|count| super::FilterCount {
            filter: count.filter.into(),
            devices: count.devices,
        });
        Self {
            devices: old.devices,
            fitting: old.fitting,
            filtered: filtered.collect(),
            candidates: old.candidates.into_iter().map(Into::into).collect(),
            dominant: old.dominant,
            next_step: old.next_step,
        }
    }
}

impl From<Candidate> for super::Candidate {
    fn from(old: Candidate) -> Self {
        let parts = old.parts.into_iter().map(|part| super::ScorePart {
            part: part.part.into(),
            points: part.points,
        });
        Self {
            node: old.node,
            score: old.score,
            parts: parts.collect(),
        }
    }
}

impl From<Filter> for super::Filter {
    fn from(old: Filter) -> Self {
        match old {
            Filter::NodeNotReady => Self::NodeNotReady,
            Filter::SupplyNotAllowed => Self::SupplyNotAllowed,
            Filter::RegionNotAllowed => Self::RegionNotAllowed,
            Filter::WrongKind => Self::WrongKind,
            Filter::WrongModel => Self::WrongModel,
            Filter::TooLittleMemory => Self::TooLittleMemory,
            Filter::DeviceNotHealthy => Self::DeviceNotHealthy,
            Filter::Busy => Self::Busy,
            Filter::TooFewOnNode => Self::TooFewOnNode,
            Filter::TokenRevoked => Self::TokenRevoked,
        }
    }
}

impl From<Part> for super::Part {
    fn from(old: Part) -> Self {
        match old {
            Part::Spread => Self::Spread,
            Part::Packing => Self::Packing,
            Part::Speed => Self::Speed,
            Part::Supply => Self::Supply,
            Part::Fit => Self::Fit,
        }
    }
}
