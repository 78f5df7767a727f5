//! Time travel: the state at any point of the past, and the same lists over it.
//!
//! A point is a sequence (after that record) or a time (after the last record not recorded later). The state is folded
//! from the nearest snapshot, if any, through the chain; records are atomic, so no point lies inside one. It needs a
//! ledger and nothing else: a server's, a stopped one's data directory, a stream, an exported file.
//!
//! Invariant: a [`Moment`] lists exactly what the read models listed when they stood at its record. Rejected: keeping
//! the rows' own history in SQLite; it would grow with every change and be a second truth beside the ledger.

mod lists;

use std::collections::VecDeque;
use std::sync::Arc;

use tidemill_bus::chain::{ChainError, ChainReader};
use tidemill_bus::digest::Anchor;
use tidemill_bus::ledger::{Ledger, RawRecord, ReadError};
use tidemill_bus::record::Record;
use tidemill_domain::commit::Commit;
use tidemill_domain::events::{DecodeError, KINDS};
use tidemill_domain::state::{ApplyError, State, Touched};
use tidemill_domain::time::Timestamp;

use crate::engine::snapshots::{Snapshot, SnapshotSource};
use crate::filter::{EventFilter, Page};
use crate::history::{EventRow, Told, fold_rows};

pub use lists::Lists;

/// Records read at a time, and their bytes.
const READ: (usize, usize) = (4_096, 8 << 20);

/// A point on a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum At {
    /// After the last record.
    #[default]
    Latest,
    /// After this record; 0 = before the first.
    Sequence(u64),
    /// After the last record that was recorded then or before.
    Time(Timestamp),
}

/// Why there is no state at a point.
#[derive(Debug, thiserror::Error)]
pub enum TravelError {
    /// The ledger does not reach that far.
    #[error("the ledger ends at record {last}; there is no record {asked} yet")]
    AfterEnd {
        /// Asked for.
        asked: u64,
        /// Its last.
        last: u64,
    },
    /// Nothing was recorded by then.
    #[error("the ledger begins at {first}; there is nothing at {asked}")]
    BeforeBegin {
        /// Asked for.
        asked: Timestamp,
        /// Time of its first record.
        first: Timestamp,
    },
    /// The ledger holds nothing.
    #[error("the ledger is empty")]
    Empty,
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It does not hold.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// It has an event that this build cannot read.
    #[error("record {sequence}: {error}")]
    Decode {
        /// Where.
        sequence: u64,
        /// What.
        error: DecodeError,
    },
    /// It has an event that does not fit.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The page mark was not given out by this list.
    #[error("`{0}` is not a page mark")]
    BadPage(String),
    /// The program is ending.
    #[error("the program is shutting down")]
    ShuttingDown,
}

impl TravelError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            TravelError::AfterEnd { .. } => "after_end",
            TravelError::BeforeBegin { .. } => "before_begin",
            TravelError::Empty => "ledger_empty",
            TravelError::Read(error) => error.code(),
            TravelError::Chain(error) => error.code(),
            TravelError::Decode { .. } => "event_unreadable",
            TravelError::Apply(_) => "event_does_not_fit",
            TravelError::BadPage(_) => "bad_page",
            TravelError::ShuttingDown => "shutting_down",
        }
    }

    /// What to do about it.
    pub fn next(&self) -> &'static str {
        match self {
            TravelError::AfterEnd { .. } | TravelError::BeforeBegin { .. } => {
                "choose a point that the ledger covers (`tidemill events` shows its sequences and times)"
            }
            TravelError::Empty => "start a server on it first",
            TravelError::Read(error) if error.is_transient() => "try again once the store answers",
            TravelError::Read(_) | TravelError::Chain(_) => "run `tidemill verify`",
            TravelError::Decode { .. } | TravelError::Apply(_) => "use the release that wrote it, or a newer one",
            TravelError::BadPage(_) => "begin again without it",
            TravelError::ShuttingDown => "ask another server",
        }
    }
}

/// The state at a point.
#[derive(Debug, Clone)]
pub struct Moment {
    /// The state.
    pub state: State,
    /// The record that it is the state after.
    pub anchor: Anchor,
    /// Time of that record; 1970 before the first.
    pub recorded_at: Timestamp,
    /// Records folded to get there: what no snapshot spared.
    pub folded: u64,
}

/// Goes to points of one ledger.
#[derive(Clone)]
pub struct TimeTravel {
    ledger: Arc<dyn Ledger>,
    snapshots: Vec<Arc<dyn SnapshotSource>>,
}

