//! Taking the machine back: what its owner says on the machine itself, and what the agent answers.
//!
//! `tidemill agent leave` reaches the agent through a socket in its data directory, which only the agent's user can open.
//! So an owner needs no token of an operator, and nobody can take back a machine that is not theirs: the agent passes
//! the wish on over its own connection, as the node it is. Rejected: a command over HTTP with the node's token, which
//! would have to lie on the disk for it.
//!
//! Invariants: a wish outlives connections to the control plane, and its deadline does not move when it is repeated; each
//! asker hears every later stage, and the last one before the agent ends.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidemill_protocol::Problem;
use tidemill_protocol::agent::Leave;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::socket;

/// The socket's name within the data directory.
const SOCKET: &str = "agent.sock";
/// Longest line on it.
const MAX_LINE: u64 = 16 * 1024;
/// Askers at a time.
const MAX_ASKERS: usize = 16;
/// Time for the last word to each asker.
const LAST_WORD: Duration = Duration::from_secs(1);

/// How far the machine is on its way out of the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum LeaveStage {
    /// Nobody asked for it.
    NotAsked,
    /// The control plane does not know it yet.
    Asked,
    /// Its work is moving elsewhere.
    Draining {
        /// Instances that still run here.
        running: u32,
    },
    /// It is empty and out of the pool; the agent ends.
    Left {
        /// One sentence.
        reason: String,
    },
    /// The control plane refuses it.
    Refused {
        /// Why, and what helps.
        problem: Problem,
    },
}

impl LeaveStage {
    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        matches!(self, LeaveStage::Left { .. } | LeaveStage::Refused { .. })
    }
}

/// Why the agent of a machine could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// Nobody listens.
    #[error(
        "no agent runs on {path} [agent_not_running]\n  next: give the --data of the agent that runs on this machine"
    )]
    NotRunning {
        /// The data directory.
        path: PathBuf,
    },
    /// It may not be spoken to.
    #[error(
        "the agent on {path} cannot be spoken to: {source} [agent_unreachable]\n  next: run this as the agent's user, on its machine"
    )]
    Unreachable {
        /// The data directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It ended before the machine was out of the pool.
    #[error(
        "the agent ended before the machine had left the pool [agent_ended]\n  next: start it again, and ask again; what the control plane took up goes on"
    )]
    Ended,
}

/// Asks the agent on `data_dir` to leave the pool, and says each stage until the last, which it answers.
///
/// # Errors
/// When no agent can be spoken to there, or it ends too early.
pub async fn leave(data_dir: &Path, wish: &Leave, mut told: impl FnMut(&LeaveStage)) -> Result<LeaveStage, LeaveError> {
    let stream = match connect(data_dir).await {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Err(LeaveError::NotRunning {
                path: data_dir.to_owned(),
            });
        }
        Err(source) => {
            return Err(LeaveError::Unreachable {
                path: data_dir.to_owned(),
                source,
            });
        }
    };
    let unreachable = |source| LeaveError::Unreachable {
        path: data_dir.to_owned(),
        source,
    };
    let (reader, mut writer) = stream.into_split();
    let mut line = serde_json::to_string(wish).map_err(|error| unreachable(error.into()))?;
    line.push('\n');
    writer.write_all(line.as_bytes()).await.map_err(unreachable)?;
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await.map_err(unreachable)? {
        let Ok(stage) = serde_json::from_str::<LeaveStage>(&line) else {
            continue;
        };
        if stage.is_last() {
            return Ok(stage);
        }
        told(&stage);
    }
    Err(LeaveError::Ended)
}

async fn connect(data_dir: &Path) -> io::Result<UnixStream> {
    let stream = socket::connect(data_dir, SOCKET)?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// A wish with the time at which it is due.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    reason: String,
    due: Option<Instant>,
}

impl Wish {
    fn new(leave: Leave) -> Self {
        Self {
            reason: leave.reason,
            due: leave
                .deadline_ms
                .and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms))),
        }
    }

    /// As it is told now.
    pub(crate) fn message(&self) -> Leave {
        let left = |due: Instant| due.saturating_duration_since(Instant::now()).as_millis();
        Leave {
            reason: self.reason.clone(),
            deadline_ms: self.due.map(|due| u64::try_from(left(due)).unwrap_or(u64::MAX)),
        }
    }
}

/// The agent's side of the socket.
pub(crate) struct Owner {
    listener: UnixListener,
    wishes: mpsc::Sender<Wish>,
    stage: watch::Receiver<LeaveStage>,
}

impl Owner {
    /// Listens in `data_dir`, whose lock the caller holds.
    pub(crate) fn listen(
        data_dir: &Path,
        wishes: mpsc::Sender<Wish>,
        stage: watch::Receiver<LeaveStage>,
    ) -> io::Result<Self> {
        let listener = socket::listen(data_dir, SOCKET)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        Ok(Self {
            listener,
            wishes,
            stage,
        })
    }

    /// Serves askers until `shutdown`, then lets each hear the last word.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut askers = JoinSet::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(_) = askers.join_next() => {}
                accepted = self.listener.accept(), if askers.len() < MAX_ASKERS => {
                    if let Ok((stream, _)) = accepted {
                        askers.spawn(serve(stream, self.wishes.clone(), self.stage.clone()));
                    }
                }
            }
        }
        let _ = tokio::time::timeout(LAST_WORD, async { while askers.join_next().await.is_some() {} }).await;
    }
}

/// One asker, until the last word or until it goes.
async fn serve(stream: UnixStream, wishes: mpsc::Sender<Wish>, mut stage: watch::Receiver<LeaveStage>) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(MAX_LINE));
    let mut line = String::new();
    let Ok(_) = reader.read_line(&mut line).await else {
        return;
    };
    let Ok(leave) = serde_json::from_str::<Leave>(&line) else {
        return;
    };
    // What is known now belongs to an earlier wish.
    stage.mark_unchanged();
    if wishes.send(Wish::new(leave)).await.is_err() {
        return;
    }
    let mut gone = [0; 1];
    loop {
        tokio::select! {
            changed = stage.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = stage.borrow_and_update().clone();
                let Ok(mut text) = serde_json::to_string(&now) else { return };
                text.push('\n');
                if writer.write_all(text.as_bytes()).await.is_err() || now.is_last() {
                    return;
                }
            }
            read = reader.read(&mut gone) => if !matches!(read, Ok(1..)) {
                return;
            },
        }
    }
}
