//! Active checks: noticing an instance that takes requests and answers nothing.
//!
//! A stopped process still accepts connections (the kernel does), and a black hole breaks none, so neither shows in the
//! way a crash does. While an instance owes answers and no byte came from it for a while, it is asked something small
//! over a new connection; any byte, an end or a reset is an answer. No answer counts against it only if that is out of
//! the ordinary: it, or another of its service, has been seen to answer one request while an older one was still open (a
//! server of one thread cannot), or the silence is many times longer than any answer of its service took lately. What it
//! owes and may be repeated is then sent elsewhere. Rejected: judging by silence alone, because a long generation is
//! silent as well. What only others of the service have shown is a guess, since a rolling update may change the program:
//! one that was found silent by it and answers again takes it back.
//!
//! Invariants: one check per instance at a time and [`CHECKS`] in all; nothing is checked of which nothing is awaited;
//! connections to a host are cut only after [`Limits::vanished_after`] in which the host itself gave no sign, never
//! because a port refused.
//!
//! [`Limits::vanished_after`]: crate::Limits::vanished_after

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidemill_protocol::gateway::Suspicion;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::admission::Service;
use crate::dial::ConnectError;
use crate::health::{Condition, put_aside};
use crate::instance::Instance;
use crate::proxy::Proxy;
use crate::wire::Pulse;

/// Pause between looks.
const PACE: Duration = Duration::from_millis(250);
/// Silence after which an instance that owes the beginning of an answer is checked, and one that is in the middle of
/// some.
const SILENCE_OWING: Duration = Duration::from_millis(500);
const SILENCE_STREAMING: Duration = Duration::from_secs(5);
/// Time in which a check must be answered.
const CHECK_TIMEOUT: Duration = Duration::from_millis(1500);
/// Checks at a time over all instances.
const CHECKS: usize = 256;
/// Answers after which the slowest of them says something about a service.
const ENOUGH_ANSWERS: u64 = 20;
/// Silence that is out of the ordinary: this many times the slowest answer, and no less than this.
const SLOWER: u32 = 8;
const SLOWER_MIN: Duration = Duration::from_secs(2);
/// How long a slowest answer is remembered: one to two of these.
const MEMORY: Duration = Duration::from_secs(300);

/// What is known of an instance's answering.
#[derive(Debug)]
pub(crate) struct Vigil {
    born: Instant,
    /// Tries that await the beginning of an answer.
    unanswered: AtomicU32,
    /// Since when there is at least one, in milliseconds after `born`.
    owing_ms: AtomicU64,
    answers: AtomicU64,
    /// It answers one thing while another is still open.
    overlaps: AtomicBool,
    /// It was found silent only because others of its service do that.
    presumed: AtomicBool,
    checking: AtomicBool,
    #[cfg(test)]
    failed: AtomicU32,
    /// Since when its host gives no sign.
    vanished: Mutex<Option<Instant>>,
}

/// A try that awaits the beginning of its answer.
pub(crate) struct Awaiting<'a> {
    vigil: &'a Vigil,
    began: Instant,
}

impl Default for Vigil {
    fn default() -> Self {
        Self {
            born: Instant::now(),
            unanswered: AtomicU32::new(0),
            owing_ms: AtomicU64::new(0),
            answers: AtomicU64::new(0),
            overlaps: AtomicBool::new(false),
            presumed: AtomicBool::new(false),
            checking: AtomicBool::new(false),
            #[cfg(test)]
            failed: AtomicU32::new(0),
            vanished: Mutex::default(),
        }
    }
}

