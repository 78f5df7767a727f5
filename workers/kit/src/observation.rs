//! What doors put into the observations' log, and how workers read it.
//!
//! A door stamps everything it hears with the authenticated sender and its own receive time, and bundles it into blocks;
//! this module is the one place that knows what a `kind` number means and how its payload looks. Payloads are JSON with
//! unknown fields ignored, so that doors and workers may be two releases apart; a node's telemetry is kept as the very
//! bytes its agent sent, since nobody decides by it. Ids are resolved by the door when it hears of them: a service that
//! is deleted and made anew under its old name does not inherit samples.
//!
//! Invariants: no time of a sender is in here, only ages; a kind this build does not know is skipped, never an error;
//! a payload that does not parse loses that one observation and is counted.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tidemill_bus::observations::{Block, Observation};
use tidemill_domain::events::evidence::{InstanceTraffic, RequestCounts};
use tidemill_domain::id::{InstanceId, NodeId, ServiceId};
use tidemill_domain::time::{Span, Timestamp};

/// How often a door beats into the observations, and agents and gateways beat to a door.
pub const BEAT: Span = Span::from_secs(1);

/// How long a gateway counts as live after it was last heard: nothing is taken out of its rotation without its word
/// before.
pub const GATEWAY_LEASE: Span = Span::from_secs(15);

mod kind {
    pub(super) const DOOR_BEAT: u8 = 1;
    pub(super) const DOOR_STOPPING: u8 = 2;
    pub(super) const NODE_BEAT: u8 = 10;
    pub(super) const NODE_CONNECTED: u8 = 11;
    pub(super) const NODE_DISCONNECTED: u8 = 12;
    pub(super) const NODE_GOODBYE: u8 = 13;
    pub(super) const GATEWAY_BEAT: u8 = 20;
    pub(super) const GATEWAY_GONE: u8 = 21;
    pub(super) const SUSPICION: u8 = 22;
}

/// What was heard.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// The door itself is there; once each [`BEAT`], whoever is or is not connected to it.
    DoorBeat,
    /// The door ends on purpose: from here on silence behind it says nothing.
    DoorStopping,
    /// A node's heartbeat.
    NodeBeat {
        /// Which node.
        node: NodeId,
        /// The agent's telemetry as JSON, exactly as it came.
        telemetry: Bytes,
    },
    /// An agent's connection was accepted.
    NodeConnected {
        /// Which node.
        node: NodeId,
        /// Number of the connection, unique within the door's process.
        connection: u64,
    },
    /// An agent's connection ended.
    NodeDisconnected {
        /// Which node.
        node: NodeId,
        /// Number it was given in [`Body::NodeConnected`].
        connection: u64,
        /// How it ended, in words.
        reason: String,
    },
    /// An agent said that it ends on purpose.
    NodeGoodbye {
        /// Which node.
        node: NodeId,
        /// The machine leaves the pool; else only the agent restarts and its instances run on.
        leaving: bool,
        /// Why, in words.
        reason: String,
    },
    /// A gateway's heartbeat, with what it saw.
    GatewayBeat(GatewayBeat),
    /// A gateway's connection ended on purpose, after its last request.
    GatewayGone {
        /// Which, by name.
        gateway: String,
        /// How, in words.
        reason: String,
    },
    /// A gateway could not reach an instance that routes call ready.
    Suspicion {
        /// Which gateway, by name.
        gateway: String,
        /// Which instance.
        instance: InstanceId,
        /// What was seen.
        reason: String,
    },
}

/// A gateway's heartbeat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GatewayBeat {
    /// Which, by name.
    pub gateway: String,
    /// The routes it follows; `None` until it has any of this ledger.
    #[serde(default)]
    pub applied: Option<Applied>,
    /// Seconds closed since its last beat. A service without a sample had no traffic in them.
    #[serde(default)]
    pub samples: Vec<TrafficSample>,
}

/// Position of the ledger from which routes in use were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Applied {
    /// Epoch of the writer then.
    pub epoch: u64,
    /// Last record folded.
    pub sequence: u64,
}

/// One second (or, after a gap in reporting, several) of one service at one gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficSample {
    /// Which service.
    pub service: ServiceId,
    /// How long before the beat was received the sample's last second ended, by the gateway's monotonic clock.
    pub age: Span,
    /// Seconds summed into the sample, at least 1.
    pub seconds: u32,
    /// Requests by how they ended.
    #[serde(default)]
    pub requests: RequestCounts,
    /// Requests waiting at the end.
    #[serde(default)]
    pub queued: u64,
    /// Requests in flight at the end.
    #[serde(default)]
    pub in_flight: u64,
    /// Longest time so far in which no request succeeded while at least one waited.
    #[serde(default)]
    pub longest_gap: Span,
    /// Time to the first byte: counts by bucket of `evidence::LATENCY_BOUNDS`.
    #[serde(default)]
    pub latency: Vec<u64>,
    /// The same by instance.
    #[serde(default)]
    pub instances: Vec<InstanceTraffic>,
}

