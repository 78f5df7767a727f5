//! Writing an export.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use serde::Serialize;
use tidemill_domain::commit::{Actor, Commit};
use tidemill_domain::events::Event;
use tidemill_domain::state::seal::Sealer;
use tidemill_domain::state::{Entity, STATE_VERSION, State, Touched};
use tidemill_domain::unit::Name;

use super::SCHEMA;
use crate::digest::{Anchor, Digest};
use crate::embedded::EmbeddedLedger;
use crate::fold::{Fold, FoldError, FoldedRecord, decode_commits};
use crate::ledger::{Ledger, OpenError, RawRecord, ReadError};
use crate::record::Record;
use crate::snapshots::SnapshotStore;

/// Records and bytes read at once.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 4 << 20;

/// What is to be exported.
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// First record wanted, from 1. The file begins at the last seal at or before it.
    pub from: u64,
    /// Last record wanted; the present end if it lies beyond.
    pub to: u64,
    /// Leave out what belongs to other tenants.
    pub tenant: Option<Name>,
}

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportReport {
    /// First record in the file.
    pub first: u64,
    /// Last record, and its hash.
    #[serde(serialize_with = "as_text")]
    pub head: Anchor,
    /// Commits in the file.
    pub commits: u64,
    /// Commits of which only the hash is in the file.
    pub left_out: u64,
}

fn as_text<S: serde::Serializer>(anchor: &Anchor, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(anchor)
}

/// An export that was not written.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is no such stretch.
    #[error("records {from} to {to} were asked for, but the ledger ends at {last}")]
    Range {
        /// First asked for.
        from: u64,
        /// Last asked for.
        to: u64,
        /// The ledger's last.
        last: u64,
    },
    /// Something is there already.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The ledger cannot be read or folded.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// The state folded is not the one that was sealed.
    #[error("the state at record {sequence} does not give the hash it was sealed with")]
    SealDiffers {
        /// The record with the seal.
        sequence: u64,
    },
    /// The state was sealed by another release.
    #[error(
        "the state at record {sequence} was sealed by a build of state version {found}, this one has {STATE_VERSION}"
    )]
    OtherVersion {
        /// The record with the seal.
        sequence: u64,
        /// Its state version.
        found: u32,
    },
    /// The file cannot be made.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file cannot be written.
    #[error("{}: {reason}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
}

impl ExportError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Range { .. } => "export_range",
            Self::Exists { .. } => "export_exists",
            Self::Fold(error) => error.code(),
            Self::SealDiffers { .. } => "seal_differs",
            Self::OtherVersion { .. } => "state_version",
            Self::Open(error) => error.code(),
            Self::Write { .. } => "export_write",
        }
    }

    /// What to do next.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::Range { .. } => "ask for a stretch within the ledger; `tidemill verify` prints its end",
            Self::Exists { .. } => "choose another file name",
            Self::Fold(error) => error.next_step(),
            Self::SealDiffers { .. } => "run `tidemill verify` to see whether the ledger is sound",
            Self::OtherVersion { .. } => "export with the release that wrote that stretch, or from its next epoch on",
            Self::Open(error) => error.next_step(),
            Self::Write { .. } => "check the disk and the permissions of the folder",
        }
    }
}

impl From<ReadError> for ExportError {
    fn from(error: ReadError) -> Self {
        Self::Fold(error.into())
    }
}

