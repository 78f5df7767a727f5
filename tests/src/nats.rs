//! Real nats-servers for tests: started on free ports, killed, paused and restarted on the same store.
//!
//! A shared broker would let tests see each other's streams and would make killing it unthinkable, so each test starts
//! its own. The binary is `$NATS_SERVER`, or `nats-server` on the path. A server ends with its handle, by process id.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Longest wait for a server or a cluster to serve.
const READY: Duration = Duration::from_secs(30);

/// One nats-server with JetStream.
#[derive(Debug)]
pub struct NatsServer {
    child: Option<Child>,
    dir: TempDir,
    port: u16,
    monitor: u16,
}

/// How a server is set up.
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// Leaves `sync_interval` at the server's default instead of `always`.
    pub lazy_sync: bool,
    /// Bytes JetStream may use on disk; the server's default if `None`.
    pub max_file_store: Option<u64>,
    /// More lines of configuration.
    pub extra: String,
}

/// A port that is free now and that nothing else will be given soon: below the range from which the kernel picks ports
/// for outgoing connections, and never the same twice in this process.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Test binaries that run side by side start apart.
        let offset = std::process::id()
            .wrapping_mul(7919)
            .wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + offset % COUNT).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

impl NatsServer {
    /// Starts a server that syncs each write, and waits until it serves.
    pub async fn start() -> Self {
        Self::start_with(&NatsOptions::default()).await
    }

    /// Starts a server, and waits until it serves.
    pub async fn start_with(options: &NatsOptions) -> Self {
        let mut server = Self::prepare("n1", options);
        server.spawn();
        server.ready("/healthz").await;
        server
    }

    fn prepare(name: &str, options: &NatsOptions) -> Self {
        let dir = tempfile::Builder::new().prefix("tidemill-nats-").tempdir().unwrap();
        let (port, monitor) = (free_port(), free_port());
        let limit = options
            .max_file_store
            .map_or(String::new(), |bytes| format!("max_file_store: {bytes},"));
        let sync = if options.lazy_sync { "" } else { "sync_interval: always" };
        let store = dir.path().join("store");
        let config = format!(
            "server_name: {name}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n\
             jetstream {{ store_dir: {store:?}, {limit} {sync} }}\n{}\n",
            options.extra
        );
        std::fs::write(dir.path().join("server.conf"), config).unwrap();
        Self {
            child: None,
            dir,
            port,
            monitor,
        }
    }

    fn spawn(&mut self) {
        assert!(self.child.is_none(), "it is running");
        let binary = std::env::var_os("NATS_SERVER").map_or(PathBuf::from("nats-server"), PathBuf::from);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .unwrap();
        let child = Command::new(&binary)
            .arg("-c")
            .arg(self.dir.path().join("server.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap_or_else(|error| panic!("{}: {error}; set NATS_SERVER", binary.display())));
    }

    async fn ready(&mut self, path: &str) {
        let deadline = Instant::now() + READY;
        while !get(self.monitor, path)
            .await
            .is_some_and(|answer| answer.contains(r#""status":"ok""#))
        {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                panic!("nats-server ended with {status}:\n{}", self.log());
            }
            assert!(Instant::now() < deadline, "nats-server does not serve:\n{}", self.log());
            // tidy: waits for another process to serve
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Its client URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its client port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its monitoring URL.
    #[must_use]
    pub fn monitor_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitor)
    }

    /// Where its streams lie.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// What it logged.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Ends it at once (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops it in its tracks (SIGSTOP): connections stay, nothing answers.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().expect("it is running").id();
        kill(Pid::from_raw(i32::try_from(id).unwrap()), signal).unwrap();
    }

    /// Starts it again on the same ports and store, and waits until it serves.
    pub async fn restart(&mut self) {
        self.kill();
        self.spawn();
        self.ready("/healthz").await;
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Three nats-servers that replicate.
#[derive(Debug)]
pub struct NatsCluster {
    /// The servers, `n1` to `n3`.
    pub servers: Vec<NatsServer>,
}

impl NatsCluster {
    /// Starts three servers that sync each write, and waits until they have a leader.
    pub async fn start() -> Self {
        let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
        let peers: Vec<_> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let peers = peers.join(", ");
        let servers = routes.iter().enumerate().map(|(index, port)| {
            let extra = format!("cluster {{ name: tidemill, listen: 127.0.0.1:{port}, routes: [{peers}] }}");
            NatsServer::prepare(
                &format!("n{}", index + 1),
                &NatsOptions {
                    extra,
                    ..NatsOptions::default()
                },
            )
        });
        let mut cluster = Self {
            servers: servers.collect(),
        };
        cluster.servers.iter_mut().for_each(NatsServer::spawn);
        cluster.ready().await;
        cluster
    }

    async fn ready(&mut self) {
        for server in &mut self.servers {
            server.ready("/healthz").await;
        }
    }

    /// All client URLs, comma-separated.
    #[must_use]
    pub fn urls(&self) -> String {
        self.servers.iter().map(NatsServer::url).collect::<Vec<_>>().join(",")
    }

    /// The server named `name`.
    pub fn server(&mut self, name: &str) -> &mut NatsServer {
        let index: usize = name.trim_start_matches('n').parse().unwrap();
        &mut self.servers[index - 1]
    }

    /// Ends all at once.
    pub fn kill(&mut self) {
        self.servers.iter_mut().for_each(NatsServer::kill);
    }

    /// Ends all and starts all again.
    pub async fn restart(&mut self) {
        self.kill();
        self.servers.iter_mut().for_each(NatsServer::spawn);
        self.ready().await;
    }
}

/// One HTTP GET on loopback; `None` if nothing answered.
async fn get(port: u16, path: &str) -> Option<String> {
    let ask = async {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
            .await
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    };
    tokio::time::timeout(Duration::from_secs(2), ask).await.ok()?
}

/// Copies a directory tree, for backups of a stopped server's store.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
