//! The deciding core by itself: groups, seals, leases, limits.

use std::collections::VecDeque;
use std::time::Duration;

use tidemill_bus::fold::Fold;
use tidemill_bus::ledger::RawRecord;
use tidemill_bus::sequencer::{Core, Dedupe, Group, Now, Outcome, Pending, Planned, SEAL_EVERY};
use tidemill_domain::command::{Command, Envelope};
use tidemill_domain::commit::Commit;
use tidemill_domain::events::Event;
use tidemill_domain::state::seal::Sealer;
use tidemill_domain::time::Timestamp;
use tidemill_tests::make;

use crate::support::{ask, genesis, id, numbered};

/// A core, what it wrote, and a monotonic clock in seconds.
struct Bench {
    core: Core<u64>,
    fold: Fold,
    commits: Vec<(u64, Commit)>,
    second: u64,
}

impl Bench {
    fn new() -> Self {
        Self::behind(Fold::new(&genesis()), Dedupe::default(), 0)
    }

    fn behind(fold: Fold, dedupe: Dedupe, second: u64) -> Self {
        let now = at(second);
        let (core, planned) = Core::take_over(&genesis(), fold.clone(), dedupe, "test", "0", now).unwrap();
        let mut bench = Self {
            core,
            fold,
            commits: vec![],
            second,
        };
        bench.append(planned);
        bench
    }

    fn append(&mut self, planned: Planned) {
        let raw = RawRecord {
            sequence: planned.record.anchor.sequence,
            body: planned.record.bytes,
        };
        let folded = self.fold.record(&raw, &mut vec![]).unwrap();
        assert_eq!(
            folded.commits.iter().map(|c| c.events.len() as u64).sum::<u64>(),
            planned.events
        );
        self.commits
            .extend(folded.commits.into_iter().map(|commit| (raw.sequence, commit)));
        assert_eq!(
            self.fold.state().to_snapshot(),
            self.core.state().to_snapshot(),
            "what was decided is what is read"
        );
    }

    /// Decides until the queue is empty; returns what came of each command, and the number of records.
    fn decide(&mut self, asked: impl IntoIterator<Item = Envelope>) -> (Vec<Outcome>, usize) {
        let mut queue: VecDeque<_> = (0..)
            .zip(asked)
            .map(|(reply, envelope)| Pending {
                body_hash: envelope.body_hash(),
                envelope: envelope.into(),
                reply,
            })
            .collect();
        let (mut outcomes, mut records) = (vec![], 0);
        while !queue.is_empty() || self.core.has_carried() {
            self.core.decide(&mut queue, at(self.second)).unwrap();
            let Group { planned, answers } = self.core.close().unwrap();
            outcomes.extend(answers);
            if let Some(planned) = planned {
                records += 1;
                self.append(planned);
            }
        }
        assert!(
            outcomes.is_sorted_by_key(|(reply, _)| *reply),
            "answers come in the order of asking"
        );
        (outcomes.into_iter().map(|(_, outcome)| outcome).collect(), records)
    }
}

fn at(second: u64) -> Now {
    Now {
        wall: Timestamp(1_767_225_600_000_000),
        elapsed: Duration::from_secs(second),
    }
}

fn term(n: u64, holder: &str) -> Envelope {
    ask(
        id(n),
        Command::AcquireTerm {
            role: "scheduler".into(),
            holder: holder.into(),
        },
    )
}

#[test]
fn a_worker_role_goes_to_another_only_when_its_lease_has_run_out() {
    let mut bench = Bench::new();
    let ask = |bench: &mut Bench, n, holder| bench.decide([term(n, holder)]).0.remove(0);
    assert!(matches!(ask(&mut bench, 1, "a"), Outcome::Accepted(_)));
    bench.second = 14;
    assert!(matches!(ask(&mut bench, 2, "b"), Outcome::Rejected(r) if r.code() == "term_held"));
    assert_eq!(ask(&mut bench, 3, "a"), Outcome::Unchanged, "a renewal writes nothing");
    bench.second = 28;
    assert!(matches!(ask(&mut bench, 4, "b"), Outcome::Rejected(_)), "and counts");
    bench.second = 29;
    assert!(matches!(ask(&mut bench, 5, "b"), Outcome::Accepted(_)));
    // The next leader knows nothing of renewals and waits a full lease.
    let mut next = Bench::behind(bench.fold, Dedupe::default(), 100);
    next.second = 114;
    assert!(matches!(ask(&mut next, 6, "c"), Outcome::Rejected(_)));
    next.second = 115;
    assert!(matches!(ask(&mut next, 7, "c"), Outcome::Accepted(_)));
    assert_eq!(next.fold.state().terms["scheduler"].term, 3);
}

#[test]
fn groups_close_at_their_size_and_large_commits_are_carried_over_or_refused() {
    let mut bench = Bench::new();
    let (outcomes, records) = bench.decide((0..5000).map(numbered));
    assert!(outcomes.iter().all(|o| matches!(o, Outcome::Accepted(_))));
    assert!((3..=20).contains(&records), "{records} records");
    let largest = bench.commits.iter().fold(0, |most, (s, _)| most.max(*s));
    assert_eq!(largest as usize, records + 1);

    // Declarations of about 150 KiB each: two do not fit one record; 64 of them in one command fit none.
    let large = |names: std::ops::Range<u64>, bytes: usize| {
        let services = names
            .map(|n| {
                let mut spec = make::spec(0, 1);
                spec.run.env.insert("FILL".into(), "x".repeat(bytes));
                let Command::ApplyServices { mut services } = make::apply(&format!("s{n}"), spec) else {
                    unreachable!()
                };
                services.remove(0)
            })
            .collect();
        Command::ApplyServices { services }
    };
    let asked = (0..4).map(|n| ask(id(10_000 + n), large(n * 5..n * 5 + 5, 30_000)));
    let small = (20_000..20_010).map(numbered);
    let (outcomes, records) = bench.decide(asked.chain(small));
    let refused = outcomes.iter().filter(|o| matches!(o, Outcome::Rejected(_))).count();
    assert_eq!((refused, records), (0, 4), "{outcomes:.200?}");
    let before = bench.core.state().to_snapshot();
    let (outcomes, records) = bench.decide([ask(id(30_000), large(100..164, 30_000))]);
    assert!(
        matches!(&outcomes[0], Outcome::Rejected(r) if r.code() == "too_many"),
        "{outcomes:.200?}"
    );
    assert_eq!(
        (records, bench.core.state().to_snapshot()),
        (0, before),
        "the state was not touched"
    );
}

#[test]
fn the_state_is_sealed_every_ten_thousand_events_and_a_fold_gives_the_same_seals() {
    let mut bench = Bench::new();
    bench.decide((0..2 * SEAL_EVERY + 5000).map(numbered));
    let mut state = tidemill_domain::state::State::default();
    let mut sealer = Sealer::of(&state);
    let (mut seals, mut last, mut events) = (0, 0, 0);
    for (sequence, commit) in &bench.commits {
        for event in &commit.events {
            if let Event::StateSealed(sealed) = event {
                assert_eq!(sealed.hash, sealer.seal(&state), "seal {seals}");
                assert_eq!((sealed.events, sealed.entities), (events, sealer.entities()));
                assert!(events - last < SEAL_EVERY + 5000, "{events} after {last}");
                (seals, last) = (seals + 1, events);
            }
            events += 1;
        }
        let mut touched = vec![];
        state.apply_record(*sequence, [commit], &mut touched).unwrap();
        sealer.touch(&touched);
    }
    assert_eq!(seals, 3, "one with the epoch, two on the way");
}
