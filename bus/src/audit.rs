//! Verification: everything a ledger claims about itself, checked by reading it.
//!
//! Each record is checked against the chain, each commit decoded and folded, and each seal compared with the hash of the
//! state folded so far: what the sequencer decided on must be what a reader gets. It reads through the
//! [`Ledger`] trait and needs no server. A printed `SEQ:HASH` anchors the whole: if the record there still has that hash,
//! nothing before it has changed since it was printed.
//!
//! Invariants: the first bad sequence is named, and everything before it holds. A seal of another state version, or
//! behind events this build cannot read, is counted as not checkable and never as checked; the chain is checked all the
//! same.

use serde::{Serialize, Serializer};
use tidemill_domain::commit::Commit;
use tidemill_domain::events::cell::StateSealed;
use tidemill_domain::events::{DecodeError, Event};
use tidemill_domain::state::seal::Sealer;
use tidemill_domain::state::{EventMeta, STATE_VERSION, State, Touched};

use crate::chain::ChainReader;
use crate::digest::{Anchor, Digest};
use crate::identity::Genesis;
use crate::ledger::{Ledger, RawRecord, ReadError};
use crate::record::{CommitSlot, Record};
use crate::verify::WalkError;

/// Records and bytes read at once.
const BATCH: usize = 512;
const BATCH_BYTES: usize = 4 << 20;

/// What verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// All that could be checked holds.
    pub ok: bool,
    /// Records that hold.
    pub records: u64,
    /// Events in them, as far as their commits are there.
    pub events: u64,
    /// Commits of which an export holds only the hash.
    pub left_out: u64,
    /// The first sequence that does not hold.
    pub first_bad_seq: Option<u64>,
    /// Stable code of what is wrong there.
    pub code: Option<String>,
    /// What is wrong, in a sentence.
    pub reason: Option<String>,
    /// The last record that holds, as `SEQ:HASH`.
    #[serde(serialize_with = "as_text")]
    pub head: Anchor,
    /// Seals that were recomputed and agree.
    pub seals_checked: u64,
    /// Seals that cannot be recomputed here.
    pub seals_not_checkable: u64,
}

fn as_text<S: Serializer>(anchor: &Anchor, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(anchor)
}

/// Verifies a ledger from its first record to its present end. `against` is an anchor printed earlier; `progress` is told
/// the sequence reached and the last one.
///
/// Fails only if the ledger cannot be read for now; whatever is wrong with it is in the report.
pub async fn verify(
    ledger: &dyn Ledger,
    against: Option<Anchor>,
    progress: impl FnMut(u64, u64) + Send,
) -> Result<VerifyReport, ReadError> {
    let verifier = Verifier::new(ledger.genesis(), against);
    run(ledger, verifier, progress).await
}

pub(crate) async fn run(
    ledger: &dyn Ledger,
    mut verifier: Verifier,
    mut progress: impl FnMut(u64, u64) + Send,
) -> Result<VerifyReport, ReadError> {
    let last = ledger.tail().await;
    let last = match last {
        Ok(tail) => tail.sequence,
        Err(error) => return verifier.stop(error),
    };
    while verifier.next_sequence() <= last {
        progress(verifier.next_sequence() - 1, last);
        let batch = match ledger.read(verifier.next_sequence(), BATCH, BATCH_BYTES).await {
            Ok(batch) if batch.is_empty() => {
                let seen = last;
                let last = verifier.next_sequence() - 1;
                return verifier.stop(ReadError::Shorter { last, seen });
            }
            Ok(batch) => batch,
            Err(error) => return verifier.stop(error),
        };
        for raw in &batch {
            if let Err(finding) = verifier.record(raw) {
                return Ok(verifier.report(Some(finding)));
            }
        }
    }
    progress(last, last);
    let finding = verifier.against.map(|anchor| Finding {
        sequence: last + 1,
        code: "ledger_shorter",
        reason: format!(
            "the ledger ends at sequence {last}, before the anchor at {}",
            anchor.sequence
        ),
    });
    Ok(verifier.report(finding))
}

/// Something that does not hold.
#[derive(Debug)]
struct Finding {
    sequence: u64,
    code: &'static str,
    reason: String,
}

/// Verifies records in order.
pub(crate) struct Verifier {
    chain: ChainReader,
    /// The state so far; none where it cannot be known.
    folded: Option<(State, Sealer)>,
    /// State behind the first record, which must then end with the seal of it: an export's opening.
    opening: Option<Opening>,
    against: Option<Anchor>,
    touched: Touched,
    report: VerifyReport,
}

/// What an export opens with.
pub(crate) struct Opening {
    /// The seal its entity hashes give.
    pub(crate) seal: [u8; 32],
    /// The state itself, where all of it is there.
    pub(crate) state: Option<State>,
}

impl Verifier {
    pub(crate) fn new(genesis: &Genesis, against: Option<Anchor>) -> Self {
        let folded = Some((State::default(), Sealer::default()));
        Self::from(ChainReader::new(genesis), folded, None, against)
    }

    /// Starts with the record behind `chain`'s head.
    pub(crate) fn behind(chain: ChainReader, opening: Opening, against: Option<Anchor>) -> Self {
        Self::from(chain, None, Some(opening), against)
    }

    /// Starts at the first record of a ledger of which not every commit is there.
    pub(crate) fn chain_only(chain: ChainReader, against: Option<Anchor>) -> Self {
        Self::from(chain, None, None, against)
    }

