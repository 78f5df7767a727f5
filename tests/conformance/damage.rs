//! What must be noticed when the store was tampered with, put back or taken away.

use tidemill_bus::checkpoint::{Checkpoint, Standing};
use tidemill_bus::ledger::{AppendError, Hints, ReadError};

use crate::fixture::{Fixture, genesis};
use crate::writer::{append, check, fill, note};

/// One flipped bit in what is stored: the walk names the first bad sequence.
pub async fn a_changed_record_is_named(fixture: &mut dyn Fixture) {
    let ledger = fixture.open().await.unwrap();
    fill(&*ledger, 20).await;
    append(&*ledger, "the needle in the haystack").await.unwrap();
    let head = fill(&*ledger, 20).await;
    let checkpoint = Checkpoint {
        ledger_id: genesis().ledger_id,
        anchor: head,
    };
    drop(ledger);
    fixture.damage(b"the needle in the haystack").await;

    let ledger = fixture.open().await.unwrap();
    match check(&*ledger).await {
        Err(error) => {
            assert_eq!(error.first_bad_sequence(), Some(21), "{error}");
        }
        // A replicated store may write the record anew from its own log.
        Ok(head) if fixture.mends() => assert_eq!(head, checkpoint.anchor),
        // A store may cut itself at damage it finds; then what was known of the ledger says so.
        Ok(head) => {
            assert_eq!(head.sequence, 20);
            assert_eq!(
                checkpoint.compare(&*ledger).await.unwrap(),
                Standing::Shorter { known: 41, last: 20 }
            );
        }
    }
}

pub async fn an_older_backup_is_noticed(fixture: &mut dyn Fixture) {
    let ledger = fixture.open().await.unwrap();
    fill(&*ledger, 10).await;
    drop(ledger);
    fixture.backup().await;
    let ledger = fixture.open().await.unwrap();
    let known = fill(&*ledger, 10).await;
    let checkpoint = Checkpoint {
        ledger_id: genesis().ledger_id,
        anchor: known,
    };
    assert_eq!(checkpoint.compare(&*ledger).await.unwrap(), Standing::Same);
    drop(ledger);
    fixture.restore().await;

    let ledger = fixture.open().await.unwrap();
    assert_eq!(
        checkpoint.compare(&*ledger).await.unwrap(),
        Standing::Shorter { known: 20, last: 10 }
    );
    let beyond = ledger.follow(21).await.err().unwrap();
    assert_eq!(beyond, ReadError::Shorter { last: 10, seen: 20 });
    // Grown again on the old copy, it is another history.
    for _ in 0..12 {
        append(&*ledger, "another history").await.unwrap();
    }
    assert_eq!(checkpoint.compare(&*ledger).await.unwrap().code(), "ledger_forked");
}

pub async fn a_deleted_ledger_stays_deleted(fixture: &mut dyn Fixture) {
    let ledger = fixture.open().await.unwrap();
    let head = fill(&*ledger, 5).await;
    let mut follow = ledger.follow(6).await.unwrap();
    fixture.delete().await;
    for _ in 0..2 {
        let sealed = note(head, "into the void");
        let refused = ledger.append(head.sequence, sealed.bytes, &Hints::default()).await;
        assert_eq!(refused, Err(AppendError::Missing));
        assert_eq!(ledger.tail().await, Err(ReadError::Missing));
    }
    assert_eq!(follow.next_batch(1).await, Err(ReadError::Missing));
    let checkpoint = Checkpoint {
        ledger_id: genesis().ledger_id,
        anchor: head,
    };
    assert_eq!(checkpoint.compare(&*ledger).await.unwrap().code(), "ledger_vanished");
    drop((ledger, follow));
    fixture.restart().await;
    assert_eq!(fixture.open().await.err().unwrap().code(), "ledger_missing");
}
