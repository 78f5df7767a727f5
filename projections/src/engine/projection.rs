//! The core: records in, rows out, one transaction a batch. No waiting, no clock; the one thread beside it only hashes and
//! decodes what is to come, where there is much of it.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::mpsc::sync_channel;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use tidemill_bus::chain::{ChainError, ChainFault, ChainReader};
use tidemill_bus::digest::{Anchor, Digest};
use tidemill_bus::fold::{FoldError, FoldedRecord, Prepared};
use tidemill_bus::identity::Genesis;
use tidemill_bus::ledger::RawRecord;
use tidemill_domain::commit::{Address, CommitHeader};
use tidemill_domain::events::Event;
use tidemill_domain::state::{Entity, EventMeta, STATE_VERSION, State, Touched};
use tidemill_domain::time::Timestamp;

use super::error::{ProjectError, Stale};
use super::retire::Leaving;
use super::view::{HistoryEvent, Retired, View, views};
use super::{schema, snapshots};
use crate::history::tell;
use crate::rows::dependents;

/// How a projection works.
pub struct ProjectionOptions {
    /// A transaction is closed once it holds this many events (at the end of a record). The more there are, the more
    /// changes of a row cost one upsert, and of a page one write: 16,000 take some 0.3 s and a third less time than in
    /// batches of 4,000. Only what has queued up is batched; nothing waits for a batch to fill.
    pub batch_events: usize,
    /// Events between two snapshots.
    pub snapshot_every: u64,
    /// Asked at each [`Point`]: true breaks the batch off there, as a kill would. For tests.
    pub interrupt: Option<Box<dyn FnMut(Point) -> bool + Send>>,
}

impl Default for ProjectionOptions {
    fn default() -> Self {
        Self {
            batch_events: 16_000,
            snapshot_every: 50_000,
            interrupt: None,
        }
    }
}

/// Where a batch may be broken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// The transaction has begun.
    Begun,
    /// A record's events are written, current rows are not.
    Record,
    /// A changed entity's rows are written.
    Entity,
    /// All is written, nothing committed.
    Written,
    /// Committed, nobody knows.
    Committed,
}

/// Tables and the state they are of.
pub struct Projection {
    conn: Connection,
    genesis: Genesis,
    /// Where the tables stand; the fold stands before it while it catches up from a snapshot.
    cursor: Anchor,
    fold: Fold,
}

/// Everything but the file.
struct Fold {
    views: Vec<Box<dyn View>>,
    options: ProjectionOptions,
    state: State,
    chain: ChainReader,
    snapshot_events: u64,
    /// Changed since the transaction began.
    dirty: HashSet<Entity>,
    /// Forgotten by the state since the transaction began.
    retired: BTreeMap<Entity, Retired>,
    touched: Touched,
}

impl Projection {
    /// Opens the tables in `path`, laying or migrating them as needed. Tables of another ledger or version are reset;
    /// the second value says why, if they held anything.
    pub fn open(
        path: &Path,
        genesis: &Genesis,
        options: ProjectionOptions,
    ) -> Result<(Self, Option<Stale>), ProjectError> {
        let conn = Connection::open(path)?;
        conn.busy_timeout(std::time::Duration::from_secs(5))?;
        conn.set_prepared_statement_cache_capacity(64);
        // NORMAL in WAL mode may lose the last transactions with the power, whole ones: they are folded again.
        conn.pragma_update(None, "journal_mode", "WAL")?;
        conn.pragma_update(None, "synchronous", "NORMAL")?;
        // A batch dirties some thousand pages; written back once in several batches instead of after each.
        conn.pragma_update(None, "wal_autocheckpoint", 16_384)?;
        conn.pragma_update(None, "cache_size", -65_536)?;
        conn.pragma_update(None, "temp_store", "MEMORY")?;
        let known = schema::version(&conn)?;
        let newer = known as usize > schema::MIGRATIONS.len();
        let migrated = !newer && schema::migrate(&conn)? > 0 && known > 0;
        let mut projection = Self {
            conn,
            genesis: genesis.clone(),
            cursor: genesis.anchor(),
            fold: Fold {
                views: views(),
                options,
                state: State::default(),
                chain: ChainReader::new(genesis),
                snapshot_events: 0,
                dirty: HashSet::new(),
                retired: BTreeMap::new(),
                touched: Touched::new(),
            },
        };
        let stale = if newer || migrated {
            Some(Stale::OtherVersion)
        } else {
            projection.resume()?
        };
        if stale.is_some() {
            projection.reset()?;
        }
        Ok((projection, stale))
    }

