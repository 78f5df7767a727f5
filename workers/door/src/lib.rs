//! tidemill-door.
