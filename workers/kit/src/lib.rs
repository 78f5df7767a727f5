//! tidemill-kit.
