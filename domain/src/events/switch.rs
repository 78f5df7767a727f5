//! Switches: an instance's work moving to another, from cause to effect.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::{InstanceId, NodeId, ServiceId, SwitchId};
use crate::time::Span;

/// An instance is to be replaced for a reason that is not its owner's wish. What was observed is the commit's cause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct SwitchOpened {
    /// Its id.
    pub switch: SwitchId,
    /// Whose instance.
    pub service: ServiceId,
    /// The instance whose work moves.
    pub instance: InstanceId,
    /// Where it is.
    pub node: NodeId,
    /// Why.
    pub cause: SwitchCause,
    /// Why, in a sentence.
    pub detail: String,
    /// From the last sign of life, or from the failure, to this record; none where nothing had to be noticed.
    pub detect: Option<Span>,
}

/// Why work moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum SwitchCause {
    /// Its node's heartbeats stayed away.
    NodeSilent,
    /// Its node's connection closed and was not opened again.
    ConnectionClosed,
    /// Its node left the pool without a drain.
    NodeLeft,
    /// Its node's agent came back without it.
    NodeRestarted,
    /// It ended by itself after it had served.
    InstanceFailed,
    /// A device of it is faulty.
    DeviceFault,
    /// An operator drains its node.
    Drain,
    /// Its node's provider takes it back.
    Reclaim,
    /// Its node's owner takes it back.
    OwnerLeave,
    /// Somebody asked for it to move.
    Move,
    /// Its node is too hot, or another place is better.
    Rebalance,
}

impl SwitchCause {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::NodeSilent => "node_silent",
            Self::ConnectionClosed => "connection_closed",
            Self::NodeLeft => "node_left",
            Self::NodeRestarted => "node_restarted",
            Self::InstanceFailed => "instance_failed",
            Self::DeviceFault => "device_fault",
            Self::Drain => "drain",
            Self::Reclaim => "reclaim",
            Self::OwnerLeave => "owner_leave",
            Self::Move => "move",
            Self::Rebalance => "rebalance",
        }
    }

    /// Whether the replacement can be ready before the old one goes.
    pub fn is_planned(self) -> bool {
        match self {
            Self::NodeSilent
            | Self::ConnectionClosed
            | Self::NodeLeft
            | Self::NodeRestarted
            | Self::InstanceFailed
            | Self::DeviceFault => false,
            Self::Drain | Self::Reclaim | Self::OwnerLeave | Self::Move | Self::Rebalance => true,
        }
    }
}

/// An instance takes over. A switch whose replacement ends before it served gets another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct SwitchReplacementChosen {
    /// Of which switch.
    pub switch: SwitchId,
    /// Which instance.
    pub instance: InstanceId,
}

/// The work has moved, or need not move any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct SwitchClosed {
    /// Which.
    pub switch: SwitchId,
    /// How it ended.
    pub outcome: SwitchOutcome,
    /// What serves instead.
    pub replacement: Option<InstanceId>,
    /// Where that is.
    pub to_node: Option<NodeId>,
    /// From the opening until the replacement was in rotation.
    pub replace: Option<Span>,
    /// What customers noticed.
    pub effect: SwitchEffect,
}

/// How a switch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum SwitchOutcome {
    /// Another instance serves instead.
    Replaced,
    /// The instance itself came back first.
    Recovered,
    /// Its service does not want it any more.
    NotNeeded,
}

impl SwitchOutcome {
    /// Its word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Recovered => "recovered",
            Self::NotNeeded => "not_needed",
        }
    }
}

/// What the gateways saw of the service from the last sign of life of the old instance until the new one served. Other
/// switches of the service at that time have their part in it too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct SwitchEffect {
    /// Seconds of that time for which a gateway's samples came in; 0 where nobody used the service.
    pub covered_seconds: u32,
    /// Requests that failed for a platform reason after retries.
    pub failed_requests: u64,
    /// Streams cut after they had begun.
    pub cut_streams: u64,
    /// Longest time in which no request succeeded while at least one waited.
    pub longest_gap: Span,
}

/// A gap longer than this is perceived.
pub const PERCEIVED_GAP: Span = Span::from_secs(1);

impl SwitchEffect {
    /// Whether a customer noticed: a request failed after retries, a begun stream was cut, or nobody was answered for over
    /// a second while somebody waited.
    pub fn is_perceived(&self) -> bool {
        self.failed_requests > 0 || self.cut_streams > 0 || self.longest_gap > PERCEIVED_GAP
    }
}
