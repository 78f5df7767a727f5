//! What to send, where to, and how fast.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::LoadError;

/// Where the schedule comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Evenly spaced requests, this many a second.
    Rps(f64),
    /// CSV (plain or `.gz`), one row a request; first column the time, `ContextTokens`/`GeneratedTokens` or
    /// `input_tokens`/`output_tokens` go to the service as `?context=…&tokens=…`.
    Trace(PathBuf),
    /// CSV (plain or `.gz`) of `timestamp,value` with requests a second, or `timestamp,count` with requests a step.
    /// Between its points the rate is interpolated; arrivals are Poisson.
    Rate(PathBuf),
}

/// One run of the generator.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// `http://HOST[:PORT]/PATH[?QUERY]`; each request is a GET of it.
    pub url: String,
    /// The schedule.
    pub source: Source,
    /// Multiplies the number of requests. A trace's rows are repeated or left out at random (seeded).
    pub scale: f64,
    /// Plays this many times as fast: the same requests in less time, so the rate grows with it. `scale` of 1/speed
    /// keeps the rate.
    pub speed: f64,
    /// Stops sending after this long. `None`: at the end of the file; a constant rate goes on until stopped.
    pub duration: Option<Duration>,
    /// A request not wholly answered after this long has failed.
    pub timeout: Duration,
    /// Requests in flight at a time; further ones are sent late, which their latency includes.
    pub max_in_flight: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Ends the sending early; what is in flight is still awaited and reported.
    pub stop: CancellationToken,
}

impl LoadOptions {
    /// Defaults: scale and speed 1, no end, 120 s a request, 4,096 in flight, seed 1.
    pub fn new(url: impl Into<String>, source: Source) -> Self {
        Self {
            url: url.into(),
            source,
            scale: 1.0,
            speed: 1.0,
            duration: None,
            timeout: Duration::from_secs(120),
            max_in_flight: 4096,
            seed: 1,
            stop: CancellationToken::new(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let positive = |option: &'static str, value: f64, most: f64| {
            // Written so that NaN fails too.
            if value > 0.0 && value <= most {
                Ok(())
            } else {
                Err(LoadError::Number { option, value, most })
            }
        };
        positive("--scale", self.scale, 1e6)?;
        positive("--speed", self.speed, 1e6)?;
        if let Source::Rps(rps) = self.source {
            positive("--rps", rps, 1e6)?;
            positive("--rps × --scale × --speed", rps * self.scale * self.speed, 1e6)?;
        }
        Ok(())
    }
}
