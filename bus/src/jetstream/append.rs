//! One guarded append, and what its answer means.

use async_nats::HeaderMap;
use async_nats::client::Request;
use async_nats::jetstream::ErrorCode;
use bytes::Bytes;
use serde::Deserialize;

use super::connection::{ANSWER_TIMEOUT, ApiError, JetStreamError, Nats};
use super::read::StreamReader;
use super::topology::StreamSpec;
use crate::ledger::{AppendError, Hints, ReadError};

#[derive(Deserialize)]
struct PublishAck {
    stream: String,
    seq: u64,
}

pub(super) async fn append(
    nats: &Nats,
    spec: &StreamSpec,
    reader: &StreamReader,
    expected_last: u64,
    record: Bytes,
    hints: &Hints,
) -> Result<(), AppendError> {
    // The client queues what is published while it reconnects and sends it later: refuse, rather than leave a record
    // waiting to surprise its writer.
    if !nats.is_connected() {
        return Err(AppendError::Unavailable {
            reason: "not connected to NATS".to_owned(),
        });
    }
    let bytes = record.len();
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Stream", spec.name.as_str());
    headers.insert("Nats-Expected-Last-Sequence", expected_last.to_string());
    for (name, value) in [("Tidemill-Kinds", hints.kinds()), ("Tidemill-Targets", hints.targets())] {
        if !value.is_empty() {
            headers.insert(name, value);
        }
    }
    let request = Request::new()
        .headers(headers)
        .payload(record)
        .timeout(Some(ANSWER_TIMEOUT));
    let answer: Result<PublishAck, ApiError> = nats.answer(spec.subject.clone(), request).await;
    match answer {
        Ok(ack) if ack.stream == spec.name && ack.seq == expected_last + 1 => Ok(()),
        Ok(ack) => Err(AppendError::Unknown {
            reason: format!(
                "stored as {} of stream {}, expected {} of {}",
                ack.seq,
                ack.stream,
                expected_last + 1,
                spec.name
            ),
        }),
        Err(ApiError::NoAnswer(reason)) => Err(AppendError::Unknown { reason }),
        Err(ApiError::NotSent(reason)) => Err(AppendError::Unavailable { reason }),
        Err(ApiError::NoResponders) => Err(nobody_listens(reader).await),
        Err(ApiError::JetStream(error)) => Err(refused(&error, bytes, reader).await),
    }
}

/// Nobody took the message: either the stream is gone or it has no leader now.
async fn nobody_listens(reader: &StreamReader) -> AppendError {
    match reader.state().await {
        Err(ReadError::Missing | ReadError::OtherLedger { .. }) => AppendError::Missing,
        _ => AppendError::Unavailable {
            reason: "the stream has no leader".to_owned(),
        },
    }
}

async fn refused(error: &JetStreamError, bytes: usize, reader: &StreamReader) -> AppendError {
    const SERVICE_UNAVAILABLE: u16 = 503;
    match ErrorCode(error.err_code) {
        ErrorCode::STREAM_WRONG_LAST_SEQUENCE | ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
            AppendError::Conflict {
                last: reader.state().await.ok().map(|state| state.last),
            }
        }
        ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::INSUFFICIENT_RESOURCES => AppendError::Full,
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM | ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM => AppendError::TooLarge {
            bytes,
            limit: crate::record::MAX_RECORD_BYTES,
        },
        // The subject now feeds another stream.
        ErrorCode::STREAM_NOT_FOUND | ErrorCode::STREAM_NOT_MATCH => AppendError::Missing,
        _ if error.code == SERVICE_UNAVAILABLE => AppendError::Unavailable {
            reason: error.description.clone(),
        },
        _ => AppendError::Refused {
            store_code: error.err_code,
            reason: error.description.clone(),
        },
    }
}
