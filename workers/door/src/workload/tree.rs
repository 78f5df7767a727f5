//! A YAML document as a tree that remembers lines.
//!
//! Deserializing straight into a declaration loses where a value stood by the time it turns out to be impossible, so
//! documents are read into this tree first and [`super::reader`] walks it. Plain scalars keep their spelling: an
//! environment variable written `1.10` is those four characters and not the number they also are.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{NonFiniteFloatPolicy, Spanned};

use super::error::WorkloadError;
use super::syntax;

/// Longest input, bytes.
pub const MAX_INPUT_BYTES: usize = 1024 * 1024;
/// Deepest nesting. The format itself needs five levels.
pub(super) const MAX_DEPTH: usize = 32;
/// Most nodes of a whole file: keeps the tree within a small multiple of the input.
pub(super) const MAX_NODES: usize = 100_000;
/// Most documents that are read; the command allows fewer and says so.
pub(super) const MAX_DOCUMENTS: usize = 1_024;

/// A value and the line it begins on, counted from 1.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) value: Value,
}

/// A key of a mapping, its line, and its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: u64,
    pub(super) node: Node,
}

#[derive(Debug)]
pub(super) enum Value {
    Null,
    /// Anything written as one word or text. `text` is its spelling.
    Scalar {
        text: String,
        scalar: Scalar,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// What a scalar is by YAML's rules.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scalar {
    Bool,
    Int(i128),
    Float(f64),
    Text,
}

impl Value {
    /// What it is, for error messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Value::Null => "nothing".to_owned(),
            Value::Scalar { text, .. } => format!("`{}`", shorten(text)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// The first characters of a text, for error messages.
pub(super) fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Reads all documents of a file; empty ones are left out.
pub(super) fn documents(input: &str) -> Result<Vec<Node>, WorkloadError> {
    if input.len() > MAX_INPUT_BYTES {
        return Err(WorkloadError::file(format!(
            "it is {} bytes long, at most {MAX_INPUT_BYTES} are read",
            input.len()
        )));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_documents: MAX_DOCUMENTS,
            max_aliases: 256,
            max_anchors: 256,
        },
        strict_booleans: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    let raw: Vec<Spanned<Raw>> =
        serde_saphyr::from_multiple_with_options(input, options).map_err(|error| syntax::refusal(&error, input))?;
    Ok(raw.into_iter().map(|raw| raw_to_node(raw, input)).collect())
}

/// What the deserializer hands out, before spellings are looked up.
#[derive(Debug)]
enum Raw {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn raw_to_node(raw: Spanned<Raw>, input: &str) -> Node {
    let span = raw.defined.span();
    let spelling = || {
        let begin = usize::try_from(span.byte_offset()?).ok()?;
        let length = usize::try_from(span.byte_len()?).ok()?;
        let text = input.get(begin..begin.checked_add(length)?)?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let scalar = |scalar: Scalar, fallback: String| Value::Scalar {
        text: spelling().unwrap_or(fallback),
        scalar,
    };
    let value = match raw.value {
        Raw::Null => Value::Null,
        Raw::Bool(value) => scalar(Scalar::Bool, value.to_string()),
        Raw::Int(value) => scalar(Scalar::Int(value), value.to_string()),
        Raw::Float(value) => scalar(Scalar::Float(value), value.to_string()),
        Raw::Text(text) => Value::Scalar {
            text,
            scalar: Scalar::Text,
        },
        Raw::List(items) => Value::List(items.into_iter().map(|item| raw_to_node(item, input)).collect()),
        Raw::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, value)| Entry {
                    line: key.referenced.line(),
                    key: key.value,
                    node: raw_to_node(value, input),
                })
                .collect(),
        ),
    };
    Node {
        line: raw.referenced.line(),
        value,
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_some<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
        Ok(Raw::Int(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
        Ok(i128::try_from(value).map_or(Raw::Float(value as f64), Raw::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Raw, E> {
        Ok(Raw::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}
