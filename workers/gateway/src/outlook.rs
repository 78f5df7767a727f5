//! When a request that finds no room had better come back: the number in `Retry-After`.
//!
//! With an instance in rotation it is the time in which the queue empties: `(waiting + 1) / rate`. `rate` is the slots
//! a second that went to requests which waited: `r` before the present window, `c` in the `e` seconds of it, taken
//! together as `(r·1 s + c) / (1 s + e)`; a window of a second or more becomes the next `r`. So a queue that has come to
//! a halt promises less and less. With none in rotation it is what is left of the time that the service last took to
//! get one after the first request found none; where that is over or unknown, as long again as it has lasted.
//!
//! It is rounded up to whole seconds, at least 1 and at most 60: an estimate far off would keep clients away from a
//! service that is long back. Rejected: the time of a fixed number of answers, which says nothing of a service at zero.

use std::time::{Duration, Instant};

/// Bounds of what is told.
const SOONEST: f64 = 1.0;
const LATEST: f64 = 60.0;
/// Weight of what was seen before the present window, in seconds, and the length of a window.
const WINDOW: f64 = 1.0;

/// What is known of a service's queue. Times come in as arguments, so tests need no clock.
#[derive(Debug, Default)]
pub(crate) struct Outlook {
    rate: f64,
    window: Option<(Instant, u32)>,
    none_since: Option<Instant>,
    start_up: Option<Duration>,
}

impl Outlook {
    /// A slot went to a request that waited.
    pub(crate) fn granted(&mut self, now: Instant) {
        let (since, count) = *self.window.get_or_insert((now, 0));
        self.window = Some((since, count + 1));
        if now.saturating_duration_since(since).as_secs_f64() >= WINDOW {
            self.rate = self.rate_at(now);
            self.window = Some((now, 0));
        }
    }

    /// A request came and no instance was in rotation.
    pub(crate) fn none_there(&mut self, now: Instant) {
        self.none_since.get_or_insert(now);
    }

    /// An instance is in rotation.
    pub(crate) fn one_there(&mut self, now: Instant) {
        if let Some(since) = self.none_since.take() {
            self.start_up = Some(now.saturating_duration_since(since));
        }
    }

    fn rate_at(&self, now: Instant) -> f64 {
        let Some((since, count)) = self.window else {
            return self.rate;
        };
        let elapsed = now.saturating_duration_since(since).as_secs_f64();
        (self.rate * WINDOW + f64::from(count)) / (WINDOW + elapsed)
    }

    /// Seconds after which to try again, with so many waiting now.
    pub(crate) fn retry_after(&self, waiting: usize, now: Instant) -> u64 {
        let seconds = match self.none_since {
            Some(since) => {
                let lasted = now.saturating_duration_since(since);
                let left = self.start_up.and_then(|start_up| start_up.checked_sub(lasted));
                left.unwrap_or(lasted).as_secs_f64()
            }
            // Nothing was granted yet: a rate of 0 would say "never", and the first grant may come any moment.
            None if self.window.is_none() => SOONEST,
            None => (waiting as f64 + 1.0) / self.rate_at(now),
        };
        seconds.ceil().clamp(SOONEST, LATEST) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: f64) -> Duration {
        Duration::from_secs_f64(n)
    }

    #[test]
    fn a_queue_that_moves_is_told_by_its_rate() {
        let t0 = Instant::now();
        let mut outlook = Outlook::default();
        assert_eq!(outlook.retry_after(500, t0), 1, "nothing is known");
        // 50 a second for 20 seconds.
        for n in 0..1000 {
            outlook.granted(t0 + secs(f64::from(n) / 50.0));
        }
        let now = t0 + secs(20.0);
        let told = outlook.retry_after(499, now);
        assert!((10..=11).contains(&told), "{told}");
        assert_eq!(outlook.retry_after(0, now), 1);
        assert_eq!(outlook.retry_after(100_000, now), 60);
        // It stands still.
        let (soon, later) = (now + secs(5.0), now + secs(20.0));
        assert!(outlook.retry_after(99, soon) > outlook.retry_after(99, now));
        assert!(outlook.retry_after(99, later) > outlook.retry_after(99, soon));
    }

    #[test]
    fn a_service_at_zero_is_told_by_its_last_start() {
        let t0 = Instant::now();
        let mut outlook = Outlook::default();
        outlook.none_there(t0);
        assert_eq!(outlook.retry_after(3, t0), 1);
        assert_eq!(outlook.retry_after(3, t0 + secs(8.0)), 8, "as long again");
        outlook.one_there(t0 + secs(20.0));
        // The next time it is known.
        let t1 = t0 + secs(600.0);
        outlook.none_there(t1);
        outlook.none_there(t1 + secs(5.0));
        assert_eq!(outlook.retry_after(3, t1 + secs(5.0)), 15);
        assert_eq!(outlook.retry_after(3, t1 + secs(19.9)), 1);
        assert_eq!(
            outlook.retry_after(3, t1 + secs(30.0)),
            30,
            "it takes longer than last time"
        );
        assert_eq!(outlook.retry_after(3, t1 + secs(300.0)), 60);
    }
}
