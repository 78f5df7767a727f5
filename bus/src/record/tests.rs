//! Tests of the frozen encoding.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::identity::Genesis;

fn genesis() -> Genesis {
    Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(7)))
}

fn header(sequence: u64) -> RecordHeader {
    let Genesis { cell, ledger_id } = genesis();
    RecordHeader {
        cell,
        ledger_id,
        sequence,
        epoch: 3,
        recorded_at: 1_700_000_000_000_000,
    }
}

fn sealed(commits: &[&[u8]]) -> SealedRecord {
    let mut builder = RecordBuilder::new();
    for commit in commits {
        builder.push(commit).unwrap();
    }
    builder.seal(&header(1), &genesis().hash())
}

#[test]
fn a_sealed_record_decodes_to_what_went_in_without_copies() {
    let record = sealed(&[b"one", b"", &[9; 300]]);
    let decoded = Record::decode(&record.bytes).unwrap();
    assert_eq!(decoded.header, header(1));
    assert_eq!(decoded.previous, genesis().hash());
    assert_eq!(decoded.anchor(), record.anchor);
    assert_eq!(decoded.computed_hash(), record.anchor.hash);
    assert_eq!(decoded.encode(), record.bytes);
    let buffer = record.bytes.as_ptr_range();
    let commit = decoded.commits[2].bytes().unwrap();
    assert!(
        buffer.contains(&commit.as_ptr()),
        "commits are slices of the record's buffer"
    );
}

#[test]
fn the_golden_bytes_of_format_1_never_change() {
    let record = sealed(&[b"alpha", b"beta"]);
    assert_eq!(
        record.bytes.len(),
        1 + 5 + 16 + 1 + 1 + 8 + 32 + 1 + (2 + 5) + (2 + 4) + 32
    );
    assert_eq!(
        Digest::of(&record.bytes).to_string(),
        include_str!("golden-v1.hash").trim()
    );
}

#[test]
fn stand_ins_keep_the_hash() {
    let record = Record::decode(&sealed(&[b"mine", b"theirs"]).bytes).unwrap();
    let redacted = record.redacted(|_, bytes| &bytes[..] == b"mine");
    assert!(matches!(redacted.commits[1], CommitSlot::StandIn(_)));
    let again = Record::decode(&redacted.encode()).unwrap();
    assert_eq!(again, redacted);
    assert_eq!(again.computed_hash(), record.hash);
}

#[test]
fn no_flipped_bit_goes_unnoticed() {
    let record = sealed(&[b"alpha", &[0; 130], b"beta"]);
    for position in 0..record.bytes.len() {
        for bit in 0..8 {
            let mut bytes = record.bytes.to_vec();
            bytes[position] ^= 1 << bit;
            let caught = match Record::decode(&bytes.into()) {
                Err(_) => true,
                Ok(decoded) => decoded.computed_hash() != record.anchor.hash || decoded.hash != record.anchor.hash,
            };
            assert!(caught, "byte {position} bit {bit}");
        }
    }
}

#[test]
fn other_formats_and_longer_number_forms_are_refused() {
    let record = sealed(&[b"alpha"]);
    let mut newer = record.bytes.to_vec();
    newer[0] = 2;
    assert_eq!(
        Record::decode(&newer.into()),
        Err(DecodeError::UnknownFormat { found: 2 })
    );
    assert_eq!(Record::decode(&Bytes::new()), Err(DecodeError::Empty));
    // The cell's length 4 written in two bytes: postcard would take it.
    let mut longer = record.bytes.to_vec();
    longer.splice(1..2, [0x84, 0x00]);
    assert!(matches!(
        Record::decode(&longer.into()),
        Err(DecodeError::Malformed { .. })
    ));
    let truncated = record.bytes.slice(..record.bytes.len() - 1);
    assert!(matches!(Record::decode(&truncated), Err(DecodeError::Malformed { .. })));
}

#[test]
fn the_largest_commit_fits_and_one_byte_more_does_not() {
    let mut builder = RecordBuilder::new();
    let refused = builder.push(&vec![1; MAX_COMMIT_BYTES + 1]).unwrap_err();
    assert_eq!(refused.left_bytes, MAX_COMMIT_BYTES);
    assert!(builder.is_empty());
    builder.push(&vec![1; MAX_COMMIT_BYTES]).unwrap();
    let cell = CellName::new(&"c".repeat(63)).unwrap();
    let widest = RecordHeader {
        cell,
        sequence: u64::MAX,
        epoch: u64::MAX,
        recorded_at: i64::MIN,
        ..header(1)
    };
    let record = builder.seal(&widest, &genesis().hash());
    assert!(record.bytes.len() <= MAX_RECORD_BYTES);
    assert_eq!(Record::decode(&record.bytes).unwrap().header, widest);
}

#[test]
fn taking_a_commit_back_leaves_the_others() {
    let mut builder = RecordBuilder::new();
    builder.push(b"kept").unwrap();
    builder.push(b"dropped").unwrap();
    builder.pop();
    assert_eq!(builder.len(), 1);
    assert_eq!(builder.commit(0), Some(&b"kept"[..]));
    assert_eq!(builder.seal(&header(1), &genesis().hash()), sealed(&[b"kept"]));
    assert!(builder.is_empty());
}
