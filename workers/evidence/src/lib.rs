//! tidemill-evidence.
