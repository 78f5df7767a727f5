//! Snapshots of folded state: local cache files that spare reading the ledger from its beginning.
//!
//! A snapshot is never the truth. It is used only if it was written by a build of the same state version, for the same
//! ledger, undamaged, and if the ledger's record at its sequence has the very hash it was taken behind; anything else is
//! passed over and the ledger is folded from further back. Losing all of them costs time, nothing else.
//!
//! Invariants: files are written whole or not at all; their number is bounded, dense near the end of the ledger and
//! ever sparser further back, so that time travel to a point folds a fraction of the distance from the end to it.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tidemill_domain::state::{STATE_VERSION, State};

use crate::digest::{Anchor, Digest};
use crate::identity::{Genesis, LedgerId};
use crate::ledger::{Ledger, ReadError};
use crate::record::Record;
use crate::sequencer::Dedupe;

/// First bytes of a snapshot file; the last one is the layout's version.
const MAGIC: &[u8; 8] = b"TMSNAP\0\x01";

const EXTENSION: &str = "snapshot";

/// The newest files, kept whatever their distance: should the newest turn out damaged, little is lost.
const NEWEST_KEPT: usize = 3;

/// Most files kept.
const MOST_KEPT: usize = 48;

/// An older file goes if the gap it leaves is at most this fraction of the distance to the end of the ledger.
const GAP: u64 = 4;

/// A folder of snapshots of one ledger. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct SnapshotStore {
    directory: PathBuf,
    genesis: Genesis,
}

/// A state and where it stands.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Record behind which it was taken.
    pub anchor: Anchor,
    /// The state there.
    pub state: State,
    /// The commands remembered there.
    pub dedupe: Dedupe,
}

/// A folder or file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("snapshot {}: {source}", path.display())]
pub struct SnapshotError {
    path: PathBuf,
    source: std::io::Error,
}

impl SnapshotError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        "snapshot_io"
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    state_version: u32,
    ledger_id: [u8; 16],
    sequence: u64,
    hash: [u8; 32],
    state_bytes: u64,
}

/// An encoded snapshot, ready to be written from another thread.
#[derive(Debug)]
pub struct EncodedSnapshot {
    sequence: u64,
    bytes: Vec<u8>,
}

impl EncodedSnapshot {
    /// Encodes; the caller may then go on changing the state.
    #[must_use]
    pub fn new(genesis: &Genesis, anchor: Anchor, state: &State, dedupe: &Dedupe) -> Self {
        let state = state.to_snapshot();
        let header = Header {
            state_version: STATE_VERSION,
            ledger_id: *genesis.ledger_id.0.as_bytes(),
            sequence: anchor.sequence,
            hash: anchor.hash.0,
            state_bytes: state.len() as u64,
        };
        let mut bytes = Vec::with_capacity(state.len() + dedupe.len() * 48 + 256);
        bytes.extend_from_slice(MAGIC);
        bytes = postcard::to_extend(&header, bytes).expect("a Vec takes any number of bytes");
        bytes.extend_from_slice(&state);
        bytes = dedupe.encode(bytes);
        Self {
            sequence: anchor.sequence,
            bytes,
        }
    }
}

impl SnapshotStore {
    /// Uses `directory`, making it if need be.
    pub fn open(directory: &Path, genesis: &Genesis) -> Result<Self, SnapshotError> {
        std::fs::create_dir_all(directory).map_err(|source| SnapshotError {
            path: directory.to_owned(),
            source,
        })?;
        Ok(Self {
            directory: directory.to_owned(),
            genesis: genesis.clone(),
        })
    }

