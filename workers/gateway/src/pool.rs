//! Connections to one instance.
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
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::config::Limits;
use crate::upload::UploadBody;

/// Silent peers (power loss, cut cable) are noticed after about these times rather than after TCP's quarter of an hour.
const KEEPALIVE_TIME: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;
/// Assumed until seen otherwise: shorter than any common server's keep-alive.
const SHORTEST_IDLE_ASSUMED: Duration = Duration::from_secs(2);

/// Below this, half the time until an instance closes is less than a busy machine may take to send a request.
const SHORTEST_IDLE_TRUSTED: Duration = Duration::from_millis(250);

/// Why an instance could not be connected to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("connection refused or failed: {0}")]
    Io(#[from] io::Error),
    #[error("connection not accepted within {0:?}")]
    Timeout(Duration),
    #[error("connection closed at once: {0}")]
    Handshake(#[from] hyper::Error),
}

/// Unused connections to one instance, and how to make more.
#[derive(Debug)]
pub(crate) struct Pool {
    endpoint: Box<str>,
    address: Option<SocketAddr>,
    connect_timeout: Duration,
    idle_timeout: Duration,
    idle_connections: usize,
    /// Most recently used last.
    idle: Mutex<VecDeque<(Instant, Conn)>>,
    /// Shortest time in microseconds after which the instance closed an unused connection.
    shortest_idle_us: Arc<AtomicU64>,
}

/// A connection in use, or unused in the pool. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) sender: SendRequest<UploadBody>,
    /// How long it was unused before this request. `None`: it is new.
    pub(crate) reused_after: Option<Duration>,
    driver: AbortHandle,
    /// Since when it is unused, in microseconds after `born`; 0 = in use.
    idle_since_us: Arc<AtomicU64>,
    born: Instant,
}

impl Drop for Conn {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Pool {
    pub(crate) fn new(endpoint: &str, address: Option<SocketAddr>, limits: &Limits) -> Self {
        Self {
            endpoint: endpoint.into(),
            address,
            connect_timeout: limits.connect_timeout,
            idle_timeout: limits.idle_timeout,
            idle_connections: limits.idle_connections,
            idle: Mutex::default(),
            shortest_idle_us: Arc::new(AtomicU64::new(SHORTEST_IDLE_ASSUMED.as_micros() as u64)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, Conn)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection ready for a request. `resendable`: a connection that turns out closed costs only another try.
    pub(crate) async fn get(&self, resendable: bool, fresh: bool) -> Result<Conn, ConnectError> {
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

    fn pop(&self, trusted: Duration) -> Option<Conn> {
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
    pub(crate) fn put(&self, conn: Conn) {
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

    /// Whether the instance accepts a TCP connection.
    pub(crate) async fn reachable(&self) -> bool {
        self.dial().await.is_ok()
    }

    async fn dial(&self) -> Result<TcpStream, ConnectError> {
        let connecting = async {
            match self.address {
                Some(address) => TcpStream::connect(address).await,
                None => TcpStream::connect(&*self.endpoint).await,
            }
        };
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(stream) => Ok(stream?),
            Err(_) => Err(ConnectError::Timeout(self.connect_timeout)),
        }
    }

    async fn connect(&self) -> Result<Conn, ConnectError> {
        let stream = self.dial().await?;
        tune(&stream)?;
        let (sender, connection) = http1::Builder::new().handshake(TokioIo::new(stream)).await?;
        let born = Instant::now();
        let idle_since_us = Arc::new(AtomicU64::new(0));
        let driver = tokio::spawn({
            let idle_since = Arc::clone(&idle_since_us);
            let shortest = Arc::clone(&self.shortest_idle_us);
            async move {
                let _ = connection.await;
                let since = idle_since.load(Ordering::Relaxed);
                if since != 0 {
                    let idle = (born.elapsed().as_micros() as u64).saturating_sub(since);
                    shortest.fetch_min(idle, Ordering::Relaxed);
                }
            }
        });
        Ok(Conn {
            sender,
            reused_after: None,
            driver: driver.abort_handle(),
            idle_since_us,
            born,
        })
    }
}

/// No delay for small frames; dead peers noticed. `TCP_USER_TIMEOUT` would notice them with data under way too, but on
/// Linux it also cuts a live peer that does not read for that long, and backpressure is not death.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_keepalive(
        &socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_TIME)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES),
    )?;
    Ok(())
}
