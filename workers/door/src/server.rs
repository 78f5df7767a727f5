//! Listening, and a door's life from bind to the last observation.
//!
//! Invariants: the address is known before anything is served. At the end, in this order: nobody new is accepted; the
//! observations say that this door stops, so that silence behind it is nobody's; connections and streams close, without
//! a word that would read as a node going; running requests get their grace; what was heard is stored.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{DoorConfig, DoorDeps};
use crate::connect;
use crate::gate::Peer;
use crate::routes;
use crate::shared::Shared;

/// Pauses after a failed accept, as when the process is out of file descriptors.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A door that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Something else listens there.
    #[error("{address} is in use by another process")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// This machine does not have the address, or it takes a right that the process lacks.
    #[error("{address} cannot be listened on: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

impl BindError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::AddressInUse { .. } => "address_in_use",
            Self::Listen { .. } => "listen_failed",
        }
    }

    /// What to do about it.
    pub fn next(&self) -> &'static str {
        match self {
            Self::AddressInUse { .. } => {
                "stop that process (a tidemill that still runs?), or give another address with --listen; port 0 picks a free one"
            }
            Self::Listen { .. } => "give an address of this machine with --listen, and a port above 1023",
        }
    }
}

/// A door that is bound and does not serve yet.
pub struct Door {
    listener: TcpListener,
    local_addr: SocketAddr,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door")
            .field("local_addr", &self.local_addr)
            .finish_non_exhaustive()
    }
}

impl Door {
    /// Binds the listen address. Connections wait in the kernel's backlog until [`Door::serve`].
    pub async fn bind(config: DoorConfig, deps: DoorDeps) -> Result<Self, BindError> {
        let address = config.listen;
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::AddressInUse { address },
            _ => BindError::Listen { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local_addr = listener.local_addr().map_err(failed)?;
        if !local_addr.ip().is_loopback() {
            let tokens = deps
                .view
                .read(|state| state.credentials.values().filter(|c| !c.revoked).count());
            if tokens == 0 {
                tracing::warn!(
                    %local_addr,
                    "the door is open to other machines and there is no token yet: every request from them is refused; \
                     make one on this machine with `tidemill token create`"
                );
            }
        }
        Ok(Self {
            listener,
            local_addr,
            shared: Shared::new(config, deps),
        })
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves until `shutdown` is cancelled, then ends in order.
    pub async fn serve(self, shutdown: CancellationToken) {
        let shared = self.shared;
        let stop_observing = CancellationToken::new();
        let grace = shared.config.limits.shutdown_grace;
        let observing = tokio::spawn(Arc::clone(&shared.observer).run(
            Arc::clone(&shared.deps.observations),
            stop_observing.clone(),
            grace,
        ));
        let hearing = tokio::spawn(
            Arc::clone(&shared.telemetry).follow(Arc::clone(&shared.deps.observations), stop_observing.clone()),
        );
        let fanning = tokio::spawn(connect::fan_out(Arc::clone(&shared)));
        let connections = TaskTracker::new();
        let cut = CancellationToken::new();
        accept(&self.listener, &shared, &connections, &shutdown, &cut).await;
        drop(self.listener);
        connections.close();
        stop_observing.cancel();
        shared.closing.cancel();
        let ended = async {
            connections.wait().await;
            shared.registry.ended().await;
        };
        if tokio::time::timeout(grace, ended).await.is_err() {
            tracing::warn!(open = connections.len(), "connections cut at the end of the grace");
            cut.cancel();
            connections.wait().await;
        }
        let _ = observing.await;
        let _ = hearing.await;
        let _ = fanning.await;
    }
}

async fn accept(
    listener: &TcpListener,
    shared: &Arc<Shared>,
    connections: &TaskTracker,
    shutdown: &CancellationToken,
    cut: &CancellationToken,
) {
    let limits = &shared.config.limits;
    let room = Arc::new(Semaphore::new(limits.connections));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    let http = Arc::new(http);
    let router = TowerToHyperService::new(routes::router(Arc::clone(shared)));
    let mut pause = ACCEPT_PAUSE_MIN;
    loop {
        let accepted = async {
            let permit = Arc::clone(&room)
                .acquire_owned()
                .await
                .map_err(|_| io::Error::other("closed"))?;
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
                let peer = Peer {
                    address: peer,
                    _slot: Arc::new(permit),
                };
                let serving = serve_one(Arc::clone(&http), router.clone(), stream, peer, shutdown.clone());
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

async fn serve_one(
    http: Arc<http1::Builder>,
    router: TowerToHyperService<axum::Router>,
    stream: TcpStream,
    peer: Peer,
    shutdown: CancellationToken,
) {
    if stream.set_nodelay(true).is_err() {
        // Only a socket that is gone already refuses its options.
        return;
    }
    let address = peer.address;
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let answer = router.call(request);
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service).with_upgrades());
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::trace!(peer = %address, %error, "connection ended");
    }
}
