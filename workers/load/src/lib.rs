//! tidemill-load.