    /// Takes up where the tables stand. Some = they are not this ledger's.
    fn resume(&mut self) -> Result<Option<Stale>, ProjectError> {
        let row = self
            .conn
            .query_row(
                "SELECT cell, ledger, sequence, hash, state_version FROM cursor",
                [],
                |row| {
                    Ok((
                        row.get::<_, String>(0)?,
                        row.get::<_, String>(1)?,
                        row.get::<_, i64>(2)?,
                        row.get::<_, [u8; 32]>(3)?,
                        row.get::<_, u32>(4)?,
                    ))
                },
            )
            .optional()?;
        let Some((cell, ledger, sequence, hash, version)) = row else {
            self.reset()?;
            return Ok(None);
        };
        if cell != self.genesis.cell.as_str() || ledger != self.genesis.ledger_id.to_string() {
            return Ok(Some(Stale::OtherLedger { found: ledger, cell }));
        }
        if version != STATE_VERSION {
            return Ok(Some(Stale::OtherVersion));
        }
        self.cursor = Anchor {
            sequence: sequence.cast_unsigned(),
            hash: Digest(hash),
        };
        if let Some(snapshot) = snapshots::nearest(&self.conn, self.cursor.sequence)? {
            self.fold.chain = ChainReader::from_anchor(&self.genesis, snapshot.anchor);
            self.fold.snapshot_events = snapshot.state.events;
            self.fold.state = snapshot.state;
        }
        Ok(None)
    }

    /// Drops every row and begins before record 1.
    pub fn reset(&mut self) -> Result<(), ProjectError> {
        self.conn.flush_prepared_statement_cache();
        let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)?;
        schema::reset(&tx)?;
        let anchor = self.genesis.anchor();
        tx.execute(
            "INSERT INTO cursor (id, cell, ledger, sequence, hash, recorded_at, events, state_version)
             VALUES (1, ?1, ?2, 0, ?3, 0, 0, ?4)",
            params![
                self.genesis.cell.as_str(),
                self.genesis.ledger_id.to_string(),
                anchor.hash.0,
                STATE_VERSION
            ],
        )?;
        tx.commit()?;
        self.cursor = anchor;
        self.fold.state = State::default();
        self.fold.chain = ChainReader::new(&self.genesis);
        self.fold.snapshot_events = 0;
        Ok(())
    }

    /// Where the tables stand.
    pub fn cursor(&self) -> Anchor {
        self.cursor
    }

    /// Time of the record where the tables stand; 1970 before any.
    pub fn cursor_time(&self) -> Result<Timestamp, ProjectError> {
        let micros = self
            .conn
            .query_row("SELECT recorded_at FROM cursor", [], |row| row.get(0))?;
        Ok(Timestamp(micros))
    }

    /// The record wanted next: behind the fold, which may stand before the tables.
    pub fn next_sequence(&self) -> u64 {
        self.fold.chain.next_sequence()
    }

    /// The state folded so far.
    pub fn state(&self) -> &State {
        &self.fold.state
    }

    /// Whether the fold has reached the tables, so that from here on records become rows.
    pub fn caught_up(&self) -> bool {
        self.fold.chain.head().sequence >= self.cursor.sequence
    }

    /// Every row as text, sorted.
    pub fn dump(&self) -> Result<Vec<String>, ProjectError> {
        Ok(schema::dump(&self.conn)?)
    }

    /// Takes records, in order; those it has are skipped. Calls `committed` after each transaction.
    pub fn apply(&mut self, records: &[RawRecord], mut committed: impl FnMut(&Self)) -> Result<(), ProjectError> {
        let known = self.fold.chain.head().sequence;
        let rest = &records[records.partition_point(|r| r.sequence <= known)..];
        prepared(rest, |records| {
            let mut records = records.peekable();
            while let Some(prepared) = records.next_if(|r| r.sequence() <= self.cursor.sequence) {
                self.fold.catch_up(prepared, &self.cursor)?;
            }
            while records.peek().is_some() {
                self.transact(&mut records)?;
                committed(self);
                self.fold.point(Point::Committed)?;
            }
            Ok(())
        })
    }

    /// One transaction over the first of `records`.
    fn transact(&mut self, records: &mut dyn Iterator<Item = Prepared>) -> Result<(), ProjectError> {
        let fold = &mut self.fold;
        fold.dirty.clear();
        let tx = Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate)?;
        fold.point(Point::Begun)?;
        let first = fold.state.events;
        for prepared in records {
            fold.record(&tx, prepared)?;
            fold.point(Point::Record)?;
            if fold.state.events - first >= fold.options.batch_events as u64 {
                break;
            }
        }
        fold.rows(&tx)?;
        for view in &fold.views {
            view.finish(&tx)?;
        }
        let head = fold.chain.head();
        tx.prepare_cached("UPDATE cursor SET sequence = ?1, hash = ?2, recorded_at = ?3, events = ?4")?
            .execute(params![
                head.sequence.cast_signed(),
                head.hash.0,
                fold.chain.recorded_at(),
                fold.state.events.cast_signed()
            ])?;
        if fold.state.events - fold.snapshot_events >= fold.options.snapshot_every {
            snapshots::keep(&tx, &head, &fold.state)?;
            fold.snapshot_events = fold.state.events;
        }
        fold.point(Point::Written)?;
        tx.commit()?;
        self.cursor = head;
        Ok(())
    }
}

