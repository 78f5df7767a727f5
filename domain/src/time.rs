//! Points in time and spans, as the ledger keeps them.
//!
//! The domain never reads a clock. A [`Timestamp`] is either the sequencer's `recorded_at`, which never decreases, or
//! derived from it by subtracting an age that a reporter measured on its own monotonic clock. No wall-clock time of a
//! node, gateway or tenant ever becomes a `Timestamp`, so a wrong clock somewhere changes nothing here.

use std::fmt;
use std::ops::{Add, Sub};

use chrono::{DateTime, SecondsFormat, Utc};
use postcard_schema::Schema;
use postcard_schema::schema::NamedType;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Microseconds since 1970-01-01 UTC. In JSON: RFC 3339.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(pub i64);

/// A span in microseconds, never negative. In JSON: an integer number of milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Timestamp {
    /// From a number of milliseconds since 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis * 1000)
    }

    /// The span since `earlier`, zero if that is later.
    pub fn since(self, earlier: Timestamp) -> Span {
        Span(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// As a calendar time; the nearest representable one at the ends of the range.
    pub fn to_datetime(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).unwrap_or(if self.0 < 0 {
            DateTime::<Utc>::MIN_UTC
        } else {
            DateTime::<Utc>::MAX_UTC
        })
    }
}

impl From<DateTime<Utc>> for Timestamp {
    fn from(time: DateTime<Utc>) -> Self {
        Self(time.timestamp_micros())
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);

    /// From microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// From milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1000))
    }

    /// From seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Whole microseconds.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }

    /// As the standard library's duration.
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }
}

impl Add<Span> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_add_unsigned(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Timestamp;

    fn sub(self, span: Span) -> Timestamp {
        Timestamp(self.0.saturating_sub_unsigned(span.0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_datetime().to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            micros if micros < 1_000_000 => write!(f, "{} ms", micros / 1000),
            micros if micros < 120_000_000 => {
                write!(f, "{}.{} s", micros / 1_000_000, micros / 100_000 % 10)
            }
            micros => write!(f, "{} min", micros / 60_000_000),
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_i64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            DateTime::parse_from_rfc3339(&text)
                .map(|time| Self(time.timestamp_micros()))
                .map_err(de::Error::custom)
        } else {
            i64::deserialize(deserializer).map(Self)
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_u64(self.millis())
        } else {
            serializer.serialize_u64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            u64::deserialize(deserializer).map(Self::from_millis)
        } else {
            u64::deserialize(deserializer).map(Self)
        }
    }
}

impl Schema for Timestamp {
    const SCHEMA: &'static NamedType = <i64 as Schema>::SCHEMA;
}

impl Schema for Span {
    const SCHEMA: &'static NamedType = <u64 as Schema>::SCHEMA;
}