/// Payload of everything that is about a node but its beats.
#[derive(Serialize, Deserialize, Default)]
struct NodePayload {
    #[serde(default)]
    connection: u64,
    #[serde(default)]
    leaving: bool,
    #[serde(default)]
    reason: String,
}

/// Payload of [`Body::GatewayGone`] and [`Body::Suspicion`].
#[derive(Serialize, Deserialize)]
struct GatewayPayload {
    #[serde(default)]
    instance: Option<InstanceId>,
    #[serde(default)]
    reason: String,
}

/// An observation as a worker sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Sequence of the block it came in: what causes cite.
    pub sequence: u64,
    /// When its door received it, by the door's clock. Clocks of two doors are never compared.
    pub received_at: Timestamp,
    /// The door that heard it.
    pub door: String,
    /// What was heard.
    pub body: Body,
}

/// An observation whose payload does not have the shape of its kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("observation of kind {kind} from `{source_name}` does not parse: {reason}")]
pub struct PayloadError {
    /// Its kind number.
    pub kind: u8,
    /// Who sent it.
    pub source_name: String,
    /// What the decoder said.
    pub reason: String,
}

impl Body {
    /// As a door stores it. `door` is the door's own name, the sender of its beats.
    pub fn to_observation(&self, door: &str, received_at: Timestamp) -> Observation {
        let (kind, source, payload) = match self {
            Body::DoorBeat => (kind::DOOR_BEAT, door.to_owned(), Bytes::new()),
            Body::DoorStopping => (kind::DOOR_STOPPING, door.to_owned(), Bytes::new()),
            Body::NodeBeat { node, telemetry } => (kind::NODE_BEAT, node.to_string(), telemetry.clone()),
            Body::NodeConnected { node, connection } => {
                let payload = NodePayload {
                    connection: *connection,
                    ..NodePayload::default()
                };
                (kind::NODE_CONNECTED, node.to_string(), json(&payload))
            }
            Body::NodeDisconnected {
                node,
                connection,
                reason,
            } => {
                let payload = NodePayload {
                    connection: *connection,
                    reason: reason.clone(),
                    ..NodePayload::default()
                };
                (kind::NODE_DISCONNECTED, node.to_string(), json(&payload))
            }
            Body::NodeGoodbye { node, leaving, reason } => {
                let payload = NodePayload {
                    leaving: *leaving,
                    reason: reason.clone(),
                    ..NodePayload::default()
                };
                (kind::NODE_GOODBYE, node.to_string(), json(&payload))
            }
            Body::GatewayBeat(beat) => (kind::GATEWAY_BEAT, beat.gateway.clone(), json(beat)),
            Body::GatewayGone { gateway, reason } => {
                let payload = GatewayPayload {
                    instance: None,
                    reason: reason.clone(),
                };
                (kind::GATEWAY_GONE, gateway.clone(), json(&payload))
            }
            Body::Suspicion {
                gateway,
                instance,
                reason,
            } => {
                let payload = GatewayPayload {
                    instance: Some(*instance),
                    reason: reason.clone(),
                };
                (kind::SUSPICION, gateway.clone(), json(&payload))
            }
        };
        Observation {
            kind,
            source,
            received_at: received_at.0,
            payload,
        }
    }

