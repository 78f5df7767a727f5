//! Facts on their way to the ledger, on disk until they are there.
//!
//! [`Store`] is a small SQLite file; [`Outbox`] is the thread that owns it, so that no async task ever waits for an
//! fsync. Requests that came while one transaction was being synced go into the next one together: a thousand instances
//! starting at once cost a handful of syncs. Beside the facts the file keeps what was last said of each instance and
//! the stamp acted on last, in the same transactions, so that after a crash neither runs ahead of the other.
//!
//! Invariants: an id is never given twice on a data directory; a fact leaves only when the ledger has it. Bound: beyond
//! [`MAX_FACTS`] (a node cut off for weeks with flapping instances) the oldest facts that are not terminal make room,
//! loudly; terminal facts are at most one an instance and are never dropped.

mod store;

use std::{path::Path, time::Duration};

use tidemill_protocol::{Stamp, agent::FactBody};
use tokio::sync::{mpsc, oneshot, watch};

pub use store::StoreError;
pub(crate) use store::{Memory, Row, Store};

use crate::{InstanceId, core::Said};

/// Facts kept at most, apart from terminal ones.
pub(crate) const MAX_FACTS: u64 = 100_000;

/// Requests that may wait for the thread.
const QUEUE: usize = 256;

/// Between two tries to write to a disk that refuses.
const RETRY: Duration = Duration::from_secs(1);

/// A fact to be kept.
#[derive(Debug, Clone)]
pub(crate) struct NewFact {
    /// About which instance.
    pub(crate) instance: InstanceId,
    /// When it happened, by `CLOCK_BOOTTIME`, milliseconds.
    pub(crate) at_ms: u64,
    /// What happened.
    pub(crate) body: FactBody,
}

/// What one request changes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Change {
    /// Facts, in order.
    pub(crate) facts: Vec<NewFact>,
    /// The stamp acted on last.
    pub(crate) applied: Option<Stamp>,
    /// Instances of which nothing need be known any more.
    pub(crate) forget: Vec<InstanceId>,
}

impl Change {
    pub(crate) fn is_empty(&self) -> bool {
        self.facts.is_empty() && self.applied.is_none() && self.forget.is_empty()
    }
}

enum Request {
    Keep(Change),
    Read {
        limit: usize,
        answer: oneshot::Sender<Vec<Row>>,
    },
    Settle {
        through: u64,
        answer: oneshot::Sender<Vec<InstanceId>>,
    },
}

/// Handle of the outbox's thread. Cheap to clone; the thread ends with the last handle, after what was asked is done.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    requests: mpsc::Sender<Request>,
    waiting: watch::Receiver<u64>,
}

/// The outbox's thread is gone, which it is only while the agent ends.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the outbox is closed")]
pub(crate) struct OutboxClosed;

impl Outbox {
    /// Opens the file at `path` and starts the thread. Also hands out what an earlier agent left there.
    pub(crate) fn open(path: &Path, boot_id: &str) -> Result<(Self, Memory), StoreError> {
        let mut store = Store::open(path, boot_id, MAX_FACTS)?;
        let memory = store.memory()?;
        let (requests, queue) = mpsc::channel(QUEUE);
        let (count, waiting) = watch::channel(store.len()?);
        std::thread::Builder::new()
            .name("outbox".to_owned())
            .spawn(move || run(&mut store, queue, &count))
            .map_err(StoreError::Thread)?;
        Ok((Self { requests, waiting }, memory))
    }

    /// Keeps facts and memory. Returns when the request is queued; it is on disk when [`Outbox::changed`] says so.
    pub(crate) async fn keep(&self, change: Change) -> Result<(), OutboxClosed> {
        self.requests
            .send(Request::Keep(change))
            .await
            .map_err(|_| OutboxClosed)
    }

    /// The oldest facts, at most `limit`.
    pub(crate) async fn read(&self, limit: usize) -> Result<Vec<Row>, OutboxClosed> {
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(Request::Read { limit, answer })
            .await
            .map_err(|_| OutboxClosed)?;
        answered.await.map_err(|_| OutboxClosed)
    }

    /// Drops facts up to and including `through`; returns the instances whose terminal fact was among them.
    pub(crate) async fn settle(&self, through: u64) -> Result<Vec<InstanceId>, OutboxClosed> {
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(Request::Settle { through, answer })
            .await
            .map_err(|_| OutboxClosed)?;
        answered.await.map_err(|_| OutboxClosed)
    }

    /// Facts on disk that the ledger does not have.
    pub(crate) fn waiting(&self) -> u64 {
        *self.waiting.borrow()
    }

    /// Waits until the number of facts on disk has changed since the last call.
    pub(crate) async fn changed(&mut self) -> Result<(), OutboxClosed> {
        self.waiting.changed().await.map_err(|_| OutboxClosed)
    }
}

fn run(store: &mut Store, mut queue: mpsc::Receiver<Request>, count: &watch::Sender<u64>) {
    while let Some(first) = queue.blocking_recv() {
        let mut changes = Vec::new();
        let mut questions = Vec::new();
        let mut next = Some(first);
        while let Some(request) = next {
            match request {
                Request::Keep(change) => changes.push(change),
                // What was kept before a question belongs into its answer.
                question => {
                    questions.push(question);
                    break;
                }
            }
            next = queue.try_recv().ok();
        }
        persist(store, &changes);
        for question in questions {
            answer(store, question);
        }
        match store.len() {
            Ok(length) => {
                count.send_replace(length);
            }
            Err(error) => complain(&error),
        }
    }
}

/// Writes until it is written. Meanwhile the queue fills and the agent's core waits: better than a fact nobody learns.
fn persist(store: &mut Store, changes: &[Change]) {
    if changes.is_empty() {
        return;
    }
    loop {
        match store.keep(changes) {
            Ok(0) => return,
            Ok(dropped) => {
                tracing::error!(
                    code = "outbox_overflow",
                    dropped,
                    "the outbox is full: the oldest facts that are not terminal were dropped; reconnect this node"
                );
                return;
            }
            Err(error) => {
                complain(&error);
                std::thread::sleep(RETRY);
            }
        }
    }
}

fn answer(store: &mut Store, question: Request) {
    match question {
        Request::Read { limit, answer } => match store.read(limit) {
            Ok(rows) => drop(answer.send(rows)),
            Err(error) => {
                complain(&error);
                drop(answer.send(Vec::new()));
            }
        },
        Request::Settle { through, answer } => match store.settle(through) {
            Ok(ended) => drop(answer.send(ended)),
            // Not dropped now, so sent again and acknowledged again.
            Err(error) => {
                complain(&error);
                drop(answer.send(Vec::new()));
            }
        },
        Request::Keep(change) => persist(store, &[change]),
    }
}

fn complain(error: &StoreError) {
    tracing::error!(code = "outbox_write_failed", %error, "the outbox's disk refuses; trying again");
}

/// Column value of what was last said.
fn said_text(said: Said) -> &'static str {
    match said {
        Said::Started => "started",
        Said::Ready => "ready",
        Said::Unready => "unready",
        Said::Ended => "ended",
    }
}

fn said_from(text: &str) -> Option<Said> {
    Some(match text {
        "started" => Said::Started,
        "ready" => Said::Ready,
        "unready" => Said::Unready,
        "ended" => Said::Ended,
        _ => return None,
    })
}
