//! A request's body on its way to an instance, kept for the case that it has to be sent again.
//!
//! The body is passed on as it comes and recorded on the way, so that nothing waits for its end. A further try replays
//! the record and goes on with the source. Past [`Limits::replay_bytes`](crate::Limits::replay_bytes), or when all
//! records together are too large, the record is given up and the body can no longer be replayed.
//!
//! A client must keep going: while its body is awaited and nothing is answered yet, at least
//! [`Limits::body_pace_bytes`](crate::Limits::body_pace_bytes) come in each
//! [`Limits::body_pace`](crate::Limits::body_pace), or it loses its slot to others. A body longer than
//! [`Limits::max_body_bytes`](crate::Limits::max_body_bytes) is broken off.
//!
//! Invariants: of several tries only the last reads from the source; a source is read only when the instance takes
//! more, so a slow instance slows its client and not this host's memory.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::config::Limits;

/// Bytes recorded by all requests together.
#[derive(Debug)]
pub(crate) struct ReplayBudget {
    used: AtomicUsize,
    total: usize,
    per_request: usize,
}

impl ReplayBudget {
    pub(crate) fn new(per_request: usize, total: usize) -> Self {
        Self {
            used: AtomicUsize::new(0),
            total,
            per_request,
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= self.total {
            return true;
        }
        self.give_back(bytes);
        false
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes recorded now.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// A request's body, shared by its tries. `None` inside: there is none.
#[derive(Debug, Clone)]
pub(crate) struct Upload(Option<Arc<Shared>>);

/// What a body must keep to.
#[derive(Debug, Clone, Copy)]
struct Rules {
    max_bytes: u64,
    /// `None`: the client may take its time, as in a conversation.
    pace: Option<(u64, Duration)>,
}

/// Why a body ended before its end, by the client's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    BrokenOff,
    TooSlow,
    TooLarge,
}

#[derive(Debug)]
struct Shared {
    budget: Arc<ReplayBudget>,
    rules: Rules,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    source: Incoming,
    record: Vec<Bytes>,
    recorded: usize,
    trailers: Option<HeaderMap>,
    /// The record holds all that was read.
    replayable: bool,
    /// The source was read to its end.
    ended: bool,
    fault: Option<Fault>,
    /// The answer began: what the client says from now on is at its own pace.
    answered: bool,
    /// Bytes read from the source.
    read: u64,
    /// When the present measure of pace ends, and how many bytes had been read at its beginning.
    measure: Option<(Pin<Box<Sleep>>, u64)>,
    /// The try that may read.
    turn: u32,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let recorded = self.lock().recorded;
        self.budget.give_back(recorded);
    }
}

impl Upload {
    /// `conversing`: request and answer go on side by side, so the client may pause.
    pub(crate) fn new(source: Incoming, budget: &Arc<ReplayBudget>, limits: &Limits, conversing: bool) -> Self {
        if source.is_end_stream() {
            return Self(None);
        }
        Self(Some(Arc::new(Shared {
            budget: Arc::clone(budget),
            rules: Rules {
                max_bytes: limits.max_body_bytes,
                pace: (!conversing).then_some((limits.body_pace_bytes, limits.body_pace)),
            },
            state: Mutex::new(State {
                source,
                record: Vec::new(),
                recorded: 0,
                trailers: None,
                replayable: true,
                ended: false,
                fault: None,
                answered: false,
                read: 0,
                measure: None,
                turn: 0,
            }),
        })))
    }

    /// The body for one more try; earlier ones stop reading.
    pub(crate) fn next_try(&self) -> UploadBody {
        UploadBody(self.0.as_ref().map(|shared| {
            let turn = {
                let mut state = shared.lock();
                state.turn += 1;
                state.turn
            };
            Reader {
                shared: Arc::clone(shared),
                turn,
                next: 0,
                trailers_sent: false,
            }
        }))
    }

    /// Whether another try can send all of it.
    pub(crate) fn is_replayable(&self) -> bool {
        self.0.as_ref().is_none_or(|s| s.lock().replayable)
    }

