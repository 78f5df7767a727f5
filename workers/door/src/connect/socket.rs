//! The two halves of a connection.
//!
//! Reading never waits for writing: two peers with full buffers would hold each other. What is to be written is either a
//! message of its own, in a short queue, or the latest snapshot, of which only one waits however slow the peer is.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};

use super::registry::Snapshot;
use crate::problem::Refusal;

/// Messages of their own that may wait.
const QUEUE: usize = 64;

/// What a peer sent.
pub(super) enum Heard {
    /// A message, as it came.
    Text(Bytes),
    /// The connection ended: on purpose or not, and how in words.
    Ended {
        /// The peer closed it in order.
        on_purpose: bool,
        /// In words.
        reason: String,
    },
}

/// The reading half.
pub(super) struct Reader {
    stream: SplitStream<WebSocket>,
    silent_after: Duration,
}

impl Reader {
    /// Hears the first message, which must be the one that `pick` knows. `None`: the peer went.
    pub(super) async fn greeting<M: DeserializeOwned, H>(
        &mut self,
        patience: Duration,
        pick: impl FnOnce(M) -> Option<H>,
    ) -> Result<Option<H>, Refusal> {
        let refused = |detail: String, code| Err(Refusal::new(400, code, detail, ""));
        match tokio::time::timeout(patience, self.next()).await {
            Ok(Heard::Text(text)) => match serde_json::from_slice(&text).map(pick) {
                Ok(Some(hello)) => Ok(Some(hello)),
                Ok(None) => refused("the first message is not `hello`".to_owned(), "hello_expected"),
                Err(error) => refused(format!("the first message: {error}"), "malformed"),
            },
            Ok(Heard::Ended { .. }) => Ok(None),
            Err(_) => Err(Refusal::new(408, "timeout", "no `hello` came in time", "")),
        }
    }

    /// The next message. Dropping the future loses nothing.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            let Ok(message) = tokio::time::timeout(self.silent_after, self.stream.next()).await else {
                return Heard::Ended {
                    on_purpose: false,
                    reason: format!("nothing was heard for {} s", self.silent_after.as_secs()),
                };
            };
            match message {
                Some(Ok(Message::Text(text))) => return Heard::Text(text.into()),
                Some(Ok(Message::Binary(bytes))) => return Heard::Text(bytes),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(frame))) => {
                    let on_purpose = frame.is_some_and(|frame| frame.code == close_code::NORMAL);
                    let reason = "closed by the peer".to_owned();
                    return Heard::Ended { on_purpose, reason };
                }
                Some(Err(error)) => {
                    return Heard::Ended {
                        on_purpose: false,
                        reason: error.to_string(),
                    };
                }
                None => {
                    return Heard::Ended {
                        on_purpose: false,
                        reason: "the connection broke".to_owned(),
                    };
                }
            }
        }
    }
}

/// Puts messages into the writing half.
pub(super) struct Outgoing<M> {
    queue: mpsc::Sender<M>,
}

impl<M> Clone for Outgoing<M> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
        }
    }
}

impl<M> Outgoing<M> {
    /// Waits for room; false if the connection is gone.
    pub(super) async fn send(&self, message: M) -> bool {
        self.queue.send(message).await.is_ok()
    }

    /// Only if there is room now.
    pub(super) fn try_send(&self, message: M) -> bool {
        self.queue.try_send(message).is_ok()
    }
}

/// The writing half, before it runs.
pub(super) struct Writer<M> {
    sink: SplitSink<WebSocket, Message>,
    queue: mpsc::Receiver<M>,
    timeout: Duration,
}

/// Splits a connection.
pub(super) fn split<M: Serialize>(
    socket: WebSocket,
    silent_after: Duration,
    write_timeout: Duration,
) -> (Reader, Outgoing<M>, Writer<M>) {
    let (sink, stream) = socket.split();
    let (queue, queued) = mpsc::channel(QUEUE);
    let reader = Reader { stream, silent_after };
    let writer = Writer {
        sink,
        queue: queued,
        timeout: write_timeout,
    };
    (reader, Outgoing { queue }, writer)
}

impl<M: Serialize> Writer<M> {
    /// Writes until the queue's last sender is gone or the peer is; the reason in the latter case.
    pub(super) async fn run(mut self, mut snapshots: watch::Receiver<Option<Snapshot>>) -> Option<String> {
        let mut open = true;
        loop {
            let text = tokio::select! {
                biased;
                message = self.queue.recv() => match message {
                    Some(message) => encode(&message),
                    None => break,
                },
                changed = snapshots.changed(), if open => match changed {
                    Ok(()) => snapshots.borrow_and_update().clone(),
                    Err(_) => {
                        open = false;
                        None
                    }
                },
            };
            if let Some(text) = text
                && let Err(reason) = self.write(Message::Text(text)).await
            {
                return Some(reason);
            }
        }
        let close = CloseFrame {
            code: close_code::AWAY,
            reason: "".into(),
        };
        let _ = self.write(Message::Close(Some(close))).await;
        None
    }

    async fn write(&mut self, message: Message) -> Result<(), String> {
        match tokio::time::timeout(self.timeout, self.sink.send(message)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it took no message within {} s", self.timeout.as_secs())),
        }
    }
}

/// A message as JSON text; none, said loudly, if it cannot be encoded.
pub(super) fn encode<M: Serialize>(message: &M) -> Option<Snapshot> {
    match serde_json::to_string(message) {
        Ok(text) => Some(text.into()),
        Err(error) => {
            tracing::error!(code = "message_not_encoded", %error, "a message could not be encoded and was left out");
            None
        }
    }
}
