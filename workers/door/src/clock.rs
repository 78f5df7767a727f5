//! The door's clock: wall time at its start, then only the monotonic clock, so that a step of the wall clock does not
//! show as a node's silence.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tidemill_domain::time::Timestamp;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    base: i64,
    started: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            base: i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            started: Instant::now(),
        }
    }

    /// Receive time of something heard now.
    pub(crate) fn now(&self) -> Timestamp {
        let elapsed = i64::try_from(self.started.elapsed().as_micros()).unwrap_or(i64::MAX);
        Timestamp(self.base.saturating_add(elapsed))
    }
}