    /// Whether it was read to its end.
    pub(crate) fn is_ended(&self) -> bool {
        self.0.as_ref().is_none_or(|s| s.lock().ended)
    }

    /// What the client did wrong while sending it.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.0.as_ref().and_then(|s| s.lock().fault)
    }

    /// The answer begins.
    pub(crate) fn answer_begins(&self) {
        if let Some(shared) = &self.0 {
            let mut state = shared.lock();
            state.answered = true;
            state.measure = None;
        }
    }
}

/// The body of one try.
#[derive(Debug)]
pub(crate) struct UploadBody(Option<Reader>);

#[derive(Debug)]
struct Reader {
    shared: Arc<Shared>,
    turn: u32,
    /// Next frame of the record to replay.
    next: usize,
    trailers_sent: bool,
}

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UploadError {
    #[error("the client broke off its request body: {0}")]
    Client(hyper::Error),
    #[error("the client sends its request body too slowly")]
    TooSlow,
    #[error("the request body is too large")]
    TooLarge,
    #[error("this try was given up")]
    Superseded,
}

impl Body for UploadBody {
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let Some(reader) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let shared = Arc::clone(&reader.shared);
        let mut state = shared.lock();
        if state.turn != reader.turn {
            return Poll::Ready(Some(Err(UploadError::Superseded)));
        }
        if let Some(chunk) = state.record.get(reader.next) {
            reader.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(chunk.clone()))));
        }
        if state.ended {
            if let Some(trailers) = state.trailers.clone().filter(|_| !reader.trailers_sent) {
                reader.trailers_sent = true;
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            return Poll::Ready(None);
        }
        match Pin::new(&mut state.source).poll_frame(cx) {
            Poll::Pending if state.dawdles(&shared.rules, cx) => {
                state.fault = Some(Fault::TooSlow);
                Poll::Ready(Some(Err(UploadError::TooSlow)))
            }
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    state.read += data.len() as u64;
                    if state.read > shared.rules.max_bytes {
                        state.fault = Some(Fault::TooLarge);
                        return Poll::Ready(Some(Err(UploadError::TooLarge)));
                    }
                    state.keep(data, &shared.budget);
                    reader.next = state.record.len();
                } else if let Some(trailers) = frame.trailers_ref() {
                    state.trailers = Some(trailers.clone());
                    state.ended = true;
                    reader.trailers_sent = true;
                }
                state.ended |= state.source.is_end_stream();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                state.fault = Some(Fault::BrokenOff);
                Poll::Ready(Some(Err(UploadError::Client(error))))
            }
            Poll::Ready(None) => {
                state.ended = true;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|reader| {
            let state = reader.shared.lock();
            state.ended && reader.next >= state.record.len() && (state.trailers.is_none() || reader.trailers_sent)
        })
    }

    fn size_hint(&self) -> SizeHint {
        // A length the client gave is passed on as a header; without one the body goes out in chunks.
        match &self.0 {
            None => SizeHint::with_exact(0),
            Some(_) => SizeHint::default(),
        }
    }
}

impl State {
    /// Whether the client, of whom more is awaited, has sent too little for too long.
    fn dawdles(&mut self, rules: &Rules, cx: &mut Context<'_>) -> bool {
        let Some((bytes, time)) = rules.pace else { return false };
        if self.answered {
            return false;
        }
        let read = self.read;
        let (timer, before) = self
            .measure
            .get_or_insert_with(|| (Box::pin(tokio::time::sleep(time)), read));
        while timer.as_mut().poll(cx).is_ready() {
            if read - *before < bytes {
                return true;
            }
            *before = read;
            timer.as_mut().reset(Instant::now() + time);
        }
        false
    }

    fn keep(&mut self, data: &Bytes, budget: &ReplayBudget) {
        if !self.replayable || data.is_empty() {
            return;
        }
        let fits = self.recorded + data.len() <= budget.per_request;
        if fits && budget.take(data.len()) {
            self.recorded += data.len();
            self.record.push(data.clone());
        } else {
            self.replayable = false;
            self.record = Vec::new();
            budget.give_back(std::mem::take(&mut self.recorded));
        }
    }
}
