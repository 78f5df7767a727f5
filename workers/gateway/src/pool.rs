//! HTTP/1.1 connections to one instance.
//!
//! Requests go over the connection used last; unused ones close after a while. A server may close an unused connection
//! at the very moment a request goes out on it. A retry hides that, but a request that must not be sent twice has no
//! retry: it gets a connection only if that has been unused for less than half the shortest time after which this
//! instance was ever seen to close one, and a new one otherwise. Of an instance that closes within moments no unused
//! connection is trusted at all: on a busy machine half a moment is over before the request is on its way.
//!
//! Invariants: a connection enters the pool only after the whole answer was read and the whole request written; a
//! connection dropped outside the pool is closed at once, which is how a cancel reaches the instance.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::task::AbortHandle;

use crate::config::Limits;
use crate::conn::SendFailure;
use crate::dial::ConnectError;
use crate::line::Line;
use crate::upload::UploadBody;
use crate::wire::Meter;

/// Assumed until seen otherwise: shorter than any common server's keep-alive.
const SHORTEST_IDLE_ASSUMED: Duration = Duration::from_secs(2);

/// Below this, half the time until an instance closes is less than a busy machine may take to send a request.
const SHORTEST_IDLE_TRUSTED: Duration = Duration::from_millis(250);

/// Unused connections to one instance, and how to make more.
#[derive(Debug)]
pub(crate) struct Pool {
    line: Arc<Line>,
    idle_timeout: Duration,
    idle_connections: usize,
    /// Most recently used last.
    idle: Mutex<VecDeque<(Instant, OwnConn)>>,
    /// Shortest time in microseconds after which the instance closed an unused connection.
    shortest_idle_us: Arc<AtomicU64>,
}

/// A connection in use, or unused in the pool. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct OwnConn {
    sender: SendRequest<UploadBody>,
    meter: Arc<Meter>,
    /// How long it was unused before this request. `None`: it is new.
    pub(crate) reused_after: Option<Duration>,
    driver: AbortHandle,
    /// Since when it is unused, in microseconds after `born`; 0 = in use.
    idle_since_us: Arc<AtomicU64>,
    born: Instant,
}

impl Drop for OwnConn {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl OwnConn {
    /// Sends a request and waits for the beginning of its answer.
    pub(crate) async fn send(&mut self, request: Request<UploadBody>) -> Result<Response<Incoming>, SendFailure> {
        let before = self.meter.written();
        match self.sender.try_send_request(request).await {
            Ok(response) => Ok(response),
            Err(mut failure) => Err(if failure.take_message().is_some() || self.meter.written() == before {
                SendFailure::Unsent
            } else {
                SendFailure::Sent(failure.into_error())
            }),
        }
    }
}

impl Pool {
    pub(crate) fn new(line: &Arc<Line>, limits: &Limits) -> Self {
        Self {
            line: Arc::clone(line),
            idle_timeout: limits.idle_timeout,
            idle_connections: limits.idle_connections,
            idle: Mutex::default(),
            shortest_idle_us: Arc::new(AtomicU64::new(SHORTEST_IDLE_ASSUMED.as_micros() as u64)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, OwnConn)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection ready for a request. `resendable`: a connection that turns out closed costs only another try.
    pub(crate) async fn get(&self, resendable: bool, fresh: bool) -> Result<OwnConn, ConnectError> {
        if !fresh {
            let trusted = if resendable {
                self.idle_timeout
            } else {
                let shortest = Duration::from_micros(self.shortest_idle_us.load(Ordering::Relaxed));
                match shortest >= SHORTEST_IDLE_TRUSTED {
                    true => (shortest / 2).min(self.idle_timeout),
                    false => Duration::ZERO,
                }
            };
            while let Some(mut conn) = self.pop(trusted) {
                // Pending only until its task has noticed that the last answer was read to the end.
                if conn.sender.ready().await.is_ok() {
                    return Ok(conn);
                }
            }
        }
        self.connect().await
    }

    fn pop(&self, trusted: Duration) -> Option<OwnConn> {
        let mut idle = self.lock();
        // The last one was used most recently: if it is too old, so are all.
        let unused = idle.back()?.0.elapsed();
        if unused > trusted {
            return None;
        }
        let (_, mut conn) = idle.pop_back()?;
        conn.reused_after = Some(unused);
        conn.idle_since_us.store(0, Ordering::Relaxed);
        Some(conn)
    }

    /// Puts a connection back whose request and answer are both complete.
    pub(crate) fn put(&self, conn: OwnConn) {
        if conn.sender.is_closed() {
            return;
        }
        let now = Instant::now();
        let age = now.duration_since(conn.born).as_micros() as u64;
        conn.idle_since_us.store(age.max(1), Ordering::Relaxed);
        let surplus = {
            let mut idle = self.lock();
            idle.push_back((now, conn));
            (idle.len() > self.idle_connections).then(|| idle.pop_front())
        };
        drop(surplus);
    }

    /// A connection broke when it was used again after this time: the instance may close that early.
    pub(crate) fn went_stale(&self, unused: Duration) {
        let us = unused.as_micros() as u64;
        self.shortest_idle_us.fetch_min(us, Ordering::Relaxed);
    }

    /// Whether it keeps no unused connection.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Closes connections unused for too long.
    pub(crate) fn expire(&self) {
        let now = Instant::now();
        let expired: Vec<_> = {
            let mut idle = self.lock();
            let keep_from = idle.partition_point(|(since, conn)| {
                now.duration_since(*since) > self.idle_timeout || conn.sender.is_closed()
            });
            idle.drain(..keep_from).collect()
        };
        drop(expired);
    }

    /// Closes all unused connections.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.lock());
        drop(all);
    }

    async fn connect(&self) -> Result<OwnConn, ConnectError> {
        let (wire, meter) = self.line.open().await?;
        let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(wire)).await?;
        let born = Instant::now();
        let idle_since_us = Arc::new(AtomicU64::new(0));
        let driver = tokio::spawn({
            let idle_since = Arc::clone(&idle_since_us);
            let shortest = Arc::clone(&self.shortest_idle_us);
            let line = Arc::clone(&self.line);
            async move {
                tokio::select! {
                    biased;
                    _ = connection.with_upgrades() => {}
                    () = line.cut.notified() => return,
                }
                let since = idle_since.load(Ordering::Relaxed);
                if since != 0 {
                    let idle = (born.elapsed().as_micros() as u64).saturating_sub(since);
                    shortest.fetch_min(idle, Ordering::Relaxed);
                }
            }
        });
        Ok(OwnConn {
            sender,
            meter,
            reused_after: None,
            driver: driver.abort_handle(),
            idle_since_us,
            born,
        })
    }
}
