//! An audit of what this process never read: the ledger before the snapshot it started from.
//!
//! Starting must be quick, so a candidate trusts its snapshot and leads; that what lies before it is whole is checked on
//! the side, at a fraction of the speed the store has, and again every day through the present end. What is found makes
//! the candidate step down and stay down, also over restarts, by a note in the data directory. Rejected: auditing before
//! leading, which makes a start as slow as the ledger is long; and only alarming, which goes on writing onto a history
//! that can no longer be proven.
//!
//! Invariant: the audit only reads; a store that cannot be reached is asked again later and proves nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::shared::Shared;
use super::trouble::Trouble;
use crate::backoff::Backoff;
use crate::chain::ChainReader;
use crate::damage::{Damage, DamageNote};
use crate::digest::Anchor;
use crate::fold::FoldError;
use crate::verify::walk;

/// Records checked between two pauses.
const PORTION: u64 = 512;

/// A pause is so many times as long as the work before it: the audit takes a quarter of one core at most.
const REST: u32 = 3;

/// Longest pause between two portions.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Time between two audits of a process that goes on running.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

/// Starts the audit, once a process: first up to `began`, which was taken on trust.
pub(super) fn audit(shared: &Arc<Shared>, began: Anchor) {
    if shared.audited.swap(true, Ordering::AcqRel) {
        return;
    }
    let own = Arc::clone(shared);
    shared.outside.spawn(async move {
        let shutdown = own.shutdown.clone();
        // What it finds is in `shared`; on shutdown it ends wherever it is.
        let _ = shutdown.run_until_cancelled(run(own, began)).await;
    });
}

async fn run(shared: Arc<Shared>, began: Anchor) {
    let mut until = began;
    loop {
        if let Some(damage) = pass(&shared, until).await {
            found(&shared, damage).await;
            return;
        }
        if until.sequence > 0 {
            tracing::info!(
                code = "ledger_audited",
                sequence = until.sequence,
                "the ledger is whole up to here"
            );
        }
        tokio::time::sleep(AGAIN).await;
        until = *shared.checkpoint.borrow();
    }
}

/// Walks from the first record through `until`; the damage, if there is any.
async fn pass(shared: &Shared, until: Anchor) -> Option<Damage> {
    let mut reader = ChainReader::new(shared.ledger.genesis());
    let mut backoff = Backoff::new();
    while reader.head().sequence < until.sequence {
        let began = Instant::now();
        let portion = until.sequence.min(reader.head().sequence + PORTION);
        match walk(&*shared.ledger, &mut reader, portion, |_| {}).await {
            Ok(()) => backoff.reset(),
            Err(error) => match Damage::of_walk(&error) {
                Some(damage) => return Some(damage),
                None => backoff.pause().await,
            },
        }
        tokio::time::sleep((began.elapsed() * REST).min(LONGEST_REST)).await;
    }
    (reader.head().hash != until.hash).then(|| Damage {
        first_bad_seq: until.sequence,
        code: "ledger_forked".to_owned(),
        reason: format!(
            "record {} has hash {}, but {} was there before: history was replaced",
            until.sequence,
            reader.head().hash,
            until.hash
        ),
    })
}

async fn found(shared: &Arc<Shared>, damage: Damage) {
    tracing::error!(
        code = damage.code,
        first_bad_seq = damage.first_bad_seq,
        reason = damage.reason,
        "the ledger is damaged: this process stops writing to it"
    );
    shared.damage.send_replace(Some(damage.clone()));
    let Some(path) = shared.config.damage.clone() else {
        return;
    };
    let note = DamageNote::new(shared.ledger.genesis().ledger_id, damage);
    let saved = tokio::task::spawn_blocking(move || note.save(&path)).await;
    if let Ok(Err(error)) = saved {
        tracing::warn!(code = error.code(), %error, "the finding was not noted: after a restart it is found again");
    }
}

/// Whether damage found by this process, or an earlier one, is still there.
pub(super) async fn look_again(shared: &Shared) -> Result<(), Trouble> {
    if let Some(trouble) = shared.damaged() {
        return Err(trouble);
    }
    let Some(path) = &shared.config.damage else {
        return Ok(());
    };
    let Some(note) = DamageNote::load(path).map_err(|error| Trouble::from(&error))? else {
        return Ok(());
    };
    let there = note.look_again(&*shared.ledger).await;
    if let Some(damage) = there.map_err(|error| Trouble::from(&FoldError::from(error)))? {
        return Err(Trouble::damaged(damage));
    }
    tracing::warn!(
        code = "ledger_mended",
        "the damage found earlier is no longer in the ledger"
    );
    // If it stays, it is only looked at again.
    let _ = std::fs::remove_file(path);
    Ok(())
}
