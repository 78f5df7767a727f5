//! One connection of a client: TLS or not, HTTP/1.1 or HTTP/2, from its first byte to its close.
//!
//! HTTP/2 is recognised by its preface, with or without TLS. The close is part of the protocol: where bytes may still
//! come that nobody reads (an answer that came before the end of its request), closing at once would reset the
//! connection and could destroy the answer on its way, so writing ends first and reading goes on for a moment.
//!
//! Invariants: no buffer is allocated for a connection before its first byte; a request's future lives on the heap only
//! while there is a request, so an idle connection stays small.

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{self, Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::config::{Limits, USUAL_HEADERS};
use crate::download::ProxyBody;
use crate::proxy::Proxy;
use crate::roster::{Busy, Seat, Verdict};

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes read ahead of what is passed on, per connection.
const READ_BUFFER: usize = 128 * 1024;
/// How many times the largest head is read over HTTP/2. A head cannot be skipped there without the end of the
/// connection and all its requests, so one somewhat too large is read, and refused by the proxy.
const HEAD_ROOM: usize = 4;
/// Bytes of a body under way, per request and per connection, on HTTP/2.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
const SEND_BUFFER: usize = 128 * 1024;
/// A client that answers no ping is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long, and how much, a client may go on sending after its last answer.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_BYTES: usize = 64 * 1024 * 1024;
const TOO_SLOW: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// How both protocols are served.
#[derive(Debug)]
pub(crate) struct Protocols {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl Protocols {
    pub(crate) fn new(limits: &Limits) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // The roster keeps the time; a timer a connection would cost more than the connection.
            .header_read_timeout(None)
            .max_header_size(limits.max_header_bytes)
            .max_buf_size(READ_BUFFER.max(limits.max_header_bytes));
        if limits.max_headers != USUAL_HEADERS {
            http1.max_headers(limits.max_headers);
        }
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.max_streams)
            .max_header_list_size(u32::try_from(limits.max_header_bytes.saturating_mul(HEAD_ROOM)).unwrap_or(u32::MAX))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        Self { http1, http2 }
    }
}

/// A client's byte stream.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Serves one connection until it ends.
pub(crate) async fn serve(
    stream: Stream,
    seat: Seat,
    proxy: Arc<Proxy>,
    protocols: Arc<Protocols>,
    shutdown: CancellationToken,
) {
    let seat = Arc::new(seat);
    let mut io = ClientIo::new(stream, Arc::clone(&seat));
    let http2 = tokio::select! {
        http2 = io.speaks_http2() => http2,
        // Nothing was asked yet.
        () = shutdown.cancelled() => return,
    };
    match http2 {
        Ok(false) => serve_http1(io, seat, proxy, protocols, shutdown).await,
        Ok(true) => Box::pin(serve_http2(io, seat, proxy, protocols, shutdown)).await,
        Err(_) => {}
    }
}

async fn serve_http1(
    io: ClientIo,
    seat: Arc<Seat>,
    proxy: Arc<Proxy>,
    protocols: Arc<Protocols>,
    shutdown: CancellationToken,
) {
    let service = service_fn(|request| handle(&proxy, &seat, request));
    let connection = protocols.http1.serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection.with_upgrades());
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "connection ended");
    }
}

async fn serve_http2(
    io: ClientIo,
    seat: Arc<Seat>,
    proxy: Arc<Proxy>,
    protocols: Arc<Protocols>,
    shutdown: CancellationToken,
) {
    let activity = Arc::clone(&seat.activity);
    activity.is_shared();
    let service = service_fn(|request| handle(&proxy, &seat, request));
    let mut connection = pin!(protocols.http2.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = activity.farewell.notified() => {}
            }
        } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "connection ended");
    }
}

