//! A commit: what one command produced, and everything needed to say who, why and when.
//!
//! Commits are stored in groups, one record on the ledger for all that were decided together; a commit's bytes are
//! hashed as they are, so an export may replace another tenant's commit by its hash. The encoding is a format byte, a
//! postcard header, and the events as {kind, version, length, body}: a reader that knows the format can skip over
//! events it does not need and stops at kinds it does not know.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::events::{DecodeError, Event};
use crate::id::{CommandId, CredentialId, NodeId};
use crate::time::Timestamp;

/// First byte of an encoded commit.
pub const COMMIT_FORMAT: u8 = 1;

/// Where an event stands: the record's sequence and the event's index in the record, counted over its commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, Schema)]
pub struct Address {
    /// Record.
    pub sequence: u64,
    /// Event in the record, from 0.
    pub index: u32,
}

/// Who asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// The sequencer itself.
    Sequencer,
    /// Someone at this machine, over loopback, without a token.
    Local,
    /// The holder of a token.
    Credential(CredentialId),
    /// A node's agent.
    Node(NodeId),
    /// A gateway, by name.
    Gateway(String),
    /// A worker role in one of its terms.
    Worker {
        /// Role.
        role: String,
        /// Term the command was made in.
        term: u64,
    },
}

/// What it answers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, Schema)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// A request from outside.
    #[default]
    Request,
    /// An event on this ledger.
    Event(Address),
    /// Observations, first to last.
    Observations {
        /// First.
        first: u64,
        /// Last.
        last: u64,
    },
}

/// W3C trace context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct TraceContext {
    /// Trace.
    pub trace_id: [u8; 16],
    /// Span that made the request.
    pub span_id: [u8; 8],
    /// Flags: 1 = sampled.
    pub flags: u8,
}

impl TraceContext {
    /// Reads a `traceparent` header (version 00); `None` for anything malformed or all-zero.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if version.len() != 2 || version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let mut out = Self {
            trace_id: [0; 16],
            span_id: [0; 8],
            flags: 0,
        };
        from_hex(trace, &mut out.trace_id)?;
        from_hex(span, &mut out.span_id)?;
        let mut flag = [0];
        from_hex(flags, &mut flag)?;
        out.flags = flag[0];
        (out.trace_id != [0; 16] && out.span_id != [0; 8]).then_some(out)
    }

    /// The trace id as 32 hex digits.
    pub fn trace_id_hex(&self) -> String {
        to_hex(&self.trace_id)
    }

    /// As a `traceparent` header.
    pub fn to_traceparent(&self) -> String {
        format!(
            "00-{}-{}-{:02x}",
            to_hex(&self.trace_id),
            to_hex(&self.span_id),
            self.flags
        )
    }
}

/// Lower-case hex.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
            use std::fmt::Write;
            let _ = write!(out, "{byte:02x}");
            out
        })
}

/// Fills `out` from exactly twice as many hex digits.
pub fn from_hex(text: &str, out: &mut [u8]) -> Option<()> {
    if text.len() != out.len() * 2 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(())
}

/// Everything about a commit but its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct CommitHeader {
    /// Epoch of the writer and number of the commit in that epoch, both big endian: unique in the ledger.
    pub id: [u8; 16],
    /// The command that produced it.
    pub command: CommandId,
    /// First 16 bytes of the BLAKE3 of the command's body: the same id with another body is a conflict.
    pub body_hash: [u8; 16],
    /// Who asked.
    pub actor: Actor,
    /// What it answers to.
    pub cause: Cause,
    /// Trace it belongs to.
    pub trace: Option<TraceContext>,
    /// The sequencer's clock, never decreasing along the ledger.
    pub recorded_at: Timestamp,
}

impl CommitHeader {
    /// Its postcard encoding. Arrays of bytes stand in it as they are, and serde would take them byte by byte: here
    /// and in [`CommitHeader::decode`] they are copied whole.
    fn encode_into(&self, mut out: Vec<u8>) -> Vec<u8> {
        for bytes in [&self.id, &self.command.0, &self.body_hash] {
            out.extend_from_slice(bytes);
        }
        let rest = (&self.actor, &self.cause, &self.trace, &self.recorded_at);
        postcard::to_extend(&rest, out).expect("a Vec takes any number of bytes")
    }

    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (arrays, rest) = bytes
            .split_first_chunk::<48>()
            .ok_or_else(|| DecodeError::Commit("header: it is cut off".into()))?;
        let array = |n: usize| {
            let mut out = [0; 16];
            out.copy_from_slice(&arrays[16 * n..16 * (n + 1)]);
            out
        };
        let ((actor, cause, trace, recorded_at), rest) =
            postcard::take_from_bytes(rest).map_err(|e| DecodeError::Commit(format!("header: {e}")))?;
        let header = Self {
            id: array(0),
            command: CommandId(array(1)),
            body_hash: array(2),
            actor,
            cause,
            trace,
            recorded_at,
        };
        Ok((header, rest))
    }
}

/// A commit.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// Who, why, when.
    pub header: CommitHeader,
    /// What happened, in order; never empty on the ledger.
    pub events: Vec<Event>,
}

