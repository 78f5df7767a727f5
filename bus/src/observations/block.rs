//! A block of observations and its frozen encoding: a format byte and a postcard body.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Largest encoded block, under NATS's default `max_payload` of 1 MiB.
pub const MAX_BLOCK_BYTES: usize = 768 * 1024;

const FORMAT: u8 = 1;

/// One observation as its door stamped it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// What it is; the numbers belong to the domain.
    pub kind: u8,
    /// Who sent it, as authenticated by the door.
    pub source: String,
    /// When the door received it, in microseconds since the Unix epoch.
    pub received_at: i64,
    /// Its content; opaque here.
    pub payload: Bytes,
}

/// Observations a door received about the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The door that heard them: a node's silence counts only while its door was heard.
    pub door: String,
    /// The observations, in order of receipt.
    pub observations: Vec<Observation>,
}

#[derive(Serialize, Deserialize)]
struct BlockV1<'a> {
    door: &'a str,
    /// Receive time of the first observation; the others are relative to it.
    base: i64,
    #[serde(borrow)]
    observations: Vec<ObservationV1<'a>>,
}

#[derive(Serialize, Deserialize)]
struct ObservationV1<'a> {
    kind: u8,
    source: &'a str,
    offset: i64,
    payload: &'a [u8],
}

/// Bytes that are not a block this build can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// Written by a newer build, or damaged.
    #[error("observation block format {found:?} is unknown to this build (it reads format {FORMAT})")]
    UnknownFormat {
        /// The first byte, if there is one.
        found: Option<u8>,
    },
    /// The body does not parse.
    #[error("the observation block does not decode: {reason}")]
    Malformed {
        /// What the decoder said.
        reason: String,
    },
}

impl Block {
    /// Receive time of the newest observation; `None` if there is none.
    #[must_use]
    pub fn newest(&self) -> Option<i64> {
        self.observations
            .iter()
            .map(|observation| observation.received_at)
            .max()
    }

    /// Encodes the block.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let base = self.observations.first().map_or(0, |first| first.received_at);
        let observations = self.observations.iter().map(|observation| ObservationV1 {
            kind: observation.kind,
            source: &observation.source,
            offset: observation.received_at.wrapping_sub(base),
            payload: &observation.payload,
        });
        let wire = BlockV1 {
            door: &self.door,
            base,
            observations: observations.collect(),
        };
        let out = postcard::to_extend(&wire, vec![FORMAT]);
        out.expect("plain data of known length always encodes into a Vec")
            .into()
    }

    /// Decodes a block; payloads are slices of `bytes`.
    pub fn decode(bytes: &Bytes) -> Result<Self, BlockError> {
        let body = match bytes.split_first() {
            Some((&FORMAT, body)) => body,
            other => {
                return Err(BlockError::UnknownFormat {
                    found: other.map(|(first, _)| *first),
                });
            }
        };
        let wire: BlockV1<'_> = postcard::from_bytes(body).map_err(|error| BlockError::Malformed {
            reason: error.to_string(),
        })?;
        let observations = wire.observations.iter().map(|observation| Observation {
            kind: observation.kind,
            source: observation.source.to_owned(),
            received_at: wire.base.wrapping_add(observation.offset),
            payload: bytes.slice_ref(observation.payload),
        });
        Ok(Self {
            door: wire.door.to_owned(),
            observations: observations.collect(),
        })
    }
}
