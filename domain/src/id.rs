//! Typed identifiers.
//!
//! Every entity is named by a type prefix and ten base32 characters, the low 50 bits of a UUIDv7's random part or of a
//! hash: `node-7h2k…`. An id is those 50 bits and nothing else, so its text and its value are the same thing: what an
//! operator copies from a table is what the ledger holds, and two ids never look alike.
//!
//! Ids never come from a generator in here: they arrive with a command or are derived from its id ([`derive`]), which
//! keeps `decide` pure and makes a repeated command name the same entities. An id derived for a new entity is checked
//! against the state and derived again under the next number on the (1 in 2^50) clash.

use std::fmt;
use std::str::FromStr;

use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Crockford's alphabet in lower case: no i, l, o, u.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// Characters after the prefix.
const LENGTH: usize = 10;
const MASK: u64 = (1 << 50) - 1;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Another prefix, or none.
    #[error("expected an id that begins with `{expected}-`, got `{got}`")]
    Prefix {
        /// Prefix of the type asked for.
        expected: &'static str,
        /// What was given.
        got: String,
    },
    /// Not ten characters of the alphabet.
    #[error("`{0}` is not a whole id: ten characters of 0-9 and a-z without i, l, o, u follow the prefix")]
    Body(String),
}

fn encode(value: u64) -> [u8; LENGTH] {
    let mut out = [0; LENGTH];
    for (i, slot) in out.iter_mut().enumerate() {
        *slot = ALPHABET[((value >> (45 - 5 * i)) & 31) as usize];
    }
    out
}

fn decode(text: &str) -> Option<u64> {
    if text.len() != LENGTH {
        return None;
    }
    text.bytes().try_fold(0u64, |value, byte| {
        let digit = ALPHABET.iter().position(|c| *c == byte)? as u64;
        Some(value << 5 | digit)
    })
}

/// The 50 bits derived from a command's id, a purpose and a number within the command.
pub fn derive(seed: &[u8], purpose: &str, number: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(seed);
    hasher.update(purpose.as_bytes());
    hasher.update(&number.to_le_bytes());
    let bytes = hasher.finalize();
    let mut low = [0; 8];
    low.copy_from_slice(&bytes.as_bytes()[..8]);
    u64::from_le_bytes(low) & MASK
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident $prefix:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The prefix of its text form.
            pub const PREFIX: &'static str = $prefix;

            /// The id made of the low 50 bits of `value`.
            pub const fn from_bits(value: u64) -> Self {
                Self(value & MASK)
            }

            /// Its 50 bits.
            pub const fn bits(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let body = encode(self.0);
                write!(f, "{}-{}", $prefix, std::str::from_utf8(&body).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let body = text
                    .strip_prefix(concat!($prefix, "-"))
                    .ok_or_else(|| IdError::Prefix { expected: $prefix, got: text.to_owned() })?;
                decode(body).map(Self).ok_or_else(|| IdError::Body(text.to_owned()))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    serializer.serialize_u64(self.0)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    let text = String::deserialize(deserializer)?;
                    text.parse().map_err(de::Error::custom)
                } else {
                    u64::deserialize(deserializer).map(Self::from_bits)
                }
            }
        }

        impl Schema for $name {
            const SCHEMA: &'static NamedType = <u64 as Schema>::SCHEMA;
        }
    )*};
}

ids! {
    /// A host.
    NodeId "node";
    /// An accelerator, or CPU capacity. Derived from the vendor's UUID, so it is the same wherever the card is seen.
    DeviceId "dev";
    /// A service.
    ServiceId "svc";
    /// One running copy of a workload.
    InstanceId "inst";
    /// An instance's work moving to another.
    SwitchId "sw";
    /// A token's record (never the token itself).
    CredentialId "tok";
}

impl DeviceId {
    /// The id of the device with this vendor UUID.
    pub fn of_uuid(uuid: &str) -> Self {
        Self::from_bits(derive(uuid.as_bytes(), "device", 0))
    }
}

/// Identity of a ledger: random, given at creation, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct LedgerId(#[serde(with = "uuid_text")] pub [u8; 16]);

/// Identity of a command: chosen by who asks, so that asking twice is asking once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct CommandId(#[serde(with = "uuid_text")] pub [u8; 16]);

macro_rules! uuid_like {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", uuid::Uuid::from_bytes(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                uuid::Uuid::parse_str(text).map(|uuid| Self(*uuid.as_bytes()))
            }
        }

        impl Schema for $name {
            const SCHEMA: &'static NamedType = <[u8; 16] as Schema>::SCHEMA;
        }
    )*};
}

uuid_like! { LedgerId CommandId }

impl CommandId {
    /// The id derived from arbitrary parts, each framed by its length: for workers and doors whose repeated request
    /// must carry the same id.
    pub fn derived(parts: &[&[u8]]) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(id)
    }
}

mod uuid_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(&uuid::Uuid::from_bytes(*bytes))
        } else {
            bytes.serialize(serializer)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            let uuid = uuid::Uuid::parse_str(&text).map_err(de::Error::custom)?;
            Ok(*uuid.as_bytes())
        } else {
            <[u8; 16]>::deserialize(deserializer)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn text_and_value_are_one() {
        for bits in [0, 1, 31, 32, MASK, 0x1_2345_6789_abcd & MASK] {
            let id = NodeId::from_bits(bits);
            assert_eq!(id.to_string().parse::<NodeId>().unwrap(), id);
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<NodeId>(&json).unwrap(), id);
        }
    }

    #[test]
    fn another_type_or_a_broken_body_is_refused() {
        assert!(matches!(
            "inst-0000000000".parse::<NodeId>(),
            Err(IdError::Prefix { .. })
        ));
        for text in ["node-", "node-000000000", "node-00000000000", "node-000000000u"] {
            assert!(matches!(text.parse::<NodeId>(), Err(IdError::Body(_))), "{text}");
        }
    }
}
