//! What a server last knew of its ledger, kept beside its data: the witness against a ledger that went backwards.
//!
//! JetStream can lose a stream, a backup can be put back, a server can be pointed at another cell. Each looks like a
//! perfectly good ledger to who has no memory. The checkpoint is that memory: (ledger id, sequence, hash) in a small
//! file, replaced atomically and written as often as its owner likes, since an old one only proves less.
//!
//! Invariant: nothing is decided on a ledger that contradicts the checkpoint, and only an operator can drop it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::Anchor;
use crate::identity::LedgerId;
use crate::ledger::{Ledger, ReadError};
use crate::record::Record;

/// A place in a ledger that was certainly there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The ledger's id.
    pub ledger_id: LedgerId,
    /// Sequence and hash of a record that was read or acknowledged.
    pub anchor: Anchor,
}

/// A checkpoint file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file system refused.
    #[error("checkpoint {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// The file is there but is no checkpoint.
    #[error("checkpoint {} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl CheckpointError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "checkpoint_io",
            Self::Damaged { .. } => "checkpoint_damaged",
        }
    }
}

impl Checkpoint {
    /// Reads the file; `None` if there is none.
    pub fn load(path: &Path) -> Result<Option<Self>, CheckpointError> {
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => {
                return Err(CheckpointError::Io {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        let damaged = |error: serde_json::Error| CheckpointError::Damaged {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        serde_json::from_slice(&text).map(Some).map_err(damaged)
    }

    /// Replaces the file, durably: after a crash there is the old one or the new one.
    pub fn save(&self, path: &Path) -> Result<(), CheckpointError> {
        let text = serde_json::to_vec(self).expect("a checkpoint is plain data");
        let mut temporary = OsString::from(path.as_os_str());
        temporary.push(".new");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(&temporary, path)?;
            let directory = path
                .parent()
                .filter(|p| !p.as_os_str().is_empty())
                .unwrap_or(Path::new("."));
            File::open(directory)?.sync_all()
        };
        write().map_err(|source| CheckpointError::Io {
            path: path.to_owned(),
            source,
        })
    }

    /// Compares what was known with what the ledger says now.
    pub async fn compare(&self, ledger: &dyn Ledger) -> Result<Standing, ReadError> {
        let found = ledger.genesis().ledger_id;
        if found != self.ledger_id {
            return Ok(Standing::Vanished {
                expected: self.ledger_id,
                found: Some(found),
            });
        }
        let tail = match ledger.tail().await {
            Ok(tail) => tail.anchor(),
            Err(ReadError::Missing) => {
                return Ok(Standing::Vanished {
                    expected: self.ledger_id,
                    found: None,
                });
            }
            Err(ReadError::OtherLedger { expected, found }) => {
                return Ok(Standing::Vanished {
                    expected,
                    found: Some(found),
                });
            }
            Err(error) => return Err(error),
        };
        let known = self.anchor;
        if tail.sequence < known.sequence {
            return Ok(Standing::Shorter {
                known: known.sequence,
                last: tail.sequence,
            });
        }
        let there = if tail.sequence == known.sequence {
            tail
        } else {
            anchor_at(ledger, known.sequence).await?
        };
        Ok(match there {
            there if there.hash != known.hash => Standing::Forked { known, found: there },
            _ if tail.sequence == known.sequence => Standing::Same,
            _ => Standing::Behind {
                known: known.sequence,
                last: tail.sequence,
            },
        })
    }
}

async fn anchor_at(ledger: &dyn Ledger, sequence: u64) -> Result<Anchor, ReadError> {
    if sequence == 0 {
        return Ok(ledger.genesis().anchor());
    }
    let corrupt = |reason: String| ReadError::Corrupt { sequence, reason };
    let records = ledger.read(sequence, 1, 1).await?;
    let raw = records.first().ok_or_else(|| corrupt("it is missing".to_owned()))?;
    let record = Record::decode(&raw.body).map_err(|error| corrupt(error.to_string()))?;
    Ok(Anchor {
        sequence,
        hash: record.hash,
    })
}

/// How a ledger stands to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The ledger ends exactly there.
    Same,
    /// The ledger has grown since: the checkpoint is behind it. All is well.
    Behind {
        /// Sequence of the checkpoint.
        known: u64,
        /// The ledger's last sequence.
        last: u64,
    },
    /// The ledger that was known is gone; there is none, or another one.
    Vanished {
        /// The ledger that was known.
        expected: LedgerId,
        /// The one found instead.
        found: Option<LedgerId>,
    },
    /// The ledger ends before what was known: an older copy was put back.
    Shorter {
        /// Sequence of the checkpoint.
        known: u64,
        /// The ledger's last sequence.
        last: u64,
    },
    /// The ledger has another record where the known one was: history was replaced.
    Forked {
        /// What was known.
        known: Anchor,
        /// What is there.
        found: Anchor,
    },
}

impl Standing {
    /// True if writing may go on.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        matches!(self, Self::Same | Self::Behind { .. })
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Same | Self::Behind { .. } => "ledger_as_known",
            Self::Vanished { .. } => "ledger_vanished",
            Self::Shorter { .. } => "ledger_shorter",
            Self::Forked { .. } => "ledger_forked",
        }
    }

