//! The backends under test, each with the same handles and the same ways to be hurt.

use std::sync::Arc;

use crate::writer::PATIENCE;
use async_trait::async_trait;
use bytes::Bytes;
use tempfile::TempDir;
use tidemill_bus::embedded::EmbeddedLedger;
use tidemill_bus::identity::{CellName, Genesis, LedgerId};
use tidemill_bus::jetstream::{JetStreamLedger, Nats, StreamLimits};
use tidemill_bus::ledger::{Ledger, OpenError};
use tidemill_bus::memory::MemoryLedger;
use tidemill_tests::nats::{NatsCluster, NatsServer, copy_tree};

/// The ledger every fixture creates.
pub fn genesis() -> Genesis {
    Genesis::new(CellName::new("main").unwrap(), LedgerId(uuid::Uuid::from_u128(0x71de)))
}

/// A store with a ledger in it, and what can happen to it.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Opens a handle; each call is another writer as far as the backend can have several.
    async fn open(&self) -> Result<Arc<dyn Ledger>, OpenError>;
    /// Opens a handle of a process that only reads.
    async fn open_reader(&self) -> Result<Arc<dyn Ledger>, OpenError> {
        self.open().await
    }
    /// Kills what stores the ledger and brings it back. Handles from before must be gone for the embedded backend.
    async fn restart(&mut self);
    /// Limits the store to about `bytes` more than it uses now, or lifts the limit.
    async fn limit(&mut self, more: Option<u64>);
    /// Deletes the ledger behind everyone's back.
    async fn delete(&mut self);
    /// Keeps a copy of the store as it is.
    async fn backup(&mut self);
    /// Puts the copy back.
    async fn restore(&mut self);
    /// Changes one stored byte: `needle` occurs in one record only, and its first byte becomes another.
    async fn damage(&mut self, needle: &[u8]);
    /// Whether the store mends such damage by itself.
    fn mends(&self) -> bool {
        false
    }
}

pub struct Memory {
    ledger: MemoryLedger,
    backup: Vec<Bytes>,
}

impl Memory {
    pub async fn create() -> Self {
        Self {
            ledger: MemoryLedger::create(genesis()),
            backup: Vec::new(),
        }
    }
}

#[async_trait]
impl Fixture for Memory {
    async fn open(&self) -> Result<Arc<dyn Ledger>, OpenError> {
        match self.ledger.tail().await {
            Ok(_) => Ok(Arc::new(self.ledger.clone())),
            Err(_) => Err(OpenError::Missing {
                place: "memory".to_owned(),
            }),
        }
    }
    async fn restart(&mut self) {}
    async fn limit(&mut self, more: Option<u64>) {
        let used = self.ledger.tail().await.unwrap().bytes_used;
        self.ledger.set_capacity(more.map(|more| used + more));
    }
    async fn delete(&mut self) {
        self.ledger.remove();
    }
    async fn backup(&mut self) {
        self.backup = self.ledger.records();
    }
    async fn restore(&mut self) {
        self.ledger.truncate(self.backup.len() as u64);
    }
    async fn damage(&mut self, needle: &[u8]) {
        for (sequence, record) in (1..).zip(self.ledger.records()) {
            if let Some(at) = find(&record, needle) {
                let mut changed = record.to_vec();
                changed[at] ^= 1;
                self.ledger.overwrite(sequence, changed.into());
            }
        }
    }
}

pub struct Embedded {
    dir: TempDir,
    ledger: std::sync::Mutex<Option<EmbeddedLedger>>,
    capacity: Option<u64>,
}

impl Embedded {
    pub async fn create() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ledger = EmbeddedLedger::create(&dir.path().join("ledger.sqlite"), &genesis(), None).unwrap();
        Self {
            dir,
            ledger: std::sync::Mutex::new(Some(ledger)),
            capacity: None,
        }
    }

    fn close(&self) {
        *self.ledger.lock().unwrap() = None;
    }
}

