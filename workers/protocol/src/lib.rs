//! tidemill-protocol.