/// Writes a stretch of `ledger` to a new file at `path`. `snapshots` spare folding from the beginning; `progress` is told
/// the record reached and the last one.
pub async fn export(
    ledger: &dyn Ledger,
    snapshots: Option<&SnapshotStore>,
    request: &ExportRequest,
    path: &Path,
    mut progress: impl FnMut(u64, u64) + Send,
) -> Result<ExportReport, ExportError> {
    let last = ledger.tail().await?.sequence;
    let (from, to) = (request.from.max(1), request.to.min(last));
    if from > to {
        let to = request.to;
        return Err(ExportError::Range { from, to, last });
    }
    if path.exists() {
        return Err(ExportError::Exists { path: path.to_owned() });
    }
    let first = seal_at_or_before(ledger, from).await?;
    let opening = open(ledger, snapshots, first).await?;
    let mut file = Writer::create(path, ledger, opening.as_ref(), first, to, request.tenant.as_ref()).await?;
    let mut keeper = request
        .tenant
        .clone()
        .map(|tenant| Keeper::new(tenant, opening.as_ref().map(|o| &o.state)));
    let mut report = ExportReport {
        first,
        head: ledger.genesis().anchor(),
        commits: 0,
        left_out: 0,
    };
    let mut next = first;
    while next <= to {
        let wanted = usize::try_from(to - next).unwrap_or(BATCH).saturating_add(1).min(BATCH);
        let batch = ledger.read(next, wanted, BATCH_BYTES).await?;
        if batch.is_empty() {
            return Err(ReadError::Shorter {
                last: next - 1,
                seen: to,
            }
            .into());
        }
        let mut rows = Vec::with_capacity(batch.len());
        for raw in batch {
            let record = decode(&raw)?;
            report.commits += record.commits.len() as u64;
            report.head = record.anchor();
            next = raw.sequence + 1;
            rows.push(match &mut keeper {
                None => raw,
                Some(keeper) => keeper.redact(&record, raw.sequence == first && opening.is_some(), &mut report)?,
            });
        }
        file = file.append(rows).await?;
        progress(next - 1, to);
    }
    file.finish().await?;
    report.commits -= report.left_out;
    Ok(report)
}

fn decode(raw: &RawRecord) -> Result<Record, ExportError> {
    let sequence = raw.sequence;
    let reason = |error: crate::record::DecodeError| ReadError::Corrupt {
        sequence,
        reason: error.to_string(),
    };
    Ok(Record::decode(&raw.body).map_err(reason)?)
}

/// The last record at or before `from` that ends in a seal; the first one at the latest.
async fn seal_at_or_before(ledger: &dyn Ledger, from: u64) -> Result<u64, ExportError> {
    let mut sequence = from;
    while sequence > 1 {
        let low = sequence.saturating_sub(BATCH as u64 - 1).max(1);
        let mut found = None;
        let mut next = low;
        while next <= sequence {
            let wanted = usize::try_from(sequence - next).unwrap_or(BATCH).saturating_add(1);
            let batch = ledger.read(next, wanted, BATCH_BYTES).await?;
            if batch.is_empty() {
                return Err(ReadError::Shorter {
                    last: next - 1,
                    seen: sequence,
                }
                .into());
            }
            for raw in batch {
                next = raw.sequence + 1;
                if seal_of(&decode(&raw)?)?.is_some() {
                    found = Some(raw.sequence);
                }
            }
        }
        match found {
            Some(found) => return Ok(found),
            None => sequence = low - 1,
        }
    }
    Ok(1)
}

/// The seal a record ends in.
fn seal_of(record: &Record) -> Result<Option<(u32, [u8; 32])>, ExportError> {
    let sequence = record.header.sequence;
    let Some(bytes) = record.commits.last().and_then(|slot| slot.bytes()) else {
        return Ok(None);
    };
    const STATE_SEALED: (u16, u16) = (3, 1);
    let decode_error = |source| FoldError::Decode { sequence, source };
    if Commit::kinds(bytes).map_err(decode_error)?.last() != Some(&STATE_SEALED) {
        return Ok(None);
    }
    let commit = Commit::decode(bytes).map_err(decode_error)?;
    Ok(match commit.events.last() {
        Some(Event::StateSealed(sealed)) => Some((sealed.state_version, sealed.hash)),
        _ => None,
    })
}

/// The sealed state a slice opens with.
struct Opening {
    state: State,
    sealer: Sealer,
}

/// Folds to the sealed record `first`; `None` if that is the ledger's beginning.
async fn open(
    ledger: &dyn Ledger,
    snapshots: Option<&SnapshotStore>,
    first: u64,
) -> Result<Option<Opening>, ExportError> {
    if first == 1 {
        return Ok(None);
    }
    let genesis = ledger.genesis();
    let snapshot = match snapshots {
        // Not the one behind the record itself: its seal is still to be read.
        Some(store) => store.load(ledger, first - 1).await?,
        None => None,
    };
    let mut fold = match snapshot {
        Some(snapshot) => Fold::resume(genesis, snapshot.anchor, snapshot.state),
        None => Fold::new(genesis),
    };
    let mut seal = None;
    while fold.head().sequence < first {
        let next = fold.head().sequence + 1;
        let wanted = usize::try_from(first - next)
            .unwrap_or(BATCH)
            .saturating_add(1)
            .min(BATCH);
        let batch = ledger.read(next, wanted, BATCH_BYTES).await?;
        if batch.is_empty() {
            return Err(ReadError::Shorter {
                last: next - 1,
                seen: first,
            }
            .into());
        }
        for raw in &batch {
            let FoldedRecord { record, .. } = fold.record(raw, &mut Touched::new())?;
            if raw.sequence == first {
                seal = seal_of(&record)?;
            }
        }
    }
    let (_, state) = fold.into_parts();
    let mut sealer = Sealer::of(&state);
    match seal {
        Some((found, _)) if found != STATE_VERSION => Err(ExportError::OtherVersion { sequence: first, found }),
        Some((_, hash)) if hash == sealer.seal(&state) => Ok(Some(Opening { state, sealer })),
        _ => Err(ExportError::SealDiffers { sequence: first }),
    }
}