    /// Sequences of the files there are, oldest first.
    #[must_use]
    pub fn sequences(&self) -> Vec<u64> {
        let Ok(entries) = std::fs::read_dir(&self.directory) else {
            return Vec::new();
        };
        let sequence = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.ok()?.path();
            (path.extension()? == EXTENSION).then_some(())?;
            path.file_stem()?.to_str()?.parse().ok()
        };
        let mut sequences: Vec<u64> = entries.filter_map(sequence).collect();
        sequences.sort_unstable();
        sequences
    }

    /// The newest usable snapshot at or before `sequence`. Blocks on the disk. Whether the ledger agrees with it is for
    /// the caller to see; [`SnapshotStore::load`] does.
    #[must_use]
    pub fn nearest_at_or_before(&self, sequence: u64) -> Option<Snapshot> {
        let sequences = self.sequences();
        sequences
            .into_iter()
            .rev()
            .filter(|s| *s <= sequence)
            .find_map(|s| self.read(s))
    }

    /// The newest snapshot at or before `sequence` that the ledger agrees with. Ones it does not agree with are removed.
    pub async fn load(&self, ledger: &dyn Ledger, sequence: u64) -> Result<Option<Snapshot>, ReadError> {
        let mut limit = sequence;
        loop {
            let store = self.clone();
            let read = tokio::task::spawn_blocking(move || store.nearest_at_or_before(limit)).await;
            let Ok(Some(snapshot)) = read else { return Ok(None) };
            let Anchor { sequence, hash } = snapshot.anchor;
            let stored = ledger.read(sequence, 1, 1).await?;
            let agrees = stored
                .first()
                .and_then(|raw| Record::decode(&raw.body).ok())
                .is_some_and(|record| record.hash == hash);
            if agrees {
                return Ok(Some(snapshot));
            }
            tracing::warn!(
                code = "snapshot_of_another_history",
                sequence,
                "a snapshot does not fit the ledger; removed"
            );
            self.remove(sequence);
            let Some(before) = sequence.checked_sub(1) else {
                return Ok(None);
            };
            limit = before;
        }
    }

    /// Writes a snapshot and removes those no longer needed. Blocks on the disk.
    pub fn save(&self, snapshot: &EncodedSnapshot) -> Result<(), SnapshotError> {
        let path = self.path(snapshot.sequence);
        let temporary = path.with_extension("new");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&snapshot.bytes)?;
            file.write_all(blake3::hash(&snapshot.bytes).as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|source| SnapshotError {
            path: path.clone(),
            source,
        })?;
        let sequences = self.sequences();
        for gone in superfluous(&sequences) {
            self.remove(gone);
        }
        Ok(())
    }

    fn path(&self, sequence: u64) -> PathBuf {
        self.directory.join(format!("{sequence:020}.{EXTENSION}"))
    }

    fn remove(&self, sequence: u64) {
        // If it cannot be removed it is only passed over again.
        let _ = std::fs::remove_file(self.path(sequence));
    }

    fn read(&self, sequence: u64) -> Option<Snapshot> {
        let path = self.path(sequence);
        let bytes = std::fs::read(&path).ok()?;
        match self.decode(&bytes) {
            Ok(snapshot) if snapshot.anchor.sequence == sequence => return Some(snapshot),
            Ok(_) => {
                tracing::warn!(code = "snapshot_unusable", path = %path.display(), "a snapshot is misnamed; removed")
            }
            Err(reason) => {
                tracing::info!(code = "snapshot_unusable", path = %path.display(), reason, "a snapshot is removed");
            }
        }
        self.remove(sequence);
        None
    }

    fn decode(&self, bytes: &[u8]) -> Result<Snapshot, &'static str> {
        let (body, digest) = bytes.split_last_chunk::<32>().ok_or("it is cut off")?;
        if blake3::hash(body).as_bytes() != digest {
            return Err("it is damaged");
        }
        let rest = body.strip_prefix(MAGIC).ok_or("it has another layout")?;
        let (header, rest): (Header, &[u8]) =
            postcard::take_from_bytes(rest).map_err(|_| "its header does not decode")?;
        if header.state_version != STATE_VERSION {
            return Err("it was written by a build of another state version");
        }
        if LedgerId(uuid::Uuid::from_bytes(header.ledger_id)) != self.genesis.ledger_id {
            return Err("it is of another ledger");
        }
        let length = usize::try_from(header.state_bytes).map_err(|_| "its state is too long")?;
        let (state, dedupe) = rest.split_at_checked(length).ok_or("its state is cut off")?;
        Ok(Snapshot {
            anchor: Anchor {
                sequence: header.sequence,
                hash: Digest(header.hash),
            },
            state: State::from_snapshot(state).map_err(|_| "its state does not decode")?,
            dedupe: Dedupe::decode(dedupe).map_err(|_| "its command ids do not decode")?,
        })
    }
}

/// Which of the snapshots at these sequences (ascending) are not needed.
fn superfluous(sequences: &[u64]) -> Vec<u64> {
    let Some(&end) = sequences.last() else {
        return Vec::new();
    };
    let mut gone = Vec::new();
    let mut newer = end;
    let mut kept = 0;
    for (place, &sequence) in sequences.iter().enumerate().rev() {
        let older = place.checked_sub(1).map_or(0, |place| sequences[place]);
        let needed = kept < NEWEST_KEPT || newer - older > (end - older) / GAP;
        if needed && kept < MOST_KEPT {
            kept += 1;
            newer = sequence;
        } else {
            gone.push(sequence);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::identity::CellName;

    fn store(directory: &Path, id: u128) -> SnapshotStore {
        let genesis = Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(id)));
        SnapshotStore::open(directory, &genesis).unwrap()
    }

    fn at(store: &SnapshotStore, sequence: u64) -> EncodedSnapshot {
        let anchor = Anchor {
            sequence,
            hash: Digest::of(&sequence.to_le_bytes()),
        };
        EncodedSnapshot::new(&store.genesis, anchor, &State::default(), &Dedupe::default())
    }

    #[test]
    fn only_whole_snapshots_of_the_same_ledger_are_used() {
        let dir = tempfile::tempdir().unwrap();
        let mine = store(dir.path(), 1);
        for sequence in [10, 20, 30] {
            mine.save(&at(&mine, sequence)).unwrap();
        }
        assert_eq!(mine.nearest_at_or_before(25).unwrap().anchor.sequence, 20);
        let path = mine.path(20);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(mine.nearest_at_or_before(25).unwrap().anchor.sequence, 10);
        assert!(mine.nearest_at_or_before(9).is_none());
        assert!(store(dir.path(), 2).nearest_at_or_before(100).is_none());
    }

    #[test]
    fn old_ones_thin_out_and_gaps_stay_a_fraction_of_the_distance() {
        let mut kept: Vec<u64> = Vec::new();
        for sequence in (100..=100_000).step_by(100) {
            kept.push(sequence);
            let gone = superfluous(&kept);
            kept.retain(|s| !gone.contains(s));
            assert!(kept.len() <= MOST_KEPT);
        }
        assert!(kept.len() > 10, "{kept:?}");
        for pair in kept.windows(2) {
            let distance = 100_000 - pair[0];
            assert!(
                pair[1] - pair[0] <= (distance / 2).max(100),
                "{pair:?} at distance {distance}"
            );
        }
        assert!(kept[0] <= 50_000, "{kept:?}");
    }
}