/// A fold on its way.
struct Fold {
    chain: ChainReader,
    state: State,
}

impl TimeTravel {
    /// Over `ledger`, beginning from the nearest of these sources' snapshots.
    pub fn new(ledger: Arc<dyn Ledger>, snapshots: Vec<Arc<dyn SnapshotSource>>) -> Self {
        Self { ledger, snapshots }
    }

    /// The record that a point lies behind.
    pub async fn sequence(&self, at: At) -> Result<u64, TravelError> {
        let tail = self.ledger.tail().await?;
        match at {
            At::Latest => Ok(tail.sequence),
            At::Sequence(asked) if asked > tail.sequence => Err(TravelError::AfterEnd {
                asked,
                last: tail.sequence,
            }),
            At::Sequence(asked) => Ok(asked),
            At::Time(_) if tail.sequence == 0 => Err(TravelError::Empty),
            At::Time(asked) if tail.recorded_at <= asked.0 => Ok(tail.sequence),
            At::Time(asked) => {
                let first = self.recorded_at(1).await?;
                if first > asked {
                    return Err(TravelError::BeforeBegin { asked, first });
                }
                // `low` was recorded by then, `high` was not.
                let (mut low, mut high) = (1, tail.sequence);
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    if self.recorded_at(middle).await? <= asked {
                        low = middle;
                    } else {
                        high = middle;
                    }
                }
                Ok(low)
            }
        }
    }

    /// Time of the last record; 1970 on an empty ledger.
    pub async fn head_time(&self) -> Result<Timestamp, TravelError> {
        Ok(Timestamp(self.ledger.tail().await?.recorded_at))
    }

    /// The state at a point.
    pub async fn moment(&self, at: At) -> Result<Moment, TravelError> {
        let target = self.sequence(at).await?;
        let fold = self.begin(target).await?;
        let from = fold.chain.next_sequence();
        let fold = self
            .fold(fold, target, |fold: &mut Fold, _, record| {
                let commits = decode(&record)?;
                let mut touched = Touched::new();
                fold.state
                    .apply_record(record.header.sequence, &commits, &mut touched)?;
                Ok(())
            })
            .await?;
        Ok(Moment {
            // Behind a snapshot and before any record the chain has no time yet; the state has.
            recorded_at: fold.state.recorded_at.max(Timestamp(fold.chain.recorded_at())),
            anchor: fold.chain.head(),
            state: fold.state,
            folded: (target + 1).saturating_sub(from),
        })
    }

    /// `events` up to a point, rendered from the ledger alone.
    pub async fn events(&self, filter: EventFilter, at: At) -> Result<Page<EventRow>, TravelError> {
        let target = self.sequence(at).await?;
        let target = filter.until.map_or(target, |until| until.min(target));
        let mark = match &filter.page {
            None => (filter.after, u32::MAX),
            Some(mark) => parse_mark(mark).ok_or_else(|| TravelError::BadPage(mark.clone()))?,
        };
        let mut first = mark.0;
        if let Some(since) = filter.since {
            let before = Timestamp(since.0.saturating_sub(1));
            first = first.max(match self.sequence(At::Time(before)).await {
                Ok(sequence) => sequence,
                Err(TravelError::BeforeBegin { .. } | TravelError::Empty) => 0,
                Err(error) => return Err(error),
            });
        }
        // The record of the mark itself is folded again: a page may end inside one.
        let fold = self.begin(first.saturating_sub(1).min(target)).await?;
        let picked = Picked {
            mark,
            limit: filter.limit(),
            filter,
            rows: VecDeque::new(),
            more: false,
        };
        let picked = Arc::new(std::sync::Mutex::new(picked));
        let shared = picked.clone();
        let fold = self
            .fold(fold, target, move |fold: &mut Fold, stop, record| {
                let commits = decode(&record)?;
                let mut picked = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                fold_rows(&mut fold.state, record.header.sequence, &commits, |row, told| {
                    picked.take(row, &told);
                })?;
                *stop = picked.more && !picked.filter.newest;
                Ok(())
            })
            .await?;
        let mut picked = picked.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let rows: Vec<EventRow> = std::mem::take(&mut picked.rows).into();
        let next = rows.last().map(|row| format!("{}.{}", row.seq, row.index));
        Ok(Page {
            next: next.filter(|_| picked.more && !picked.filter.newest),
            rows,
            anchor: fold.chain.head(),
        })
    }

    async fn recorded_at(&self, sequence: u64) -> Result<Timestamp, TravelError> {
        let records = self.ledger.read(sequence, 1, 1).await?;
        let corrupt = |reason: String| ReadError::Corrupt { sequence, reason };
        let raw = records.first().ok_or_else(|| corrupt("it is missing".to_owned()))?;
        let record = Record::decode(&raw.body).map_err(|e| corrupt(e.to_string()))?;
        Ok(Timestamp(record.header.recorded_at))
    }

    /// A fold at the nearest snapshot, or before record 1.
    async fn begin(&self, target: u64) -> Result<Fold, TravelError> {
        let sources = self.snapshots.clone();
        let nearest = blocking(move || {
            let found = sources.iter().filter_map(|source| source.nearest(target));
            found.max_by_key(|snapshot| snapshot.anchor.sequence)
        });
        let genesis = self.ledger.genesis();
        Ok(match nearest.await? {
            Some(Snapshot { anchor, state }) => Fold {
                chain: ChainReader::from_anchor(genesis, anchor),
                state,
            },
            None => Fold {
                chain: ChainReader::new(genesis),
                state: State::default(),
            },
        })
    }

    /// Folds up to `target`, reading ahead while folding. `each` may set its flag to stop after the record.
    async fn fold<F>(&self, mut fold: Fold, target: u64, each: F) -> Result<Fold, TravelError>
    where
        F: FnMut(&mut Fold, &mut bool, Record) -> Result<(), TravelError> + Send + 'static,
    {
        let mut each = Some(each);
        let mut batch = self.read(fold.chain.next_sequence(), target).await?;
        while let Some(last) = batch.last().map(|r| r.sequence) {
            let ahead = self.read(last + 1, target);
            let mut step = each.take().expect("the step before gave it back");
            let work = blocking(move || {
                let mut stop = false;
                for raw in batch {
                    let record = fold.chain.check(raw.sequence, &raw.body)?;
                    step(&mut fold, &mut stop, record)?;
                    if stop {
                        break;
                    }
                }
                Ok::<_, TravelError>((fold, step, stop))
            });
            let (read, folded) = tokio::join!(ahead, work);
            let (back, step, stop) = folded??;
            fold = back;
            each = Some(step);
            if stop {
                return Ok(fold);
            }
            batch = read?;
        }
        let reached = fold.chain.head().sequence;
        if reached < target {
            return Err(ReadError::Shorter {
                last: reached,
                seen: target,
            }
            .into());
        }
        Ok(fold)
    }

    async fn read(&self, from: u64, target: u64) -> Result<Vec<RawRecord>, TravelError> {
        let left = usize::try_from((target + 1).saturating_sub(from)).unwrap_or(usize::MAX);
        if left == 0 {
            return Ok(Vec::new());
        }
        Ok(self.ledger.read(from, READ.0.min(left), READ.1).await?)
    }
}