/// Decides what a tenant may have.
struct Keeper {
    tenant: Name,
    state: State,
    /// Whose each entity is or was: a deleted service's last commit is still its tenant's.
    owners: HashMap<Entity, Name>,
    touched: Touched,
}

impl Keeper {
    fn new(tenant: Name, state: Option<&State>) -> Self {
        let state = state.cloned().unwrap_or_default();
        let owner = |entity: Entity| state.tenant_of(&entity).cloned().map(|owner| (entity, owner));
        let owners = state.entities().filter_map(owner).collect();
        Self {
            tenant,
            state,
            owners,
            touched: Touched::new(),
        }
    }

    /// The record with others' commits replaced by their hashes. Of the opening record only the sequencer's own stay: the
    /// effects of all others are in the opening state.
    fn redact(&mut self, record: &Record, opening: bool, report: &mut ExportReport) -> Result<RawRecord, ExportError> {
        let sequence = record.header.sequence;
        let mut keep = Vec::with_capacity(record.commits.len());
        for commit in &decode_commits(record)? {
            keep.push(match opening {
                true => commit.header.actor == Actor::Sequencer,
                false => self.is_for_tenant(sequence, commit)?,
            });
        }
        report.left_out += keep.iter().filter(|keep| !**keep).count() as u64;
        let redacted = record.redacted(|index, _| keep.get(index).copied().unwrap_or(false));
        Ok(RawRecord {
            sequence,
            body: redacted.encode(),
        })
    }

    fn is_for_tenant(&mut self, sequence: u64, commit: &Commit) -> Result<bool, ExportError> {
        self.touched.clear();
        self.state
            .apply_record(sequence, [commit], &mut self.touched)
            .map_err(|source| FoldError::Apply { sequence, source })?;
        let mut mine = true;
        for entity in &self.touched {
            if let Some(owner) = self.state.tenant_of(entity)
                && self.owners.get(entity) != Some(owner)
            {
                self.owners.insert(entity.clone(), owner.clone());
            }
            mine &= self.owners.get(entity).is_none_or(|owner| *owner == self.tenant);
        }
        Ok(mine)
    }
}

/// The file while it is being written, under another name.
struct Writer {
    connection: Connection,
    temporary: PathBuf,
    path: PathBuf,
}

