//! Evidence that outlives observations: what bills, service levels and incident pages are computed from.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::{InstanceId, NodeId, ServiceId};
use crate::time::{Span, Timestamp};

/// What the gateways saw of one service in one minute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct TrafficMinuteClosed {
    /// Which service.
    pub service: ServiceId,
    /// Begin of the minute, a multiple of 60 s.
    pub minute: Timestamp,
    /// Requests by how they ended.
    pub requests: RequestCounts,
    /// Seconds in which at least one request failed for a platform reason, or waited unanswered over 1 s.
    pub bad_seconds: u32,
    /// Seconds of the minute for which samples came in.
    pub covered_seconds: u32,
    /// Longest time in which no request succeeded while at least one waited.
    pub longest_gap: Span,
    /// Most requests in the queue at the end of a second.
    pub peak_queued: u64,
    /// Time to the first byte: counts by bucket; the bounds are `LATENCY_BOUNDS` of this version.
    pub latency: Vec<u64>,
    /// The same by instance, those that got at least one request.
    pub instances: Vec<InstanceTraffic>,
}

/// Upper bounds of version 1's latency buckets, milliseconds; a last bucket is open.
pub const LATENCY_BOUNDS: [u64; 19] = [
    1, 2, 5, 10, 20, 35, 50, 75, 100, 150, 250, 400, 700, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000,
];

/// Requests by how they ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct RequestCounts {
    /// Arrived.
    pub arrived: u64,
    /// Answered below 500.
    pub ok: u64,
    /// Answered 5xx by the application.
    pub application_errors: u64,
    /// Failed for a platform reason after retries.
    pub failed: u64,
    /// Refused for want of capacity.
    pub refused: u64,
    /// Given up by the client.
    pub cancelled: u64,
    /// Streams cut after they had begun.
    pub cut_streams: u64,
    /// Second and further tries.
    pub retries: u64,
}

/// One instance's part of a minute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct InstanceTraffic {
    /// Which.
    pub instance: InstanceId,
    /// Requests sent to it.
    pub sent: u64,
    /// Answered below 500.
    pub ok: u64,
    /// Answered 5xx.
    pub errors: u64,
    /// Tries without an answer.
    pub broken: u64,
}

/// A stretch of observations as it stood, so that what is cited can be told from what was made up later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ObservationWindowSealed {
    /// First observation of the window.
    pub first: u64,
    /// Last observation of the window.
    pub last: u64,
    /// BLAKE3 over the stored blocks in order.
    pub digest: [u8; 32],
    /// Beats in the window by node.
    pub beats: Vec<NodeBeats>,
    /// Receive time of the first and last.
    pub from: Timestamp,
    /// Receive time of the last.
    pub to: Timestamp,
}

/// How often a node was heard in a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct NodeBeats {
    /// Which.
    pub node: NodeId,
    /// Beats.
    pub beats: u64,
}
