//! Who holds which worker role, and until when: the leading sequencer's memory beside the terms on the ledger.
//!
//! A term is on the ledger, its lease is not: renewing it writes nothing. The lease runs on the leader's monotonic clock,
//! so no wall clock can end or stretch it. A new leader does not know what its predecessor last granted and treats every
//! term as live for a full lease from the begin of its own epoch. A holder that overslept its lease is stopped by the term
//! number in its commands, not by the clock; the lease only decides when someone else may ask.

use std::collections::HashMap;
use std::time::Duration;

/// How long a worker role stays with a holder that is not heard from. Renewed at a third of it.
pub const LEASE: Duration = Duration::from_secs(15);

/// The leases of one epoch.
#[derive(Debug)]
pub(super) struct Leases {
    epoch_began: Duration,
    until: HashMap<String, Duration>,
}

impl Leases {
    /// At the begin of an epoch; `elapsed` is the leader's monotonic clock.
    pub(super) fn new(elapsed: Duration) -> Self {
        Self {
            epoch_began: elapsed,
            until: HashMap::new(),
        }
    }

    /// The role's lease has run out.
    pub(super) fn lapsed(&self, role: &str, elapsed: Duration) -> bool {
        let until = self.until.get(role).copied().unwrap_or(self.epoch_began + LEASE);
        elapsed >= until
    }

    /// Grants or renews.
    pub(super) fn grant(&mut self, role: String, elapsed: Duration) {
        self.until.insert(role, elapsed + LEASE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_leader_waits_a_full_lease_and_a_renewal_starts_it_anew() {
        let second = Duration::from_secs(1);
        let mut leases = Leases::new(100 * second);
        assert!(!leases.lapsed("scheduler", 114 * second));
        assert!(leases.lapsed("scheduler", 115 * second));
        leases.grant("scheduler".into(), 114 * second);
        assert!(!leases.lapsed("scheduler", 128 * second));
        assert!(leases.lapsed("scheduler", 129 * second));
    }
}
