//! An open stream to an instance, with what must be known of its bytes.
//!
//! Two things a proxy has to know are below what an HTTP library tells. First, whether any byte of a request left this
//! host: if none did, even a request that must not be repeated may go elsewhere. Second, an instance may answer early
//! (413, 401) and close while the body is still being sent: writing then fails, and the answer that already lies in the
//! receive buffer would be thrown away with the connection. So a failed write is kept to itself and further bytes are
//! dropped until reading has come to its own end, for at most [`LAST_WORDS`].

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::dial::Link;

/// How long an instance that takes no more bytes may still have some to say.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// When an instance was last heard: any byte of any answer.
#[derive(Debug)]
pub(crate) struct Pulse {
    born: Instant,
    last_ms: AtomicU64,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            last_ms: AtomicU64::new(0),
        }
    }
}

impl Pulse {
    /// It was heard now.
    pub(crate) fn beat(&self) {
        let now = self.born.elapsed().as_millis() as u64;
        // Unchanged within a millisecond, and a cache line less to fight over.
        if self.last_ms.load(Ordering::Relaxed) != now {
            self.last_ms.store(now, Ordering::Relaxed);
        }
    }

    /// For how long it has not been heard.
    pub(crate) fn silence(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(last)
    }
}

/// Bytes handed to the system on one connection.
#[derive(Debug, Default)]
pub(crate) struct Meter(AtomicU64);

impl Meter {
    pub(crate) fn written(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The stream.
pub(crate) struct Wire {
    link: Link,
    meter: Arc<Meter>,
    pulse: Arc<Pulse>,
    broken: Option<Broken>,
}

struct Broken {
    error: Option<io::Error>,
    patience: Pin<Box<Sleep>>,
}

impl Wire {
    pub(crate) fn new(link: Link, pulse: Arc<Pulse>) -> (Self, Arc<Meter>) {
        let meter = Arc::new(Meter::default());
        let wire = Self {
            link,
            meter: Arc::clone(&meter),
            pulse,
            broken: None,
        };
        (wire, meter)
    }

    fn written(&mut self, polled: Poll<io::Result<usize>>, offered: usize) -> Poll<io::Result<usize>> {
        match ready!(polled) {
            Ok(n) => {
                self.meter.0.fetch_add(n as u64, Ordering::Release);
                Poll::Ready(Ok(n))
            }
            Err(error) => {
                self.broken = Some(Broken {
                    error: Some(error),
                    patience: Box::pin(tokio::time::sleep(LAST_WORDS)),
                });
                Poll::Ready(Ok(offered))
            }
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.link).poll_read(cx, buf);
        if polled.is_pending()
            && let Some(broken) = &mut self.broken
            && broken.patience.as_mut().poll(cx).is_ready()
        {
            let error = broken.error.take();
            return Poll::Ready(Err(error.unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())));
        }
        if buf.filled().len() > before {
            self.pulse.beat();
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.broken.is_some() {
            return Poll::Ready(Ok(buf.len()));
        }
        let polled = Pin::new(&mut self.link).poll_write(cx, buf);
        self.written(polled, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let offered = bufs.iter().map(|b| b.len()).sum();
        if self.broken.is_some() {
            return Poll::Ready(Ok(offered));
        }
        let polled = Pin::new(&mut self.link).poll_write_vectored(cx, bufs);
        self.written(polled, offered)
    }

    fn is_write_vectored(&self) -> bool {
        self.link.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.broken.is_some() {
            return Poll::Ready(Ok(()));
        }
        let polled = Pin::new(&mut self.link).poll_flush(cx);
        self.written(polled.map_ok(|()| 0), 0).map_ok(|_| ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn what_was_said_before_the_close_is_heard_after_a_failed_write() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = listener.accept().await.unwrap();
        let pulse = Arc::new(Pulse::default());
        let (mut wire, meter) = Wire::new(Box::new(stream), pulse);
        peer.write_all(b"early").await.unwrap();
        wire.write_all(b"unread").await.unwrap();
        // Closing with bytes unread resets the connection.
        peer.readable().await.unwrap();
        drop(peer);
        let chunk = vec![0; 65_536];
        for _ in 0..64 {
            wire.write_all(&chunk).await.unwrap();
        }
        let written = meter.written();
        let mut heard = [0; 5];
        wire.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"early");
        assert!(!matches!(wire.read(&mut heard).await, Ok(n) if n > 0));
        wire.write_all(&chunk).await.unwrap();
        assert_eq!(meter.written(), written, "nothing more was written");
    }
}
