//! tidemill-gateway.
