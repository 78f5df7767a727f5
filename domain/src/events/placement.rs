//! How a placement explains itself; nested in events of the instance family and frozen with them.

pub mod v1;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::NodeId;

/// One round of placement for one shape of request: what was looked at and what decided.
///
/// `fitting` and the filters' counts sum to `devices`: each device of the pool is either usable or out for exactly one
/// reason, the first that applies in the order of [`Filter`].
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

/// Devices out for one reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct FilterCount {
    /// The reason.
    pub filter: Filter,
    /// How many.
    pub devices: u32,
}

/// Why a device is not usable for a request: the first that applies counts, in the order in which placement asks (its
/// `filter.rs`); the order here is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// Its node is suspect, lost, or has left.
    NodeNotReady,
    /// Its node's supply kind is not allowed.
    SupplyNotAllowed,
    /// Its node's region is not allowed.
    RegionNotAllowed,
    /// Another kind of accelerator.
    WrongKind,
    /// Another model.
    WrongModel,
    /// Too little memory, or too little in the share.
    TooLittleMemory,
    /// Quarantined, dirty or lost.
    DeviceNotHealthy,
    /// Held by others.
    Busy,
    /// Free, but its node has too few free devices for the whole request.
    TooFewOnNode,
    /// The token its node enrolled with was revoked. Asked before all others.
    TokenRevoked,
    /// Its node was doubted several times lately and has to be steady for a while first.
    NodeUnsteady,
    /// Its node is loaded above what new work is given to.
    NodeOverloaded,
    /// Its node cannot run what the workload is run by.
    RuntimeMissing,
    /// Its node has no room for what would be fetched.
    NoRoomToFetch,
    /// Taken out of service for a fault.
    DeviceQuarantined,
}

/// A node that could have taken the instance, with its score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Candidate {
    /// Which.
    pub node: NodeId,
    /// Sum of the parts; higher is better.
    pub score: i32,
    /// What the score is made of.
    pub parts: Vec<ScorePart>,
}

/// One term of a score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ScorePart {
    /// What it measures.
    pub part: Part,
    /// Its points.
    pub points: i32,
}

/// What a score is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Fewer replicas of the service in the same failure domain.
    Spread,
    /// Less capacity left in pieces.
    Packing,
    /// Faster device.
    Speed,
    /// More reliable supply.
    Supply,
    /// Device no larger than needed.
    Fit,
    /// What it fetches is there already.
    Locality,
    /// Somebody wants the service's work off that node.
    Left,
}
