//! tidemill-client.
