//! Tests of what is particular to the embedded store; the rest is the conformance suite's.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::identity::{CellName, LedgerId};

fn genesis() -> Genesis {
    Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(7)))
}

#[tokio::test]
async fn a_second_writer_is_refused_and_readers_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.sqlite");
    assert_eq!(
        EmbeddedLedger::open(&path, None).err().unwrap().code(),
        "ledger_missing"
    );
    assert!(!path.exists(), "opening creates nothing");
    let ledger = EmbeddedLedger::create(&path, &genesis(), None).unwrap();
    assert_eq!(EmbeddedLedger::open(&path, None).err().unwrap().code(), "data_in_use");
    let reader = EmbeddedLedger::open_read_only(&path).unwrap();
    assert_eq!(reader.genesis(), &genesis());
    let mut follow = reader.follow(1).await.unwrap();
    ledger
        .append(0, Bytes::from_static(b"x"), &Hints::default())
        .await
        .unwrap();
    assert_eq!(follow.next_batch(10).await.unwrap()[0].body, "x");
    assert_eq!(
        reader.append(1, Bytes::new(), &Hints::default()).await,
        Err(AppendError::ReadOnly)
    );
    drop(ledger);
    assert_eq!(
        EmbeddedLedger::create(&path, &genesis(), None).err().unwrap().code(),
        "ledger_exists"
    );
    let again = EmbeddedLedger::open(&path, None).unwrap();
    again
        .append(1, Bytes::from_static(b"y"), &Hints::default())
        .await
        .unwrap();
    assert_eq!(again.read(1, 10, usize::MAX).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_file_of_another_kind_is_named_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.sqlite");
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute_batch("PRAGMA user_version = 9; CREATE TABLE t (x)")
        .unwrap();
    drop(other);
    assert_eq!(
        EmbeddedLedger::open(&path, None).err().unwrap().code(),
        "ledger_unreadable"
    );
    std::fs::write(&path, b"not a database, but long enough to be read as one").unwrap();
    assert_eq!(
        EmbeddedLedger::open(&path, None).err().unwrap().code(),
        "ledger_unreadable"
    );
}

#[tokio::test]
async fn rows_cannot_be_changed_by_accident() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.sqlite");
    let ledger = EmbeddedLedger::create(&path, &genesis(), None).unwrap();
    ledger
        .append(0, Bytes::from_static(b"x"), &Hints::default())
        .await
        .unwrap();
    let outside = rusqlite::Connection::open(&path).unwrap();
    assert!(outside.execute("UPDATE record SET body = x'00'", []).is_err());
    assert!(outside.execute("DELETE FROM record", []).is_err());
}

#[tokio::test]
async fn an_exported_file_is_read_from_a_directory_nobody_can_write_to() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("led ger?.sqlite");
    let ledger = EmbeddedLedger::create(&path, &genesis(), None).unwrap();
    ledger
        .append(0, Bytes::from_static(b"x"), &Hints::default())
        .await
        .unwrap();
    drop(ledger);
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    let reader = EmbeddedLedger::open_read_only(&path).unwrap();
    assert_eq!(reader.read(1, 10, usize::MAX).await.unwrap()[0].body, "x");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
}
