//! Clients of every kind, and what each of them may see when replicas fail.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt, SinkExt, StreamExt};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::support::*;

/// A request that is not answered by then hangs.
const HANGS: Duration = Duration::from_secs(40);

/// Events of a stream, one each 40 ms.
const STREAM: u32 = 6;
const LONG_STREAM: u32 = 250;

/// What became of all requests.
#[derive(Default)]
pub(super) struct Seen {
    /// Requests that must never fail, and did.
    pub(super) failed: Vec<String>,
    /// Failures of what must not be repeated, or had begun: the instance, and what was told.
    pub(super) lost: Vec<(String, String)>,
    /// All that were answered.
    pub(super) answers: Vec<Answered>,
    /// Ids of requests that must not be carried out twice.
    pub(super) once: HashSet<String>,
}

/// How a request was answered.
#[derive(Debug, Clone)]
pub(super) struct Answered {
    /// Until its answer began. What happens to a stream after that is another matter.
    pub(super) after: Duration,
    pub(super) kind: &'static str,
    pub(super) tries: u32,
    /// Empty where no instance answered.
    pub(super) instance: String,
    /// While nothing was done to any replica.
    pub(super) quiet: bool,
}

/// All clients.
pub(super) struct Clients {
    pub(super) address: SocketAddr,
    pub(super) seen: Mutex<Seen>,
    /// Nothing is done to any replica yet.
    pub(super) quiet: AtomicBool,
    kept: Mutex<Vec<ClientConn>>,
    shared: Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

/// The head of the answer, and when it came.
type Told = Result<(HeaderMap, Instant), String>;

impl Clients {
    pub(super) fn new(address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            address,
            seen: Mutex::default(),
            quiet: AtomicBool::new(true),
            kept: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// One request of some kind.
    pub(super) async fn one(self: Arc<Self>, number: usize) {
        let began = Instant::now();
        let quiet = self.quiet.load(Ordering::Relaxed);
        let (kind, asked) = self.ask(fastrand::usize(..100), number);
        let told = tokio::time::timeout(HANGS, asked).await;
        let mut seen = self.seen.lock().unwrap();
        match told {
            Ok(Ok((headers, at))) => {
                let field = |name| headers.get(name).map_or("", |value| value.to_str().unwrap());
                seen.answers.push(Answered {
                    after: at - began,
                    kind,
                    tries: field("x-tidemill-attempts").parse().unwrap_or(0),
                    instance: field("x-tidemill-instance").to_owned(),
                    quiet,
                });
            }
            Ok(Err(error)) => seen.failed.push(error),
            Err(_) => seen.failed.push(format!("{kind} hangs")),
        }
    }

    fn ask(&self, kind: usize, number: usize) -> (&'static str, BoxFuture<'_, Told>) {
        match kind {
            0..25 => ("get", self.plain(Method::GET, false, number).boxed()),
            25..45 => ("put", self.plain(Method::PUT, true, number).boxed()),
            45..60 => ("post", self.post(number, false).boxed()),
            60..70 => ("keyed post", self.post(number, true).boxed()),
            70 => ("long stream", self.events(LONG_STREAM).boxed()),
            71..80 => ("stream", self.events(STREAM).boxed()),
            80..94 => ("http/2", self.shared().boxed()),
            _ => ("websocket", self.chat().boxed()),
        }
    }

    async fn kept(&self) -> ClientConn {
        while let Some(conn) = { self.kept.lock().unwrap().pop() } {
            if !conn.is_closed() {
                return conn;
            }
        }
        ClientConn::open(self.address).await
    }

    async fn plain(&self, method: Method, keep: bool, number: usize) -> Told {
        let mut ask = request(method, "/svc/plain");
        *ask.body_mut() = Full::new(Bytes::from(number.to_string()));
        let mut conn = if keep {
            self.kept().await
        } else {
            ClientConn::open(self.address).await
        };
        let reply = conn.send(ask).await.map_err(|e| format!("plain: {e}"))?;
        let at = Instant::now();
        if keep {
            self.kept.lock().unwrap().push(conn);
        }
        match reply.status.as_u16() {
            200 if reply.body == number.to_string() => Ok((reply.headers, at)),
            status => Err(format!("plain: {status} {}", reply.body)),
        }
    }

    async fn post(&self, number: usize, keyed: bool) -> Told {
        let mut ask = request(Method::POST, "/svc/post");
        *ask.body_mut() = Full::new(Bytes::from_static(b"pay"));
        let headers = ask.headers_mut();
        headers.insert("x-id", number.to_string().parse().unwrap());
        if keyed {
            headers.insert("idempotency-key", number.to_string().parse().unwrap());
        } else {
            self.seen.lock().unwrap().once.insert(number.to_string());
        }
        let mut conn = self.kept().await;
        let reply = conn.send(ask).await.map_err(|e| format!("post: {e}"))?;
        let at = Instant::now();
        self.kept.lock().unwrap().push(conn);
        match reply.status.as_u16() {
            200 => Ok((reply.headers, at)),
            502 if !keyed && reply.code() == "instance_broke" => {
                let problem: tidemill_protocol::Problem = serde_json::from_str(&reply.body).unwrap();
                let instance = problem
                    .detail
                    .split(' ')
                    .find(|word| word.starts_with("inst-"))
                    .unwrap();
                self.seen
                    .lock()
                    .unwrap()
                    .lost
                    .push((instance.to_owned(), problem.detail.clone()));
                Ok((HeaderMap::new(), at))
            }
            status => Err(format!("post keyed {keyed}: {status} {}", reply.body)),
        }
    }

    /// What had begun was cut: the replica is to blame, or it counts as failed.
    fn cut(&self, headers: &HeaderMap, what: &str) {
        let instance = headers["x-tidemill-instance"].to_str().unwrap().to_owned();
        self.seen.lock().unwrap().lost.push((instance, what.to_owned()));
    }

    async fn events(&self, number: u32) -> Told {
        let mut conn = ClientConn::open(self.address).await;
        let path = format!("/svc/events/{number}");
        let begun = conn.begin(request(Method::GET, &path)).await;
        let begun = begun.map_err(|e| format!("events: {e}"))?;
        let at = Instant::now();
        if begun.status() != 200 {
            return Err(format!("events: {}", begun.status()));
        }
        let headers = begun.headers().clone();
        match begun.into_body().collect().await.map(|body| body.to_bytes()) {
            Ok(body) if body.ends_with(format!("data: {}\n\n", number - 1).as_bytes()) => {}
            Ok(_) => return Err("half a stream passed for a whole one".to_owned()),
            Err(error) => self.cut(&headers, &format!("stream cut: {error}")),
        }
        Ok((headers, at))
    }

    async fn shared(&self) -> Told {
        let known = self.shared.lock().unwrap().clone().filter(|s| !s.is_closed());
        let mut sender = match known {
            Some(sender) => sender,
            None => {
                let stream = TcpStream::connect(self.address).await.map_err(|e| e.to_string())?;
                let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
                let (sender, conn) = handshake.await.map_err(|e| e.to_string())?;
                tokio::spawn(conn);
                *self.shared.lock().unwrap() = Some(sender.clone());
                sender
            }
        };
        let ask = Request::get("http://gateway/svc/shared").body(Full::default()).unwrap();
        let reply = sender.send_request(ask).await.map_err(|e| format!("shared: {e}"))?;
        let at = Instant::now();
        match reply.status().as_u16() {
            200 => Ok((reply.headers().clone(), at)),
            status => Err(format!("shared: {status}")),
        }
    }

    async fn chat(&self) -> Told {
        let url = format!("ws://{}/svc/chat", self.address);
        let opened = tokio_tungstenite::connect_async(url).await;
        let (mut socket, answer) = opened.map_err(|e| format!("chat: {e}"))?;
        let at = Instant::now();
        for n in 0..4 {
            let word = n.to_string();
            let sent = socket.send(Message::text(word.clone())).await;
            match socket.next().await {
                Some(Ok(heard)) if sent.is_ok() && heard.to_text().unwrap() == word => {}
                _ => {
                    self.cut(answer.headers(), "chat cut");
                    return Ok((answer.headers().clone(), at));
                }
            }
        }
        let _ = socket.close(None).await;
        while let Some(Ok(_)) = socket.next().await {}
        Ok((answer.headers().clone(), at))
    }
}
