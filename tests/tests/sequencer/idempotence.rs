//! Asking twice is asking once: in the same group, later, after a restart at any point.

use std::time::Duration;

use tidemill_bus::commands::SubmitError;
use tidemill_bus::memory::{Fault, MemoryLedger};

use crate::support::{Seat, ask, events_of, genesis, id, make_token, numbered, on_disk, read_all, times};

#[tokio::test]
async fn a_repeated_command_gets_the_first_answer_and_another_body_a_conflict() {
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::leading(&ledger).await;
    let first = seat.submit(numbered(1)).await.unwrap();
    assert!(!first.repeated);
    let again = seat.submit(numbered(1)).await.unwrap();
    assert!(again.repeated);
    assert_eq!((again.sequence, &again.events), (first.sequence, &first.events));
    let other = seat.submit(ask(id(1), make_token(2))).await.unwrap_err();
    assert_eq!(
        other,
        SubmitError::Conflict {
            sequence: first.sequence
        }
    );
    // A refused command was not carried out: under the same id it may be asked again.
    let refused = seat.submit(ask(id(3), make_token(1))).await.unwrap_err();
    assert_eq!(refused.code(), "invalid");
    seat.submit(ask(id(3), make_token(3))).await.unwrap();
    seat.end().await;
}

#[tokio::test]
async fn twins_in_one_group_are_carried_out_once() {
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::leading(&ledger).await;
    ledger.inject(Fault::Delay(Duration::from_millis(100)));
    let (_, a, b, c) = tokio::join!(
        seat.submit(numbered(1)),
        seat.submit(numbered(2)),
        seat.submit(numbered(2)),
        seat.submit(ask(id(2), make_token(9))),
    );
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.repeated, b.repeated), (false, true));
    assert_eq!((a.sequence, a.events), (b.sequence, b.events));
    assert_eq!(c.unwrap_err().code(), "command_conflict");
    assert_eq!(times(&read_all(&ledger).await.1, id(2)), 1);
    seat.end().await;
}

#[tokio::test]
async fn restarted_at_every_record_the_same_commands_give_the_same_answers() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = MemoryLedger::create(genesis());
    let seat = Seat::start(&ledger, on_disk(dir.path()));
    const COMMANDS: u64 = 60;
    let mut answers = Vec::new();
    for n in 0..COMMANDS {
        answers.push(seat.submit(numbered(n)).await.unwrap());
    }
    seat.end().await;
    let records = ledger.records();
    for kept in 0..=records.len() {
        let ledger = MemoryLedger::with_records(genesis(), records[..kept].to_vec());
        // Snapshots of the whole run lie there: those the ledger does not reach, or does not agree with, are passed over.
        let config = tidemill_bus::sequencer::SequencerConfig {
            snapshots: Some(
                tidemill_bus::snapshots::SnapshotStore::open(&dir.path().join("copy"), &genesis()).unwrap(),
            ),
            snapshot_every: 20,
            snapshot_pause: Some(Duration::ZERO),
            ..tidemill_bus::sequencer::SequencerConfig::in_memory("two")
        };
        let seat = Seat::start(&ledger, config);
        for n in 0..COMMANDS {
            let answer = seat.submit(numbered(n)).await.unwrap();
            let there = answers[n as usize].sequence <= kept as u64;
            assert_eq!(answer.repeated, there, "command {n} behind record {kept}");
            assert_eq!(answer.events, answers[n as usize].events);
        }
        let (fold, commits) = read_all(&ledger).await;
        assert_eq!(fold.state().credentials.len() as u64, COMMANDS);
        (0..COMMANDS).for_each(|n| assert_eq!(events_of(&commits, id(n)).1, answers[n as usize].events));
        seat.end().await;
    }
}