#[async_trait]
impl Fixture for Embedded {
    async fn open(&self) -> Result<Arc<dyn Ledger>, OpenError> {
        // One process writes: further writers there share its handle.
        let mut open = self.ledger.lock().unwrap();
        if open.is_none() {
            *open = Some(EmbeddedLedger::open(
                &self.dir.path().join("ledger.sqlite"),
                self.capacity,
            )?);
        }
        Ok(Arc::new(open.as_ref().unwrap().clone()))
    }
    async fn open_reader(&self) -> Result<Arc<dyn Ledger>, OpenError> {
        Ok(Arc::new(EmbeddedLedger::open_read_only(
            &self.dir.path().join("ledger.sqlite"),
        )?))
    }
    async fn restart(&mut self) {
        self.close();
    }
    async fn limit(&mut self, more: Option<u64>) {
        self.close();
        self.capacity = None;
        let used = self.open().await.unwrap().tail().await.unwrap().bytes_used;
        self.close();
        self.capacity = more.map(|more| used + more);
    }
    async fn delete(&mut self) {
        std::fs::remove_file(self.dir.path().join("ledger.sqlite")).unwrap();
    }
    async fn backup(&mut self) {
        self.close();
        let (from, to) = (self.dir.path().join("ledger.sqlite"), self.dir.path().join("backup"));
        std::fs::copy(from, to).unwrap();
    }
    async fn restore(&mut self) {
        self.close();
        let (from, to) = (self.dir.path().join("backup"), self.dir.path().join("ledger.sqlite"));
        std::fs::copy(from, to).unwrap();
    }
    async fn damage(&mut self, needle: &[u8]) {
        self.close();
        assert!(damage_file(&self.dir.path().join("ledger.sqlite"), needle));
    }
}

/// JetStream on one server.
pub struct Server {
    pub server: NatsServer,
    backup: TempDir,
}

impl Server {
    pub async fn create() -> Self {
        let server = NatsServer::start().await;
        create(&server.url(), 1).await;
        Self {
            server,
            backup: tempfile::tempdir().unwrap(),
        }
    }
}

pub async fn create(urls: &str, replicas: usize) -> JetStreamLedger {
    let nats = Nats::connect(urls, "conformance", Vec::new()).await.unwrap();
    let limits = StreamLimits {
        replicas,
        max_bytes: Some(1 << 30),
        max_age: None,
    };
    JetStreamLedger::create(&nats, &genesis(), &limits).await.unwrap()
}

/// Opens, waiting out an election.
async fn open(urls: &str) -> Result<Arc<dyn Ledger>, OpenError> {
    let nats = Nats::connect(urls, "conformance", Vec::new()).await?;
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match JetStreamLedger::open(&nats, &genesis().cell).await {
            Err(OpenError::Unavailable { .. }) if std::time::Instant::now() < deadline => {
                // tidy: waits for another process to serve
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            opened => return Ok(Arc::new(opened?)),
        }
    }
}

/// The stream as an administrator with other tools sees it.
pub async fn admin(urls: &str) -> async_nats::jetstream::stream::Stream {
    let servers: Vec<async_nats::ServerAddr> = urls.split(',').map(|url| url.parse().unwrap()).collect();
    let client = async_nats::connect(servers).await.unwrap();
    async_nats::jetstream::new(client)
        .get_stream("LEDGER_main")
        .await
        .unwrap()
}

async fn limit(urls: &str, more: Option<u64>) {
    let mut stream = admin(urls).await;
    let info = stream.info().await.unwrap().clone();
    let max_bytes = more.map_or(1 << 30, |more| info.state.bytes + more);
    let config = async_nats::jetstream::stream::Config {
        max_bytes: max_bytes.cast_signed(),
        ..info.config
    };
    context(urls).await.update_stream(config).await.unwrap();
}

pub async fn context(urls: &str) -> async_nats::jetstream::Context {
    let servers: Vec<async_nats::ServerAddr> = urls.split(',').map(|url| url.parse().unwrap()).collect();
    async_nats::jetstream::new(async_nats::connect(servers).await.unwrap())
}