impl Fold {
    fn follow(&mut self, prepared: Prepared) -> Result<FoldedRecord, ProjectError> {
        let sequence = prepared.sequence();
        prepared.follow(&mut self.chain).map_err(|error| match error {
            // It does not follow what was read before: most likely another history has taken the ledger's place.
            FoldError::Chain(ChainError {
                fault: ChainFault::BrokenLink { .. },
                ..
            }) => Stale::Forked { sequence }.into(),
            FoldError::Chain(error) => error.into(),
            unreadable => ProjectError::Decode(unreadable),
        })
    }

    /// Folds a record whose rows are written.
    fn catch_up(&mut self, prepared: Prepared, cursor: &Anchor) -> Result<(), ProjectError> {
        let FoldedRecord { record, commits } = self.follow(prepared)?;
        let sequence = record.header.sequence;
        if sequence == cursor.sequence && record.hash != cursor.hash {
            return Err(Stale::Forked { sequence }.into());
        }
        self.touched.clear();
        self.state.apply_record(sequence, &commits, &mut self.touched)?;
        Ok(())
    }

    /// Folds a record and writes its events.
    fn record(&mut self, tx: &Transaction<'_>, prepared: Prepared) -> Result<(), ProjectError> {
        let FoldedRecord { record, commits } = self.follow(prepared)?;
        let sequence = record.header.sequence;
        let mut index = 0;
        for commit in commits {
            for event in &commit.events {
                let meta = EventMeta {
                    address: Address { sequence, index },
                    recorded_at: commit.header.recorded_at,
                    trace: commit.header.trace,
                };
                self.event(tx, &commit.header, event, &meta)?;
                index += 1;
            }
        }
        Ok(())
    }

    fn event(
        &mut self,
        tx: &Transaction<'_>,
        header: &CommitHeader,
        event: &Event,
        meta: &EventMeta,
    ) -> Result<(), ProjectError> {
        let told = tell(event, &header.actor, &self.state);
        let leaving = Leaving::before(event, &self.state, &self.dirty);
        self.touched.clear();
        self.state.apply(event, meta, &mut self.touched)?;
        let history = HistoryEvent {
            address: meta.address,
            header,
            event,
            told: &told,
        };
        for view in &self.views {
            view.event(tx, &history)?;
        }
        for entity in self.touched.drain(..) {
            if let Some(dependent) = dependents(&self.state, &entity) {
                self.dirty.insert(dependent);
            }
            self.dirty.insert(entity);
        }
        for retired in leaving.after(event, meta, &self.state) {
            let entity = retired.entity();
            self.dirty.remove(&entity);
            self.retired.insert(entity, retired);
        }
        Ok(())
    }

    /// Writes the current rows of everything that changed.
    fn rows(&mut self, tx: &Transaction<'_>) -> Result<(), ProjectError> {
        // In order, so that neighbours in the tables are written together.
        for retired in std::mem::take(&mut self.retired).into_values() {
            for view in &self.views {
                view.retire(tx, &retired)?;
            }
        }
        let mut dirty: Vec<Entity> = self.dirty.drain().collect();
        dirty.sort_unstable();
        for entity in &dirty {
            for view in &self.views {
                view.entity(tx, &self.state, entity)?;
            }
            self.point(Point::Entity)?;
        }
        Ok(())
    }

    fn point(&mut self, point: Point) -> Result<(), ProjectError> {
        if self
            .options
            .interrupt
            .as_mut()
            .is_some_and(|interrupt| interrupt(point))
        {
            return Err(ProjectError::Interrupted);
        }
        Ok(())
    }
}

/// Hands `work` the records prepared: on a thread beside it, a bounded way ahead, where they are many.
fn prepared<T>(records: &[RawRecord], work: impl FnOnce(&mut dyn Iterator<Item = Prepared>) -> T) -> T {
    /// A thread costs as much as some hundred small records.
    const WORTH_A_THREAD: usize = 100;
    const AHEAD: usize = 16;
    if records.len() < WORTH_A_THREAD {
        return work(&mut records.iter().map(Prepared::of));
    }
    std::thread::scope(|scope| {
        let (sender, receiver) = sync_channel(AHEAD);
        scope.spawn(move || {
            // Refused once the work has ended.
            let _ = records
                .iter()
                .try_for_each(|raw| sender.send(Prepared::of(raw)).map_err(drop));
        });
        work(&mut receiver.into_iter())
    })
}
