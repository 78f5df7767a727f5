//! Candidates on ledgers, commands that always write, and ledgers read back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidemill_bus::commands::{Answer, Commands, SubmitError};
use tidemill_bus::fold::Fold;
use tidemill_bus::identity::{CellName, Genesis, LedgerId};
use tidemill_bus::ledger::Ledger;
use tidemill_bus::memory::MemoryLedger;
use tidemill_bus::sequencer::{Candidate, CandidateHandle, Role, SequencerConfig};
use tidemill_domain::command::{Command, CreateCredential, Envelope};
use tidemill_domain::commit::Commit;
use tidemill_domain::events::Event;
use tidemill_domain::events::credential;
use tidemill_domain::id::CommandId;
use tidemill_domain::invariants::check_all;
use tokio_util::sync::CancellationToken;

/// Longest wait for anything that must happen.
pub const SOON: Duration = Duration::from_secs(20);

pub fn genesis() -> Genesis {
    Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(7)))
}

pub fn id(n: u64) -> CommandId {
    CommandId::derived(&[b"test", &n.to_le_bytes()])
}

/// Command number `n`: it makes a token's record, so it writes one event.
pub fn numbered(n: u64) -> Envelope {
    ask(id(n), make_token(n))
}

pub fn make_token(n: u64) -> Command {
    let hash = *blake3::hash(&n.to_le_bytes()).as_bytes();
    let (supply, tenant, ttl) = (None, None, None);
    Command::CreateCredential(CreateCredential {
        hash,
        role: credential::Role::Operator,
        supply,
        tenant,
        ttl,
    })
}

pub use tidemill_tests::make::envelope as ask;

/// A candidate and the way to end it.
pub struct Seat {
    pub handle: CandidateHandle,
    pub shutdown: CancellationToken,
}

impl Seat {
    pub fn start(ledger: &MemoryLedger, config: SequencerConfig) -> Self {
        let shutdown = CancellationToken::new();
        let handle = Candidate::start(config, Arc::new(ledger.clone()), None, shutdown.clone()).unwrap();
        Self { handle, shutdown }
    }

    /// Starts on `ledger` with nothing kept on disk, and waits until it leads.
    pub async fn leading(ledger: &MemoryLedger) -> Self {
        let seat = Self::start(ledger, SequencerConfig::in_memory("one"));
        assert!(seat.handle.wait_until_leading(SOON).await, "{:?}", seat.handle);
        seat
    }

    pub async fn submit(&self, envelope: Envelope) -> Result<Answer, SubmitError> {
        tokio::time::timeout(SOON, self.handle.submit(envelope))
            .await
            .expect("an answer in time")
    }

    /// Waits for the read-only role and returns its code.
    pub async fn read_only(&self) -> String {
        let mut status = self.handle.status();
        let wait = status.wait_for(|s| matches!(s.role, Role::ReadOnly { .. }));
        let seen = tokio::time::timeout(SOON, wait)
            .await
            .expect("read-only in time")
            .unwrap()
            .clone();
        let Role::ReadOnly { code, reason, next } = seen.role else {
            unreachable!()
        };
        assert!(!reason.is_empty() && !next.is_empty(), "{code} says what to do");
        code
    }

    pub async fn end(self) {
        self.shutdown.cancel();
        tokio::time::timeout(SOON, self.handle.ended())
            .await
            .expect("an end in time");
    }
}

/// Checkpoint and snapshots in `dir`, written often.
pub fn on_disk(dir: &Path) -> SequencerConfig {
    SequencerConfig {
        snapshot_every: 20,
        snapshot_pause: Some(Duration::ZERO),
        disk: None,
        ..SequencerConfig::in_directory("one", dir, &genesis()).unwrap()
    }
}

/// Folds the whole ledger, checks everything there is to check, and returns its commits with their sequence.
pub async fn read_all(ledger: &dyn Ledger) -> (Fold, Vec<(u64, Commit)>) {
    let mut fold = Fold::new(ledger.genesis());
    let mut commits = Vec::new();
    let last = ledger.tail().await.unwrap().sequence;
    while fold.head().sequence < last {
        for raw in ledger.read(fold.head().sequence + 1, 1000, 8 << 20).await.unwrap() {
            let folded = fold.record(&raw, &mut Vec::new()).unwrap();
            commits.extend(folded.commits.into_iter().map(|commit| (raw.sequence, commit)));
        }
    }
    check_all(fold.state()).unwrap();
    let times: Vec<_> = commits.iter().map(|(_, commit)| commit.header.recorded_at).collect();
    assert!(times.is_sorted(), "time never goes back");
    let mut ids: Vec<_> = commits.iter().map(|(_, commit)| commit.header.id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), commits.len(), "commit ids are unique");
    (fold, commits)
}

/// How often each command stands on the ledger.
pub fn times(commits: &[(u64, Commit)], id: CommandId) -> usize {
    commits.iter().filter(|(_, commit)| commit.header.command == id).count()
}

/// The events of a command that stands on the ledger once.
pub fn events_of(commits: &[(u64, Commit)], id: CommandId) -> (u64, &[Event]) {
    let found: Vec<_> = commits
        .iter()
        .filter(|(_, commit)| commit.header.command == id)
        .collect();
    assert_eq!(found.len(), 1, "{id} stands there once");
    (found[0].0, &found[0].1.events)
}
