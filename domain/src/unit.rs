//! Thousandths of a device, names that are DNS labels, and hashes of content.
//!
//! Shares are integers in thousandths so that sums are exact: twenty requests for 0.05 fill a card and a
//! twenty-first finds nothing, whatever the order. Names are checked once, where they enter; a [`Name`] in hand is
//! known to be good.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Thousandths of one device: 1000 is a whole card.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Milli(pub u32);

impl Milli {
    /// A whole device.
    pub const WHOLE: Milli = Milli(1000);
    /// Nothing.
    pub const ZERO: Milli = Milli(0);

    /// The difference, or zero.
    pub fn minus(self, other: Milli) -> Milli {
        Milli(self.0.saturating_sub(other.0))
    }
}

impl std::ops::Add for Milli {
    type Output = Milli;

    fn add(self, other: Milli) -> Milli {
        Milli(self.0 + other.0)
    }
}

impl std::iter::Sum for Milli {
    fn sum<I: Iterator<Item = Milli>>(iter: I) -> Milli {
        iter.fold(Milli::ZERO, |a, b| a + b)
    }
}

impl Schema for Milli {
    const SCHEMA: &'static NamedType = <u32 as Schema>::SCHEMA;
}

/// A DNS label: 1 to 63 of a-z, 0-9 and `-`, beginning with a letter or digit and not ending with `-`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(Box<str>);

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a name: use 1 to 63 of a-z, 0-9 and `-`, not beginning or ending with `-`")]
pub struct NameError(pub String);

impl Name {
    /// The tenant that workloads belong to when they name none.
    pub fn default_tenant() -> Name {
        Name("default".into())
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let good = (1..=63).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if good {
            Ok(Name(text.into()))
        } else {
            Err(NameError(text.chars().take(80).collect()))
        }
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Schema for Name {
    const SCHEMA: &'static NamedType = <String as Schema>::SCHEMA;
}

/// The BLAKE3 hash that names a file by its content: 64 hex digits where people read it, 32 bytes on the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blake3(pub [u8; 32]);

/// Why a text is not a hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it is not a BLAKE3 hash: 64 hex digits, as `b3sum FILE` prints them")]
pub struct Blake3Error;

impl FromStr for Blake3 {
    type Err = Blake3Error;

    fn from_str(text: &str) -> Result<Blake3, Blake3Error> {
        let hash = blake3::Hash::from_hex(text).map_err(|_| Blake3Error)?;
        Ok(Blake3(*hash.as_bytes()))
    }
}

impl fmt::Display for Blake3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Blake3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Blake3 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Blake3 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blake3, D::Error> {
        match deserializer.is_human_readable() {
            true => String::deserialize(deserializer)?.parse().map_err(de::Error::custom),
            false => <[u8; 32]>::deserialize(deserializer).map(Blake3),
        }
    }
}

impl Schema for Blake3 {
    const SCHEMA: &'static NamedType = <[u8; 32] as Schema>::SCHEMA;
}
