//! An answer's body on its way to the client.
//!
//! It holds the slot and the connection until its end. Read to the end, the connection goes back to the pool; broken by
//! the instance, the error is handed to the server, which cuts the client's connection so that nobody takes half an
//! answer for a whole one; dropped because the client left, the connection to the instance closes with it.
//!
//! An instance that breaks right after the head would take the head along: the server drops what it has not yet written
//! when a body fails. The client would see no answer where one had begun, so such an error is held back for
//! [`HEAD_FIRST`], in which the head goes out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tidemill_protocol::gateway::Suspicion;
use tokio::sync::mpsc;
use tokio::time::Sleep;

use crate::admission::Slot;
use crate::conn::Conn;
use crate::health::{Condition, put_aside};
use crate::upload::Upload;

/// How long the head has before its body fails.
const HEAD_FIRST: Duration = Duration::from_millis(20);

/// Body of any answer.
#[derive(Debug)]
pub(crate) enum ProxyBody {
    /// One of the gateway's own.
    Whole(Full<Bytes>),
    /// From an instance.
    Stream(Download),
}

/// Body of an instance's answer.
#[derive(Debug)]
pub(crate) struct Download {
    source: Incoming,
    hold: Option<Hold>,
    /// Something was passed on.
    begun: bool,
    failing: Option<(Pin<Box<Sleep>>, hyper::Error)>,
}

/// What an answer holds until its end.
#[derive(Debug)]
pub(crate) struct Hold {
    // Declared before the slot: whoever gets the slot next should find the connection in the pool or closed.
    pub(crate) conn: Conn,
    pub(crate) slot: Slot,
    pub(crate) upload: Upload,
    pub(crate) keep_alive: bool,
    pub(crate) suspicions: mpsc::Sender<Suspicion>,
}

impl Hold {
    fn finish(self) {
        // An instance may answer before it has read the whole request; such a connection is not in step.
        if self.keep_alive && self.upload.is_ended() {
            self.conn.put_back(self.slot.instance());
        }
    }

    pub(crate) fn cut(self, error: &dyn std::fmt::Display) {
        let service = Arc::clone(self.slot.service());
        service.traffic.stream_cut();
        put_aside(
            &service,
            self.slot.instance(),
            Condition::Breaking,
            &format!("broke while answering: {error}"),
            &self.suspicions,
        );
    }
}

impl ProxyBody {
    /// No body.
    pub(crate) fn empty() -> Self {
        Self::Whole(Full::default())
    }
}

impl Download {
    pub(crate) fn new(source: Incoming, hold: Hold) -> Self {
        let mut download = Self {
            source,
            hold: Some(hold),
            begun: false,
            failing: None,
        };
        download.finish_at_end();
        download
    }

    fn finish_at_end(&mut self) {
        if self.source.is_end_stream()
            && let Some(hold) = self.hold.take()
        {
            hold.finish();
        }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let download = match self.get_mut() {
            Self::Whole(full) => {
                return Pin::new(full).poll_frame(cx).map_err(|never| match never {});
            }
            Self::Stream(download) => download,
        };
        if let Some((wait, _)) = &mut download.failing {
            ready!(wait.as_mut().poll(cx));
            return Poll::Ready(download.failing.take().map(|(_, error)| Err(error)));
        }
        let mut frame = ready!(Pin::new(&mut download.source).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => {
                download.begun = true;
                download.finish_at_end();
            }
            Some(Err(error)) => {
                if let Some(hold) = download.hold.take() {
                    hold.cut(error);
                }
                if !download.begun
                    && let Some(Err(error)) = frame.take()
                {
                    let mut wait = Box::pin(tokio::time::sleep(HEAD_FIRST));
                    let _ = wait.as_mut().poll(cx);
                    download.failing = Some((wait, error));
                    return Poll::Pending;
                }
            }
            None => {
                if let Some(hold) = download.hold.take() {
                    hold.finish();
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(full) => full.is_end_stream(),
            Self::Stream(download) => download.source.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(full) => full.size_hint(),
            Self::Stream(download) => download.source.size_hint(),
        }
    }
}
