//! Which instance a request is given.
//!
//! The less loaded of two at random: it comes close to the least loaded of all without looking at all of them, and it
//! does not send everyone to the one that was the least loaded a moment ago. Only where both are of no use all are looked
//! at, beginning at random. Rejected: round robin, which fills a slow instance as fast as the others.
//!
//! Invariants: one without a free slot is never chosen; one that is set aside only if no other is in rotation.

use std::sync::Arc;
use std::time::Duration;

use crate::health::Condition;
use crate::instance::Instance;

/// An instance with a free slot. Those set aside are used only when no other is in rotation, and those that
/// certainly answer nothing not at all: their probe is as good as a request and costs none.
pub(crate) fn pick(instances: &[Arc<Instance>], concurrency: u32, warm_up: Duration) -> Option<Arc<Instance>> {
    let n = instances.len();
    if n == 0 {
        return None;
    }
    let has_room = |i: &Instance| i.in_flight() < concurrency;
    let usable = |i: &Instance| has_room(i) && i.health.condition() == Condition::Good;
    let first = fastrand::usize(..n);
    let second = if n == 1 {
        first
    } else {
        (first + 1 + fastrand::usize(..n - 1)) % n
    };
    let (a, b) = (&instances[first], &instances[second]);
    match (usable(a), usable(b)) {
        (true, true) => {
            let (less, more) = if b.in_flight() < a.in_flight() { (b, a) } else { (a, b) };
            // A colder one gives way in proportion; two alike do not.
            let ratio = less.warmth(warm_up) / more.warmth(warm_up);
            let chosen = if ratio >= 1.0 || fastrand::f64() < ratio {
                less
            } else {
                more
            };
            return Some(Arc::clone(chosen));
        }
        (true, false) => return Some(Arc::clone(a)),
        (false, true) => return Some(Arc::clone(b)),
        (false, false) => {}
    }
    let mut any_good = false;
    let mut fallback = None;
    for instance in instances[first..].iter().chain(&instances[..first]) {
        match instance.health.condition() {
            Condition::Good if has_room(instance) => return Some(Arc::clone(instance)),
            Condition::Good => any_good = true,
            Condition::Silent if instance.vigil.overlaps() => {}
            Condition::Breaking | Condition::Silent if fallback.is_none() && has_room(instance) => {
                fallback = Some(instance);
            }
            Condition::Breaking | Condition::Silent | Condition::Unreachable => {}
        }
    }
    if any_good { None } else { fallback.cloned() }
}
