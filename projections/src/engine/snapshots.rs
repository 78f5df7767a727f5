//! States at some records, kept beside the rows so that folding to any point of the past begins nearby.
//!
//! A snapshot is a cache: readable only by a build of the same state version, dropped with the rows when the ledger
//! turns out to be another one, and never the source of a row. As history grows the older ones are thinned out, so
//! that their number is bounded and the recent past stays close.

use rusqlite::{Connection, OptionalExtension, params};
use tidemill_bus::digest::{Anchor, Digest};
use tidemill_domain::state::{STATE_VERSION, State};

/// Most snapshots kept; beyond it every second one of the older half goes.
const KEPT: i64 = 48;

/// A state and the record that it is the state after.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The record.
    pub anchor: Anchor,
    /// The state after it.
    pub state: State,
}

/// Somewhere snapshots come from. Blocking; what cannot be read is as good as absent.
pub trait SnapshotSource: Send + Sync {
    /// The latest snapshot whose record is `sequence` or before it.
    fn nearest(&self, sequence: u64) -> Option<Snapshot>;
}

/// No snapshots: every fold begins with record 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSnapshots;

impl SnapshotSource for NoSnapshots {
    fn nearest(&self, _sequence: u64) -> Option<Snapshot> {
        None
    }
}

impl SnapshotSource for tidemill_bus::snapshots::SnapshotStore {
    fn nearest(&self, sequence: u64) -> Option<Snapshot> {
        let found = self.nearest_at_or_before(sequence)?;
        Some(Snapshot {
            anchor: found.anchor,
            state: found.state,
        })
    }
}

/// The nearest snapshot in a read models' file.
pub(crate) fn nearest(conn: &Connection, sequence: u64) -> rusqlite::Result<Option<Snapshot>> {
    let mut bound = i64::try_from(sequence).unwrap_or(i64::MAX);
    loop {
        let found = conn
            .prepare_cached(
                "SELECT sequence, hash, body FROM snapshot WHERE sequence <= ?1 AND state_version = ?2
                 ORDER BY sequence DESC LIMIT 1",
            )?
            .query_row(params![bound, STATE_VERSION], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, [u8; 32]>(1)?,
                    row.get::<_, Vec<u8>>(2)?,
                ))
            })
            .optional()?;
        let Some((at, hash, body)) = found else {
            return Ok(None);
        };
        if let Ok(state) = State::from_snapshot(&body) {
            let anchor = Anchor {
                sequence: at.cast_unsigned(),
                hash: Digest(hash),
            };
            return Ok(Some(Snapshot { anchor, state }));
        }
        bound = at - 1;
    }
}

/// Keeps a snapshot, inside the caller's transaction.
pub(crate) fn keep(conn: &Connection, anchor: &Anchor, state: &State) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT OR REPLACE INTO snapshot (sequence, hash, state_version, body) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![
        anchor.sequence.cast_signed(),
        anchor.hash.0,
        STATE_VERSION,
        state.to_snapshot()
    ])?;
    let kept: i64 = conn.query_row("SELECT COUNT(*) FROM snapshot", [], |row| row.get(0))?;
    if kept > KEPT {
        conn.execute(
            "DELETE FROM snapshot WHERE sequence IN (SELECT sequence FROM
             (SELECT sequence, ROW_NUMBER() OVER (ORDER BY sequence) AS nth FROM snapshot)
             WHERE nth <= ?1 AND nth % 2 = 0)",
            [KEPT / 2],
        )?;
    }
    Ok(())
}
