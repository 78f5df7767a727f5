//! A state kept up to date: what every reader in a process looks at.
//!
//! One task follows the ledger, checks the chain, folds, and says how far it is; readers look at the state under a short
//! lock. A process needs one view, however many workers and handlers read it. The alternative, a copy of the state per
//! reader, would cost a clone of a pool per change.
//!
//! Invariants: the state shown is always the fold of a whole number of records; progress never goes back; a view that
//! cannot go on says why and keeps showing the last good state, marked as such.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tidemill_domain::state::{State, Touched};
use tidemill_domain::time::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::ahead::Ahead;
use crate::digest::Digest;
use crate::fold::{Fold, FoldError};
use crate::ledger::{FollowStatus, Ledger, ReadError};
use crate::snapshots::SnapshotStore;

/// Pause between two questions for the ledger's end, where the backend does not tell.
const ASK_FOR_END: Duration = Duration::from_secs(1);

/// How far a view is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Last record folded.
    pub sequence: u64,
    /// Its hash.
    pub hash: Digest,
    /// Its time.
    pub recorded_at: Timestamp,
    /// Last record of the ledger, as last heard; never below `sequence`.
    pub ledger_last: u64,
}

impl Progress {
    /// Records not folded yet.
    #[must_use]
    pub fn lag(&self) -> u64 {
        self.ledger_last - self.sequence
    }
}

/// A view that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The ledger cannot be read or folded.
    #[error(transparent)]
    Fold(#[from] FoldError),
}

impl ViewError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Fold(error) => error.code(),
        }
    }
}

impl From<ReadError> for ViewError {
    fn from(error: ReadError) -> Self {
        Self::Fold(error.into())
    }
}

/// How a view is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ViewHealth {
    /// It follows.
    Live,
    /// It cannot go on: what is shown stays as it is.
    Stopped(FoldError),
}

/// A state folded from the ledger, kept up to date by a task.
#[derive(Debug)]
pub struct StateView {
    fold: RwLock<Fold>,
    progress: watch::Sender<Progress>,
    health: watch::Sender<ViewHealth>,
    reading: watch::Receiver<FollowStatus>,
}

impl StateView {
    /// Loads the newest usable snapshot and begins to follow. Returns before it has caught up: wait for a sequence with
    /// [`StateView::wait_for`].
    pub async fn start(
        ledger: Arc<dyn Ledger>,
        snapshots: Option<SnapshotStore>,
        shutdown: CancellationToken,
    ) -> Result<Arc<Self>, ViewError> {
        let found = match &snapshots {
            Some(store) => store.load(&*ledger, u64::MAX).await?,
            None => None,
        };
        let fold = match found {
            Some(snapshot) => Fold::resume(ledger.genesis(), snapshot.anchor, snapshot.state),
            None => Fold::new(ledger.genesis()),
        };
        let follow = ledger.follow(fold.chain().next_sequence()).await?;
        let view = Arc::new(Self {
            progress: watch::Sender::new(Progress {
                sequence: fold.head().sequence,
                hash: fold.head().hash,
                recorded_at: fold.state().recorded_at,
                ledger_last: fold.head().sequence,
            }),
            health: watch::Sender::new(ViewHealth::Live),
            reading: follow.status(),
            fold: RwLock::new(fold),
        });
        tokio::spawn(Arc::clone(&view).run(Ahead::start(follow), shutdown.clone()));
        tokio::spawn(Arc::clone(&view).watch_end(ledger, shutdown));
        Ok(view)
    }

    /// Looks at the state. Other readers and the follower wait meanwhile: keep it short.
    pub fn read<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(self.fold.read().unwrap_or_else(PoisonError::into_inner).state())
    }

    /// Progress as it changes.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.subscribe()
    }

    /// Whether it follows, and why not.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<ViewHealth> {
        self.health.subscribe()
    }

    /// Whether records reach it, or what holds them up for now.
    #[must_use]
    pub fn reading(&self) -> watch::Receiver<FollowStatus> {
        self.reading.clone()
    }

    /// Waits until record `sequence` is folded. False if that takes longer than `timeout` or the view has stopped.
    pub async fn wait_for(&self, sequence: u64, timeout: Duration) -> bool {
        let mut progress = self.progress.subscribe();
        let mut health = self.health.subscribe();
        tokio::select! {
            biased;
            reached = progress.wait_for(|p| p.sequence >= sequence) => reached.is_ok(),
            _ = health.wait_for(|h| *h != ViewHealth::Live) => false,
            () = tokio::time::sleep(timeout) => false,
        }
    }

    /// Keeps `ledger_last` true: by word of the backend where it has one, by asking else.
    async fn watch_end(self: Arc<Self>, ledger: Arc<dyn Ledger>, shutdown: CancellationToken) {
        let mut word = ledger.watch_tail();
        loop {
            let last = match &mut word {
                Some(word) => Some(*word.borrow_and_update()),
                None => ledger.tail().await.ok().map(|tail| tail.sequence),
            };
            if let Some(last) = last {
                self.progress.send_if_modified(|p| {
                    let more = last > p.ledger_last;
                    p.ledger_last = p.ledger_last.max(last);
                    more
                });
            }
            let changed = async {
                match &mut word {
                    Some(word) => {
                        if word.changed().await.is_err() {
                            // Without its sender the ledger is gone; the follower meets that.
                            std::future::pending().await
                        }
                    }
                    None => tokio::time::sleep(ASK_FOR_END).await,
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = changed => {}
            }
        }
    }

    async fn run(self: Arc<Self>, mut ahead: Ahead, shutdown: CancellationToken) {
        let mut touched = Touched::new();
        loop {
            let batch = tokio::select! {
                () = shutdown.cancelled() => return,
                batch = ahead.next() => batch,
            };
            let folded = batch.map_err(FoldError::from).and_then(|batch| {
                batch.into_iter().try_for_each(|prepared| {
                    let mut fold = self.fold.write().unwrap_or_else(PoisonError::into_inner);
                    touched.clear();
                    fold.prepared(prepared, &mut touched)?;
                    let (head, recorded_at) = (fold.head(), fold.state().recorded_at);
                    drop(fold);
                    self.progress.send_modify(|p| {
                        *p = Progress {
                            sequence: head.sequence,
                            hash: head.hash,
                            recorded_at,
                            ledger_last: p.ledger_last.max(head.sequence),
                        };
                    });
                    Ok(())
                })
            });
            if let Err(error) = folded {
                tracing::error!(code = error.code(), %error, next = error.next_step(), "the view of the ledger stopped");
                self.health.send_replace(ViewHealth::Stopped(error));
                return;
            }
        }
    }
}
