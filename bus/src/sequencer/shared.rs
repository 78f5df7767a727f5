//! What the parts of one candidate share: its settings, what it says about itself, and its small jobs on the side.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidemill_domain::time::Timestamp;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::core::Now;
use super::status::{CandidateStatus, Counters, Role};
use super::trouble::Trouble;
use super::{Clock, SequencerConfig};
use crate::checkpoint::Checkpoint;
use crate::damage::Damage;
use crate::digest::Anchor;
use crate::identity::LedgerId;
use crate::ledger::Ledger;
use crate::snapshots::{EncodedSnapshot, SnapshotStore};

/// Least time between two writes of the checkpoint: an older one only proves less, and each costs two fsyncs.
const CHECKPOINT_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct Shared {
    pub(super) config: SequencerConfig,
    pub(super) ledger: Arc<dyn Ledger>,
    pub(super) snapshots: Option<SnapshotStore>,
    pub(super) status: watch::Sender<CandidateStatus>,
    pub(super) counters: Arc<Counters>,
    pub(super) shutdown: CancellationToken,
    /// There is no transport to other candidates.
    alone: bool,
    /// The runtime of the rest of the process, for work that must not hold up decisions.
    pub(super) outside: tokio::runtime::Handle,
    pub(super) checkpoint: watch::Sender<Anchor>,
    /// What an audit of the past found; once set it stays.
    pub(super) damage: watch::Sender<Option<Damage>>,
    pub(super) audited: AtomicBool,
    saving: Arc<AtomicBool>,
    started: Instant,
}

impl Shared {
    pub(super) fn new(
        config: SequencerConfig,
        ledger: Arc<dyn Ledger>,
        status: watch::Sender<CandidateStatus>,
        counters: Arc<Counters>,
        shutdown: CancellationToken,
        outside: tokio::runtime::Handle,
        alone: bool,
    ) -> Self {
        Self {
            snapshots: config.snapshots.clone(),
            checkpoint: watch::Sender::new(ledger.genesis().anchor()),
            damage: watch::Sender::new(None),
            audited: AtomicBool::new(false),
            config,
            ledger,
            status,
            counters,
            shutdown,
            alone,
            outside,
            saving: Arc::default(),
            started: Instant::now(),
        }
    }

    pub(super) fn now(&self) -> Now {
        let wall = match &self.config.clock {
            Clock::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
            }
            Clock::Manual(clock) => clock(),
        };
        Now {
            wall,
            elapsed: self.started.elapsed(),
        }
    }

    pub(super) fn set_role(&self, role: Role) {
        self.status.send_if_modified(|status| {
            let changed = status.role != role;
            if changed {
                if let Role::ReadOnly { code, reason, next } = &role {
                    tracing::error!(code, reason, next, "no commands are taken");
                }
                if !matches!(role, Role::ReadOnly { .. }) {
                    status.damage = None;
                }
                status.role = role;
            }
            changed
        });
    }

    /// What a leader's trouble means here: being deposed is ordinary only among candidates that know of each other.
    pub(super) fn judge(&self, trouble: Trouble) -> Trouble {
        match trouble.ordinary && self.alone {
            true => Trouble::second_writer(trouble.reason),
            false => trouble,
        }
    }

    /// Shows the trouble before anyone is told of it: who was refused must not find a leader in the status.
    pub(super) fn show(&self, trouble: &Trouble) {
        self.status.send_if_modified(|status| {
            let changed = status.damage != trouble.damage;
            status.damage.clone_from(&trouble.damage);
            changed
        });
        self.set_role(match trouble.ordinary {
            true => Role::Standby,
            false => trouble.role(),
        });
    }

    /// What an audit of the past found, as the reason to stay down.
    pub(super) fn damaged(&self) -> Option<Trouble> {
        self.damage.borrow().clone().map(Trouble::damaged)
    }

    pub(super) fn set_leader(&self) {
        if !self.status.borrow().is_leader() {
            self.set_role(Role::Leader);
        }
    }

    /// A record of this or another writer is folded.
    pub(super) fn set_sequence(&self, epoch: u64, head: Anchor) {
        self.checkpoint.send_replace(head);
        self.status.send_modify(|status| {
            status.epoch = epoch;
            status.sequence = head.sequence;
        });
    }

    pub(super) fn set_leader_name(&self, leader: &str) {
        self.status.send_if_modified(|status| {
            let changed = status.leader != leader;
            if changed {
                leader.clone_into(&mut status.leader);
            }
            changed
        });
    }

    /// Encodes here and writes elsewhere; false if the last one is still being written or none are kept.
    pub(super) fn save_snapshot(&self, encode: impl FnOnce() -> EncodedSnapshot) -> bool {
        let Some(store) = self.snapshots.clone() else {
            return false;
        };
        if self.saving.swap(true, Ordering::AcqRel) {
            return false;
        }
        let snapshot = encode();
        let saving = Arc::clone(&self.saving);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = store.save(&snapshot) {
                tracing::warn!(code = error.code(), %error, "a snapshot was not written; starting takes longer without");
            }
            saving.store(false, Ordering::Release);
        });
        true
    }
}

/// Writes the checkpoint file as the ledger grows, and a last time when `ended` says so.
pub(super) async fn keep_checkpoint(
    path: PathBuf,
    ledger_id: LedgerId,
    mut anchors: watch::Receiver<Anchor>,
    ended: CancellationToken,
) {
    loop {
        let changed = tokio::select! {
            biased;
            changed = anchors.changed() => changed.is_ok(),
            () = ended.cancelled() => false,
        };
        let anchor = *anchors.borrow_and_update();
        if changed && anchor.sequence > 0 {
            let checkpoint = Checkpoint { ledger_id, anchor };
            let path = path.clone();
            let saved = tokio::task::spawn_blocking(move || checkpoint.save(&path)).await;
            if let Ok(Err(error)) = saved {
                tracing::warn!(code = error.code(), %error, "the checkpoint was not written; the older one stands");
            }
        }
        if !changed {
            return;
        }
        tokio::select! {
            () = ended.cancelled() => {}
            () = tokio::time::sleep(CHECKPOINT_PAUSE) => {}
        }
    }
}
