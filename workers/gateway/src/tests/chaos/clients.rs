//! Clients of every kind, and what each of them may see when replicas fail.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use super::super::support::*;

/// A request that is not answered by then hangs.
const HANGS: Duration = Duration::from_secs(40);

/// What became of all requests.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) answered: usize,
    /// Requests that must never fail, and did.
    pub(super) failed: Vec<String>,
    /// Failures of what must not be repeated, or had begun: the instance, and what was told.
    pub(super) lost: Vec<(String, String)>,
    /// Requests that took more than one try: how long, the kind, the tries.
    pub(super) affected: Vec<(Duration, usize, String)>,
    /// Ids of requests that must not be carried out twice.
    pub(super) once: HashSet<String>,
}

/// All clients.
pub(super) struct Clients {
    pub(super) address: SocketAddr,
    pub(super) seen: Mutex<Seen>,
    kept: Mutex<Vec<ClientConn>>,
    shared: Mutex<Option<http2::SendRequest<Full<Bytes>>>>,
}

type Told = Result<HeaderMap, String>;

impl Clients {
    pub(super) fn new(address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            address,
            seen: Mutex::default(),
            kept: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// One request of some kind.
    pub(super) async fn one(self: Arc<Self>, number: usize) {
        let began = Instant::now();
        let kind = fastrand::usize(..100);
        let told = tokio::time::timeout(HANGS, self.ask(kind, number)).await;
        let mut seen = self.seen.lock().unwrap();
        match told {
            Ok(Ok(headers)) => {
                seen.answered += 1;
                if let Some(tries) = headers.get("x-tidemill-attempts").filter(|tries| *tries != "1") {
                    let tries = tries.to_str().unwrap().to_owned();
                    seen.affected.push((began.elapsed(), kind, tries));
                }
            }
            Ok(Err(error)) => seen.failed.push(error),
            Err(_) => seen.failed.push(format!("kind {kind} hangs")),
        }
    }

    async fn ask(&self, kind: usize, number: usize) -> Told {
        match kind {
            0..25 => self.plain(Method::GET, false, number).await,
            25..45 => self.plain(Method::PUT, true, number).await,
            45..60 => self.post(number, false).await,
            60..70 => self.post(number, true).await,
            70..80 => self.events().await,
            80..94 => self.shared().await,
            _ => self.chat().await,
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
        if keep {
            self.kept.lock().unwrap().push(conn);
        }
        match reply.status.as_u16() {
            200 if reply.body == number.to_string() => Ok(reply.headers),
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
        self.kept.lock().unwrap().push(conn);
        match reply.status.as_u16() {
            200 => Ok(reply.headers),
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
                Ok(HeaderMap::new())
            }
            status => Err(format!("post keyed {keyed}: {status} {}", reply.body)),
        }
    }

    /// What had begun was cut: the replica is to blame, or it counts as failed.
    fn cut(&self, headers: &HeaderMap, what: &str) {
        let instance = headers["x-tidemill-instance"].to_str().unwrap().to_owned();
        self.seen.lock().unwrap().lost.push((instance, what.to_owned()));
    }

    async fn events(&self) -> Told {
        let mut conn = ClientConn::open(self.address).await;
        let begun = conn.begin(request(Method::GET, "/svc/events")).await;
        let begun = begun.map_err(|e| format!("events: {e}"))?;
        if begun.status() != 200 {
            return Err(format!("events: {}", begun.status()));
        }
        let headers = begun.headers().clone();
        match begun.into_body().collect().await.map(|body| body.to_bytes()) {
            Ok(body) if body.ends_with(b"data: 5\n\n") => {}
            Ok(_) => return Err("half a stream passed for a whole one".to_owned()),
            Err(error) => self.cut(&headers, &format!("stream cut: {error}")),
        }
        Ok(headers)
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
        match reply.status().as_u16() {
            200 => Ok(reply.headers().clone()),
            status => Err(format!("shared: {status}")),
        }
    }

    async fn chat(&self) -> Told {
        let url = format!("ws://{}/svc/chat", self.address);
        let opened = tokio_tungstenite::connect_async(url).await;
        let (mut socket, answer) = opened.map_err(|e| format!("chat: {e}"))?;
        for n in 0..4 {
            let word = n.to_string();
            let sent = socket.send(Message::text(word.clone())).await;
            match socket.next().await {
                Some(Ok(heard)) if sent.is_ok() && heard.to_text().unwrap() == word => {}
                _ => {
                    self.cut(answer.headers(), "chat cut");
                    return Ok(answer.headers().clone());
                }
            }
        }
        let _ = socket.close(None).await;
        while let Some(Ok(_)) = socket.next().await {}
        Ok(answer.headers().clone())
    }
}
