//! Reading an export.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, OptionalExtension};
use serde::Serialize;
use tidemill_domain::state::seal::combine;
use tidemill_domain::state::{Entity, STATE_VERSION, State};

use crate::audit::{self, Opening, Verifier, VerifyReport};
use crate::chain::ChainReader;
use crate::digest::{Anchor, Digest};
use crate::embedded::EmbeddedLedger;
use crate::fold::Fold;
use crate::ledger::{Ledger, OpenError, ReadError};

/// What an export says about itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportMeta {
    /// First record in the file.
    pub from: u64,
    /// Last record in the file.
    pub to: u64,
    /// Hash of the record before the first.
    pub previous: Digest,
    /// Record behind whose seal the slice opens; 0 = at the ledger's beginning.
    pub opening: u64,
    /// Version of the opening state.
    pub state_version: u32,
    /// Whose export it is, if others' commits were left out.
    pub tenant: Option<String>,
}

/// An exported slice, opened for reading.
#[derive(Clone)]
pub struct Export {
    ledger: EmbeddedLedger,
    meta: ExportMeta,
    path: PathBuf,
}

impl Export {
    /// Opens the export at `path`; `None` if the file is a whole ledger and no export. Blocks on the disk.
    pub fn open(path: &Path) -> Result<Option<Self>, OpenError> {
        let ledger = EmbeddedLedger::open_read_only(path)?;
        let unreadable = |reason: String| OpenError::Unreadable {
            place: path.display().to_string(),
            reason,
        };
        let connection = connect(path).map_err(|error| unreadable(error.to_string()))?;
        let known = "SELECT count(*) FROM sqlite_schema WHERE name = 'export'";
        let tables: u32 = connection
            .query_row(known, [], |row| row.get(0))
            .map_err(|error| unreadable(error.to_string()))?;
        if tables == 0 {
            return Ok(None);
        }
        let text = |key: &str| -> Result<Option<String>, OpenError> {
            let query = "SELECT value FROM export WHERE key = ?1";
            let value = connection.query_row(query, [key], |row| row.get(0)).optional();
            value.map_err(|error| unreadable(error.to_string()))
        };
        let number = |key: &str| -> Result<u64, OpenError> {
            let value = text(key)?.and_then(|value| value.parse().ok());
            value.ok_or_else(|| unreadable(format!("it lacks {key}")))
        };
        let previous = text("previous")?.and_then(|value| value.parse().ok());
        let meta = ExportMeta {
            from: number("from")?,
            to: number("to")?,
            previous: previous.ok_or_else(|| unreadable("it lacks previous".to_owned()))?,
            opening: number("opening")?,
            state_version: u32::try_from(number("state_version")?).unwrap_or(0),
            tenant: text("tenant")?,
        };
        Ok(Some(Self {
            ledger,
            meta,
            path: path.to_owned(),
        }))
    }

    /// The records, from [`ExportMeta::from`] to [`ExportMeta::to`].
    #[must_use]
    pub fn ledger(&self) -> &EmbeddedLedger {
        &self.ledger
    }

    /// What it says about itself.
    #[must_use]
    pub fn meta(&self) -> &ExportMeta {
        &self.meta
    }

    /// A chain reader before the first record in the file.
    #[must_use]
    pub fn chain(&self) -> ChainReader {
        let anchor = Anchor {
            sequence: self.meta.from - 1,
            hash: self.meta.previous,
        };
        let chain = ChainReader::from_anchor(self.ledger.genesis(), anchor);
        match self.meta.tenant {
            Some(_) => chain.allowing_stand_ins(),
            None => chain,
        }
    }

    /// A fold that goes on with the record behind its head; `None` for a tenant's export, which cannot be folded, and for
    /// an opening state of another version. Blocks on the disk.
    pub fn fold(&self) -> Result<Option<Fold>, ReadError> {
        let genesis = self.ledger.genesis();
        if self.meta.tenant.is_some() {
            return Ok(None);
        }
        if self.meta.opening == 0 {
            return Ok(Some(Fold::new(genesis)));
        }
        let Some(state) = self.opening_state()? else {
            return Ok(None);
        };
        let bytes = self.first_record()?;
        let record = self
            .chain()
            .check(self.meta.from, &bytes)
            .map_err(|error| ReadError::Corrupt {
                sequence: error.sequence,
                reason: error.to_string(),
            })?;
        Ok(Some(Fold::resume(genesis, record.anchor(), state)))
    }

