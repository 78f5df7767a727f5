//! Waiting between tries: exponential with full jitter.
//!
//! Each wait is uniform between zero and `base × 2^tries`, at most `cap`. Full jitter spreads peers that lost the same
//! server at the same instant over the whole window, which equal or additive jitter does not
//! (<https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/>).

use std::time::Duration;

/// State of one back-off.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    tries: u32,
}

impl Default for Backoff {
    /// 200 ms to 5 s: a single restart of a server is ridden out in well under a second, and ten thousand agents that
    /// wait for a longer one cause 4,000 tries a second at most.
    fn default() -> Self {
        Self::new(Duration::from_millis(200), Duration::from_secs(5))
    }
}

impl Backoff {
    /// A back-off whose first wait is below `base` and whose longest is `cap`.
    pub fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, tries: 0 }
    }

    /// The longest wait possible.
    pub fn cap(&self) -> Duration {
        self.cap
    }

    /// How long to wait before the next try.
    pub fn next_wait(&mut self) -> Duration {
        let ceiling = self
            .base
            .saturating_mul(1u32.checked_shl(self.tries).unwrap_or(u32::MAX))
            .min(self.cap);
        self.tries = (self.tries + 1).min(31);
        ceiling.mul_f64(fastrand::f64())
    }

    /// Begins again at the base, after a success that lasted.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_stay_under_a_growing_ceiling() {
        let mut backoff = Backoff::default();
        for tries in 0..100u32 {
            let ceiling = Duration::from_millis(200 << tries.min(5)).min(Duration::from_secs(5));
            assert!(backoff.next_wait() <= ceiling);
        }
        backoff.reset();
        assert!(backoff.next_wait() <= Duration::from_millis(200));
    }
}
