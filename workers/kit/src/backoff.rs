//! Growing, jittered pauses.

use std::time::Duration;

/// Pauses that double up to a cap, each drawn between half of it and all of it: workers that were stopped by the same
/// thing do not come back at the same instant, and none comes back at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    cap: Duration,
    next: Duration,
}

impl Backoff {
    pub(crate) fn new(first: Duration, cap: Duration) -> Self {
        Self {
            first,
            cap,
            next: first,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.first;
    }

    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.cap);
        jittered(pause)
    }
}

/// Between half of `pause` and all of it.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
