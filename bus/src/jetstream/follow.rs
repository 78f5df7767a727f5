//! A reading position in a stream that outlives connections, servers and consumers.
//!
//! The position is ours; the consumer on the server is a throw-away that is made again from it whenever anything looks
//! wrong: an error, a missed idle heartbeat, a sequence out of order, or silence while the stream has more. Durable
//! consumers were rejected: their position would be a second truth, and they can stall with no one to notice.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, ReplayPolicy, pull};
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;

use super::read::StreamReader;
use crate::backoff::Backoff;
use crate::identity::LedgerId;
use crate::ledger::{FollowStatus, RawRecord, ReadError};

/// The server says it is alive this often; twice without a word and the consumer is made again.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long one pull request stays open on the server.
const PULL_EXPIRES: Duration = Duration::from_secs(30);

/// Silence after which the stream's end is compared with the position.
const STALL_CHECK: Duration = Duration::from_secs(3);

/// The server forgets a consumer this long after its reader went away.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Messages and bytes in flight for one reader.
const PULL_MESSAGES: usize = 1000;
const PULL_BYTES: usize = 8 << 20;

/// What waiting cannot mend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CursorError {
    Missing,
    Shorter { last: u64, seen: u64 },
    OtherLedger { expected: LedgerId, found: LedgerId },
    Gap { missing: u64, found: u64 },
}

/// Why a consumer is made again.
enum Trouble {
    Fatal(CursorError),
    /// Try again; the code says what is in the way.
    Passing(&'static str),
}

impl From<ReadError> for Trouble {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Missing => Self::Fatal(CursorError::Missing),
            ReadError::OtherLedger { expected, found } => Self::Fatal(CursorError::OtherLedger { expected, found }),
            other => Self::Passing(other.code()),
        }
    }
}

pub(crate) struct StreamCursor {
    reader: StreamReader,
    next: u64,
    /// Whether a missing sequence is an error (ledger) or only old (observations).
    dense: bool,
    source: Option<pull::Stream>,
    /// The sequence found missing last time; believed when it is missing again.
    gap_seen: Option<u64>,
    backoff: Backoff,
    status: watch::Sender<FollowStatus>,
}