    /// What to do next; empty if all is well.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::Same | Self::Behind { .. } => "",
            Self::Vanished { .. } => "point the server at the right NATS or data directory, or restore a backup",
            Self::Shorter { .. } => {
                "restore a newer backup; if none exists, remove the checkpoint file to accept the loss of what came after"
            }
            Self::Forked { .. } => "find out who wrote the other history; nothing is written until an operator decides",
        }
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Same => write!(f, "the ledger is as it was left"),
            Self::Behind { known, last } => write!(f, "the ledger grew from sequence {known} to {last}"),
            Self::Vanished { expected, found: None } => write!(f, "ledger {expected} is gone"),
            Self::Vanished {
                expected,
                found: Some(found),
            } => {
                write!(f, "ledger {expected} is gone; ledger {found} is there instead")
            }
            Self::Shorter { known, last } => {
                write!(
                    f,
                    "the ledger ends at sequence {last}, but {known} was already on it: an older copy was put back"
                )
            }
            Self::Forked { known, found } => {
                write!(
                    f,
                    "record {} has hash {}, but {} was there before: history was replaced",
                    known.sequence, found.hash, known.hash
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::digest::Digest;
    use crate::identity::{CellName, Genesis};
    use crate::ledger::Hints;
    use crate::memory::MemoryLedger;
    use crate::record::{RecordBuilder, RecordHeader};

    fn genesis(id: u128) -> Genesis {
        Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(id)))
    }

    async fn grow(ledger: &MemoryLedger, note: &str) -> Anchor {
        let tail = ledger.tail().await.unwrap();
        let Genesis { cell, ledger_id } = ledger.genesis().clone();
        let header = RecordHeader {
            cell,
            ledger_id,
            sequence: tail.sequence + 1,
            epoch: 1,
            recorded_at: 0,
        };
        let mut builder = RecordBuilder::new();
        builder.push(note.as_bytes()).unwrap();
        let record = builder.seal(&header, &tail.hash);
        ledger
            .append(tail.sequence, record.bytes, &Hints::default())
            .await
            .unwrap();
        record.anchor
    }

    #[tokio::test]
    async fn every_way_to_go_backwards_is_told_apart() {
        let ledger = MemoryLedger::create(genesis(1));
        let ledger_id = genesis(1).ledger_id;
        let start = Checkpoint {
            ledger_id,
            anchor: ledger.genesis().anchor(),
        };
        assert_eq!(start.compare(&ledger).await.unwrap(), Standing::Same);
        grow(&ledger, "a").await;
        let known = Checkpoint {
            ledger_id,
            anchor: grow(&ledger, "b").await,
        };
        assert_eq!(known.compare(&ledger).await.unwrap(), Standing::Same);
        grow(&ledger, "c").await;
        assert_eq!(
            known.compare(&ledger).await.unwrap(),
            Standing::Behind { known: 2, last: 3 }
        );
        assert!(start.compare(&ledger).await.unwrap().is_sound());

        ledger.truncate(1);
        assert_eq!(
            known.compare(&ledger).await.unwrap(),
            Standing::Shorter { known: 2, last: 1 }
        );
        grow(&ledger, "other").await;
        assert_eq!(known.compare(&ledger).await.unwrap().code(), "ledger_forked");
        grow(&ledger, "longer").await;
        assert_eq!(known.compare(&ledger).await.unwrap().code(), "ledger_forked");
        let other = MemoryLedger::create(genesis(2));
        assert_eq!(known.compare(&other).await.unwrap().code(), "ledger_vanished");
        ledger.remove();
        assert_eq!(known.compare(&ledger).await.unwrap().code(), "ledger_vanished");
    }

    #[test]
    fn the_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint.json");
        assert_eq!(Checkpoint::load(&path).unwrap(), None);
        for sequence in 1..3 {
            let anchor = Anchor {
                sequence,
                hash: Digest::of(b"x"),
            };
            let checkpoint = Checkpoint {
                ledger_id: genesis(1).ledger_id,
                anchor,
            };
            checkpoint.save(&path).unwrap();
            assert_eq!(Checkpoint::load(&path).unwrap(), Some(checkpoint));
        }
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Checkpoint::load(&path).unwrap_err().code(), "checkpoint_damaged");
    }
}
