//! tidemill-agent.
