//! The gateway beside haproxy and beside no proxy at all: latency at a paced load, peak rate, CPU a request, memory of
//! idle and of dawdling connections.
//!
//! Client, proxy and backends are processes of their own on this machine, so figures say little by themselves; ratios of
//! the same run do. The proxies take turns, several times, so that what else the machine does hits all alike. Without
//! haproxy its column stays empty.
//!
//! `cargo bench -p tidemill-gateway --bench gateway`; the settings are `RATE`, `SECONDS` and `ROUNDS` in the environment.
//! `COUNT=DIR` counts instructions and nothing else, and leaves there what `callgrind_annotate` reads.

#![allow(clippy::unwrap_used)]

mod count;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tidemill_gateway::{Gateway, GatewayConfig, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const ROLE: &str = "TIDEMILL_BENCH_ROLE";
const BACKENDS: &str = "TIDEMILL_BENCH_BACKENDS";
const CONNECTIONS: usize = 64;
const IDLE: usize = 10_000;
const DAWDLING: usize = 5_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn main() {
    let role = std::env::var(ROLE);
    // Where instructions are counted, other threads would only add noise.
    let mut builder = match role.as_deref() {
        Ok("counted") => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build().unwrap();
    match role.as_deref() {
        Ok("backend") => runtime.block_on(backend()),
        Ok("gateway" | "counted") => runtime.block_on(gateway()),
        // Ten thousand connections need more files than a shell gives by default.
        Ok("bench") => runtime.block_on(bench()),
        _ if std::env::var_os("COUNT").is_some() => runtime.block_on(count::alone()),
        _ => assert!(
            myself("bench", &[])
                .stdout(Stdio::inherit())
                .status()
                .unwrap()
                .success()
        ),
    }
}

/// This program again, in another role and with all the files it may have.
fn myself(role: &str, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n $(ulimit -Hn); exec \"$0\""])
        .arg(std::env::current_exe().unwrap())
        .env(ROLE, role)
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// A process that says where it listens.
struct Server {
    child: Child,
    addresses: Vec<SocketAddr>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(role: &str, env: &[(&str, &str)]) -> Self {
        Self::of(myself(role, env).spawn().unwrap())
    }

    fn of(mut child: Child) -> Self {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let addresses = line.split_whitespace().map(|a| a.parse().unwrap()).collect();
        Self { child, addresses }
    }

    /// Its addresses as the gateway is given them.
    fn list(&self) -> String {
        let all: Vec<_> = self.addresses.iter().map(SocketAddr::to_string).collect();
        all.join(" ")
    }

    /// CPU time used so far.
    fn cpu(&self) -> Duration {
        let pid = self.child.id();
        // haproxy's worker is a child of the process that was started.
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let ids = children.split_whitespace().map(str::to_owned).chain([pid.to_string()]);
        let ticks: u64 = ids
            .filter_map(|id| {
                let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
                let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
                Some(fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?)
            })
            .sum();
        // USER_HZ is 100 on every Linux.
        Duration::from_millis(ticks * 10)
    }

    fn resident_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }
}

/// Two instances that answer 512 bytes to anything.
async fn backend() {
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 512\r\n\r\n{}",
        "x".repeat(512)
    );
    let answer: Arc<[u8]> = answer.into_bytes().into();
    let mut line = String::new();
    let mut all = JoinSet::new();
    for _ in 0..2 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        write!(line, "{} ", listener.local_addr().unwrap()).unwrap();
        let answer = Arc::clone(&answer);
        all.spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let answer = Arc::clone(&answer);
                tokio::spawn(async move {
                    let mut buffer = vec![0; 4096];
                    let mut at = 0;
                    while let Ok(n) = stream.read(&mut buffer[at..]).await
                        && n > 0
                    {
                        at += n;
                        if buffer[..at].ends_with(b"\r\n\r\n") {
                            at = 0;
                            if stream.write_all(&answer).await.is_err() {
                                return;
                            }
                        }
                    }
                });
            }
        });
    }
    println!("{line}");
    all.join_all().await;
}

