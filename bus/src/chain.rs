//! Reading a ledger without trusting what stores it.
//!
//! A [`ChainReader`] is handed records in order and accepts each only if it is the one that must come next: dense, of
//! this ledger, behind the hash of the record before, hashing to what it claims, with epoch and time not going back.
//! Everything that folds, verifies or exports reads through one, so a damaged or swapped block is met where it lies and
//! not as odd state later. Rejected: checking only on `verify`, which finds damage after it has been acted upon.
//!
//! Invariant: after an error the reader stands where it stood, and the error names the first bad sequence.

use bytes::Bytes;

use crate::digest::{Anchor, Digest};
use crate::identity::{CellName, Genesis, LedgerId};
use crate::record::{CommitSlot, DecodeError, Record};

/// Checks records in order from an anchor on.
#[derive(Debug, Clone)]
pub struct ChainReader {
    genesis: Genesis,
    head: Anchor,
    epoch: u64,
    recorded_at: i64,
    stand_ins: bool,
}

impl ChainReader {
    /// Starts before the first record.
    #[must_use]
    pub fn new(genesis: &Genesis) -> Self {
        Self::from_anchor(genesis, genesis.anchor())
    }

    /// Starts behind `anchor`, which the caller trusts (a checkpoint, a snapshot, a printed `SEQ:HASH`). Epoch and time
    /// of the first record are taken as they come.
    #[must_use]
    pub fn from_anchor(genesis: &Genesis, anchor: Anchor) -> Self {
        Self {
            genesis: genesis.clone(),
            head: anchor,
            epoch: 0,
            recorded_at: i64::MIN,
            stand_ins: false,
        }
    }

    /// Accepts hashes in place of commits: for exported slices.
    #[must_use]
    pub fn allowing_stand_ins(mut self) -> Self {
        self.stand_ins = true;
        self
    }

    /// Place and hash of the last accepted record (the anchor before any).
    #[must_use]
    pub fn head(&self) -> Anchor {
        self.head
    }

    /// The sequence that must come next.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.head.sequence + 1
    }

    /// Epoch of the last accepted record, 0 before any.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Time of the last accepted record in microseconds since the Unix epoch, `i64::MIN` before any.
    #[must_use]
    pub fn recorded_at(&self) -> i64 {
        self.recorded_at
    }

    /// Decodes and checks what is stored at `sequence`; moves on only if all holds.
    pub fn check(&mut self, sequence: u64, body: &Bytes) -> Result<Record, ChainError> {
        self.check_hashed(Hashed::of(sequence, body))
    }

    /// Checks what was decoded and hashed before; moves on only if all holds.
    pub fn check_hashed(&mut self, hashed: Hashed) -> Result<Record, ChainError> {
        let (next, sequence) = (self.next_sequence(), hashed.sequence);
        // A hole is reported at the first record that is missing, not at the one found behind it.
        if sequence != next {
            return Err(ChainError {
                sequence: next,
                fault: ChainFault::NotDense { found: sequence },
            });
        }
        let (record, computed) = hashed.content.map_err(|error| ChainError {
            sequence,
            fault: ChainFault::Undecodable(error),
        })?;
        self.accept(&record, computed)?;
        Ok(record)
    }

    /// Checks a decoded record; moves on only if all holds.
    pub fn check_record(&mut self, record: &Record) -> Result<(), ChainError> {
        self.accept(record, record.computed_hash())
    }

    fn accept(&mut self, record: &Record, computed: Digest) -> Result<(), ChainError> {
        let sequence = self.next_sequence();
        self.find_fault(sequence, record, computed)
            .map_err(|fault| ChainError { sequence, fault })?;
        self.head = record.anchor();
        self.epoch = record.header.epoch;
        self.recorded_at = record.header.recorded_at;
        Ok(())
    }

    fn find_fault(&self, sequence: u64, record: &Record, computed: Digest) -> Result<(), ChainFault> {
        let header = &record.header;
        if header.sequence != sequence {
            return Err(ChainFault::OtherSequence { found: header.sequence });
        }
        if header.cell != self.genesis.cell {
            return Err(ChainFault::OtherCell {
                found: header.cell.clone(),
            });
        }
        if header.ledger_id != self.genesis.ledger_id {
            return Err(ChainFault::OtherLedger {
                found: header.ledger_id,
            });
        }
        if !self.stand_ins && record.commits.iter().any(|slot| matches!(slot, CommitSlot::StandIn(_))) {
            return Err(ChainFault::StandIn);
        }
        // Own hash before the link: damage inside this record is told from one that belongs behind another.
        if computed != record.hash {
            return Err(ChainFault::WrongHash {
                computed,
                claimed: record.hash,
            });
        }
        if record.previous != self.head.hash {
            return Err(ChainFault::BrokenLink {
                expected: self.head.hash,
                found: record.previous,
            });
        }
        if header.epoch < self.epoch {
            return Err(ChainFault::EpochWentBack {
                from: self.epoch,
                to: header.epoch,
            });
        }
        if header.recorded_at < self.recorded_at {
            return Err(ChainFault::TimeWentBack {
                from: self.recorded_at,
                to: header.recorded_at,
            });
        }
        Ok(())
    }
}

