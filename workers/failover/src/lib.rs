//! tidemill-failover.
