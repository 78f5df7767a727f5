//! Damage of a ledger, remembered once it was found: beside the data, until the ledger is whole again.
//!
//! A server that starts from a snapshot does not read what lies before it, so that starting stays quick; damage there is
//! found later, by an audit on the side. The finding outlives the process: without it each restart would lead and write
//! until the audit came to the same place again. It is a claim, not a verdict: the next start looks at the very record,
//! and where a backup was put back the note is dropped by itself.
//!
//! Invariant: while the record that was found bad is bad, nothing is decided on this ledger.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::chain::ChainReader;
use crate::digest::Anchor;
use crate::fold::FoldError;
use crate::identity::LedgerId;
use crate::ledger::{Ledger, ReadError};
use crate::record::Record;
use crate::verify::WalkError;

/// What an operator does about it.
pub const NEXT: &str = "stop this server, see with `tidemill verify` how far the ledger is sound, restore a backup of it, and start again; \
     until then what is known is read and nothing is written";

/// A place where a ledger is not what was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The first record that does not hold.
    pub first_bad_seq: u64,
    /// Stable code of what is wrong there.
    pub code: String,
    /// What is wrong, in a sentence.
    pub reason: String,
}

impl Damage {
    /// From a walk that stopped; none where only the way to the ledger failed.
    #[must_use]
    pub fn of_walk(error: &WalkError) -> Option<Self> {
        Some(Self {
            first_bad_seq: error.first_bad_sequence()?,
            code: error.code().to_owned(),
            reason: error.to_string(),
        })
    }

    /// From a fold that stopped; none where the ledger itself is not at fault.
    #[must_use]
    pub fn of_fold(error: &FoldError) -> Option<Self> {
        let first_bad_seq = match error {
            FoldError::Chain(error) => error.sequence,
            FoldError::Read(ReadError::Corrupt { sequence, .. }) => *sequence,
            _ => return None,
        };
        Some(Self {
            first_bad_seq,
            code: error.code().to_owned(),
            reason: error.to_string(),
        })
    }
}

/// A note that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the note of a damaged ledger, {}, cannot be used: {reason}", path.display())]
pub struct NoteError {
    path: PathBuf,
    reason: String,
}

impl NoteError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "damage_note_unusable"
    }

    /// What to do next.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        "run `tidemill verify`; remove the file if it says that the ledger is whole"
    }
}

/// A finding and the ledger it is about, in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageNote {
    ledger_id: LedgerId,
    damage: Damage,
}

impl DamageNote {
    /// A finding in a ledger.
    #[must_use]
    pub fn new(ledger_id: LedgerId, damage: Damage) -> Self {
        Self { ledger_id, damage }
    }

    /// Reads the file; `None` if there is none.
    pub fn load(path: &Path) -> Result<Option<Self>, NoteError> {
        let unusable = |reason: String| NoteError {
            path: path.to_owned(),
            reason,
        };
        match std::fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|error| unusable(error.to_string())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    /// Writes the file. A torn one stops the next start too, which is right.
    pub fn save(&self, path: &Path) -> Result<(), NoteError> {
        let text = serde_json::to_vec(self).expect("a note is plain data");
        let write = || -> std::io::Result<()> {
            std::fs::write(path, &text)?;
            std::fs::File::open(path)?.sync_all()
        };
        write().map_err(|error| NoteError {
            path: path.to_owned(),
            reason: error.to_string(),
        })
    }

    /// Looks at the record that was found bad: the damage if it is still there, none if the ledger was mended, or is
    /// another one, about which this says nothing.
    pub async fn look_again(&self, ledger: &dyn Ledger) -> Result<Option<Damage>, ReadError> {
        if ledger.genesis().ledger_id != self.ledger_id {
            return Ok(None);
        }
        match check_one(ledger, self.damage.first_bad_seq).await {
            Ok(()) => Ok(None),
            Err(WalkError::Read(error)) if error.is_transient() => Err(error),
            // A shorter ledger may be an older copy from before the damage: the checkpoint judges that.
            Err(WalkError::Read(ReadError::Shorter { .. })) => Ok(None),
            Err(_) => Ok(Some(self.damage.clone())),
        }
    }
}

/// That a record stands behind the one before it.
async fn check_one(ledger: &dyn Ledger, sequence: u64) -> Result<(), WalkError> {
    let last = ledger.tail().await?.sequence;
    if last < sequence {
        return Err(ReadError::Shorter { last, seen: sequence }.into());
    }
    let before = match sequence.checked_sub(1) {
        None | Some(0) => ledger.genesis().anchor(),
        Some(before) => anchor_at(ledger, before).await?,
    };
    let mut reader = ChainReader::from_anchor(ledger.genesis(), before);
    crate::verify::walk(ledger, &mut reader, sequence, |_| {}).await
}

async fn anchor_at(ledger: &dyn Ledger, sequence: u64) -> Result<Anchor, ReadError> {
    let corrupt = |reason: String| ReadError::Corrupt { sequence, reason };
    let stored = ledger.read(sequence, 1, 1).await?;
    let raw = stored.first().ok_or_else(|| corrupt("it is missing".to_owned()))?;
    let record = Record::decode(&raw.body).map_err(|error| corrupt(error.to_string()))?;
    Ok(record.anchor())
}
