//! Random command sequences: the invariants hold after every commit, replay gives the same state, and a restart from a
//! snapshot at any point changes nothing.
#![allow(clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::prelude::*;
use tidemill_domain::invariants;
use tidemill_domain::state::State;
use tidemill_domain::state::seal::Sealer;
use tidemill_tests::random;

/// Sequences in one run: 10,000 in all tests together, ten times that with `TIDEMILL_LONG`.
fn cases(normal: u32) -> ProptestConfig {
    let factor = if std::env::var_os("TIDEMILL_LONG").is_some() {
        10
    } else {
        1
    };
    ProptestConfig {
        cases: normal * factor,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(9_500))]

    /// Every commit is checked as it is made; at the end everything is, touched or not, and the hashes kept
    /// incrementally are those of the state as a whole.
    #[test]
    fn invariants_hold_after_every_commit(numbers in vec(any::<u64>(), 1..80)) {
        let mut cell = random::run(&numbers);
        invariants::check_all(&cell.state).unwrap();
        prop_assert_eq!(cell.seal(), Sealer::of(&cell.state).seal(&cell.state));
    }
}

proptest! {
    #![proptest_config(cases(500))]

    /// The same commits give the same state, and a snapshot taken after any of them, read back, continues to it.
    #[test]
    fn replay_and_restart_at_every_index_give_the_same_state(numbers in vec(any::<u64>(), 1..60)) {
        let mut cell = random::run(&numbers);
        let end = cell.state.to_snapshot();
        let mut running = State::default();
        for (i, _) in cell.commits.iter().enumerate() {
            let restarted = State::from_snapshot(&running.to_snapshot()).unwrap();
            let mut state = restarted;
            for (n, commit) in cell.commits.iter().enumerate().skip(i) {
                state.apply_record(n as u64 + 1, [commit], &mut Vec::new()).unwrap();
            }
            prop_assert_eq!(state.to_snapshot(), end.clone());
            running.apply_record(i as u64 + 1, [&cell.commits[i]], &mut Vec::new()).unwrap();
        }
        prop_assert_eq!(cell.seal(), Sealer::of(&running).seal(&running));
    }
}

/// The game is worth playing: it reaches every kind of event that commands can lead to.
#[test]
fn random_runs_reach_every_kind_of_event() {
    let mut reached = std::collections::BTreeSet::new();
    for seed in 0..100u64 {
        let numbers: Vec<u64> = (0..600)
            .map(|n| (seed * 1000 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31))
            .collect();
        let cell = random::run(&numbers);
        reached.extend(cell.commits.iter().flat_map(|c| &c.events).map(|e| e.name()));
    }
    // Asked by the sequencer itself, or free of any interplay with the rest of the state.
    let apart = [
        "StateSealed",
        "FeatureActivated",
        "CredentialRevoked",
        "WorkerTermGranted",
        "TrafficMinuteClosed",
        "ObservationWindowSealed",
    ];
    let missed: Vec<_> = tidemill_domain::events::KINDS
        .iter()
        .map(|kind| kind.name)
        .filter(|name| !reached.contains(name) && !apart.contains(name))
        .collect();
    assert!(missed.is_empty(), "never reached: {missed:?}");
}