async fn gateway() {
    let dir = tempfile::tempdir().unwrap();
    let instances: Vec<_> = std::env::var(BACKENDS)
        .unwrap()
        .split_whitespace()
        .enumerate()
        .map(|(n, address)| serde_json::json!({"instance": format!("inst-{n}"), "node": "node-1", "endpoint": address}))
        .collect();
    let routes = serde_json::json!({
        "stamp": {"cell": "bench", "ledger": "bench", "epoch": 1, "sequence": 1},
        "services": [{"tenant": "default", "name": "svc", "retry": "idempotent", "instances": instances}],
    });
    std::fs::write(dir.path().join("routes.json"), routes.to_string()).unwrap();
    let gateway = Gateway::bind(GatewayConfig {
        servers: Vec::new(),
        token: None,
        listen: "127.0.0.1:0".parse().unwrap(),
        name: "bench".to_owned(),
        data_dir: dir.path().to_owned(),
        public_url: None,
        tls: None,
        limits: Limits::default(),
    })
    .await
    .unwrap();
    println!("{}", gateway.local_addr());
    let shutdown = CancellationToken::new();
    let ended = shutdown.clone();
    // The end of its input is the end of it.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        ended.cancel();
    });
    gateway.serve(shutdown).await;
}

/// haproxy on a free port, if it is installed.
fn haproxy(dir: &std::path::Path, backends: &[SocketAddr]) -> Option<Server> {
    Command::new("haproxy").arg("-v").stdout(Stdio::null()).status().ok()?;
    // It cannot say which port it got.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut config = format!(
        "global\n maxconn 20000\n no strict-limits\n nbthread {}\ndefaults\n mode http\n timeout connect 1s\n timeout client 120s\n \
         timeout server 120s\n timeout http-request 10s\nlisten svc\n bind {port}\n balance random(2)\n option forwardfor\n",
        std::thread::available_parallelism().unwrap()
    );
    for (n, backend) in backends.iter().enumerate() {
        writeln!(config, " server s{n} {backend}").unwrap();
    }
    let file = dir.join("haproxy.cfg");
    std::fs::write(&file, config).unwrap();
    let child = Command::new("sh")
        .args(["-c", "ulimit -n $(ulimit -Hn); exec haproxy -db -q -f \"$0\""])
        .arg(file)
        .spawn()
        .unwrap();
    let server = Server {
        child,
        addresses: vec![port],
    };
    for _ in 0..500 {
        if std::net::TcpStream::connect(port).is_ok() {
            return Some(server);
        }
        // tidy: waits for haproxy to listen, bounded
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}

const ASK: &[u8] = b"GET /svc/v1 HTTP/1.1\r\nhost: bench\r\naccept: */*\r\nuser-agent: bench\r\n\r\n";

struct Conn {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Conn {
    async fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            buffer: vec![0; 2048],
        }
    }

    async fn ask(&mut self) {
        self.stream.write_all(ASK).await.unwrap();
        let mut at = 0;
        loop {
            at += self.stream.read(&mut self.buffer[at..]).await.unwrap();
            let head = self.buffer[..at].windows(4).position(|w| w == b"\r\n\r\n");
            if head.is_some_and(|head| at >= head + 4 + 512) {
                assert!(
                    self.buffer.starts_with(b"HTTP/1.1 200"),
                    "{}",
                    String::from_utf8_lossy(&self.buffer[..at])
                );
                return;
            }
            assert!(at < self.buffer.len());
        }
    }
}

/// Requests a second that `CONNECTIONS` busy connections bring through.
async fn peak(address: SocketAddr, time: Duration) -> f64 {
    let end = Instant::now() + time;
    let mut all = JoinSet::new();
    for _ in 0..CONNECTIONS {
        all.spawn(async move {
            let mut conn = Conn::open(address).await;
            let mut done = 0_u64;
            while Instant::now() < end {
                conn.ask().await;
                done += 1;
            }
            done
        });
    }
    all.join_all().await.iter().sum::<u64>() as f64 / time.as_secs_f64()
}

/// Latencies at `rate`, from the moment at which a request was due.
async fn paced(address: SocketAddr, rate: u64, time: Duration) -> Vec<Duration> {
    let number = Arc::new(AtomicU64::new(0));
    let began = Instant::now() + Duration::from_millis(100);
    let mut all = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let number = Arc::clone(&number);
        all.spawn(async move {
            let mut conn = Conn::open(address).await;
            let mut latencies = Vec::new();
            loop {
                let n = number.fetch_add(1, Ordering::Relaxed);
                let due = began + Duration::from_micros(n * 1_000_000 / rate);
                if due > began + time {
                    return latencies;
                }
                // tidy: waits for the request's turn
                tokio::time::sleep_until(due.into()).await;
                conn.ask().await;
                latencies.push(due.elapsed());
            }
        });
    }
    all.join_all().await.concat()
}