impl Commit {
    /// Appends the encoded commit to `out`. `scratch` is reused between calls.
    pub fn encode_into(header: &CommitHeader, events: &[Event], out: Vec<u8>, scratch: &mut Vec<u8>) -> Vec<u8> {
        let mut out = out;
        out.push(COMMIT_FORMAT);
        let mut out = header.encode_into(out);
        put_varint(&mut out, events.len() as u64);
        for event in events {
            let (kind, version) = event.kind();
            put_varint(&mut out, u64::from(kind));
            put_varint(&mut out, u64::from(version));
            scratch.clear();
            *scratch = event.encode_body(std::mem::take(scratch));
            put_varint(&mut out, scratch.len() as u64);
            out.extend_from_slice(scratch);
        }
        out
    }

    /// The encoded commit.
    pub fn encode(&self) -> Vec<u8> {
        Self::encode_into(&self.header, &self.events, Vec::with_capacity(160), &mut Vec::new())
    }

    /// Reads an encoded commit.
    pub fn decode(bytes: &[u8]) -> Result<Commit, DecodeError> {
        let (header, mut raw) = RawEvents::open(bytes)?;
        let mut events = Vec::with_capacity(raw.left);
        while let Some((kind, version, body)) = raw.next()? {
            events.push(Event::decode(kind, version, body)?);
        }
        if !raw.bytes.is_empty() {
            return Err(DecodeError::Commit(format!("{} bytes left over", raw.bytes.len())));
        }
        Ok(Commit { header, events })
    }

    /// The frozen (kind, version) of each event, without decoding the bodies: works for kinds this build cannot read.
    pub fn kinds(bytes: &[u8]) -> Result<Vec<(u16, u16)>, DecodeError> {
        let (_, mut raw) = RawEvents::open(bytes)?;
        let mut kinds = Vec::with_capacity(raw.left);
        while let Some((kind, version, _)) = raw.next()? {
            kinds.push((kind, version));
        }
        Ok(kinds)
    }
}

/// Kind, version and body.
type RawEvent<'a> = (u16, u16, &'a [u8]);

struct RawEvents<'a> {
    bytes: &'a [u8],
    left: usize,
}

impl<'a> RawEvents<'a> {
    fn open(bytes: &'a [u8]) -> Result<(CommitHeader, Self), DecodeError> {
        let (&format, bytes) = bytes
            .split_first()
            .ok_or_else(|| DecodeError::Commit("it is empty".into()))?;
        if format != COMMIT_FORMAT {
            return Err(DecodeError::Commit(format!(
                "format {format} is unknown to this build; it was written by a newer release"
            )));
        }
        let (header, mut bytes) = CommitHeader::decode(bytes)?;
        let left = take_varint(&mut bytes)?;
        // Each event takes at least three bytes; a larger count is damage, not a reason to reserve memory.
        if left > bytes.len() as u64 {
            return Err(DecodeError::Commit("more events than bytes".into()));
        }
        Ok((
            header,
            Self {
                bytes,
                left: left as usize,
            },
        ))
    }

    fn next(&mut self) -> Result<Option<RawEvent<'a>>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let kind = narrow(take_varint(&mut self.bytes)?)?;
        let version = narrow(take_varint(&mut self.bytes)?)?;
        let length = take_varint(&mut self.bytes)?;
        if length > self.bytes.len() as u64 {
            return Err(DecodeError::Commit("an event's body is cut off".into()));
        }
        let (body, rest) = self.bytes.split_at(length as usize);
        self.bytes = rest;
        Ok(Some((kind, version, body)))
    }
}

fn narrow(value: u64) -> Result<u16, DecodeError> {
    u16::try_from(value).map_err(|_| DecodeError::Commit("a kind or version is out of range".into()))
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes
            .split_first()
            .ok_or_else(|| DecodeError::Commit("it ends in the middle of a number".into()))?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(DecodeError::Commit("a number is too long".into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_header_is_stored_as_postcard_would() {
        let trace = TraceContext {
            trace_id: [7; 16],
            span_id: [8; 8],
            flags: 1,
        };
        let worker = Actor::Worker {
            role: "scheduler".into(),
            term: 300,
        };
        for (actor, trace, recorded_at) in [(Actor::Local, None, -1), (worker, Some(trace), 1_767_225_600_000_000)] {
            let header = CommitHeader {
                id: [1; 16],
                command: CommandId(std::array::from_fn(|n| n as u8)),
                body_hash: [0xff; 16],
                actor,
                cause: Cause::Event(Address {
                    sequence: 9,
                    index: 300,
                }),
                trace,
                recorded_at: Timestamp(recorded_at),
            };
            let bytes = header.encode_into(Vec::new());
            assert_eq!(bytes, postcard::to_stdvec(&header).unwrap());
            assert_eq!(CommitHeader::decode(&bytes).unwrap(), (header, &[][..]));
            for cut in 0..bytes.len() {
                assert!(CommitHeader::decode(&bytes[..cut]).is_err(), "{cut}");
            }
        }
    }
}
