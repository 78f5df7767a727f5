//! A connection as one request sees it: its own (HTTP/1.1), or a stream of a shared one (HTTP/2).
//!
//! HTTP/1.1 is what instances are spoken to by default. gRPC cannot do without HTTP/2 and its trailers, so requests of
//! its content type go out by HTTP/2 with prior knowledge. The rest stays with HTTP/1.1 even if the client came by
//! HTTP/2: every application server speaks it, one request's loss is its own connection's loss, and an instance that
//! stops reading one body holds up no other.

use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;

use crate::instance::Instance;
use crate::mux::SharedStream;
use crate::pool::OwnConn;
use crate::upload::UploadBody;

/// A connection in use by one request.
#[derive(Debug)]
pub(crate) enum Conn {
    Own(OwnConn),
    Shared(SharedStream),
}

/// Why a request got no answer.
#[derive(Debug)]
pub(crate) enum SendFailure {
    /// The instance cannot have acted on it: no byte was written, or it said so.
    Unsent,
    /// It may have acted on it.
    Sent(hyper::Error),
}

impl Conn {
    /// Sends a request and waits for the beginning of its answer.
    pub(crate) async fn send(&mut self, request: Request<UploadBody>) -> Result<Response<Incoming>, SendFailure> {
        match self {
            Self::Own(conn) => conn.send(request).await,
            Self::Shared(stream) => stream.send(request).await,
        }
    }

    /// How long it was unused before this request, if that can explain a break.
    pub(crate) fn reused_after(&self) -> Option<Duration> {
        match self {
            Self::Own(conn) => conn.reused_after,
            Self::Shared(stream) => stream.reused_after,
        }
    }

    /// Gives it back after a whole request and a whole answer.
    pub(crate) fn put_back(self, instance: &Instance) {
        // Closed connections are what tells a draining instance that no more will come.
        if let Self::Own(conn) = self
            && !instance.is_leaving()
        {
            instance.pool.put(conn);
        }
    }
}
