//! tidemill-projections.
