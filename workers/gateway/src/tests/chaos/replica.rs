//! A replica as a process of its own, so that it can be killed and stopped like one.
//!
//! It is this test program run again, with one ignored test as its main. It notes each request it carries out in a file
//! that outlives it, and obeys `/control/MODE` for two seconds.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{SinkExt, StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

const BIND: &str = "TIDEMILL_TEST_REPLICA_BIND";
const NOTES: &str = "TIDEMILL_TEST_REPLICA_NOTES";
/// How long a mode lasts.
const MODE: Duration = Duration::from_secs(2);

const WELL: u8 = 0;
const RESETTING: u8 = 1;
const SLOW: u8 = 2;
const CLOSING: u8 = 3;

/// A running replica.
pub(super) struct Replica {
    pub(super) id: String,
    pub(super) address: SocketAddr,
    child: Child,
}

impl Replica {
    /// Starts one that listens on a free port of `ip`, by way of the words in `through` (`ip netns exec …`).
    pub(super) fn start(id: String, ip: &str, through: &[&str], notes: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut words: Vec<_> = through.iter().map(|word| std::ffi::OsString::from(*word)).collect();
        words.push(program.into());
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .args([
                "tests::chaos::replica::main_of_a_replica",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(BIND, format!("{ip}:0"))
            .env(NOTES, notes)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let address = said.lines().map_while(Result::ok).find_map(|line| {
            let (_, address) = line.split_once("listening on ")?;
            address.trim().parse().ok()
        });
        Self {
            id,
            address: address.unwrap(),
            child,
        }
    }

    pub(super) fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(done.unwrap().success());
    }

    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sets a mode. One that refuses or resets may well do so to this.
    pub(super) async fn control(&self, mode: &str) {
        let Ok(mut stream) = TcpStream::connect(self.address).await else {
            return;
        };
        let ask = format!("GET /control/{mode} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
        let _ = stream.write_all(ask.as_bytes()).await;
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

struct State {
    born: Instant,
    mode: AtomicU8,
    until_ms: AtomicU64,
    refuses: AtomicBool,
    notes: Mutex<File>,
}

impl State {
    fn mode(&self) -> u8 {
        let now = self.born.elapsed().as_millis() as u64;
        match now < self.until_ms.load(Ordering::Relaxed) {
            true => self.mode.load(Ordering::Relaxed),
            false => WELL,
        }
    }
}

#[tokio::test]
#[ignore = "not a test of its own: the chaos test runs it as a process"]
async fn main_of_a_replica() {
    let Ok(bind) = std::env::var(BIND) else { return };
    let notes = OpenOptions::new()
        .append(true)
        .create(true)
        .open(std::env::var(NOTES).unwrap());
    let state = Arc::new(State {
        born: Instant::now(),
        mode: AtomicU8::new(WELL),
        until_ms: AtomicU64::new(0),
        refuses: AtomicBool::new(false),
        notes: Mutex::new(notes.unwrap()),
    });
    let mut listener = TcpListener::bind(bind).await.unwrap();
    let address = listener.local_addr().unwrap();
    println!("listening on {address}");
    std::io::stdout().flush().unwrap();
    loop {
        if state.refuses.swap(false, Ordering::Relaxed) {
            drop(listener);
            // tidy: waits for its time to be away: refusing is what is tested
            tokio::time::sleep(MODE).await;
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(address).unwrap();
            listener = socket.listen(1024).unwrap();
        }
        // Looks up now and then whether it is to refuse.
        let Ok(accepted) = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await else {
            continue;
        };
        tokio::spawn(connection(accepted.unwrap().0, Arc::clone(&state)));
    }
}

async fn connection(stream: TcpStream, state: Arc<State>) {
    stream.set_nodelay(true).unwrap();
    let mut first = [0; 3];
    if state.mode() == RESETTING && stream.peek(&mut first).await.is_ok() {
        // Bytes unread: the close resets.
        return;
    }
    while matches!(stream.peek(&mut first).await, Ok(1..=2)) {
        tokio::task::yield_now().await;
    }
    let service = service_fn(|request| answer(request, Arc::clone(&state)));
    if &first == b"PRI" {
        let _ = http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
        return;
    }
    let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving.with_upgrades());
    let closing = async {
        loop {
            // tidy: waits for its time to close an idle connection: that race is what is tested
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..100))).await;
            if matches!(state.mode(), CLOSING | RESETTING) {
                return state.mode();
            }
        }
    };
    tokio::select! {
        _ = serving.as_mut() => {}
        mode = closing => if mode == CLOSING {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn answer(mut request: Request<Incoming>, state: Arc<State>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    if let Some(mode) = path.strip_prefix("/control/") {
        let until = state.born.elapsed() + MODE;
        state.until_ms.store(until.as_millis() as u64, Ordering::Relaxed);
        match mode {
            "reset" => state.mode.store(RESETTING, Ordering::Relaxed),
            "slow" => state.mode.store(SLOW, Ordering::Relaxed),
            "close" => state.mode.store(CLOSING, Ordering::Relaxed),
            _ => state.refuses.store(true, Ordering::Relaxed),
        }
        return Ok(Response::default());
    }
    if let Some(id) = request.headers().get("x-id") {
        let line = format!("{}\n", id.to_str().unwrap());
        state.notes.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }
    let pause = if state.mode() == SLOW {
        1500
    } else {
        fastrand::u64(1..8)
    };
    // tidy: waits for its time to answer, as work would
    tokio::time::sleep(Duration::from_millis(pause)).await;
    let response = match path.as_str() {
        path if path.starts_with("/events/") => {
            let number: u32 = path["/events/".len()..].parse().unwrap();
            let events = stream::unfold(0, move |n| async move {
                if n == number {
                    return None;
                }
                // tidy: waits for the next event's time
                tokio::time::sleep(Duration::from_millis(40)).await;
                let event = Bytes::from(format!("data: {n}\n\n"));
                Some((Ok(Frame::data(event)), n + 1))
            });
            Response::new(StreamBody::new(events).boxed_unsync())
        }
        "/chat" => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(upgraded) = upgrade.await else { return };
                let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
                while let Some(Ok(message)) = socket.next().await {
                    if !message.is_close() && socket.send(message).await.is_err() {
                        return;
                    }
                }
            });
            let accept = derive_accept_key(request.headers()["sec-websocket-key"].as_bytes());
            Response::builder()
                .status(StatusCode::SWITCHING_PROTOCOLS)
                .header("connection", "upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-accept", accept)
                .body(Full::default().boxed_unsync())
                .unwrap()
        }
        _ => {
            let body = request
                .into_body()
                .collect()
                .await
                .map(|b| b.to_bytes())
                .unwrap_or_default();
            Response::new(Full::new(body).boxed_unsync())
        }
    };
    Ok(response)
}
