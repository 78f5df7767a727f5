//! The ledger's time as a worker knows it.
//!
//! Back-offs and overrides are in the sequencer's time, and the worker's wall clock may differ from it. So the time of a
//! record that just arrived is the anchor, and the process's monotonic clock counts on from there. Until the first
//! record arrives, the wall clock must do; being wrong costs a refusal or a delay, never a wrong decision, since `decide`
//! uses its own time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidemill_domain::time::{Span, Timestamp};

/// Follows the ledger's time.
#[derive(Debug, Default)]
pub struct LedgerClock {
    /// The last record that was seen to arrive: its number, its time, and when that was.
    anchor: Option<(u64, Timestamp, Duration)>,
    /// The last record there was when the clock began.
    first: Option<u64>,
}

impl LedgerClock {
    /// Record `sequence`, recorded at `recorded_at`, is the last one in the state at `mono`.
    pub fn see(&mut self, sequence: u64, recorded_at: Timestamp, mono: Duration) {
        // What was there already may be of any age.
        let first = *self.first.get_or_insert(sequence);
        let known = self.anchor.map_or(first, |(sequence, _, _)| sequence);
        if sequence > known {
            self.anchor = Some((sequence, recorded_at, mono));
        }
    }

    /// The ledger's time at `mono`, not before `recorded_at` of the state it is used with.
    pub fn now(&self, recorded_at: Timestamp, mono: Duration) -> Timestamp {
        let estimate = match self.anchor {
            Some((_, at, since)) => at + span(mono.saturating_sub(since)),
            None => wall(),
        };
        estimate.max(recorded_at)
    }
}

/// A duration as the domain writes it.
pub fn span(duration: Duration) -> Span {
    Span::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

fn wall() -> Timestamp {
    let micros = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_micros());
    Timestamp(i64::try_from(micros).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_on_from_the_last_record_that_arrived() {
        let second = Duration::from_secs(1);
        let mut clock = LedgerClock::default();
        let old = Timestamp::from_millis(1_000);
        clock.see(7, old, second);
        assert!(clock.now(old, second) > Timestamp::from_millis(1_000_000));
        let fresh = Timestamp::from_millis(5_000);
        clock.see(8, fresh, 2 * second);
        clock.see(8, fresh, 3 * second);
        assert_eq!(clock.now(fresh, 5 * second), Timestamp::from_millis(8_000));
    }
}
