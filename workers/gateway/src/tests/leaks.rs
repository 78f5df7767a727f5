//! An hour's worth of event streams, sped up: nothing of them is left behind.
//!
//! As many streams as an hour of the chaos test brings, half of them cancelled by their client while they would go on for
//! ever, replicas coming and going meanwhile. Afterwards the counters in flight, the runtime's tasks, the open files and
//! the memory are what they were after the first of them. It runs as a process of its own, since files and memory belong
//! to the process. A twentieth of it is run by default, all with `TIDEMILL_LONG=1`.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};

use super::support::*;
use crate::Limits;

/// Streams of an hour: 30 a second.
const HOUR: usize = 108_000;
const CLIENTS: usize = 32;
/// What memory may grow by, whatever the number of streams.
const GROWTH_KIB: u64 = 8 * 1024;
const FEW: usize = 2;
const MANY: usize = 6;

/// An instance that streams events: three at `/whole`, otherwise one each millisecond until nobody listens.
struct Streaming {
    id: String,
    address: SocketAddr,
    accepting: AbortHandle,
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Streaming {
    async fn start(id: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = tokio::spawn(async move {
            let mut all = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                while all.try_join_next().is_some() {}
                all.spawn(stream_events(stream));
            }
        });
        Self {
            id,
            address,
            accepting: accepting.abort_handle(),
        }
    }
}

async fn stream_events(mut stream: TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut ask = Vec::new();
    loop {
        ask.clear();
        while !ask.ends_with(b"\r\n\r\n") {
            if !matches!(stream.read_buf(&mut ask).await, Ok(1..)) {
                return;
            }
        }
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut sent = stream.write_all(head).await;
        let whole = ask.starts_with(b"GET /whole ");
        for n in 0.. {
            sent = sent.and(stream.write_all(b"9\r\ndata: x\n\n\r\n").await);
            if sent.is_err() {
                return;
            }
            if whole && n == 2 {
                break;
            }
            // tidy: waits for the next event's time
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if stream.write_all(b"0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

/// Asks for a stream and reads it until `enough` was heard.
async fn listen(stream: &mut TcpStream, path: &str, enough: &[u8]) {
    let ask = format!("GET /svc/{path} HTTP/1.1\r\nhost: h\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while !heard.windows(enough.len()).any(|at| at == enough) {
        assert!(
            matches!(stream.read_buf(&mut heard).await, Ok(1..)),
            "a stream was cut: {}",
            String::from_utf8_lossy(&heard)
        );
    }
    assert!(
        heard.starts_with(b"HTTP/1.1 200 "),
        "{}",
        String::from_utf8_lossy(&heard)
    );
}

/// Brings so many streams through, every other cancelled.
async fn streams(address: SocketAddr, number: usize) {
    let left = Arc::new(AtomicUsize::new(number));
    let mut all = JoinSet::new();
    for _ in 0..CLIENTS {
        let left = Arc::clone(&left);
        all.spawn(async move {
            let mut kept = None;
            while let Ok(n) = left.try_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)) {
                let mut stream = match kept.take() {
                    Some(stream) => stream,
                    None => TcpStream::connect(address).await.unwrap(),
                };
                if n % 2 == 0 {
                    listen(&mut stream, "endless", b"data: x").await;
                } else {
                    listen(&mut stream, "whole", b"\r\n0\r\n\r\n").await;
                    kept = Some(stream);
                }
            }
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
}

/// Brings replicas up and down until dropped; leaves as many as it found when told to end.
async fn scale(gw: &Served, mut ready: Vec<Streaming>, end: impl Future<Output = ()>) -> Vec<Streaming> {
    let mut end = std::pin::pin!(end);
    let mut next = ready.len();
    loop {
        while ready.len() < MANY {
            ready.push(Streaming::start(format!("inst-{next}")).await);
            next += 1;
        }
        publish(gw, &ready, 0);
        // tidy: waits for the time in which all replicas serve
        let ended = tokio::time::timeout(Duration::from_millis(300), end.as_mut()).await;
        // The oldest go.
        let leaving = MANY - FEW;
        publish(gw, &ready, leaving);
        let service = gw.service();
        until("drained replicas are at rest", || {
            let busy = service.all_in_flight();
            !ready[..leaving].iter().any(|r| busy.iter().any(|i| *i.id == *r.id))
        })
        .await;
        let gone: Vec<_> = ready.drain(..leaving).collect();
        publish(gw, &ready, 0);
        drop(gone);
        if ended.is_ok() {
            return ready;
        }
    }
}

/// Makes the routes; the first `draining` replicas drain.
fn publish(gw: &Served, replicas: &[Streaming], draining: usize) {
    let named: Vec<_> = replicas.iter().map(|r| (r.id.as_str(), r.address)).collect();
    let mut svc = route(&named);
    for instance in &mut svc.instances[..draining] {
        instance.draining = true;
    }
    gw.route(svc);
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "not a test of its own: the next one runs it as a process"]
async fn main_of_the_hour() {
    let number = match std::env::var("TIDEMILL_LONG") {
        Ok(long) if long == "1" => HOUR,
        _ => HOUR / 20,
    };
    let gw = gateway(Limits {
        idle_timeout: Duration::from_millis(100),
        ..Limits::default()
    })
    .await;
    let mut ready = Vec::new();
    for n in 0..FEW {
        ready.push(Streaming::start(format!("inst-{n}")).await);
    }
    publish(&gw, &ready, 0);
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let mut before = None;
    let began = Instant::now();
    for part in [number / 4, number - number / 4] {
        let (done, end) = tokio::sync::oneshot::channel::<()>();
        let load = async {
            streams(gw.address, part).await;
            drop(done);
        };
        ready = tokio::join!(scale(&gw, ready, async { drop(end.await) }), load).0;
        gw.at_rest().await;
        // After the first part everything that is made once has been made, and unused connections end by themselves.
        match before {
            None => {
                until("unused connections are closed", || {
                    gw.service().instances().iter().all(|i| i.pool.is_empty())
                })
                .await;
                let mut steady = (tasks(), open_files());
                until("the first streams are over", || {
                    let now = (tasks(), open_files());
                    std::mem::replace(&mut steady, now) == now
                })
                .await;
                before = Some((steady, resident_kib()));
            }
            Some(((tasks_before, files_before), kib_before)) => {
                until("tasks are as before", || tasks() <= tasks_before).await;
                until("open files are as before", || open_files() <= files_before).await;
                let grown = resident_kib().saturating_sub(kib_before);
                println!(
                    "{number} streams in {:.0} s: {} tasks, {} files, {kib_before} KiB and {grown} KiB more",
                    began.elapsed().as_secs_f64(),
                    tasks(),
                    open_files()
                );
                assert!(grown < GROWTH_KIB, "memory grew by {grown} KiB");
            }
        }
    }
    let total = gw.total();
    assert_eq!((total.ok, total.failed, total.cut_streams), (number as u64, 0, 0));
}

#[test]
fn an_hour_of_streams_leaves_nothing_behind() {
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["tests::leaks::main_of_the_hour", "--exact", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    println!("{said}");
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains("1 passed"), "it did not run");
}
