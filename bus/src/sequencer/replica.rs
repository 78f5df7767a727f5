//! A candidate's fold: the state and the command ids, from the newest snapshot on.

use tidemill_domain::state::Touched;

use super::dedupe::Dedupe;
use crate::digest::Anchor;
use crate::fold::{Fold, FoldError};
use crate::ledger::{Ledger, RawRecord};
use crate::snapshots::{EncodedSnapshot, SnapshotStore};

/// Records and bytes read at once.
const BATCH: usize = 512;
const BATCH_BYTES: usize = 4 << 20;

pub(super) struct Replica {
    fold: Fold,
    dedupe: Dedupe,
    touched: Touched,
    /// The snapshot's place: nothing up to there was read.
    pub(super) began: Anchor,
    /// Events folded since the snapshot it began with.
    pub(super) unsaved_events: u64,
}

impl Replica {
    /// Starts from the newest snapshot the ledger agrees with.
    pub(super) async fn load(ledger: &dyn Ledger, snapshots: Option<&SnapshotStore>) -> Result<Self, FoldError> {
        let genesis = ledger.genesis();
        let found = match snapshots {
            Some(store) => store.load(ledger, u64::MAX).await?,
            None => None,
        };
        let (fold, dedupe) = match found {
            Some(snapshot) => (Fold::resume(genesis, snapshot.anchor, snapshot.state), snapshot.dedupe),
            None => (Fold::new(genesis), Dedupe::default()),
        };
        Ok(Self {
            began: fold.head(),
            fold,
            dedupe,
            touched: Touched::new(),
            unsaved_events: 0,
        })
    }

    pub(super) fn head(&self) -> Anchor {
        self.fold.head()
    }

    pub(super) fn fold(&self) -> &Fold {
        &self.fold
    }

    pub(super) fn into_parts(self) -> (Fold, Dedupe) {
        (self.fold, self.dedupe)
    }

    pub(super) fn record(&mut self, raw: &RawRecord) -> Result<(), FoldError> {
        self.touched.clear();
        let before = self.fold.state().events;
        let folded = self.fold.record(raw, &mut self.touched)?;
        self.dedupe.fold(raw.sequence, &folded.commits);
        self.unsaved_events += self.fold.state().events - before;
        Ok(())
    }

    /// Folds up to the ledger's present end.
    pub(super) async fn catch_up(&mut self, ledger: &dyn Ledger) -> Result<(), FoldError> {
        let tail = ledger.tail().await?;
        if tail.sequence < self.head().sequence {
            let (last, seen) = (tail.sequence, self.head().sequence);
            return Err(crate::ledger::ReadError::Shorter { last, seen }.into());
        }
        while self.head().sequence < tail.sequence {
            let batch = ledger.read(self.head().sequence + 1, BATCH, BATCH_BYTES).await?;
            if batch.is_empty() {
                let (last, seen) = (self.head().sequence, tail.sequence);
                return Err(crate::ledger::ReadError::Shorter { last, seen }.into());
            }
            batch.iter().try_for_each(|raw| self.record(raw))?;
        }
        Ok(())
    }

    pub(super) fn encode_snapshot(&self, ledger: &dyn Ledger) -> EncodedSnapshot {
        EncodedSnapshot::new(ledger.genesis(), self.head(), self.fold.state(), &self.dedupe)
    }
}
