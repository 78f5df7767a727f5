//! `tidemill load`: sends requests to a URL on a schedule and says what came of them.
//!
//! Arrivals are open loop: a request is due when the trace, the rate series or the constant rate says so, whether or not
//! earlier ones were answered, since customers do not wait for each other either. What a slow service or a full client
//! holds back is counted into the latency of the requests held back, and lateness is reported besides.
//!
//! Invariants: same options, same file, same schedule (the randomness has a fixed seed); sent = ok + failed at the end;
//! requests in flight are bounded, and so is what is kept of each. Rejected: a closed loop of N clients, which sends less
//! the slower the service gets and so hides what it is to measure.

mod error;
mod gap;
mod histogram;
mod options;
mod rate;
mod report;
mod run;
mod schedule;
mod table;
mod trace;

pub use error::LoadError;
pub use options::{LoadOptions, Source};
pub use report::{Lateness, LoadReport, Progress, Quantiles};
pub use run::{run, run_with};