#[async_trait]
impl Fixture for Server {
    async fn open(&self) -> Result<Arc<dyn Ledger>, OpenError> {
        open(&self.server.url()).await
    }
    async fn restart(&mut self) {
        self.server.restart().await;
    }
    async fn limit(&mut self, more: Option<u64>) {
        limit(&self.server.url(), more).await;
    }
    async fn delete(&mut self) {
        context(&self.server.url())
            .await
            .delete_stream("LEDGER_main")
            .await
            .unwrap();
    }
    async fn backup(&mut self) {
        self.server.kill();
        copy_tree(&self.server.store(), self.backup.path());
        self.server.restart().await;
    }
    async fn restore(&mut self) {
        self.server.kill();
        std::fs::remove_dir_all(self.server.store()).unwrap();
        copy_tree(self.backup.path(), &self.server.store());
        self.server.restart().await;
    }
    async fn damage(&mut self, needle: &[u8]) {
        self.server.kill();
        damage_blocks(&self.server, needle);
        self.server.restart().await;
    }
}

/// JetStream on three servers.
pub struct Cluster {
    pub cluster: NatsCluster,
    backups: Vec<TempDir>,
}

impl Cluster {
    pub async fn create() -> Self {
        let cluster = NatsCluster::start().await;
        create(&cluster.urls(), 3).await;
        Self {
            cluster,
            backups: (0..3).map(|_| tempfile::tempdir().unwrap()).collect(),
        }
    }
}

#[async_trait]
impl Fixture for Cluster {
    async fn open(&self) -> Result<Arc<dyn Ledger>, OpenError> {
        open(&self.cluster.urls()).await
    }
    /// Kills the stream's leader: another takes over while it is away.
    async fn restart(&mut self) {
        let stream = context(&self.cluster.urls()).await.get_stream("LEDGER_main").await;
        let leader = stream
            .ok()
            .and_then(|stream| stream.cached_info().cluster.clone()?.leader);
        self.cluster.server(leader.as_deref().unwrap_or("n1")).restart().await;
    }
    async fn limit(&mut self, more: Option<u64>) {
        limit(&self.cluster.urls(), more).await;
    }
    async fn delete(&mut self) {
        context(&self.cluster.urls())
            .await
            .delete_stream("LEDGER_main")
            .await
            .unwrap();
    }
    async fn backup(&mut self) {
        self.cluster.kill();
        for (server, backup) in self.cluster.servers.iter().zip(&self.backups) {
            copy_tree(&server.store(), backup.path());
        }
        self.cluster.restart().await;
    }
    async fn restore(&mut self) {
        self.cluster.kill();
        for (server, backup) in self.cluster.servers.iter().zip(&self.backups) {
            std::fs::remove_dir_all(server.store()).unwrap();
            copy_tree(backup.path(), &server.store());
        }
        self.cluster.restart().await;
    }
    fn mends(&self) -> bool {
        true
    }
    /// All three copies; the servers' replication logs stay whole.
    async fn damage(&mut self, needle: &[u8]) {
        self.cluster.kill();
        for server in &self.cluster.servers {
            damage_blocks(server, needle);
        }
        self.cluster.restart().await;
    }
}

/// Damages one message in a stopped server's block files.
pub fn damage_blocks(server: &NatsServer, needle: &[u8]) {
    let blocks = server.store().join("jetstream/$G/streams/LEDGER_main/msgs");
    let files = std::fs::read_dir(blocks).unwrap().map(|entry| entry.unwrap().path());
    let blocks = files.filter(|path| path.extension().is_some_and(|ext| ext == "blk"));
    assert_eq!(blocks.filter(|path| damage_file(path, needle)).count(), 1);
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Flips a bit of `needle`'s first byte wherever the file holds it. True if it does.
fn damage_file(path: &std::path::Path, needle: &[u8]) -> bool {
    let mut content = std::fs::read(path).unwrap();
    let mut found = false;
    // SQLite leaves old copies in the unused parts of its pages.
    while let Some(at) = find(&content, needle) {
        content[at] ^= 1;
        found = true;
    }
    if found {
        std::fs::write(path, content).unwrap();
    }
    found
}