    fn from(
        chain: ChainReader,
        folded: Option<(State, Sealer)>,
        opening: Option<Opening>,
        against: Option<Anchor>,
    ) -> Self {
        let report = VerifyReport {
            ok: false,
            records: 0,
            events: 0,
            left_out: 0,
            first_bad_seq: None,
            code: None,
            reason: None,
            head: chain.head(),
            seals_checked: 0,
            seals_not_checkable: 0,
        };
        let mut verifier = Self {
            chain,
            folded,
            opening,
            against,
            touched: Touched::new(),
            report,
        };
        // The place before the first record is an anchor too.
        if verifier.against.is_some_and(|anchor| anchor == verifier.chain.head()) {
            verifier.against = None;
        }
        verifier
    }

    /// The opening state of an export is not what it says.
    pub(crate) fn opening_is_bad(self, sequence: u64, reason: String) -> VerifyReport {
        let code = "opening_changed";
        self.report(Some(Finding { sequence, code, reason }))
    }

    fn next_sequence(&self) -> u64 {
        self.chain.next_sequence()
    }

    fn stop(self, error: ReadError) -> Result<VerifyReport, ReadError> {
        let error = WalkError::from(error);
        match (error.first_bad_sequence(), error) {
            (Some(sequence), error) => {
                let (code, reason) = (error.code(), error.to_string());
                Ok(self.report(Some(Finding { sequence, code, reason })))
            }
            (None, WalkError::Read(error)) => Err(error),
            (None, WalkError::Chain(error)) => {
                let (sequence, code, reason) = (error.sequence, error.code(), error.to_string());
                Ok(self.report(Some(Finding { sequence, code, reason })))
            }
        }
    }

    fn report(mut self, finding: Option<Finding>) -> VerifyReport {
        self.report.ok = finding.is_none();
        if let Some(finding) = finding {
            self.report.first_bad_seq = Some(finding.sequence);
            self.report.code = Some(finding.code.to_owned());
            self.report.reason = Some(finding.reason);
        }
        self.report
    }

    /// Checks one record; moves on only if all holds.
    fn record(&mut self, raw: &RawRecord) -> Result<(), Finding> {
        let record = self.chain.check(raw.sequence, &raw.body).map_err(|error| Finding {
            sequence: error.sequence,
            code: error.code(),
            reason: error.to_string(),
        })?;
        let anchor = record.anchor();
        if let Some(printed) = self.against.filter(|printed| printed.sequence == anchor.sequence) {
            if printed.hash != anchor.hash {
                return Err(Finding {
                    sequence: anchor.sequence,
                    code: "ledger_forked",
                    reason: format!("the record has hash {}, but {} was printed", anchor.hash, printed.hash),
                });
            }
            self.against = None;
        }
        self.content(&record)?;
        if let Some(opening) = self.opening.take() {
            self.folded = opening.state.map(|state| {
                let sealer = Sealer::of(&state);
                (state, sealer)
            });
        }
        self.report.records += 1;
        self.report.head = anchor;
        Ok(())
    }

    fn content(&mut self, record: &Record) -> Result<(), Finding> {
        let sequence = record.header.sequence;
        let mut index = 0;
        for slot in &record.commits {
            let CommitSlot::Full(bytes) = slot else {
                self.report.left_out += 1;
                self.folded = None;
                continue;
            };
            match Commit::decode(bytes) {
                Ok(commit) => self.commit(sequence, &commit, &mut index)?,
                // Written by a newer release: the chain goes on, the fold cannot.
                Err(DecodeError::UnknownKind { .. }) => {
                    self.folded = None;
                    let kinds = Commit::kinds(bytes).map_err(|error| malformed(sequence, &error))?;
                    self.report.events += kinds.len() as u64;
                }
                Err(error) => return Err(malformed(sequence, &error)),
            }
        }
        Ok(())
    }

    fn commit(&mut self, sequence: u64, commit: &Commit, index: &mut u32) -> Result<(), Finding> {
        for event in &commit.events {
            self.report.events += 1;
            if let Event::StateSealed(sealed) = event {
                self.seal(sequence, sealed)?;
            }
            if let Some((state, sealer)) = &mut self.folded {
                let address = tidemill_domain::commit::Address {
                    sequence,
                    index: *index,
                };
                let (recorded_at, trace) = (commit.header.recorded_at, commit.header.trace);
                let meta = EventMeta {
                    address,
                    recorded_at,
                    trace,
                };
                self.touched.clear();
                state.apply(event, &meta, &mut self.touched).map_err(|error| Finding {
                    sequence,
                    code: "event_does_not_apply",
                    reason: error.to_string(),
                })?;
                sealer.touch(&self.touched);
            }
            *index += 1;
        }
        Ok(())
    }

    fn seal(&mut self, sequence: u64, sealed: &StateSealed) -> Result<(), Finding> {
        let computed = match (&mut self.folded, &self.opening) {
            _ if sealed.state_version != STATE_VERSION => None,
            (Some((state, sealer)), _) => Some(sealer.seal(state)),
            (None, Some(opening)) => Some(opening.seal),
            (None, None) => None,
        };
        match computed {
            None => self.report.seals_not_checkable += 1,
            Some(computed) if computed == sealed.hash => self.report.seals_checked += 1,
            Some(computed) => {
                return Err(Finding {
                    sequence,
                    code: "seal_differs",
                    reason: format!(
                        "the state was sealed as {} but its content gives {}",
                        Digest(sealed.hash),
                        Digest(computed)
                    ),
                });
            }
        }
        Ok(())
    }
}

fn malformed(sequence: u64, error: &DecodeError) -> Finding {
    Finding {
        sequence,
        code: "commit_malformed",
        reason: error.to_string(),
    }
}
