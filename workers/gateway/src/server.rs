//! Listening for clients, and the gateway's life from bind to shutdown.
//!
//! Invariants: the address is known before anything is served; at most [`Limits::max_connections`] clients are
//! connected, further ones wait in the kernel's backlog; after shutdown was asked for no connection is accepted, running
//! requests end within [`Limits::shutdown_grace`], and then everything is closed.
//!
//! [`Limits::max_connections`]: crate::Limits::max_connections
//! [`Limits::shutdown_grace`]: crate::Limits::shutdown_grace

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tidemill_protocol::gateway::Suspicion;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::client::{Protocols, Stream, serve};
use crate::config::GatewayConfig;
use crate::control::Control;
use crate::dial::tune;
use crate::error::GatewayError;
use crate::proxy::Proxy;
use crate::roster::{Roster, Seat};
use crate::store;
use crate::tls::Tls;
use crate::watch as vigil;

/// How often connections are looked at that take too long.
const SWEEP: Duration = Duration::from_secs(1);
/// Told to a client whose address has too many connections, without a look at what it wants.
const TOO_MANY: &[u8] =
    b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
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
    tls: Option<Arc<Tls>>,
    suspicions: mpsc::Receiver<Suspicion>,
}

impl Gateway {
    /// Binds the listen address and loads the last routes from disk.
    ///
    /// # Errors
    ///
    /// When the data directory cannot be made, the address cannot be bound, or certificate and key cannot serve. Routes on disk that cannot be read are
    /// logged and are no error: a door will send new ones.
    pub async fn bind(config: GatewayConfig) -> Result<Self, GatewayError> {
        std::fs::create_dir_all(&config.data_dir).map_err(|source| GatewayError::DataDir {
            path: config.data_dir.clone(),
            source,
        })?;
        let tls = config.tls.clone().map(Tls::load).transpose()?.map(Arc::new);
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
            tls,
            suspicions,
        })
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The URL under which clients reach this gateway: the configured one, or the bound address.
    pub fn url(&self) -> String {
        self.config.public_url.clone().unwrap_or_else(|| {
            let scheme = if self.tls.is_some() { "https" } else { "http" };
            format!("{scheme}://{}", self.local_addr)
        })
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
        let watching = tokio::spawn(vigil::run(Arc::clone(&self.proxy), drained.clone()));
        if let Some(tls) = &self.tls {
            tokio::spawn(Arc::clone(tls).keep_fresh(shutdown.clone()));
        }
        let front = Front {
            roster: Roster::new(&self.config.limits),
            protocols: Arc::new(Protocols::new(&self.config.limits)),
            tls: self.tls,
            proxy: Arc::clone(&self.proxy),
            shutdown: shutdown.clone(),
        };
        front.accept(&self.listener).await;
        drop(self.listener);
        let (tasks, cut) = (&self.proxy.tasks, &self.proxy.cut);
        tasks.close();
        let grace = tokio::time::sleep(self.config.limits.shutdown_grace);
        tokio::select! {
            () = tasks.wait() => {}
            () = front.sweep() => {}
            () = grace => {
                tracing::warn!(open = tasks.len(), "connections cut at the end of the grace");
                cut.cancel();
                tasks.wait().await;
            }
        }
        drained.cancel();
        let _ = watching.await;
        let _ = control.await;
        let _ = keeper.await;
    }
}

/// Where clients come in.
struct Front {
    roster: Arc<Roster>,
    protocols: Arc<Protocols>,
    tls: Option<Arc<Tls>>,
    proxy: Arc<Proxy>,
    shutdown: CancellationToken,
}

impl Front {
    /// Ends what takes too long, for ever.
    async fn sweep(&self) {
        loop {
            tokio::time::sleep(SWEEP.min(self.proxy.limits.header_timeout)).await;
            self.roster.sweep();
        }
    }

    /// Accepts until shutdown.
    async fn accept(&self, listener: &TcpListener) {
        let room = Arc::new(Semaphore::new(self.proxy.limits.max_connections));
        let accepting = async {
            let mut pause = ACCEPT_PAUSE_MIN;
            loop {
                match self.next(listener, &room).await {
                    Ok(()) => pause = ACCEPT_PAUSE_MIN,
                    Err(error) => {
                        tracing::warn!(%error, pause_ms = pause.as_millis() as u64, "no connection could be accepted");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => {}
            () = accepting => {}
            () = self.sweep() => {}
        }
    }

    async fn next(&self, listener: &TcpListener, room: &Arc<Semaphore>) -> io::Result<()> {
        let permit = Arc::clone(room).acquire_owned().await;
        let permit = permit.map_err(|_| io::Error::other("closed"))?;
        let (stream, peer) = listener.accept().await?;
        match self.roster.seat(peer, self.tls.is_some(), permit) {
            Some(seat) => self.take(stream, seat),
            None => {
                tracing::debug!(address = %peer.ip(), "too many connections from one address");
                if self.tls.is_none() {
                    let _ = stream.try_write(TOO_MANY);
                }
            }
        }
        Ok(())
    }

    fn take(&self, stream: TcpStream, seat: Seat) {
        // Only a socket that is gone already refuses its options.
        if tune(&stream).is_err() {
            return;
        }
        let proxy = Arc::clone(&self.proxy);
        let protocols = Arc::clone(&self.protocols);
        let shutdown = self.shutdown.clone();
        let cut = self.proxy.cut.clone();
        let Some(tls) = &self.tls else {
            let serving = serve(Stream::Plain(stream), seat, proxy, protocols, shutdown);
            self.proxy.tasks.spawn(until(cut, serving));
            return;
        };
        let acceptor = TlsAcceptor::from(tls.current());
        let patience = self.proxy.limits.header_timeout;
        self.proxy.tasks.spawn(until(cut, async move {
            let shaken = Box::pin(tokio::time::timeout(patience, acceptor.accept(stream)));
            if let Ok(Ok(stream)) = shaken.await {
                serve(Stream::Tls(Box::new(stream)), seat, proxy, protocols, shutdown).await;
            }
        }));
    }
}

async fn until(cut: CancellationToken, serving: impl Future<Output = ()>) {
    tokio::select! {
        () = serving => {}
        () = cut.cancelled() => {}
    }
}