fn decode(record: &Record) -> Result<Vec<Commit>, TravelError> {
    let sequence = record.header.sequence;
    let bytes = record.commits.iter().filter_map(|slot| slot.bytes());
    bytes
        .map(|bytes| Commit::decode(bytes).map_err(|error| TravelError::Decode { sequence, error }))
        .collect()
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, TravelError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| TravelError::ShuttingDown)
}

fn parse_mark(mark: &str) -> Option<(u64, u32)> {
    let (sequence, index) = mark.split_once('.')?;
    Some((sequence.parse().ok()?, index.parse().ok()?))
}

/// Events picked so far.
struct Picked {
    filter: EventFilter,
    mark: (u64, u32),
    limit: usize,
    rows: VecDeque<EventRow>,
    more: bool,
}

impl Picked {
    fn take(&mut self, row: EventRow, told: &Told) {
        let filter = &self.filter;
        let kind = |name: &String| {
            KINDS
                .iter()
                .any(|k| k.name == row.kind && k.name.eq_ignore_ascii_case(name))
        };
        let wanted = (row.seq, row.index) > self.mark
            && filter.about.as_ref().is_none_or(|entity| told.about.contains(entity))
            && filter.tenant.as_ref().is_none_or(|t| told.tenant.as_ref() == Some(t))
            && (filter.kinds.is_empty() || filter.kinds.iter().any(kind))
            && filter.since.is_none_or(|since| row.time >= since);
        if !wanted {
            return;
        }
        if self.rows.len() == self.limit {
            self.more = true;
            if !filter.newest {
                return;
            }
            self.rows.pop_front();
        }
        self.rows.push_back(row);
    }
}
