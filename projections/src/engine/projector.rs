//! Feeds a [`Projection`] from a ledger: a task that follows, a thread that writes.
//!
//! The task never touches SQLite and the thread never waits for the network; between them stands a short queue, so a
//! slow disk slows the reading down and memory stays bounded. Whatever goes wrong ends the session, is told in
//! [`Progress`], and the next session begins, after a growing pause, from what the file holds. The tail is compared
//! with the tables now and then even when nothing arrives: a ledger that was replaced by a shorter one sends nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidemill_bus::digest::Anchor;
use tidemill_bus::ledger::{Follow, Ledger, RawRecord, ReadError};
use tidemill_domain::time::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::error::{ProjectError, SessionError, Stale};
use super::progress::{Condition, Progress};
use super::projection::{Projection, ProjectionOptions};
use crate::query::ReadModels;

/// Records taken from the follower at a time; at 256 KiB a record they stay under 16 MiB.
const FOLLOW_RECORDS: usize = 64;
/// Most batches between the follower and the writer, and most kibibytes in them.
const QUEUE: (usize, u32) = (256, 32 * 1024);
/// Records handed to the writer at once.
const WRITE_RECORDS: usize = 4_096;
/// How often the tail is compared with the tables when nothing arrives.
const TAIL_CHECK: Duration = Duration::from_secs(5);
/// Pause after a failed session: doubling between these.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// Where the tables are and how they are written.
#[derive(Debug, Clone)]
pub struct ProjectorConfig {
    /// The SQLite file.
    pub path: PathBuf,
    /// Events a transaction.
    pub batch_events: usize,
    /// Events between two snapshots of state.
    pub snapshot_every: u64,
}

impl ProjectorConfig {
    /// The usual file and settings in a data directory.
    pub fn in_dir(dir: &Path) -> Self {
        let defaults = ProjectionOptions::default();
        Self {
            path: dir.join("read-models.sqlite"),
            batch_events: defaults.batch_events,
            snapshot_every: defaults.snapshot_every,
        }
    }

    fn options(&self) -> ProjectionOptions {
        ProjectionOptions {
            batch_events: self.batch_events,
            snapshot_every: self.snapshot_every,
            interrupt: None,
        }
    }
}

/// The running engine.
pub struct Projector {
    models: ReadModels,
    task: JoinHandle<()>,
}

impl Projector {
    /// Starts following `ledger`. Returns once the tables can be read; they may still lag.
    pub async fn start(
        ledger: Arc<dyn Ledger>,
        config: ProjectorConfig,
        shutdown: CancellationToken,
    ) -> Result<Self, ProjectError> {
        let (projection, stale) = open(&ledger, &config).await?;
        let cursor = projection.cursor();
        let (progress, seen) = watch::channel(Progress {
            sequence: cursor.sequence,
            hash: cursor.hash,
            recorded_at: projection.cursor_time()?,
            ledger_last: cursor.sequence,
            condition: match stale {
                None => Condition::Following,
                Some(stale) => rebuilding(&stale),
            },
        });
        let models = ReadModels::following(config.path.clone(), seen);
        let supervisor = Supervisor {
            ledger,
            config,
            shutdown,
            progress: Arc::new(progress),
            models: models.clone(),
            forked_at: None,
        };
        let task = tokio::spawn(supervisor.run(projection));
        Ok(Self { models, task })
    }

    /// The tables, for reading.
    pub fn models(&self) -> ReadModels {
        self.models.clone()
    }

    /// Waits until the engine has stopped, after its shutdown was asked for.
    pub async fn stopped(self) {
        // A panic in there has been reported by the runtime; there is nothing left to stop.
        let _ = self.task.await;
    }
}

fn rebuilding(stale: &Stale) -> Condition {
    tracing::warn!(reason = %stale, "the read models are built anew");
    Condition::Rebuilding {
        reason: stale.to_string(),
    }
}

/// Opens the tables; a file that SQLite cannot make sense of is set aside and built again.
async fn open(ledger: &Arc<dyn Ledger>, config: &ProjectorConfig) -> Result<(Projection, Option<Stale>), ProjectError> {
    let (genesis, config) = (ledger.genesis().clone(), config.clone());
    blocking(move || match Projection::open(&config.path, &genesis, config.options()) {
        Err(ProjectError::Sqlite(error)) if is_damage(&error) => {
            tracing::error!(path = %config.path.display(), %error, "the read models' file is damaged; building it again");
            for suffix in ["", "-wal", "-shm"] {
                let mut path = config.path.clone().into_os_string();
                path.push(suffix);
                let _ = std::fs::remove_file(path);
            }
            let (projection, _) = Projection::open(&config.path, &genesis, config.options())?;
            let reason = error.to_string();
            Ok((projection, Some(Stale::Damaged { reason })))
        }
        other => other,
    })
    .await
}

fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

struct Supervisor {
    ledger: Arc<dyn Ledger>,
    config: ProjectorConfig,
    shutdown: CancellationToken,
    progress: Arc<watch::Sender<Progress>>,
    models: ReadModels,
    /// Where the ledger did not link when the tables were last rebuilt for that: building once more would not help.
    forked_at: Option<u64>,
}

impl Supervisor {
    async fn run(mut self, first: Projection) {
        let mut opened = Some(first);
        let mut pause = PAUSE.0;
        while !self.shutdown.is_cancelled() {
            let before = self.progress.borrow().sequence;
            let Err(error) = self.session(opened.take()).await else {
                return;
            };
            if self.progress.borrow().sequence > before {
                pause = PAUSE.0;
            }
            let error = match error {
                SessionError::Project(ProjectError::Stale(stale)) if self.helps(&stale) => {
                    match self.rebuild(&stale).await {
                        Ok(projection) => {
                            opened = Some(projection);
                            continue;
                        }
                        Err(error) => error.into(),
                    }
                }
                error => error,
            };
            self.tell_stalled(&error);
            tokio::select! {
                () = self.shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Whether building again can help: not if the ledger failed to link at the same record the last time too.
    fn helps(&mut self, stale: &Stale) -> bool {
        match stale {
            Stale::Forked { sequence } => self.forked_at.replace(*sequence) != Some(*sequence),
            _ => true,
        }
    }

    async fn rebuild(&self, stale: &Stale) -> Result<Projection, ProjectError> {
        let condition = rebuilding(stale);
        let (mut projection, _) = open(&self.ledger, &self.config).await?;
        let projection = blocking(move || projection.reset().map(|()| projection)).await?;
        self.models.file_changed();
        let cursor = projection.cursor();
        self.progress.send_modify(|p| {
            p.sequence = cursor.sequence;
            p.hash = cursor.hash;
            p.recorded_at = Timestamp::default();
            p.condition = condition;
        });
        Ok(projection)
    }

    fn tell_stalled(&self, error: &SessionError) {
        let (code, reason, next) = (error.code(), error.to_string(), error.next());
        tracing::warn!(code, reason, next, "the read models do not advance");
        self.progress
            .send_modify(|p| p.condition = Condition::Stalled { code, reason, next });
    }

    /// Follows until shutdown or until something is wrong.
    async fn session(&self, opened: Option<Projection>) -> Result<(), SessionError> {
        let projection = match opened {
            Some(projection) => projection,
            None => self.reopen().await?,
        };
        self.check_tail(&projection.cursor()).await?;
        let mut follow = self.ledger.follow(projection.next_sequence()).await?;
        let (records, queue) = mpsc::channel(QUEUE.0);
        let mut writer = self.writer(projection, queue)?;
        let followed = self.feed(follow.as_mut(), records, &mut writer).await;
        // Whatever ended the feeding, its queue is closed: the writer finishes what it has and says how that went.
        let written = match followed {
            Feed::WriterEnded(result) => result,
            Feed::Stopped => ended(writer.await),
            Feed::Failed(error) => {
                ended(writer.await)?;
                return Err(error);
            }
        };
        Ok(written?)
    }

    async fn reopen(&self) -> Result<Projection, ProjectError> {
        let (projection, stale) = open(&self.ledger, &self.config).await?;
        self.models.file_changed();
        let cursor = projection.cursor();
        let recorded_at = projection.cursor_time()?;
        self.progress.send_modify(|p| {
            p.sequence = cursor.sequence;
            p.hash = cursor.hash;
            p.recorded_at = recorded_at;
            if let Some(stale) = &stale {
                p.condition = rebuilding(stale);
            }
        });
        Ok(projection)
    }

    /// Compares the ledger's end with where the tables stand.
    async fn check_tail(&self, cursor: &Anchor) -> Result<(), SessionError> {
        let tail = self.ledger.tail().await?;
        self.progress.send_modify(|p| p.ledger_last = tail.sequence);
        let (sequence, last) = (cursor.sequence, tail.sequence);
        let stale = match last.cmp(&sequence) {
            std::cmp::Ordering::Less => Stale::Shorter { sequence, last },
            std::cmp::Ordering::Equal if tail.hash != cursor.hash => Stale::Forked { sequence },
            _ => return Ok(()),
        };
        Err(ProjectError::from(stale).into())
    }

    async fn feed(
        &self,
        follow: &mut dyn Follow,
        records: mpsc::Sender<Queued>,
        writer: &mut oneshot::Receiver<Result<(), ProjectError>>,
    ) -> Feed {
        let mut check = tokio::time::interval_at(tokio::time::Instant::now() + TAIL_CHECK, TAIL_CHECK);
        let room = Arc::new(Semaphore::new(QUEUE.1 as usize));
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let batch = tokio::select! {
                () = self.shutdown.cancelled() => return Feed::Stopped,
                result = &mut *writer => return Feed::WriterEnded(ended(result)),
                batch = follow.next_batch(FOLLOW_RECORDS) => batch,
                _ = check.tick() => {
                    let cursor = self.progress.borrow().anchor();
                    match self.check_tail(&cursor).await {
                        // An unreachable store is the follower's business: it retries and says so.
                        Err(SessionError::Read(error)) if error.is_transient() => {}
                        Err(error) => return Feed::Failed(error),
                        Ok(()) => {}
                    }
                    continue;
                }
            };
            let batch = match batch {
                Ok(batch) => batch,
                Err(ReadError::Shorter { last, seen }) => {
                    let stale = Stale::Shorter { sequence: seen, last };
                    return Feed::Failed(ProjectError::from(stale).into());
                }
                Err(error) => return Feed::Failed(error.into()),
            };
            if let Some(last) = batch.last().map(|r| r.sequence) {
                self.progress.send_if_modified(|p| {
                    let more = last > p.ledger_last;
                    p.ledger_last = p.ledger_last.max(last);
                    more
                });
            }
            let bytes: usize = batch.iter().map(|r| r.body.len()).sum();
            let kib = u32::try_from(bytes / 1024).unwrap_or(QUEUE.1).clamp(1, QUEUE.1);
            // The writer gives its room back as it takes, and all of it when it ends; the semaphore is never closed.
            let Ok(room) = room.clone().acquire_many_owned(kib).await else {
                return Feed::Stopped;
            };
            if records.send(Queued { batch, _room: room }).await.is_err() {
                return Feed::WriterEnded(ended(writer.await));
            }
        }
    }

    /// Starts the thread that writes.
    fn writer(
        &self,
        mut projection: Projection,
        mut queue: mpsc::Receiver<Queued>,
    ) -> Result<oneshot::Receiver<Result<(), ProjectError>>, SessionError> {
        let (progress, shutdown) = (self.progress.clone(), self.shutdown.clone());
        let (done, result) = oneshot::channel();
        let write = move || {
            progress.send_if_modified(|p| {
                let stalled = matches!(p.condition, Condition::Stalled { .. });
                if stalled {
                    p.condition = Condition::Following;
                }
                stalled
            });
            let mut outcome = Ok(());
            while let Some(Queued { mut batch, _room }) = queue.blocking_recv() {
                // What has queued up meanwhile goes into the same transactions.
                while batch.len() < WRITE_RECORDS
                    && let Ok(more) = queue.try_recv()
                {
                    batch.extend(more.batch);
                }
                outcome = projection.apply(&batch, |projection| {
                    let cursor = projection.cursor();
                    progress.send_modify(|p| {
                        p.sequence = cursor.sequence;
                        p.hash = cursor.hash;
                        p.recorded_at = projection.state().recorded_at;
                        p.ledger_last = p.ledger_last.max(cursor.sequence);
                        if p.sequence == p.ledger_last {
                            p.condition = Condition::Following;
                        }
                    });
                });
                // What is still queued at shutdown is read again at the next start.
                if outcome.is_err() || shutdown.is_cancelled() {
                    break;
                }
            }
            // The file is closed before anyone hears that writing has ended: they may open it again at once.
            drop(projection);
            let _ = done.send(outcome);
        };
        std::thread::Builder::new()
            .name("read-models".to_owned())
            .spawn(write)
            .map_err(SessionError::Thread)?;
        Ok(result)
    }
}

/// Records on their way to the writer, and the room they take in the queue.
struct Queued {
    batch: Vec<RawRecord>,
    _room: OwnedSemaphorePermit,
}

/// How feeding ended.
enum Feed {
    Stopped,
    Failed(SessionError),
    WriterEnded(Result<(), ProjectError>),
}

/// A writer that went without a word panicked: its transaction rolled back, and the next session starts from the file.
fn ended(result: Result<Result<(), ProjectError>, oneshot::error::RecvError>) -> Result<(), ProjectError> {
    result.unwrap_or(Err(ProjectError::Panicked))
}
