//! HTTP/2 connections to one instance, each shared by many requests.
//!
//! A connection takes [`STREAMS`] requests at a time before another is opened, so that a server's usual limit of a
//! hundred streams does not queue requests where nobody sees them. A request whose stream the instance refused
//! (`REFUSED_STREAM`, or a `GOAWAY` that does not cover it) was not acted on and may go elsewhere whatever it is.
//!
//! Invariants: one connection is being opened at a time; a cancelled request resets its stream and nothing else; a
//! connection ends when the pool and the last of its streams have let go of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::conn::SendFailure;
use crate::dial::ConnectError;
use crate::line::Line;
use crate::upload::UploadBody;

/// Requests on one connection before another is opened.
const STREAMS: u32 = 100;
/// How long a connection without requests is kept.
const IDLE: Duration = Duration::from_secs(60);
/// A peer that answers no ping for this long after being asked is gone.
const PING_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes in flight per stream and per connection: enough for a fast answer, and a bound for a slow client.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// The connections.
#[derive(Debug)]
pub(crate) struct Mux {
    line: Arc<Line>,
    open: Mutex<Vec<Shared>>,
    opening: Semaphore,
}

#[derive(Debug, Clone)]
struct Shared {
    sender: SendRequest<UploadBody>,
    active: Arc<AtomicU32>,
    last_used: Instant,
}

/// One request's place on a shared connection.
#[derive(Debug)]
pub(crate) struct SharedStream {
    sender: SendRequest<UploadBody>,
    active: Arc<AtomicU32>,
    pub(crate) reused_after: Option<Duration>,
}

impl Drop for SharedStream {
    fn drop(&mut self) {
        self.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SharedStream {
    /// Sends a request and waits for the beginning of its answer.
    pub(crate) async fn send(&mut self, request: Request<UploadBody>) -> Result<Response<Incoming>, SendFailure> {
        if self.sender.ready().await.is_err() {
            return Err(SendFailure::Unsent);
        }
        match self.sender.try_send_request(request).await {
            Ok(response) => Ok(response),
            Err(mut failure) => Err(if failure.take_message().is_some() || not_acted_on(failure.error()) {
                SendFailure::Unsent
            } else {
                SendFailure::Sent(failure.into_error())
            }),
        }
    }
}

/// Whether the instance said that it did not process the request (RFC 9113 §8.7).
fn not_acted_on(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    source
        .and_then(|source| source.downcast_ref::<h2::Error>())
        .is_some_and(|error| {
            let reason = error.reason();
            error.is_remote()
                && (reason == Some(h2::Reason::REFUSED_STREAM)
                    || (error.is_go_away() && reason == Some(h2::Reason::NO_ERROR)))
        })
}

impl Mux {
    pub(crate) fn new(line: &Arc<Line>) -> Self {
        Self {
            line: Arc::clone(line),
            open: Mutex::default(),
            opening: Semaphore::new(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Shared>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one request.
    pub(crate) async fn get(&self) -> Result<SharedStream, ConnectError> {
        if let Some(stream) = self.place() {
            return Ok(stream);
        }
        let _turn = self.opening.acquire().await;
        // Another request may have opened one meanwhile.
        if let Some(stream) = self.place() {
            return Ok(stream);
        }
        let shared = self.connect().await?;
        shared.active.fetch_add(1, Ordering::Relaxed);
        let stream = SharedStream {
            sender: shared.sender.clone(),
            active: Arc::clone(&shared.active),
            reused_after: None,
        };
        self.lock().push(shared);
        Ok(stream)
    }

    fn place(&self) -> Option<SharedStream> {
        let mut open = self.lock();
        open.retain(|shared| !shared.sender.is_closed());
        let shared = open
            .iter_mut()
            .find(|shared| shared.active.load(Ordering::Relaxed) < STREAMS)?;
        shared.active.fetch_add(1, Ordering::Relaxed);
        let unused = std::mem::replace(&mut shared.last_used, Instant::now()).elapsed();
        Some(SharedStream {
            sender: shared.sender.clone(),
            active: Arc::clone(&shared.active),
            reused_after: Some(unused),
        })
    }

    async fn connect(&self) -> Result<Shared, ConnectError> {
        let (wire, _) = self.line.open().await?;
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .handshake(TokioIo::new(wire))
            .await?;
        let line = Arc::clone(&self.line);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = connection => {}
                () = line.cut.notified() => {}
            }
        });
        Ok(Shared {
            sender,
            active: Arc::default(),
            last_used: Instant::now(),
        })
    }

    /// Closes connections that were unused for long.
    pub(crate) fn expire(&self) {
        self.lock().retain(|shared| {
            let busy = shared.active.load(Ordering::Relaxed) > 0;
            !shared.sender.is_closed() && (busy || shared.last_used.elapsed() < IDLE)
        });
    }

    /// Gives no more requests to the open connections; each ends with its last stream.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }
}