impl Vigil {
    pub(crate) fn begin(&self) -> Awaiting<'_> {
        if self.unanswered.fetch_add(1, Ordering::AcqRel) == 0 {
            let now = self.born.elapsed().as_millis() as u64;
            self.owing_ms.store(now, Ordering::Release);
        }
        Awaiting {
            vigil: self,
            began: Instant::now(),
        }
    }

    /// For how long it has kept silent although something was awaited of it, beginnings of answers first.
    fn silence(&self, pulse: &Pulse) -> Duration {
        let unheard = pulse.silence();
        if self.unanswered.load(Ordering::Acquire) == 0 {
            return unheard;
        }
        let since = Duration::from_millis(self.owing_ms.load(Ordering::Acquire));
        unheard.min(self.born.elapsed().saturating_sub(since))
    }

    /// Whether it was seen to answer one thing while an older one was still open.
    pub(crate) fn overlaps(&self) -> bool {
        self.overlaps.load(Ordering::Relaxed)
    }

    /// It was found silent and answers again: was it by a guess?
    pub(crate) fn answers_again(&self, reactions: &Reactions) {
        if self.presumed.swap(false, Ordering::Relaxed) && !self.overlaps() {
            reactions.overlaps.store(false, Ordering::Relaxed);
        }
    }

    /// Checks that got no answer.
    #[cfg(test)]
    pub(crate) fn checks_failed(&self) -> u32 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Notes whether the host gave a sign, and tells since when it has given none.
    fn host_silent_since(&self, silent: bool) -> Option<Instant> {
        let mut vanished = self.vanished.lock().unwrap_or_else(PoisonError::into_inner);
        match silent {
            true => Some(*vanished.get_or_insert_with(Instant::now)),
            false => vanished.take().and(None),
        }
    }
}

impl Awaiting<'_> {
    /// It was answered.
    pub(crate) fn answered(self, reactions: &Reactions) {
        reactions.note(self.began.elapsed());
        self.vigil.answers.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Awaiting<'_> {
    fn drop(&mut self) {
        self.vigil.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How a service's instances react: how long answers took to begin, lately.
#[derive(Debug, Default)]
pub(crate) struct Reactions {
    /// One of them answers one thing while another is still open.
    overlaps: AtomicBool,
    answers: AtomicU64,
    slowest_us: AtomicU64,
    slowest_before_us: AtomicU64,
}

impl Reactions {
    fn note(&self, took: Duration) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        let us = took.as_micros() as u64;
        if self.slowest_us.load(Ordering::Relaxed) < us {
            self.slowest_us.fetch_max(us, Ordering::Relaxed);
        }
    }

    /// Whether one of them was seen to answer one thing while an older one was still open.
    fn overlaps(&self) -> bool {
        self.overlaps.load(Ordering::Relaxed)
    }

    /// The slowest lately. `None`: too few to tell.
    fn slowest(&self) -> Option<Duration> {
        let us = self.slowest_us.load(Ordering::Relaxed);
        let before = self.slowest_before_us.load(Ordering::Relaxed);
        let enough = self.answers.load(Ordering::Relaxed) >= ENOUGH_ANSWERS;
        enough.then(|| Duration::from_micros(us.max(before)))
    }

    fn forget(&self) {
        let us = self.slowest_us.swap(0, Ordering::Relaxed);
        self.slowest_before_us.store(us, Ordering::Relaxed);
    }
}

/// Outcome of a check.
#[derive(Debug)]
pub(crate) enum Checked {
    Answered,
    /// A connection was accepted, and nothing came.
    Silent,
    Unreachable(ConnectError),
}

/// Asks an instance something small.
pub(crate) async fn check(instance: &Instance) -> Checked {
    let asking = async {
        let mut link = match instance.line.dial().await {
            Ok(link) => link,
            Err(error) => return Checked::Unreachable(error),
        };
        let ask = format!(
            "OPTIONS * HTTP/1.1\r\nhost: {}\r\nuser-agent: tidemill-gateway\r\nconnection: close\r\n\r\n",
            instance.endpoint
        );
        if link.write_all(ask.as_bytes()).await.is_ok() {
            // Whatever comes, an end or a reset too, was somebody's doing.
            let _ = link.read(&mut [0; 64]).await;
        }
        Checked::Answered
    };
    let asked = tokio::time::timeout(CHECK_TIMEOUT.max(instance.line.connect_timeout), asking).await;
    asked.unwrap_or(Checked::Silent)
}

/// Looks after all instances until `shutdown`.
pub(crate) async fn run(proxy: Arc<Proxy>, shutdown: CancellationToken) {
    let checks = Arc::new(Semaphore::new(CHECKS));
    let mut remembered = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PACE) => {}
        }
        let forget = remembered.elapsed() > MEMORY;
        if forget {
            remembered = Instant::now();
        }
        let table = proxy.router.current();
        for service in table.services() {
            if forget {
                service.reactions.forget();
            }
            for instance in service.all_in_flight() {
                let vigil = &instance.vigil;
                let after = match vigil.unanswered.load(Ordering::Relaxed) {
                    0 => SILENCE_STREAMING,
                    _ => SILENCE_OWING,
                };
                if vigil.silence(&instance.line.pulse) < after || vigil.checking.swap(true, Ordering::AcqRel) {
                    continue;
                }
                let Ok(permit) = Arc::clone(&checks).try_acquire_owned() else {
                    vigil.checking.store(false, Ordering::Release);
                    continue;
                };
                let looking = Look {
                    service: Arc::clone(service),
                    instance,
                    suspicions: proxy.suspicions.clone(),
                    vanished_after: proxy.limits.vanished_after,
                };
                tokio::spawn(async move {
                    looking.look().await;
                    looking.instance.vigil.checking.store(false, Ordering::Release);
                    drop(permit);
                });
            }
        }
    }
}

