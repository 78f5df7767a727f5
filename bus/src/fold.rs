//! Folding a ledger: from stored bytes to state, in one place.
//!
//! Views, sequencers, verification and exports all turn records into a [`State`] here: the chain is checked, commits are
//! decoded, events applied, and, where the holder leads or may come to lead, command ids remembered. One path for all of
//! them means that what a sequencer decides on is what everyone else reads.
//!
//! What a record is on its own (its bytes, its hash, its commits) does not depend on the one before it: [`Prepared`] is that
//! half, done by [`crate::ahead`] on other threads; what follows here is the link to the record before, and the events.
//!
//! Invariant: a record is folded whole or not at all as far as anyone can see: on an error the fold is to be dropped.

use tidemill_domain::commit::Commit;
use tidemill_domain::events::DecodeError;
use tidemill_domain::state::{ApplyError, State, Touched};

use crate::chain::{ChainError, ChainReader, Hashed};
use crate::digest::Anchor;
use crate::identity::Genesis;
use crate::ledger::{RawRecord, ReadError};
use crate::record::{CommitSlot, Record};

/// A ledger that cannot be folded on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FoldError {
    /// A record is not what must stand there.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A commit cannot be read by this build.
    #[error("ledger record {sequence}: {source}")]
    Decode {
        /// Record.
        sequence: u64,
        /// Why.
        source: DecodeError,
    },
    /// An event does not fit the state.
    #[error("ledger record {sequence}: {source}")]
    Apply {
        /// Record.
        sequence: u64,
        /// Why.
        source: ApplyError,
    },
    /// A commit's content was left out: an export for a tenant is read, not folded.
    #[error("ledger record {sequence} holds a hash in place of a commit")]
    StandIn {
        /// Record.
        sequence: u64,
    },
    /// The store did not give records back.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl FoldError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Chain(error) => error.code(),
            Self::Decode {
                source: DecodeError::UnknownKind { .. },
                ..
            } => "event_kind_unknown",
            Self::Decode { .. } => "commit_malformed",
            Self::Apply { .. } => "event_does_not_apply",
            Self::StandIn { .. } => "commit_left_out",
            Self::Read(error) => error.code(),
        }
    }

    /// What to do next.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        match self {
            Self::Decode {
                source: DecodeError::UnknownKind { .. },
                ..
            } => "upgrade this process to the release that wrote it",
            Self::Read(error) if error.is_transient() => {
                "check that the ledger's store is up; reading goes on by itself"
            }
            Self::Read(ReadError::Missing) => "restore the ledger from a backup: it is never created anew by itself",
            _ => "run `tidemill verify` to see how far the ledger is sound, and restore a backup if it is damaged",
        }
    }
}

/// A state and the place in the ledger it stands for.
#[derive(Debug, Clone)]
pub struct Fold {
    chain: ChainReader,
    state: State,
}

impl Fold {
    /// Before the first record.
    #[must_use]
    pub fn new(genesis: &Genesis) -> Self {
        Self {
            chain: ChainReader::new(genesis),
            state: State::default(),
        }
    }

    /// Goes on from a known state, such as a snapshot's or an export's.
    #[must_use]
    pub fn resume(genesis: &Genesis, anchor: Anchor, state: State) -> Self {
        Self {
            chain: ChainReader::from_anchor(genesis, anchor),
            state,
        }
    }

    /// Checks, decodes and applies one stored record. Changed entities are added to `touched`.
    pub fn record(&mut self, raw: &RawRecord, touched: &mut Touched) -> Result<FoldedRecord, FoldError> {
        self.prepared(Prepared::of(raw), touched)
    }

    /// Checks and applies a record that was prepared. Changed entities are added to `touched`.
    pub fn prepared(&mut self, prepared: Prepared, touched: &mut Touched) -> Result<FoldedRecord, FoldError> {
        let FoldedRecord { record, commits } = prepared.follow(&mut self.chain)?;
        let sequence = record.header.sequence;
        self.state
            .apply_record(sequence, &commits, touched)
            .map_err(|source| FoldError::Apply { sequence, source })?;
        Ok(FoldedRecord { record, commits })
    }

    /// Place and hash of the last record folded.
    #[must_use]
    pub fn head(&self) -> Anchor {
        self.chain.head()
    }

    /// The chain as far as it was checked.
    #[must_use]
    pub fn chain(&self) -> &ChainReader {
        &self.chain
    }

    /// The state there.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Gives up the fold for its parts.
    #[must_use]
    pub fn into_parts(self) -> (ChainReader, State) {
        (self.chain, self.state)
    }
}

/// A stored record, hashed and decoded; whether it is the one that must come next is not known yet.
#[derive(Debug)]
pub struct Prepared {
    hashed: Hashed,
    /// Looked at only if the chain holds: damage is named before what it led to.
    commits: Result<Vec<Commit>, FoldError>,
}

impl Prepared {
    /// Hashes and decodes. What is wrong comes to light when it is folded.
    #[must_use]
    pub fn of(raw: &RawRecord) -> Self {
        let hashed = Hashed::of(raw.sequence, &raw.body);
        let commits = hashed.record().map_or(Ok(Vec::new()), decode_commits);
        Self { hashed, commits }
    }

    /// The sequence it is stored at.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.hashed.sequence()
    }

    /// Checks that it is the one that must come next, and moves `chain` on.
    pub fn follow(self, chain: &mut ChainReader) -> Result<FoldedRecord, FoldError> {
        let record = chain.check_hashed(self.hashed)?;
        let commits = self.commits?;
        Ok(FoldedRecord { record, commits })
    }
}

/// A record with its commits decoded.
#[derive(Debug, Clone)]
pub struct FoldedRecord {
    /// As stored.
    pub record: Record,
    /// Its commits, in order.
    pub commits: Vec<Commit>,
}

/// Decodes all of a record's commits.
pub fn decode_commits(record: &Record) -> Result<Vec<Commit>, FoldError> {
    let sequence = record.header.sequence;
    let decode = |slot: &CommitSlot| match slot {
        CommitSlot::Full(bytes) => Commit::decode(bytes).map_err(|source| FoldError::Decode { sequence, source }),
        CommitSlot::StandIn(_) => Err(FoldError::StandIn { sequence }),
    };
    record.commits.iter().map(decode).collect()
}
