//! One record into the ledger, for certain or not at all.
//!
//! A store may fail to say whether it stored a record. Then the tail is read from the store's authority, and if the place
//! is still empty the very same bytes are appended again with the same expected sequence: whichever copy arrives first
//! takes the place and the other is refused, so retrying can neither lose nor double anything. Whoever has taken the
//! place otherwise is another writer, and this one ends.
//!
//! Invariants: the bytes never change between tries; trying ends at a deadline; what is reported as not stored never
//! becomes stored through this append.

use std::time::Duration;

use tokio::time::Instant;

use super::core::Planned;
use crate::backoff::Backoff;
use crate::ledger::{AppendError, Ledger, ReadError};

/// An append that failed.
#[derive(Debug)]
pub(super) struct Lost {
    /// Why.
    pub(super) cause: Cause,
    /// It may be on the ledger, or still come to be.
    pub(super) maybe_stored: bool,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Cause {
    /// Another writer's record stands in the place.
    #[error("another writer appended record {sequence}")]
    Foreign { sequence: u64 },
    #[error("the ledger is full")]
    Full,
    #[error("the ledger no longer exists in its store")]
    Missing,
    #[error("the ledger ends at sequence {last}, before record {known} that was already on it")]
    Shorter { last: u64, known: u64 },
    /// The store says no, and would again.
    #[error(transparent)]
    Refused(AppendError),
    #[error("the ledger's store did not answer in time: {reason}")]
    Unresolved { reason: String },
}

enum Place {
    Ours,
    Foreign,
    Empty,
    /// Even the record before is not there.
    Shorter {
        last: u64,
    },
}

/// Appends, and finds out what became of it where the store does not say.
pub(super) async fn append(ledger: &dyn Ledger, planned: &Planned, patience: Duration) -> Result<(), Lost> {
    let sequence = planned.record.anchor.sequence;
    let deadline = Instant::now() + patience;
    let mut backoff = Backoff::new();
    let mut maybe_stored = false;
    loop {
        let outcome = ledger
            .append(sequence - 1, planned.record.bytes.clone(), &planned.hints)
            .await;
        let lost = |cause| Err(Lost { cause, maybe_stored });
        let mut reason = match outcome {
            Ok(()) => return Ok(()),
            // Perhaps by our own earlier try.
            Err(AppendError::Conflict { .. }) => "the ledger has moved on".to_owned(),
            Err(AppendError::Unknown { reason }) => {
                maybe_stored = true;
                reason
            }
            Err(AppendError::Unavailable { reason }) => reason,
            Err(AppendError::Full) if !maybe_stored => return lost(Cause::Full),
            Err(AppendError::Full) => "the ledger is full".to_owned(),
            Err(AppendError::Missing) => return lost(Cause::Missing),
            Err(other) => return lost(Cause::Refused(other)),
        };
        match look(ledger, planned).await {
            Ok(Place::Ours) => return Ok(()),
            Ok(Place::Foreign) => {
                return Err(Lost {
                    cause: Cause::Foreign { sequence },
                    maybe_stored: false,
                });
            }
            Ok(Place::Shorter { last }) => {
                let known = sequence - 1;
                return Err(Lost {
                    cause: Cause::Shorter { last, known },
                    maybe_stored,
                });
            }
            Ok(Place::Empty) => {}
            Err(ReadError::Missing | ReadError::OtherLedger { .. }) => {
                return Err(Lost {
                    cause: Cause::Missing,
                    maybe_stored,
                });
            }
            Err(error) => reason = error.to_string(),
        }
        if Instant::now() >= deadline {
            return Err(Lost {
                cause: Cause::Unresolved { reason },
                maybe_stored,
            });
        }
        tracing::warn!(
            code = "ledger_append_retried",
            sequence,
            reason,
            "an append is tried again with the same bytes"
        );
        backoff.pause().await;
    }
}

/// Who has the record's place.
async fn look(ledger: &dyn Ledger, planned: &Planned) -> Result<Place, ReadError> {
    let ours = planned.record.anchor;
    // The record and not the tail: a foreign last record may be one that does not even decode.
    let stored = ledger.read(ours.sequence, 1, 1).await?;
    match stored.first() {
        Some(raw) if raw.body == planned.record.bytes => return Ok(Place::Ours),
        Some(_) => return Ok(Place::Foreign),
        None => {}
    }
    let last = ledger.tail().await?.sequence;
    Ok(match last + 1 < ours.sequence {
        true => Place::Shorter { last },
        false => Place::Empty,
    })
}