impl StreamCursor {
    pub(crate) fn new(reader: StreamReader, next: u64, dense: bool) -> Self {
        let status = watch::Sender::new(FollowStatus::Live);
        Self {
            reader,
            next,
            dense,
            source: None,
            gap_seen: None,
            backoff: Backoff::new(),
            status,
        }
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Goes on from another place.
    pub(crate) fn restart(&mut self, next: u64) {
        self.source = None;
        self.next = next;
    }

    pub(crate) fn status(&self) -> watch::Receiver<FollowStatus> {
        self.status.subscribe()
    }

    /// Waits for at least one message. Cancel-safe: what is taken from the source is returned without waiting again.
    pub(crate) async fn next_batch(&mut self, max: usize) -> Result<Vec<RawRecord>, CursorError> {
        loop {
            match self.try_batch(max.max(1)).await {
                Ok(batch) if batch.is_empty() => {}
                Ok(batch) => {
                    self.went_well();
                    return Ok(batch);
                }
                Err(Trouble::Fatal(error)) => {
                    self.source = None;
                    return Err(error);
                }
                Err(Trouble::Passing(code)) => {
                    self.source = None;
                    self.went_badly(code);
                    self.backoff.pause().await;
                }
            }
        }
    }

    async fn try_batch(&mut self, max: usize) -> Result<Vec<RawRecord>, Trouble> {
        let source = match &mut self.source {
            Some(source) => source,
            empty => empty.insert(open(&self.reader, self.next).await?),
        };
        let first = match tokio::time::timeout(STALL_CHECK, source.next()).await {
            Ok(first) => first,
            Err(_) => {
                // Quiet. Rightly so if there is nothing more; a stall otherwise.
                let last = self.reader.state().await?.last;
                return if last < self.next {
                    Ok(self.quiet(last)?)
                } else {
                    Err(Trouble::Passing("consumer_stalled"))
                };
            }
        };
        let mut batch = Vec::new();
        let mut arrived = Some(first);
        while let Some(message) = arrived {
            match message.map(|message| message.map_err(|_| ())) {
                Some(Ok(message)) => {
                    let Ok(info) = message.info() else {
                        return self.cut(batch, "consumer_failed");
                    };
                    let sequence = info.stream_sequence;
                    if sequence > self.next && self.dense {
                        return self.gap(batch, sequence);
                    }
                    // An older one is a leftover of the consumer before; it was handed out already.
                    if sequence >= self.next {
                        self.next = sequence + 1;
                        batch.push(RawRecord {
                            sequence,
                            body: message.message.payload,
                        });
                    }
                }
                // Missed heartbeat, deleted consumer, lost leader: one remedy for all.
                Some(Err(())) | None => return self.cut(batch, "consumer_failed"),
            }
            if batch.len() >= max {
                break;
            }
            arrived = source_next_now(&mut self.source);
        }
        Ok(batch)
    }

    /// Nothing arrived and nothing should have.
    fn quiet(&mut self, last: u64) -> Result<Vec<RawRecord>, Trouble> {
        if last + 1 < self.next {
            return Err(Trouble::Fatal(CursorError::Shorter {
                last,
                seen: self.next - 1,
            }));
        }
        self.went_well();
        Ok(Vec::new())
    }

    /// The source failed: hand out what came before, and open a new one at the next call.
    fn cut(&mut self, batch: Vec<RawRecord>, code: &'static str) -> Result<Vec<RawRecord>, Trouble> {
        self.source = None;
        if batch.is_empty() {
            Err(Trouble::Passing(code))
        } else {
            Ok(batch)
        }
    }

    /// A sequence is missing: believed only when a second consumer says so too.
    fn gap(&mut self, batch: Vec<RawRecord>, found: u64) -> Result<Vec<RawRecord>, Trouble> {
        self.source = None;
        if !batch.is_empty() {
            return Ok(batch);
        }
        if self.gap_seen.replace(self.next) == Some(self.next) {
            return Err(Trouble::Fatal(CursorError::Gap {
                missing: self.next,
                found,
            }));
        }
        Err(Trouble::Passing("consumer_gap"))
    }

    fn went_well(&mut self) {
        self.backoff.reset();
        let changed = self
            .status
            .send_if_modified(|status| std::mem::replace(status, FollowStatus::Live) != FollowStatus::Live);
        if changed {
            tracing::info!(
                code = "follow_live",
                stream = self.reader.name(),
                next = self.next,
                "following the stream again"
            );
        }
    }

    fn went_badly(&mut self, code: &'static str) {
        let retrying = FollowStatus::Retrying { code };
        let was_live = *self.status.borrow() == FollowStatus::Live;
        self.status.send_replace(retrying);
        if was_live {
            tracing::warn!(
                code,
                stream = self.reader.name(),
                next = self.next,
                "reading the stream is held up; retrying"
            );
        }
    }
}

/// What has already arrived, without waiting.
fn source_next_now(source: &mut Option<pull::Stream>) -> Option<Option<<pull::Stream as futures::Stream>::Item>> {
    source.as_mut()?.next().now_or_never()
}

async fn open(reader: &StreamReader, next: u64) -> Result<pull::Stream, Trouble> {
    let state = reader.state().await?;
    if state.last + 1 < next {
        return Err(Trouble::Fatal(CursorError::Shorter {
            last: state.last,
            seen: next - 1,
        }));
    }
    let config = pull::Config {
        deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: next },
        ack_policy: AckPolicy::None,
        replay_policy: ReplayPolicy::Instant,
        inactive_threshold: FORGET_AFTER,
        num_replicas: 1,
        memory_storage: true,
        ..pull::Config::default()
    };
    let failed = || Trouble::Passing("consumer_not_created");
    let stream = reader
        .nats()
        .context()
        .get_stream_no_info(reader.name())
        .await
        .map_err(|_| failed())?;
    let consumer = stream.create_consumer(config).await.map_err(|_| failed())?;
    let messages = consumer
        .stream()
        .max_messages_per_batch(PULL_MESSAGES)
        .max_bytes_per_batch(PULL_BYTES)
        .expires(PULL_EXPIRES)
        .heartbeat(HEARTBEAT)
        .messages();
    messages.await.map_err(|_| failed())
}
