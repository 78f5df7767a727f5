//! The longest time in which no request succeeded while at least one waited.
//!
//! The gateway measures the same by the same rule: a request waits until its answer begins. Seen from outside the value
//! includes the way to the gateway and back.

use std::time::{Duration, Instant};

/// Follows waiting requests and successes.
#[derive(Debug, Default)]
pub(crate) struct Gap {
    waiting: u64,
    since: Option<Instant>,
    longest: Duration,
}

impl Gap {
    /// A request begins to wait.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.waiting += 1;
        self.since.get_or_insert(now);
    }

    /// A request's answer began (`success`), or it ended otherwise.
    pub(crate) fn end(&mut self, success: bool, now: Instant) {
        self.waiting = self.waiting.saturating_sub(1);
        if success || self.waiting == 0 {
            if let Some(since) = self.since.take() {
                self.longest = self.longest.max(now.saturating_duration_since(since));
            }
            self.since = (self.waiting > 0).then_some(now);
        }
    }

    /// The longest so far, one still open included.
    pub(crate) fn longest(&self, now: Instant) -> Duration {
        let open = self.since.map(|s| now.saturating_duration_since(s));
        self.longest.max(open.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_success_or_an_empty_queue_ends_a_gap() {
        let ms = Duration::from_millis;
        let t = Instant::now();
        let mut gap = Gap::default();
        gap.begin(t);
        gap.begin(t + ms(10));
        gap.end(false, t + ms(500));
        assert_eq!(gap.longest(t + ms(600)), ms(600), "still open");
        gap.end(true, t + ms(700));
        assert_eq!(gap.longest(t + ms(9_000)), ms(700), "nobody waits");
    }
}
