//! BLAKE3 digests and the places they point to.
//!
//! A [`Digest`] is what the chain, seals, checkpoints and exports speak in; an [`Anchor`] ties one to a sequence, which is
//! what a person copies from a bill or a report into `verify --against SEQ:HASH`.
//!
//! Invariant: the text form is lower-case hex and parses back to the same bytes; nothing else is accepted, so a
//! truncated copy is an error and never a weaker match.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A 32-byte BLAKE3 digest. Serialised as lower-case hex in human-readable formats, as 32 raw bytes elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of exactly these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The raw bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// Text that is not a digest or an anchor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct ParseDigestError {
    text: String,
    expected: &'static str,
}

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let well_formed = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let hash = well_formed.then(|| blake3::Hash::from_hex(text).ok()).flatten();
        hash.map(Self::from).ok_or_else(|| ParseDigestError {
            text: text.to_owned(),
            expected: "a digest (64 lower-case hex digits)",
        })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?
                .parse()
                .map_err(serde::de::Error::custom)
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Self)
        }
    }
}

/// A place in a ledger: the record at `sequence` has the hash `hash`. Sequence 0 is the place before the first record.
/// Written `SEQ:HASH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// Sequence of the record, counted from 1; 0 = before the first.
    pub sequence: u64,
    /// The record's hash, or the genesis hash at sequence 0.
    pub hash: Digest,
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sequence, self.hash)
    }
}

impl FromStr for Anchor {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed = text.split_once(':').and_then(|(sequence, hash)| {
            Some(Self {
                sequence: sequence.parse().ok()?,
                hash: hash.parse().ok()?,
            })
        });
        parsed.ok_or_else(|| ParseDigestError {
            text: text.to_owned(),
            expected: "a ledger anchor (SEQ:HASH)",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn anchors_survive_text_and_reject_anything_else() {
        let anchor = Anchor {
            sequence: 42,
            hash: Digest::of(b"x"),
        };
        assert_eq!(anchor.to_string().parse::<Anchor>().unwrap(), anchor);
        let text = anchor.to_string();
        for bad in [
            "",
            "42",
            ":",
            &text[..text.len() - 1],
            &text.to_uppercase(),
            &format!("{text}0"),
        ] {
            assert!(bad.parse::<Anchor>().is_err(), "{bad:?} parsed");
        }
    }
}