/// What is stored at a sequence, decoded and hashed: the part of checking it that needs no predecessor.
#[derive(Debug)]
pub struct Hashed {
    sequence: u64,
    content: Result<(Record, Digest), DecodeError>,
}

impl Hashed {
    /// Decodes and hashes.
    #[must_use]
    pub fn of(sequence: u64, body: &Bytes) -> Self {
        let content = Record::decode(body).map(|record| {
            let computed = record.computed_hash();
            (record, computed)
        });
        Self { sequence, content }
    }

    /// The sequence it is stored at.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The record, if its bytes are one.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.content.as_ref().ok().map(|(record, _)| record)
    }
}

/// The ledger cannot be read on: the first bad sequence and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("ledger record {sequence}: {fault}")]
pub struct ChainError {
    /// First sequence that does not hold.
    pub sequence: u64,
    /// What is wrong with it.
    pub fault: ChainFault,
}

/// What can be wrong with a record in its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainFault {
    /// Another sequence came where this one must.
    #[error("is missing; the next one stored is {found}")]
    NotDense {
        /// The sequence that came instead.
        found: u64,
    },
    /// It does not decode.
    #[error(transparent)]
    Undecodable(DecodeError),
    /// It was written for another place.
    #[error("says it is record {found}")]
    OtherSequence {
        /// The sequence in its header.
        found: u64,
    },
    /// It belongs to another cell.
    #[error("belongs to cell {found}")]
    OtherCell {
        /// The cell in its header.
        found: CellName,
    },
    /// It belongs to another ledger.
    #[error("belongs to ledger {found}")]
    OtherLedger {
        /// The ledger id in its header.
        found: LedgerId,
    },
    /// A hash stands where a stored record must have bytes.
    #[error("has a hash in place of a commit, which only an exported slice may have")]
    StandIn,
    /// Its content does not hash to what it claims: it was changed after it was written.
    #[error("hashes to {computed} but claims {claimed}: its bytes were changed")]
    WrongHash {
        /// Hash over its content.
        computed: Digest,
        /// Hash it carries.
        claimed: Digest,
    },
    /// It follows another record than the one before it.
    #[error("follows {found}, but the record before it has hash {expected}: history was replaced")]
    BrokenLink {
        /// Hash of the record before.
        expected: Digest,
        /// Hash it says the record before has.
        found: Digest,
    },
    /// An older writer wrote behind a newer one.
    #[error("has epoch {to} behind epoch {from}")]
    EpochWentBack {
        /// Epoch of the record before.
        from: u64,
        /// Its own epoch.
        to: u64,
    },
    /// Time decreased.
    #[error("was recorded at {to} us, before its predecessor at {from} us")]
    TimeWentBack {
        /// Time of the record before.
        from: i64,
        /// Its own time.
        to: i64,
    },
}

