//! Instances, clients and a gateway for tests. Everything listens on a free port of the loopback.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidemill_protocol::Stamp;
use tidemill_protocol::gateway::{RouteInstance, Routes, ServiceRoute, TrafficSample};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::proxy::Proxy;
use crate::table::Routed;
use crate::{Gateway, GatewayConfig, Limits};

/// Waits until `condition` holds; fails after 10 s.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        // tidy: waits for something outside of this task, bounded
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 10 s: {what}");
}

/// Memory of this process.
pub(crate) fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A gateway that serves, and what it takes to change its routes.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) task: JoinHandle<()>,
    pub(crate) dir: tempfile::TempDir,
    sequence: AtomicU64,
}

pub(crate) fn config(dir: &tempfile::TempDir, limits: Limits) -> GatewayConfig {
    GatewayConfig {
        servers: Vec::new(),
        token: None,
        listen: "127.0.0.1:0".parse().unwrap(),
        name: "gw".into(),
        data_dir: dir.path().to_owned(),
        public_url: None,
        tls: None,
        limits,
    }
}

pub(crate) async fn gateway(limits: Limits) -> Served {
    let dir = tempfile::tempdir().unwrap();
    gateway_with(config(&dir, limits), dir).await
}

pub(crate) async fn gateway_with(config: GatewayConfig, dir: tempfile::TempDir) -> Served {
    let gateway = Gateway::bind(config).await.unwrap();
    let shutdown = CancellationToken::new();
    Served {
        address: gateway.local_addr(),
        proxy: Arc::clone(&gateway.proxy),
        task: tokio::spawn(gateway.serve(shutdown.clone())),
        shutdown,
        dir,
        sequence: AtomicU64::new(0),
    }
}

pub(crate) fn stamp(sequence: u64) -> Stamp {
    Stamp {
        cell: "test".into(),
        ledger: "ledger".into(),
        epoch: 1,
        sequence,
    }
}

pub(crate) fn route(instances: &[(&str, SocketAddr)]) -> ServiceRoute {
    ServiceRoute {
        tenant: "default".into(),
        name: "svc".into(),
        host: None,
        retry: "idempotent".into(),
        concurrency: None,
        queue: None,
        queue_timeout_ms: None,
        stopped: false,
        instances: instances
            .iter()
            .map(|(id, address)| RouteInstance {
                instance: (*id).into(),
                node: "node-1".into(),
                endpoint: Some(address.to_string()),
                draining: false,
            })
            .collect(),
    }
}

impl Served {
    pub(crate) fn route(&self, route: ServiceRoute) {
        self.routes(vec![route]);
    }

    pub(crate) fn routes(&self, services: Vec<ServiceRoute>) {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let routes = Routes {
            stamp: stamp(sequence),
            services,
        };
        assert_eq!(self.proxy.apply(&routes), Routed::InUse);
    }

    pub(crate) fn service(&self) -> Arc<crate::admission::Service> {
        let table = self.proxy.router.current();
        Arc::clone(table.resolve(None, "/svc").unwrap().0)
    }

    /// Waits until nothing is in flight or waits anywhere.
    pub(crate) async fn at_rest(&self) {
        let service = self.service();
        until("counters at rest", || {
            service.traffic.waiting() == 0
                && service.queued() == 0
                && service.all_in_flight().is_empty()
                && self.proxy.replay.used() == 0
        })
        .await;
    }

    /// Everything counted since the last call, over all services.
    pub(crate) fn total(&self) -> TrafficSample {
        self.proxy.tick(std::time::Instant::now());
        let seconds = self.proxy.with_reporter(|reporter| reporter.take());
        let mut total = TrafficSample::default();
        for (_, second) in seconds {
            total.arrived += second.arrived;
            total.ok += second.ok;
            total.application_errors += second.application_errors;
            total.failed += second.failed;
            total.refused += second.refused;
            total.cancelled += second.cancelled;
            total.cut_streams += second.cut_streams;
            total.retries += second.retries;
            total.longest_gap_ms = total.longest_gap_ms.max(second.longest_gap_ms);
        }
        total
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        send(self.address, request(Method::GET, path)).await.unwrap()
    }
}

pub(crate) type Ask = Request<Full<Bytes>>;