fn handle(
    proxy: &Arc<Proxy>,
    seat: &Arc<Seat>,
    request: Request<Incoming>,
) -> BoxFuture<'static, Result<Response<ClientBody>, Infallible>> {
    let proxy = Arc::clone(proxy);
    let busy = seat.busy();
    // What only prepares runs before there is a future, which it would make larger.
    match proxy.accept(&busy, request) {
        Ok(forward) => Box::pin(async move {
            let response = forward.run(&proxy, &busy).await;
            Ok(response.map(|body| ClientBody { body, _busy: busy }))
        }),
        Err(refused) => Box::pin(ready(Ok(refused.map(|body| ClientBody { body, _busy: busy })))),
    }
}

/// An answer's body, which keeps its connection busy.
#[derive(Debug)]
pub(crate) struct ClientBody {
    body: ProxyBody,
    _busy: Busy,
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A client's stream under the eyes of the roster.
pub(crate) struct ClientIo {
    stream: Stream,
    seat: Arc<Seat>,
    /// Read to recognise the protocol; `prefix[given..read]` is yet to be handed on.
    prefix: [u8; PREFACE.len()],
    read: u8,
    given: u8,
    ended: bool,
    closing: Option<Linger>,
}

struct Linger {
    patience: Pin<Box<Sleep>>,
    read: usize,
}

impl ClientIo {
    fn new(stream: Stream, seat: Arc<Seat>) -> Self {
        Self {
            stream,
            seat,
            prefix: [0; PREFACE.len()],
            read: 0,
            given: 0,
            ended: false,
            closing: None,
        }
    }

    /// Reads as much as it takes to tell the protocol.
    async fn speaks_http2(&mut self) -> io::Result<bool> {
        loop {
            let at = usize::from(self.read);
            let mut more = [0; PREFACE.len()];
            let mut buf = ReadBuf::new(&mut more[at..]);
            poll_fn(|cx| self.poll_stream(cx, &mut buf)).await?;
            let new = buf.filled();
            if new.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = at + new.len();
            self.prefix[at..end].copy_from_slice(new);
            self.read = end as u8;
            if self.prefix[..end] != PREFACE[..end] {
                return Ok(false);
            }
            if end == PREFACE.len() {
                return Ok(true);
            }
        }
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        match &polled {
            Poll::Pending => {
                if let Some(verdict) = self.seat.activity.verdict(cx.waker()) {
                    if verdict == Verdict::HeadTooSlow && self.read > 0 {
                        // As much as fits now; the client is no good listener either.
                        let _ = Pin::new(&mut self.stream).poll_write(cx, TOO_SLOW);
                    }
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            Poll::Ready(Ok(())) if buf.filled().len() > before => self.seat.activity.heard(),
            Poll::Ready(_) => self.ended = true,
        }
        polled
    }

    fn noted<T>(&self, cx: &Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let activity = &self.seat.activity;
        if polled.is_ready() {
            activity.takes();
        } else {
            activity.stalls();
            if activity.verdict(cx.waker()).is_some() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        polled
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.given < self.read {
            let (from, to) = (usize::from(self.given), usize::from(self.read));
            let n = buf.remaining().min(to - from);
            buf.put_slice(&self.prefix[from..from + n]);
            self.given += n as u8;
            return Poll::Ready(Ok(()));
        }
        self.poll_stream(cx, buf)
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.noted(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.noted(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.noted(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing.is_none() {
            task::ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if self.ended || !self.seat.activity.leaves_unread() {
                return Poll::Ready(Ok(()));
            }
            self.closing = Some(Linger {
                patience: Box::pin(tokio::time::sleep(LINGER)),
                read: 0,
            });
        }
        let this = &mut *self;
        let Some(linger) = &mut this.closing else {
            return Poll::Ready(Ok(()));
        };
        let mut sink = [0; 8 * 1024];
        loop {
            if linger.patience.as_mut().poll(cx).is_ready() || linger.read > LINGER_BYTES {
                return Poll::Ready(Ok(()));
            }
            let mut buf = ReadBuf::new(&mut sink);
            match task::ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => linger.read += buf.filled().len(),
                _ => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