impl ChainError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match &self.fault {
            ChainFault::NotDense { .. } | ChainFault::OtherSequence { .. } => "ledger_not_dense",
            ChainFault::Undecodable(error) => error.code(),
            ChainFault::OtherCell { .. } | ChainFault::OtherLedger { .. } => "ledger_foreign_record",
            ChainFault::StandIn | ChainFault::WrongHash { .. } => "ledger_record_changed",
            ChainFault::BrokenLink { .. } => "ledger_forked",
            ChainFault::EpochWentBack { .. } => "ledger_epoch_went_back",
            ChainFault::TimeWentBack { .. } => "ledger_time_went_back",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::record::{RecordBuilder, RecordHeader};

    fn genesis() -> Genesis {
        Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(7)))
    }

    fn write(genesis: &Genesis, previous: Digest, sequence: u64, epoch: u64, recorded_at: i64) -> Record {
        let mut builder = RecordBuilder::new();
        builder.push(format!("commit {sequence}").as_bytes()).unwrap();
        let Genesis { cell, ledger_id } = genesis.clone();
        let sealed = builder.seal(
            &RecordHeader {
                cell,
                ledger_id,
                sequence,
                epoch,
                recorded_at,
            },
            &previous,
        );
        Record::decode(&sealed.bytes).unwrap()
    }

    /// A reader behind record 1 (epoch 2, time 100), and that record.
    fn behind_first() -> (ChainReader, Record) {
        let first = write(&genesis(), genesis().hash(), 1, 2, 100);
        let mut reader = ChainReader::new(&genesis());
        reader.check_record(&first).unwrap();
        (reader, first)
    }

    #[test]
    fn each_fault_is_named_and_leaves_the_reader_in_place() {
        let (reader, first) = behind_first();
        let good = write(&genesis(), first.hash, 2, 2, 100);
        let other_ledger = Genesis {
            ledger_id: LedgerId(uuid::Uuid::from_u128(8)),
            ..genesis()
        };
        let other_cell = Genesis {
            cell: CellName::new("other").unwrap(),
            ..genesis()
        };
        let mut changed = good.clone();
        changed.commits[0] = CommitSlot::Full(Bytes::from_static(b"forged"));
        let cases = [
            (write(&genesis(), first.hash, 3, 2, 100), "ledger_not_dense"),
            (write(&other_ledger, first.hash, 2, 2, 100), "ledger_foreign_record"),
            (write(&other_cell, first.hash, 2, 2, 100), "ledger_foreign_record"),
            (write(&genesis(), Digest::of(b"fork"), 2, 2, 100), "ledger_forked"),
            (write(&genesis(), first.hash, 2, 1, 100), "ledger_epoch_went_back"),
            (write(&genesis(), first.hash, 2, 2, 99), "ledger_time_went_back"),
            (good.redacted(|_, _| false), "ledger_record_changed"),
            (changed, "ledger_record_changed"),
        ];
        for (bad, code) in cases {
            let mut reader = reader.clone();
            let error = reader.check_record(&bad).unwrap_err();
            assert_eq!((error.sequence, error.code()), (2, code), "{error}");
            assert_eq!(reader.head(), first.anchor());
            reader.check_record(&good).unwrap();
        }
    }

    #[test]
    fn a_hole_is_reported_at_the_missing_sequence() {
        let (mut reader, first) = behind_first();
        let third = write(&genesis(), first.hash, 3, 2, 100);
        let error = reader.check(3, &third.encode()).unwrap_err();
        assert_eq!((error.sequence, error.code()), (2, "ledger_not_dense"));
        let unreadable = reader.check(2, &Bytes::from_static(b"\x09")).unwrap_err();
        assert_eq!((unreadable.sequence, unreadable.code()), (2, "record_format_unknown"));
    }

    #[test]
    fn an_export_with_stand_ins_still_verifies() {
        let (_, first) = behind_first();
        let mut reader = ChainReader::new(&genesis()).allowing_stand_ins();
        reader.check_record(&first.redacted(|_, _| false)).unwrap();
        assert_eq!(reader.head(), first.anchor());
    }
}
