//! Observations in a JetStream stream: compressed, bounded by age and size, old ones discarded.

use async_nats::client::Request;
use async_trait::async_trait;
use serde::Deserialize;

use super::{Block, Bounds, FollowObservations, Observations, ObservationsError, StoredBlock, encode_checked};
use crate::identity::Genesis;
use crate::jetstream::{ApiError, CursorError, Nats, Role, StreamCursor, StreamLimits, StreamReader, StreamSpec};
use crate::ledger::{OpenError, RawRecord, ReadError};

/// Observations in the stream of a cell. Cloning is cheap.
#[derive(Clone)]
pub struct JetStreamObservations {
    nats: Nats,
    spec: StreamSpec,
    reader: StreamReader,
}

#[derive(Deserialize)]
struct PublishAck {
    seq: u64,
}

impl JetStreamObservations {
    /// Opens the cell's stream of observations, creating it if there is none: observations are expendable. One left by
    /// another ledger of the same cell name is refused, since the ledger cites observations by sequence.
    pub async fn open(nats: &Nats, genesis: &Genesis, limits: &StreamLimits) -> Result<Self, OpenError> {
        nats.require_version()?;
        let (spec, found) = StreamSpec::open_or_create(nats, Role::Observations, genesis, limits).await?;
        if found != *genesis {
            return Err(OpenError::Unreadable {
                place: format!("stream {}", spec.name),
                reason: format!("it belongs to ledger {}; delete it to start over", found.ledger_id),
            });
        }
        let reader = StreamReader::new(nats, &spec, genesis);
        Ok(Self {
            nats: nats.clone(),
            spec,
            reader,
        })
    }
}

impl From<ReadError> for ObservationsError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Missing | ReadError::OtherLedger { .. } => Self::Missing,
            other => Self::Unavailable {
                reason: other.to_string(),
            },
        }
    }
}

impl From<RawRecord> for StoredBlock {
    fn from(RawRecord { sequence, body }: RawRecord) -> Self {
        Self { sequence, body }
    }
}

#[async_trait]
impl Observations for JetStreamObservations {
    async fn publish(&self, block: &Block) -> Result<u64, ObservationsError> {
        let payload = encode_checked(block)?;
        if !self.nats.is_connected() {
            return Err(ObservationsError::Unavailable {
                reason: "not connected to NATS".to_owned(),
            });
        }
        let answer = self
            .nats
            .answer(self.spec.subject.clone(), Request::new().payload(payload))
            .await;
        match answer {
            Ok(PublishAck { seq }) => Ok(seq),
            Err(error @ ApiError::NoResponders) => match self.reader.state().await {
                Ok(_) => Err(ObservationsError::Unavailable {
                    reason: error.to_string(),
                }),
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(ObservationsError::Unavailable {
                reason: error.to_string(),
            }),
        }
    }

    async fn read(
        &self,
        from: u64,
        max_blocks: usize,
        max_bytes: usize,
    ) -> Result<Vec<StoredBlock>, ObservationsError> {
        let blocks = self.reader.batch(from.max(1), max_blocks, max_bytes).await?;
        Ok(blocks.into_iter().map(StoredBlock::from).collect())
    }

    async fn follow(&self, from: u64) -> Result<Box<dyn FollowObservations>, ObservationsError> {
        let next = from.max(1).min(self.reader.state().await?.last + 1);
        Ok(Box::new(Position {
            cursor: StreamCursor::new(self.reader.clone(), next, false),
        }))
    }

    async fn bounds(&self) -> Result<Bounds, ObservationsError> {
        let state = self.reader.state().await?;
        let first = if state.first == 0 { state.last + 1 } else { state.first };
        Ok(Bounds {
            first,
            last: state.last,
            bytes: state.bytes,
        })
    }
}

struct Position {
    cursor: StreamCursor,
}

#[async_trait]
impl FollowObservations for Position {
    async fn next_batch(&mut self, max: usize) -> Result<Vec<StoredBlock>, ObservationsError> {
        match self.cursor.next_batch(max).await {
            Ok(blocks) => Ok(blocks.into_iter().map(StoredBlock::from).collect()),
            Err(CursorError::Missing | CursorError::OtherLedger { .. }) => Err(ObservationsError::Missing),
            // The unsynced end was lost with its server: go on from what is there now.
            Err(CursorError::Shorter { last, .. }) => {
                self.cursor.restart(last + 1);
                Err(ObservationsError::Unavailable {
                    reason: format!("observations end at {last} again"),
                })
            }
            Err(CursorError::Gap { .. }) => {
                unreachable!("a cursor that is not dense skips what is missing")
            }
        }
    }

    fn next_sequence(&self) -> u64 {
        self.cursor.next_sequence()
    }
}
