//! A candidate's fold: the state and the command ids, from the newest snapshot on.

use std::sync::Arc;

use tidemill_domain::state::Touched;

use super::dedupe::Dedupe;
use crate::ahead::{Ahead, Stretch};
use crate::digest::Anchor;
use crate::fold::{Fold, FoldError, Prepared};
use crate::ledger::Ledger;
use crate::snapshots::{EncodedSnapshot, SnapshotStore};

pub(super) struct Replica {
    fold: Fold,
    dedupe: Dedupe,
    touched: Touched,
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

    pub(super) fn record(&mut self, prepared: Prepared) -> Result<(), FoldError> {
        self.touched.clear();
        let before = self.fold.state().events;
        let folded = self.fold.prepared(prepared, &mut self.touched)?;
        self.dedupe.fold(folded.record.header.sequence, &folded.commits);
        self.unsaved_events += self.fold.state().events - before;
        Ok(())
    }

    /// Folds up to the ledger's present end.
    pub(super) async fn catch_up(&mut self, ledger: &Arc<dyn Ledger>) -> Result<(), FoldError> {
        let tail = ledger.tail().await?;
        let head = self.head().sequence;
        if tail.sequence < head {
            let (last, seen) = (tail.sequence, head);
            return Err(crate::ledger::ReadError::Shorter { last, seen }.into());
        }
        let mut ahead = Ahead::start(Stretch::new(Arc::clone(ledger), head + 1, tail.sequence));
        while self.head().sequence < tail.sequence {
            let prepared = ahead.next().await?;
            prepared.into_iter().try_for_each(|prepared| self.record(prepared))?;
        }
        Ok(())
    }

    pub(super) fn encode_snapshot(&self, ledger: &dyn Ledger) -> EncodedSnapshot {
        EncodedSnapshot::new(ledger.genesis(), self.head(), self.fold.state(), &self.dedupe)
    }
}
