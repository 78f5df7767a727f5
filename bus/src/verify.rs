//! Walking a stored ledger link by link.
//!
//! [`walk`] is what `verify`, exports and rebuilds have in common: read through the [`Ledger`] trait, check through a
//! [`ChainReader`], hand each record on. It reports the first bad sequence, whether the store could not give the record
//! back or gave back something else than was written.

use crate::chain::{ChainError, ChainReader};
use crate::ledger::{Ledger, ReadError};
use crate::record::Record;

/// Records and bytes read at once.
const BATCH: usize = 512;
const BATCH_BYTES: usize = 4 << 20;

/// Why a walk stopped before its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WalkError {
    /// A record is not what must stand there.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The store did not give records back.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl WalkError {
    /// The first bad sequence, where the ledger itself is at fault and not the way to it.
    #[must_use]
    pub fn first_bad_sequence(&self) -> Option<u64> {
        match self {
            Self::Chain(error) => Some(error.sequence),
            Self::Read(ReadError::Corrupt { sequence, .. }) => Some(*sequence),
            Self::Read(ReadError::Shorter { last, .. }) => Some(last + 1),
            Self::Read(_) => None,
        }
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Chain(error) => error.code(),
            Self::Read(error) => error.code(),
        }
    }
}

/// Checks records from where `reader` stands through sequence `until`, handing each to `each`. On an error `reader`
/// stands behind the last good record.
pub async fn walk(
    ledger: &dyn Ledger,
    reader: &mut ChainReader,
    until: u64,
    mut each: impl FnMut(&Record) + Send,
) -> Result<(), WalkError> {
    while reader.next_sequence() <= until {
        let next = reader.next_sequence();
        let wanted = usize::try_from(until - next)
            .unwrap_or(usize::MAX)
            .saturating_add(1)
            .min(BATCH);
        let batch = ledger.read(next, wanted, BATCH_BYTES).await?;
        if batch.is_empty() {
            return Err(ReadError::Shorter {
                last: next - 1,
                seen: until,
            }
            .into());
        }
        for raw in &batch {
            each(&reader.check(raw.sequence, &raw.body)?);
        }
    }
    Ok(())
}