pub(crate) fn request(method: Method, path: &str) -> Ask {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "gateway")
        .body(Full::default())
        .unwrap()
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    /// `code` of a problem.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem: tidemill_protocol::Problem = serde_json::from_str(&self.body).unwrap();
        assert!(!problem.detail.is_empty() && problem.trace_id.len() == 32);
        problem.code
    }
}

/// One keep-alive connection of a client.
pub(crate) struct ClientConn(client::SendRequest<Full<Bytes>>);

impl ClientConn {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, conn) = client::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(conn);
        Self(sender)
    }

    pub(crate) async fn begin(&mut self, request: Ask) -> hyper::Result<Response<Incoming>> {
        self.0.ready().await?;
        self.0.send_request(request).await
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    pub(crate) async fn send(&mut self, request: Ask) -> hyper::Result<Reply> {
        let (head, body) = self.begin(request).await?.into_parts();
        let bytes = body.collect().await?.to_bytes();
        Ok(Reply {
            status: head.status,
            headers: head.headers,
            body: String::from_utf8(bytes.to_vec()).unwrap(),
        })
    }
}

/// One request on a connection of its own.
pub(crate) async fn send(address: SocketAddr, request: Ask) -> hyper::Result<Reply> {
    ClientConn::open(address).await.send(request).await
}

/// What an instance saw.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    pub(crate) open: AtomicUsize,
}

/// An instance that answers its name after a pause. Dropped, it is gone like a killed process: its listener closes
/// and its connections break.
pub(crate) struct Echo {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Seen>,
    kill: CancellationToken,
}

impl Echo {
    pub(crate) async fn start(name: &'static str, pause: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, name, pause)
    }

    pub(crate) fn on(listener: TcpListener, name: &'static str, pause: Duration) -> Self {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let kill = CancellationToken::new();
        let (counts, killed) = (Arc::clone(&seen), kill.clone());
        tokio::spawn(async move {
            let accepting = async {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    stream.set_nodelay(true).unwrap();
                    // A killed process resets what it had not read or answered.
                    #[allow(deprecated)]
                    stream.set_linger(Some(Duration::ZERO)).unwrap();
                    counts.connections.fetch_add(1, Ordering::Relaxed);
                    let (counts, killed) = (Arc::clone(&counts), killed.clone());
                    tokio::spawn(async move {
                        counts.open.fetch_add(1, Ordering::Relaxed);
                        let service = service_fn(|request: Request<Incoming>| {
                            counts.requests.fetch_add(1, Ordering::Relaxed);
                            answer(request, name, pause)
                        });
                        let conn = server::Builder::new().serve_connection(TokioIo::new(stream), service);
                        tokio::select! { _ = conn => {}, () = killed.cancelled() => {} }
                        counts.open.fetch_sub(1, Ordering::Relaxed);
                    });
                }
            };
            tokio::select! { () = accepting => {}, () = killed.cancelled() => {} }
        });
        Self { address, seen, kill }
    }

    pub(crate) fn kill(&self) {
        self.kill.cancel();
    }

    pub(crate) fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.kill.cancel();
    }
}

async fn answer(
    request: Request<Incoming>,
    name: &'static str,
    pause: Duration,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let bytes = body.collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    if !pause.is_zero() {
        // tidy: waits for its time to answer: slowness is what is tested
        tokio::time::sleep(pause).await;
    }
    let field = |name: &str| head.headers.get(name).map_or("-", |v| v.to_str().unwrap());
    let text = format!(
        "{name} {} {} {} {} {} {}",
        head.method,
        head.uri,
        bytes.len(),
        field("host"),
        field("x-forwarded-for"),
        field("x-forwarded-prefix"),
    );
    let mut response = Response::new(Full::new(Bytes::from(text)));
    if head.uri.path() == "/teapot" {
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
    }
    if head.uri.path() == "/error" {
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    Ok(response)
}

/// An instance driven by hand: each accepted connection goes to `serve`.
pub(crate) async fn raw<F, Fut>(serve: F) -> SocketAddr
where
    F: Fn(usize, TcpStream) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for n in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(n, stream));
        }
    });
    address
}

/// Reads one request head. `None`: the connection ended.
pub(crate) async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8(head).unwrap())
}

pub(crate) const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

/// Answers one request; whether it could.
pub(crate) async fn answer_one(stream: &mut TcpStream) -> bool {
    read_head(stream).await.is_some() && stream.write_all(HELLO).await.is_ok()
}

/// An address nothing listens on.
pub(crate) async fn closed_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}
