//! Listening for clients, and the gateway's life from bind to shutdown.
//!
//! Invariants: the address is known before anything is served; at most [`Limits::max_connections`] clients are
//! connected, further ones wait in the kernel's backlog; after shutdown was asked for no connection is accepted, running
//! requests end within [`Limits::shutdown_grace`], and then everything is closed.
//!
//! [`Limits::max_connections`]: crate::Limits::max_connections
//! [`Limits::shutdown_grace`]: crate::Limits::shutdown_grace

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tidemill_protocol::gateway::Suspicion;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::GatewayConfig;
use crate::control::Control;
use crate::error::GatewayError;
use crate::pool::tune;
use crate::proxy::Proxy;
use crate::store;

/// Bytes read ahead of what is passed on, per connection.
const READ_BUFFER: usize = 128 * 1024;
/// Pauses after a failed accept, as when the process is out of file descriptors.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A gateway that is bound and has its last routes, but does not serve yet.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    listener: TcpListener,
    local_addr: SocketAddr,
    pub(crate) proxy: Arc<Proxy>,
    suspicions: mpsc::Receiver<Suspicion>,
}

impl Gateway {
    /// Binds the listen address and loads the last routes from disk.
    ///
    /// # Errors
    ///
    /// When the data directory cannot be made or the address cannot be bound. Routes on disk that cannot be read are
    /// logged and are no error: a door will send new ones.
    pub async fn bind(config: GatewayConfig) -> Result<Self, GatewayError> {
        std::fs::create_dir_all(&config.data_dir).map_err(|source| GatewayError::DataDir {
            path: config.data_dir.clone(),
            source,
        })?;
        let listen_failed = |source| GatewayError::Listen {
            address: config.listen,
            source,
        };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_failed)?;
        let local_addr = listener.local_addr().map_err(listen_failed)?;
        let (proxy, suspicions) = Proxy::new(config.limits.clone());
        if let Some(routes) = store::load(&store::path(&config.data_dir)) {
            tracing::info!(
                sequence = routes.stamp.sequence,
                services = routes.services.len(),
                "serving the last routes from disk until a door answers"
            );
            proxy.apply(&routes);
        }
        Ok(Self {
            config,
            listener,
            local_addr,
            proxy: Arc::new(proxy),
            suspicions,
        })
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The URL under which clients reach this gateway: the configured one, or the bound address.
    pub fn url(&self) -> String {
        self.config
            .public_url
            .clone()
            .unwrap_or_else(|| format!("http://{}", self.local_addr))
    }

    /// Serves until `shutdown` is cancelled, then lets running requests end.
    pub async fn serve(self, shutdown: CancellationToken) {
        let url = self.url();
        let (latest, changes) = watch::channel(None);
        let keeper = tokio::spawn(store::keep(store::path(&self.config.data_dir), changes));
        // It goes on during the drain: doors hear of this gateway until its last request has ended.
        let drained = CancellationToken::new();
        let control = tokio::spawn({
            let control = Control::new(Arc::clone(&self.proxy), &self.config, url, latest);
            let config = self.config.clone();
            let drained = drained.clone();
            async move { control.run(&config, self.suspicions, drained).await }
        });
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        accept(&self.listener, &self.proxy, &connections, &shutdown, &cut).await;
        drop(self.listener);
        connections.close();
        let grace = self.config.limits.shutdown_grace;
        if tokio::time::timeout(grace, connections.wait()).await.is_err() {
            tracing::warn!(open = connections.len(), "connections cut at the end of the grace");
            cut.cancel();
            connections.wait().await;
        }
        drained.cancel();
        let _ = control.await;
        let _ = keeper.await;
    }
}

async fn accept(
    listener: &TcpListener,
    proxy: &Arc<Proxy>,
    connections: &TaskTracker,
    shutdown: &CancellationToken,
    cut: &CancellationToken,
) {
    let limits = &proxy.limits;
    let room = Arc::new(Semaphore::new(limits.max_connections));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_headers(limits.max_headers)
        .max_header_size(limits.max_header_bytes)
        .max_buf_size(READ_BUFFER.max(limits.max_header_bytes));
    let http = Arc::new(http);
    let mut pause = ACCEPT_PAUSE_MIN;
    loop {
        let accepted = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            let permit = permit.map_err(|_| io::Error::other("closed"))?;
            let (stream, peer) = listener.accept().await?;
            Ok::<_, io::Error>((permit, stream, peer))
        };
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((permit, stream, peer)) => {
                pause = ACCEPT_PAUSE_MIN;
                let client = Client {
                    http: Arc::clone(&http),
                    proxy: Arc::clone(proxy),
                    shutdown: shutdown.clone(),
                    peer,
                    _permit: permit,
                };
                let serving = client.serve(stream);
                let cut = cut.clone();
                connections.spawn(async move {
                    tokio::select! {
                        () = serving => {}
                        () = cut.cancelled() => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, pause_ms = pause.as_millis() as u64, "no connection could be accepted");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
            }
        }
    }
}

/// One connection of a client.
struct Client {
    http: Arc<http1::Builder>,
    proxy: Arc<Proxy>,
    shutdown: CancellationToken,
    peer: SocketAddr,
    _permit: OwnedSemaphorePermit,
}

impl Client {
    async fn serve(self, stream: TcpStream) {
        if tune(&stream).is_err() {
            // Only a socket that is gone already refuses its options.
            return;
        }
        let service = service_fn(|request| {
            let proxy = Arc::clone(&self.proxy);
            let peer = self.peer;
            async move { Ok::<_, Infallible>(proxy.handle(peer, request).await) }
        });
        let mut connection = pin!(self.http.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.shutdown.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::trace!(peer = %self.peer, %error, "connection ended");
        }
    }
}
