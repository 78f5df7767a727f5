//! Reading a stream: its state and single records from the leader, runs of records from any replica.

use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;
use futures::StreamExt;
use serde_json::json;

use super::connection::{ANSWER_TIMEOUT, ApiError, Nats};
use super::topology::{StreamInfo, StreamSpec};
use crate::identity::{Genesis, LedgerId};
use crate::ledger::{RawRecord, ReadError};

/// Most messages asked for at once: what the client buffers for one reader stays bounded.
const MAX_BATCH: usize = 4096;

/// Most bytes asked for at once.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// A stream's state as its leader sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) bytes: u64,
    pub(crate) max_bytes: Option<u64>,
}

/// Reads one stream. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct StreamReader {
    nats: Nats,
    name: String,
    ledger_id: LedgerId,
}

impl StreamReader {
    pub(crate) fn new(nats: &Nats, spec: &StreamSpec, genesis: &Genesis) -> Self {
        Self {
            nats: nats.clone(),
            name: spec.name.clone(),
            ledger_id: genesis.ledger_id,
        }
    }

    pub(crate) fn nats(&self) -> &Nats {
        &self.nats
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Asks the leader. Notices a stream that was deleted, or deleted and made anew.
    pub(crate) async fn state(&self) -> Result<State, ReadError> {
        let info = StreamInfo::fetch(&self.nats, &self.name).await.map_err(read_error)?;
        match info.genesis() {
            Some(genesis) if genesis.ledger_id == self.ledger_id => {}
            Some(Genesis { ledger_id: found, .. }) => {
                return Err(ReadError::OtherLedger {
                    expected: self.ledger_id,
                    found,
                });
            }
            None => return Err(ReadError::Missing),
        }
        let StreamInfo { ref state, .. } = info;
        Ok(State {
            first: state.first_seq,
            last: state.last_seq,
            bytes: state.bytes,
            max_bytes: info.number("max_bytes"),
        })
    }

    /// One record from the leader.
    pub(crate) async fn leader_get(&self, sequence: u64) -> Result<Bytes, ReadError> {
        let stream = self.nats.context().get_stream_no_info(&self.name).await;
        let stream = stream.map_err(|error| ReadError::Unavailable {
            reason: error.to_string(),
        })?;
        match stream.get_raw_message(sequence).await {
            Ok(message) => Ok(message.payload),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Err(ReadError::Corrupt {
                sequence,
                reason: "the stream's leader cannot give it back".to_owned(),
            }),
            Err(error) => Err(ReadError::Unavailable {
                reason: error.to_string(),
            }),
        }
    }

    /// Records from `from` on, dense.
    pub(crate) async fn read(
        &self,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<RawRecord>, ReadError> {
        let mut records = self.batch(from, max_records, max_bytes).await?;
        if let Some(gap) = records
            .iter()
            .zip(from..)
            .position(|(record, wanted)| record.sequence != wanted)
        {
            if gap == 0 {
                let reason = format!("it is missing; the next one stored is {}", records[0].sequence);
                return Err(ReadError::Corrupt { sequence: from, reason });
            }
            records.truncate(gap);
        }
        if !records.is_empty() {
            return Ok(records);
        }
        // Nothing: the end, or a replica that lags. The leader knows.
        let state = self.state().await?;
        if state.last < from {
            return Ok(records);
        }
        let body = self.leader_get(from).await?;
        Ok(vec![RawRecord { sequence: from, body }])
    }

    /// Whatever is stored from `from` on, by one batched direct get.
    pub(crate) async fn batch(
        &self,
        from: u64,
        max_records: usize,
        max_bytes: usize,
    ) -> Result<Vec<RawRecord>, ReadError> {
        let unavailable = |reason: String| ReadError::Unavailable { reason };
        let client = self.nats.client();
        let inbox = client.new_inbox();
        let mut answers = client
            .subscribe(inbox.clone())
            .await
            .map_err(|error| unavailable(error.to_string()))?;
        let request = json!({
            "seq": from,
            "batch": max_records.clamp(1, MAX_BATCH),
            "max_bytes": max_bytes.clamp(1, MAX_BATCH_BYTES),
        });
        let subject = format!("$JS.API.DIRECT.GET.{}", self.name);
        let sent = client
            .publish_with_reply(subject, inbox, request.to_string().into())
            .await;
        sent.map_err(|error| unavailable(error.to_string()))?;

        let mut records = Vec::new();
        loop {
            let answer = match tokio::time::timeout(ANSWER_TIMEOUT, answers.next()).await {
                Ok(Some(answer)) => answer,
                // What came is good; the next read goes on from there.
                Ok(None) | Err(_) if !records.is_empty() => return Ok(records),
                Ok(None) => return Err(unavailable("the connection ended".to_owned())),
                Err(_) => return Err(unavailable("no answer in time".to_owned())),
            };
            match answer.status.map(|status| status.as_u16()) {
                None => {
                    let header = answer.headers.as_ref().and_then(|headers| headers.get("Nats-Sequence"));
                    let sequence = header.and_then(|value| value.as_str().parse().ok());
                    let sequence = sequence.ok_or_else(|| unavailable("an answer without a sequence".to_owned()))?;
                    records.push(RawRecord {
                        sequence,
                        body: answer.payload,
                    });
                }
                // End of batch; nothing (more) there.
                Some(204 | 404) => return Ok(records),
                // Nobody serves the stream: gone, or without a leader.
                Some(503) => {
                    return self
                        .state()
                        .await
                        .and(Err(unavailable("the stream is not served".to_owned())));
                }
                Some(other) => return Err(unavailable(format!("status {other}"))),
            }
        }
    }
}

pub(super) fn read_error(error: ApiError) -> ReadError {
    if error.is_stream_missing() {
        return ReadError::Missing;
    }
    ReadError::Unavailable {
        reason: error.to_string(),
    }
}
