//! Record format 1, frozen. Nothing in this file may change shape; a new layout is a new file and a new format byte.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{CommitSlot, DecodeError, MAX_RECORD_BYTES, RECORD_FORMAT, Record, RecordHeader};
use crate::digest::Digest;
use crate::identity::{CellName, LedgerId};

#[derive(Serialize, Deserialize)]
struct HeaderV1<'a> {
    cell: &'a str,
    ledger_id: [u8; 16],
    sequence: u64,
    epoch: u64,
    recorded_at: i64,
}

#[derive(Serialize, Deserialize)]
enum SlotV1<'a> {
    Full(#[serde(borrow)] Raw<'a>),
    StandIn([u8; 32]),
}

#[derive(Serialize, Deserialize)]
struct RecordV1<'a> {
    #[serde(borrow)]
    header: HeaderV1<'a>,
    previous: [u8; 32],
    commits: Vec<SlotV1<'a>>,
    hash: [u8; 32],
}

/// Borrowed bytes, written and read whole instead of one sequence element a byte (the wire form is the same).
struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&'a [u8]>::deserialize(deserializer).map(Self)
    }
}

impl<'a> From<&'a RecordHeader> for HeaderV1<'a> {
    fn from(header: &'a RecordHeader) -> Self {
        Self {
            cell: header.cell.as_str(),
            ledger_id: *header.ledger_id.0.as_bytes(),
            sequence: header.sequence,
            epoch: header.epoch,
            recorded_at: header.recorded_at,
        }
    }
}

/// BLAKE3(previous ‖ format byte ‖ postcard header ‖ commit hashes). The header delimits itself, so the number of
/// commits is bound by the length of what follows.
pub(super) fn record_hash(previous: &Digest, header: &RecordHeader, commits: impl Iterator<Item = Digest>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&previous.0);
    hasher.update(&[RECORD_FORMAT]);
    hasher.update(&encode_part(&HeaderV1::from(header), Vec::with_capacity(128)));
    // BLAKE3 is several times faster over one long input than over many short ones.
    let mut list = Vec::with_capacity(commits.size_hint().0 * 32);
    commits.for_each(|digest| list.extend_from_slice(&digest.0));
    hasher.update(&list);
    hasher.finalize().into()
}

/// Writes a record whose commits are given as byte slices; `capacity` is the expected encoded size.
pub(super) fn encode_slices<'a>(
    header: &RecordHeader,
    previous: &Digest,
    commits: impl ExactSizeIterator<Item = &'a [u8]>,
    hash: &Digest,
    capacity: usize,
) -> Vec<u8> {
    encode_parts(
        header,
        previous,
        commits.map(|bytes| SlotV1::Full(Raw(bytes))),
        hash,
        capacity,
    )
}

pub(super) fn encode(record: &Record) -> Bytes {
    let slots = record.commits.iter().map(|slot| match slot {
        CommitSlot::Full(bytes) => SlotV1::Full(Raw(bytes)),
        CommitSlot::StandIn(digest) => SlotV1::StandIn(digest.0),
    });
    encode_parts(&record.header, &record.previous, slots, &record.hash, 1024).into()
}

/// The fields of [`RecordV1`] one after another, which in postcard is the struct itself, without building the `Vec`.
fn encode_parts<'a>(
    header: &RecordHeader,
    previous: &Digest,
    slots: impl ExactSizeIterator<Item = SlotV1<'a>>,
    hash: &Digest,
    capacity: usize,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    out.push(RECORD_FORMAT);
    out = encode_part(&HeaderV1::from(header), out);
    out.extend_from_slice(&previous.0);
    out = encode_part(&(slots.len() as u64), out);
    for slot in slots {
        out = encode_part(&slot, out);
    }
    out.extend_from_slice(&hash.0);
    out
}

fn encode_part<T: Serialize>(value: &T, out: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(value, out).expect("plain data of known length always encodes into a Vec")
}

pub(super) fn decode(bytes: &Bytes) -> Result<Record, DecodeError> {
    let malformed = |reason: String| DecodeError::Malformed { reason };
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(malformed(format!("{} bytes, more than a record may have", bytes.len())));
    }
    let (raw, rest): (RecordV1<'_>, &[u8]) =
        postcard::take_from_bytes(&bytes[1..]).map_err(|error| malformed(error.to_string()))?;
    if !rest.is_empty() {
        return Err(malformed(format!("{} bytes too many at the end", rest.len())));
    }
    if 1 + canonical_len(&raw) != bytes.len() {
        return Err(malformed("numbers are not in their shortest form".to_owned()));
    }
    let cell = CellName::new(raw.header.cell).map_err(|error| malformed(error.to_string()))?;
    let commits = raw.commits.iter().map(|slot| match slot {
        SlotV1::Full(Raw(commit)) => CommitSlot::Full(bytes.slice_ref(commit)),
        SlotV1::StandIn(digest) => CommitSlot::StandIn(Digest(*digest)),
    });
    Ok(Record {
        commits: commits.collect(),
        header: RecordHeader {
            cell,
            ledger_id: LedgerId(uuid::Uuid::from_bytes(raw.header.ledger_id)),
            sequence: raw.header.sequence,
            epoch: raw.header.epoch,
            recorded_at: raw.header.recorded_at,
        },
        previous: Digest(raw.previous),
        hash: Digest(raw.hash),
    })
}

/// The one length the decoded value encodes to. Postcard reads longer forms of the same number too; comparing lengths
/// refuses them, which makes the encoding canonical without encoding again.
fn canonical_len(raw: &RecordV1<'_>) -> usize {
    let zigzag = |n: i64| ((n << 1) ^ (n >> 63)).cast_unsigned();
    let header = varint_len(raw.header.cell.len() as u64)
        + raw.header.cell.len()
        + 16
        + varint_len(raw.header.sequence)
        + varint_len(raw.header.epoch)
        + varint_len(zigzag(raw.header.recorded_at));
    let slots = raw.commits.iter().map(|slot| match slot {
        SlotV1::Full(Raw(commit)) => 1 + varint_len(commit.len() as u64) + commit.len(),
        SlotV1::StandIn(_) => 1 + 32,
    });
    header + 32 + varint_len(raw.commits.len() as u64) + slots.sum::<usize>() + 32
}

fn varint_len(value: u64) -> usize {
    let bits = 64 - value.max(1).leading_zeros() as usize;
    bits.div_ceil(7)
}