    fn first_record(&self) -> Result<bytes::Bytes, ReadError> {
        let connection = connect(&self.path).map_err(unavailable)?;
        let query = "SELECT body FROM record WHERE sequence = ?1";
        let body: Vec<u8> = connection
            .query_row(query, [self.meta.from], |row| row.get(0))
            .map_err(|error| corrupt(self.meta.from, error))?;
        Ok(body.into())
    }

    fn opening_state(&self) -> Result<Option<State>, ReadError> {
        if self.meta.state_version != STATE_VERSION {
            return Ok(None);
        }
        let connection = connect(&self.path).map_err(unavailable)?;
        let body: Option<Vec<u8>> = connection
            .query_row("SELECT body FROM opening_state", [], |row| row.get(0))
            .optional()
            .map_err(|error| corrupt(self.meta.opening, error))?;
        let decode = |body: Vec<u8>| State::from_snapshot(&body).map_err(|error| corrupt(self.meta.opening, error));
        body.map(decode).transpose()
    }

    /// The seal that the opening's entity hashes give; checks each content that is there against its hash.
    fn opening_seal(&self) -> Result<[u8; 32], ReadError> {
        let bad = |reason: &str| corrupt(self.meta.opening, reason);
        let connection = connect(&self.path).map_err(unavailable)?;
        let mut statement = connection
            .prepare("SELECT entity, hash, body FROM opening_entity")
            .map_err(|error| corrupt(self.meta.opening, error))?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let mut hashes: Vec<(Entity, [u8; 32])> = Vec::new();
        for row in rows.map_err(|error| corrupt(self.meta.opening, error))? {
            let row: (Vec<u8>, [u8; 32], Option<Vec<u8>>) = row.map_err(|error| corrupt(self.meta.opening, error))?;
            let (entity, hash, body) = row;
            if body.is_some_and(|body| *blake3::hash(&body).as_bytes() != hash) {
                return Err(bad("an entity of the opening state does not have its hash"));
            }
            let entity = postcard::from_bytes(&entity).map_err(|_| bad("an entity's name does not decode"))?;
            hashes.push((entity, hash));
        }
        hashes.sort_unstable();
        Ok(combine(hashes.iter().map(|(entity, hash)| (entity, hash))))
    }

    /// Verifies chain, density, the opening and, where the content is there, every seal.
    pub async fn verify(
        &self,
        against: Option<Anchor>,
        progress: impl FnMut(u64, u64) + Send,
    ) -> Result<VerifyReport, ReadError> {
        let verifier = match (self.meta.opening, &self.meta.tenant) {
            (0, None) => Verifier::new(self.ledger.genesis(), against),
            (0, Some(_)) => Verifier::chain_only(self.chain(), against),
            _ => {
                let export = self.clone();
                let opened = tokio::task::spawn_blocking(move || {
                    let state = export.opening_state()?;
                    export.opening_seal().map(|seal| Opening { seal, state })
                });
                let opening = opened.await.unwrap_or_else(|error| Err(unavailable(error)));
                match opening {
                    Ok(opening) => Verifier::behind(self.chain(), opening, against),
                    Err(ReadError::Corrupt { sequence, reason }) => {
                        return Ok(Verifier::chain_only(self.chain(), against).opening_is_bad(sequence, reason));
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        audit::run(&self.ledger, verifier, progress).await
    }
}

/// Verifies a file: an export, or a whole ledger.
pub async fn verify_file(
    path: &Path,
    against: Option<Anchor>,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<Result<VerifyReport, ReadError>, OpenError> {
    Ok(match Export::open(path)? {
        Some(export) => export.verify(against, progress).await,
        None => audit::verify(&EmbeddedLedger::open_read_only(path)?, against, progress).await,
    })
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)
}

fn unavailable(error: impl ToString) -> ReadError {
    ReadError::Unavailable {
        reason: error.to_string(),
    }
}

fn corrupt(sequence: u64, error: impl ToString) -> ReadError {
    ReadError::Corrupt {
        sequence,
        reason: error.to_string(),
    }
}
