//! tidemill-bus.
