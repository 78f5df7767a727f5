//! Bodies that go on: lines, and server-sent events made of lines.
//!
//! A line is handed out when its end is there, never in parts; one that grows past [`MAX_LINE_BYTES`] ends the stream
//! rather than the memory. A stream ending is `None`; only the caller knows whether that is early and resumes from the
//! last event id.

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::{ClientError, api::with_sources};

/// Longest line accepted, bytes.
const MAX_LINE_BYTES: usize = 8 * 1024 * 1024;

/// An open answer, read line by line.
#[derive(Debug)]
pub struct LineStream {
    server: String,
    body: Incoming,
    buffer: BytesMut,
    /// Prefix of `buffer` known to hold no line end.
    scanned: usize,
    ended: bool,
}

impl LineStream {
    pub(crate) fn new(server: String, body: Incoming) -> Self {
        Self {
            server,
            body,
            buffer: BytesMut::new(),
            scanned: 0,
            ended: false,
        }
    }

    /// The next line without its end; `None` after the last. An unterminated last line is handed out too.
    /// Dropping the future loses nothing.
    pub async fn next_line(&mut self) -> Result<Option<String>, ClientError> {
        loop {
            if let Some(at) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(self.scanned + at);
                self.buffer.advance(1);
                self.scanned = 0;
                return Ok(Some(text(&line)));
            }
            self.scanned = self.buffer.len();
            if self.ended {
                let rest = self.buffer.split();
                self.scanned = 0;
                return Ok((!rest.is_empty()).then(|| text(&rest)));
            }
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(ClientError::Protocol {
                    server: self.server.clone(),
                    reason: format!("a line is longer than {MAX_LINE_BYTES} bytes"),
                });
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => {
                    return Err(ClientError::Unreachable {
                        tried: self.server.clone(),
                        reason: format!("the stream broke off: {}", with_sources(&error)),
                    });
                }
                None => self.ended = true,
            }
        }
    }

    /// The next piece of the body as it comes, for output that is copied through; `None` at the end.
    pub async fn next_chunk(&mut self) -> Result<Option<bytes::Bytes>, ClientError> {
        if !self.buffer.is_empty() {
            self.scanned = 0;
            return Ok(Some(self.buffer.split().freeze()));
        }
        loop {
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => {
                    return Err(ClientError::Unreachable {
                        tried: self.server.clone(),
                        reason: format!("the stream broke off: {}", with_sources(&error)),
                    });
                }
                None => return Ok(None),
            }
        }
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
}

/// One server-sent event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Its `id`, to resume after.
    pub id: Option<String>,
    /// Its `event` name; empty means `message`.
    pub event: String,
    /// Its data, lines joined.
    pub data: String,
}

/// An open stream of server-sent events
/// (<https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream>).
#[derive(Debug)]
pub struct SseStream {
    lines: LineStream,
    pending: SseEvent,
    has_data: bool,
}

impl SseStream {
    pub(crate) fn new(lines: LineStream) -> Self {
        Self {
            lines,
            pending: SseEvent::default(),
            has_data: false,
        }
    }

    /// The next event that carries data; `None` when the server ended the stream. An event cut off by the end is not
    /// delivered. Dropping the future loses nothing.
    pub async fn next_event(&mut self) -> Result<Option<SseEvent>, ClientError> {
        while let Some(line) = self.lines.next_line().await? {
            if line.is_empty() {
                let event = std::mem::take(&mut self.pending);
                if std::mem::take(&mut self.has_data) {
                    return Ok(Some(event));
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => self.pending.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut self.pending.event),
                "data" => {
                    if self.has_data {
                        self.pending.data.push('\n');
                    }
                    self.has_data = true;
                    self.pending.data.push_str(value);
                }
                // Comments (empty field name) keep the connection alive; other fields are to be ignored.
                _ => {}
            }
        }
        Ok(None)
    }
}
