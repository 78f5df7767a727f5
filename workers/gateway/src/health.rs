//! Which instances are given requests: passive signs put one aside, a probe brings it back.
//!
//! A connection refused or not accepted in time makes an instance [`Condition::Unreachable`]; one that gives no byte
//! where it should ([`crate::watch`]) is [`Condition::Silent`]; a connection that broke before the answer, or within
//! it, makes it [`Condition::Breaking`]. Either way it is set aside for 100 ms, doubling up to 5 s with each further
//! failure, then a TCP connect is tried, or a question asked of a silent one; an answer clears the count. An
//! application error (5xx) is an answer and no reason to set anything aside.
//!
//! Invariants: at most one probe per instance runs, and one runs as long as an instance is set aside; the count grows
//! once per time set aside, not once per request that noticed. Each time set aside is reported to the door once.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidemill_protocol::gateway::Suspicion;
use tokio::sync::mpsc;

use crate::admission::Service;
use crate::instance::Instance;
use crate::watch::{Checked, check};

const ASIDE_MIN: Duration = Duration::from_millis(100);
const ASIDE_MAX: Duration = Duration::from_secs(5);
/// Longest pause between probes while somebody waits for the service.
const ASIDE_MAX_WANTED: Duration = Duration::from_millis(500);

/// What is thought of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Condition {
    /// Nothing speaks against it.
    Good = 0,
    /// It accepts connections and broke one.
    Breaking = 1,
    /// It accepts connections and answers nothing.
    Silent = 2,
    /// It does not accept connections.
    Unreachable = 3,
}

/// The health of one instance.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// A [`Condition`]. Written under the lock, read without for each choice.
    condition: AtomicU8,
    /// Times set aside, and failed probes, since the last answer. Written under the lock.
    failures: AtomicU32,
    /// Whether a probe runs; also the lock for changes of the two above.
    probing: Mutex<bool>,
}

impl Health {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.probing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn condition(&self) -> Condition {
        match self.condition.load(Ordering::Acquire) {
            0 => Condition::Good,
            1 => Condition::Breaking,
            2 => Condition::Silent,
            _ => Condition::Unreachable,
        }
    }

    /// Caller holds the lock.
    fn set(&self, condition: Condition) {
        self.condition.store(condition as u8, Ordering::Release);
    }
}

/// Sets an instance aside, tells the door, and sees to it that it is probed.
pub(crate) fn put_aside(
    service: &Arc<Service>,
    instance: &Arc<Instance>,
    found: Condition,
    reason: &str,
    suspicions: &mpsc::Sender<Suspicion>,
) {
    if instance.is_dropped() {
        return;
    }
    let (news, start_probe) = {
        let mut probing = instance.health.lock();
        let before = instance.health.condition();
        if before >= found {
            return;
        }
        let news = before == Condition::Good;
        if news {
            instance.health.failures.fetch_add(1, Ordering::Relaxed);
        }
        instance.health.set(found);
        (news, !std::mem::replace(&mut *probing, true))
    };
    if found >= Condition::Silent {
        instance.close_unused();
        instance.disturbed.notify_waiters();
    }
    if news {
        tracing::warn!(instance = %instance.id, service = %service.name, reason, "instance set aside");
        // A full channel means that the door already has plenty to look at.
        let _ = suspicions.try_send(Suspicion {
            instance: instance.id.to_string(),
            reason: reason.to_owned(),
        });
    }
    if start_probe {
        tokio::spawn(probe(Arc::clone(service), Arc::clone(instance)));
    }
}

/// The instance answered: the count starts anew, and what was only breaking or silent is good again. An answer on an old
/// connection does not show that new ones are accepted.
pub(crate) fn answered(service: &Arc<Service>, instance: &Arc<Instance>) {
    let health = &instance.health;
    if health.failures.load(Ordering::Relaxed) == 0 {
        return;
    }
    let restored = {
        let _lock = health.lock();
        match health.condition() {
            Condition::Unreachable => return,
            before => {
                health.failures.store(0, Ordering::Relaxed);
                health.set(Condition::Good);
                before != Condition::Good
            }
        }
    };
    if restored {
        service.wake();
    }
}

async fn probe(service: Arc<Service>, instance: Arc<Instance>) {
    loop {
        let failures = instance.health.failures.load(Ordering::Relaxed);
        let mut pause = ASIDE_MIN
            .saturating_mul(1 << failures.saturating_sub(1).min(10))
            .min(ASIDE_MAX);
        if service.traffic.waiting() > 0 {
            pause = pause.min(ASIDE_MAX_WANTED);
        }
        tokio::time::sleep(pause.mul_f64(0.9 + 0.2 * fastrand::f64())).await;
        if instance.is_dropped() {
            return;
        }
        let reached = match instance.health.condition() {
            Condition::Silent => check(&instance).await,
            _ => match instance.line.dial().await {
                Ok(_) => Checked::Answered,
                Err(error) => Checked::Unreachable(error),
            },
        };
        let mut probing = instance.health.lock();
        let worse = match (instance.health.condition(), reached) {
            (Condition::Good, _) | (_, Checked::Answered) => {
                *probing = false;
                instance.health.set(Condition::Good);
                break;
            }
            (_, Checked::Silent) => Condition::Silent,
            (_, Checked::Unreachable(_)) => Condition::Unreachable,
        };
        instance.health.failures.fetch_add(1, Ordering::Relaxed);
        instance.health.set(worse);
    }
    instance.vigil.answers_again(&service.reactions);
    instance.warm_again();
    tracing::info!(instance = %instance.id, service = %service.name, "instance back in use");
    service.wake();
}