/// What a proxy was measured at, one value a round.
#[derive(Default)]
struct Figures {
    p50: Vec<f64>,
    p99: Vec<f64>,
    peak: Vec<f64>,
    cpu_us: Vec<f64>,
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn bench() {
    let (rate, seconds, rounds) = (setting("RATE", 2000), setting("SECONDS", 4), setting("ROUNDS", 5));
    let time = Duration::from_secs(seconds);
    let backend = Server::start("backend", &[]);
    let backends = backend.list();
    let dir = tempfile::tempdir().unwrap();
    let mut subjects = vec![("gateway", Server::start("gateway", &[(BACKENDS, &backends)]))];
    match haproxy(dir.path(), &backend.addresses) {
        Some(haproxy) => subjects.push(("haproxy", haproxy)),
        None => println!("haproxy is not installed or did not start: no comparison"),
    }
    let direct = backend.addresses[0];
    let mut figures: Vec<(&str, Figures)> = subjects.iter().map(|(name, _)| (*name, Figures::default())).collect();
    figures.push(("direct", Figures::default()));
    for round in 0..=rounds {
        for (n, (_, figures)) in figures.iter_mut().enumerate() {
            let (address, server) = match subjects.get(n) {
                Some((_, server)) => (server.addresses[0], Some(server)),
                None => (direct, None),
            };
            let mut latencies = paced(address, rate, time).await;
            latencies.sort();
            let before = server.map(Server::cpu);
            let peak = peak(address, time).await;
            let used = server
                .map(Server::cpu)
                .zip(before)
                .map(|(after, before)| after - before);
            // The first round warms up.
            if round > 0 {
                let at = |q: f64| latencies[(latencies.len() as f64 * q) as usize].as_secs_f64() * 1e6;
                figures.p50.push(at(0.5));
                figures.p99.push(at(0.99));
                figures.peak.push(peak);
                figures
                    .cpu_us
                    .extend(used.map(|used| used.as_secs_f64() * 1e6 / (peak * seconds as f64)));
            }
        }
    }
    println!(
        "medians of {rounds} rounds of {seconds} s; paced at {rate}/s; {CONNECTIONS} connections; 512-byte answers"
    );
    println!(
        "{:<8} {:>9} {:>9} {:>10} {:>12}",
        "", "p50 us", "p99 us", "peak/s", "CPU us/req"
    );
    for (name, f) in &figures {
        let (p50, p99, peak, cpu) = (median(&f.p50), median(&f.p99), median(&f.peak), median(&f.cpu_us));
        println!("{name:<8} {p50:>9.0} {p99:>9.0} {peak:>10.0} {cpu:>12.1}");
    }
    let of = |name: &str| figures.iter().find(|(n, _)| *n == name).map(|(_, f)| f);
    if let (Some(ours), Some(theirs)) = (of("gateway"), of("haproxy")) {
        println!(
            "gateway / haproxy: p99 {:.2}, peak {:.2}, CPU a request {:.2}",
            median(&ours.p99) / median(&theirs.p99),
            median(&ours.peak) / median(&theirs.peak),
            median(&ours.cpu_us) / median(&theirs.cpu_us)
        );
    }
    count::print(dir.path(), &backends).await;
    for (name, server) in &subjects {
        let address = server.addresses[0];
        let before = server.resident_mib();
        let mut idle = Vec::new();
        for _ in 0..IDLE {
            let mut conn = Conn::open(address).await;
            conn.ask().await;
            idle.push(conn.stream);
        }
        let held = server.resident_mib();
        drop(idle);
        let mut dawdling = Vec::new();
        for _ in 0..DAWDLING {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /svc/ HTTP/1.1\r\nhost: ").await.unwrap();
            dawdling.push(stream);
        }
        // tidy: waits for the last heads to be read
        tokio::time::sleep(Duration::from_secs(1)).await;
        let slow = server.resident_mib();
        println!(
            "{name}: {before} MiB, with {IDLE} idle connections {held} MiB, then with {DAWDLING} dawdling ones {slow} MiB"
        );
    }
}