impl Writer {
    async fn create(
        path: &Path,
        ledger: &dyn Ledger,
        opening: Option<&Opening>,
        first: u64,
        to: u64,
        tenant: Option<&Name>,
    ) -> Result<Self, ExportError> {
        let mut temporary = OsString::from(path.as_os_str());
        temporary.push(".partial");
        let temporary = PathBuf::from(temporary);
        let previous = match first {
            1 => ledger.genesis().hash(),
            _ => previous_of(ledger, first).await?,
        };
        let mut about = vec![
            ("from", first.to_string()),
            ("to", to.to_string()),
            ("previous", previous.to_string()),
            ("opening", opening.map_or(0, |_| first).to_string()),
            ("state_version", STATE_VERSION.to_string()),
        ];
        about.extend(tenant.map(|tenant| ("tenant", tenant.to_string())));
        let entities = opening.map(|opening| entities(opening, tenant)).unwrap_or_default();
        let whole = opening
            .filter(|_| tenant.is_none())
            .map(|opening| opening.state.to_snapshot());
        let (genesis, path) = (ledger.genesis().clone(), path.to_owned());
        blocking(path.clone(), move || {
            for leftover in ["", "-wal", "-shm", ".lock"] {
                let mut name = temporary.clone().into_os_string();
                name.push(leftover);
                let _ = std::fs::remove_file(name);
            }
            drop(EmbeddedLedger::create(&temporary, &genesis, None)?);
            let failed = |error: rusqlite::Error| ExportError::Write {
                path: temporary.clone(),
                reason: error.to_string(),
            };
            let mut connection = Connection::open(&temporary).map_err(failed)?;
            // One file to hand on, and nobody reads it before it is whole.
            connection
                .pragma_update(None, "journal_mode", "DELETE")
                .map_err(failed)?;
            let lay_out = |connection: &mut Connection| -> rusqlite::Result<()> {
                let transaction = connection.transaction()?;
                transaction.execute_batch(SCHEMA)?;
                for (key, value) in &about {
                    transaction.execute("INSERT INTO export (key, value) VALUES (?1, ?2)", params![key, value])?;
                }
                for (entity, hash, body) in &entities {
                    let insert = "INSERT INTO opening_entity (entity, hash, body) VALUES (?1, ?2, ?3)";
                    transaction
                        .prepare_cached(insert)?
                        .execute(params![entity, hash, body])?;
                }
                if let Some(whole) = &whole {
                    transaction.execute("INSERT INTO opening_state (one, body) VALUES (1, ?1)", [whole])?;
                }
                transaction.commit()
            };
            lay_out(&mut connection).map_err(failed)?;
            Ok(Self {
                connection,
                temporary,
                path,
            })
        })
        .await
    }

    async fn append(mut self, rows: Vec<RawRecord>) -> Result<Self, ExportError> {
        blocking(self.path.clone(), move || {
            let failed = |error: rusqlite::Error| ExportError::Write {
                path: self.path.clone(),
                reason: error.to_string(),
            };
            let insert = |connection: &mut Connection| -> rusqlite::Result<()> {
                let transaction = connection.transaction()?;
                for row in &rows {
                    let insert = "INSERT INTO record (sequence, body) VALUES (?1, ?2)";
                    transaction
                        .prepare_cached(insert)?
                        .execute(params![row.sequence, row.body.as_ref()])?;
                }
                transaction.commit()
            };
            insert(&mut self.connection).map_err(failed)?;
            Ok(self)
        })
        .await
    }

    async fn finish(self) -> Result<(), ExportError> {
        blocking(self.path.clone(), move || {
            let path = self.path;
            let failed = |reason: String| ExportError::Write {
                path: path.clone(),
                reason,
            };
            self.connection
                .close()
                .map_err(|(_, error)| failed(error.to_string()))?;
            // A link instead of a rename: it does not replace what came meanwhile.
            std::fs::hard_link(&self.temporary, &path).map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => ExportError::Exists { path: path.clone() },
                _ => failed(error.to_string()),
            })?;
            let mut lock = self.temporary.clone().into_os_string();
            lock.push(".lock");
            for leftover in [self.temporary, lock.into()] {
                let _ = std::fs::remove_file(leftover);
            }
            Ok(())
        })
        .await
    }
}

async fn previous_of(ledger: &dyn Ledger, sequence: u64) -> Result<Digest, ExportError> {
    let batch = ledger.read(sequence, 1, 1).await?;
    let raw = batch.first().ok_or(ReadError::Shorter {
        last: sequence - 1,
        seen: sequence,
    })?;
    Ok(decode(raw)?.previous)
}

type EntityRow = (Vec<u8>, Vec<u8>, Option<Vec<u8>>);

fn entities(opening: &Opening, tenant: Option<&Name>) -> Vec<EntityRow> {
    let row = |(entity, hash): (&Entity, &[u8; 32])| {
        let name = postcard::to_stdvec(entity).expect("a Vec takes any number of bytes");
        let theirs = tenant.is_none() || opening.state.tenant_of(entity) == tenant;
        let body = theirs.then(|| opening.state.entity_bytes(entity, Vec::new())).flatten();
        (name, hash.to_vec(), body)
    };
    opening.sealer.hashes().iter().map(row).collect()
}

async fn blocking<T: Send + 'static>(
    path: PathBuf,
    work: impl FnOnce() -> Result<T, ExportError> + Send + 'static,
) -> Result<T, ExportError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        Err(ExportError::Write {
            path,
            reason: format!("the writing task ended: {error}"),
        })
    })
}
