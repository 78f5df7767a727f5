//! How a connection to an instance is opened.
//!
//! Everything above takes any byte stream, so a further way to reach instances (through a tunnel, say) is one more
//! implementation of [`Dial`] and one more arm in [`dialer`]. A dialler opens and tunes the stream and nothing else:
//! time limits, pools and protocols belong to its callers, so that they hold for every way alike.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tidemill_protocol::gateway::RouteInstance;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Silent peers (power loss, cut cable) are noticed after about these times rather than after TCP's quarter of an hour.
const KEEPALIVE_TIME: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;

/// A byte stream in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An open stream to an instance.
pub(crate) type Link = Box<dyn Duplex>;

/// A way to reach one instance.
pub(crate) trait Dial: fmt::Debug + Send + Sync {
    /// Opens a stream. Dropping the future gives up.
    fn dial(&self) -> BoxFuture<'_, io::Result<Link>>;
}

/// The way to reach an instance. `None`: this gateway has none.
pub(crate) fn dialer(route: &RouteInstance) -> Option<Arc<dyn Dial>> {
    let endpoint = route.endpoint.as_deref()?;
    Some(Arc::new(Tcp {
        endpoint: endpoint.into(),
        address: endpoint.parse().ok(),
    }))
}

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

impl ConnectError {
    /// Whether the host itself gave no answer. A refusal is one: the host is up, and what runs over open connections
    /// may well go on.
    pub(crate) fn is_silence(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::Io(error) => matches!(
                error.kind(),
                io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable
            ),
            Self::Handshake(_) => false,
        }
    }
}

/// Opens a stream within `limit`.
pub(crate) async fn dial_within(dial: &dyn Dial, limit: Duration) -> Result<Link, ConnectError> {
    match tokio::time::timeout(limit, dial.dial()).await {
        Ok(link) => Ok(link?),
        Err(_) => Err(ConnectError::Timeout(limit)),
    }
}

/// A TCP connection to `HOST:PORT`.
#[derive(Debug)]
struct Tcp {
    endpoint: Box<str>,
    address: Option<SocketAddr>,
}

impl Dial for Tcp {
    fn dial(&self) -> BoxFuture<'_, io::Result<Link>> {
        Box::pin(async {
            let stream = match self.address {
                Some(address) => TcpStream::connect(address).await?,
                None => TcpStream::connect(&*self.endpoint).await?,
            };
            tune(&stream)?;
            Ok(Box::new(stream) as Link)
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