struct Look {
    service: Arc<Service>,
    instance: Arc<Instance>,
    suspicions: mpsc::Sender<Suspicion>,
    vanished_after: Duration,
}

impl Look {
    async fn look(&self) {
        let vigil = &self.instance.vigil;
        let owing = vigil.unanswered.load(Ordering::Relaxed);
        let answers = vigil.answers.load(Ordering::Relaxed);
        match check(&self.instance).await {
            Checked::Answered => {
                let since = vigil.answers.load(Ordering::Relaxed) - answers;
                if since < u64::from(owing) && vigil.unanswered.load(Ordering::Relaxed) > 0 {
                    vigil.overlaps.store(true, Ordering::Relaxed);
                    self.service.reactions.overlaps.store(true, Ordering::Relaxed);
                }
                vigil.host_silent_since(false);
                self.instance.line.pulse.beat();
            }
            Checked::Silent => {
                #[cfg(test)]
                vigil.failed.fetch_add(1, Ordering::Relaxed);
                vigil.host_silent_since(false);
                let silence = vigil.silence(&self.instance.line.pulse);
                let reactions = &self.service.reactions;
                let long = |slowest: Duration| silence > SLOWER_MIN.max(slowest * SLOWER);
                let proven = vigil.overlaps() || reactions.slowest().is_some_and(long);
                if (proven || reactions.overlaps()) && silence >= CHECK_TIMEOUT {
                    vigil.presumed.store(!proven, Ordering::Relaxed);
                    self.aside(Condition::Silent, &format!("no byte for {} ms", silence.as_millis()));
                }
            }
            Checked::Unreachable(error) => {
                let silent = vigil.host_silent_since(error.is_silence());
                self.aside(Condition::Unreachable, &error.to_string());
                if silent.is_some_and(|since| since.elapsed() > self.vanished_after)
                    && self.instance.line.pulse.silence() > self.vanished_after
                {
                    tracing::warn!(instance = %self.instance.id, "host gone: its open connections are given up");
                    self.instance.line.cut.notify_waiters();
                }
            }
        }
    }

    fn aside(&self, found: Condition, reason: &str) {
        put_aside(&self.service, &self.instance, found, reason, &self.suspicions);
    }
}