    /// Reads what [`Body::to_observation`] wrote; `None` for a kind of a newer release.
    pub fn of_observation(observation: &Observation) -> Result<Option<Body>, PayloadError> {
        let fail = |reason: String| PayloadError {
            kind: observation.kind,
            source_name: observation.source.clone(),
            reason,
        };
        let node = || -> Result<NodeId, PayloadError> { observation.source.parse().map_err(|e| fail(format!("{e}"))) };
        let node_payload = || -> Result<NodePayload, PayloadError> { parse(&observation.payload).map_err(fail) };
        let gateway_payload = || -> Result<GatewayPayload, PayloadError> { parse(&observation.payload).map_err(fail) };
        let body = match observation.kind {
            kind::DOOR_BEAT => Body::DoorBeat,
            kind::DOOR_STOPPING => Body::DoorStopping,
            kind::NODE_BEAT => Body::NodeBeat {
                node: node()?,
                telemetry: observation.payload.clone(),
            },
            kind::NODE_CONNECTED => Body::NodeConnected {
                node: node()?,
                connection: node_payload()?.connection,
            },
            kind::NODE_DISCONNECTED => {
                let payload = node_payload()?;
                Body::NodeDisconnected {
                    node: node()?,
                    connection: payload.connection,
                    reason: payload.reason,
                }
            }
            kind::NODE_GOODBYE => {
                let payload = node_payload()?;
                Body::NodeGoodbye {
                    node: node()?,
                    leaving: payload.leaving,
                    reason: payload.reason,
                }
            }
            kind::GATEWAY_BEAT => {
                let beat: GatewayBeat = parse(&observation.payload).map_err(fail)?;
                // The authenticated name counts, whatever the payload says.
                Body::GatewayBeat(GatewayBeat {
                    gateway: observation.source.clone(),
                    ..beat
                })
            }
            kind::GATEWAY_GONE => Body::GatewayGone {
                gateway: observation.source.clone(),
                reason: gateway_payload()?.reason,
            },
            kind::SUSPICION => {
                let payload = gateway_payload()?;
                Body::Suspicion {
                    gateway: observation.source.clone(),
                    instance: payload.instance.ok_or_else(|| fail("no instance".to_owned()))?,
                    reason: payload.reason,
                }
            }
            _ => return Ok(None),
        };
        Ok(Some(body))
    }
}

impl Seen {
    /// Reads a stored block. Observations of unknown kinds are left out; those that do not parse are returned apart.
    pub fn of_block(sequence: u64, block: &Block) -> (Vec<Seen>, Vec<PayloadError>) {
        let mut seen = Vec::with_capacity(block.observations.len());
        let mut errors = Vec::new();
        for observation in &block.observations {
            match Body::of_observation(observation) {
                Ok(Some(body)) => seen.push(Seen {
                    sequence,
                    received_at: Timestamp(observation.received_at),
                    door: block.door.clone(),
                    body,
                }),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        (seen, errors)
    }
}

fn json(payload: &impl Serialize) -> Bytes {
    serde_json::to_vec(payload)
        .expect("plain data without maps always encodes as JSON")
        .into()
}

fn parse<'a, T: Deserialize<'a>>(payload: &'a Bytes) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_kind_survives_the_log() {
        let node = NodeId::from_bits(7);
        let bodies = [
            Body::DoorBeat,
            Body::DoorStopping,
            Body::NodeBeat {
                node,
                telemetry: Bytes::from_static(b"{\"number\":1}"),
            },
            Body::NodeConnected { node, connection: 9 },
            Body::NodeDisconnected {
                node,
                connection: 9,
                reason: "reset".into(),
            },
            Body::NodeGoodbye {
                node,
                leaving: true,
                reason: "sold".into(),
            },
            Body::GatewayBeat(GatewayBeat {
                gateway: "gw".into(),
                applied: Some(Applied { epoch: 1, sequence: 5 }),
                samples: vec![TrafficSample {
                    service: ServiceId::from_bits(3),
                    age: Span::from_millis(120),
                    seconds: 1,
                    requests: RequestCounts {
                        arrived: 4,
                        ok: 4,
                        ..RequestCounts::default()
                    },
                    queued: 0,
                    in_flight: 1,
                    longest_gap: Span::ZERO,
                    latency: vec![0, 4],
                    instances: vec![],
                }],
            }),
            Body::GatewayGone {
                gateway: "gw".into(),
                reason: "stopped".into(),
            },
            Body::Suspicion {
                gateway: "gw".into(),
                instance: InstanceId::from_bits(4),
                reason: "refused".into(),
            },
        ];
        let now = Timestamp::from_millis(5);
        let block = Block {
            door: "door-1".into(),
            observations: bodies.iter().map(|b| b.to_observation("door-1", now)).collect(),
        };
        let (seen, errors) = Seen::of_block(12, &Block::decode(&block.encode()).unwrap());
        assert!(errors.is_empty());
        let read: Vec<_> = seen.into_iter().map(|s| s.body).collect();
        assert_eq!(read, bodies);
    }

    #[test]
    fn unknown_kinds_are_skipped_and_damage_loses_one_observation() {
        let good = Body::DoorBeat.to_observation("d", Timestamp(0));
        let newer = Observation {
            kind: 200,
            ..good.clone()
        };
        let broken = Observation {
            kind: kind::NODE_BEAT,
            source: "not-a-node".into(),
            ..good.clone()
        };
        let block = Block {
            door: "d".into(),
            observations: vec![newer, broken, good],
        };
        let (seen, errors) = Seen::of_block(1, &block);
        assert_eq!((seen.len(), errors.len()), (1, 1));
    }
}
