//! tidemill-scheduler.
