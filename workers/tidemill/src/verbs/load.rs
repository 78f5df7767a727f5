//! `load`: what clients of a URL would see under a trace, a rate series or a constant rate.
//!
//! This file holds the arguments and the printing; the generator itself is a crate of its own, shared with the tests.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::cli::GlobalArgs;
use crate::exit::CliError;
use crate::time::parse_duration;

const EXAMPLES: &str = "\
Examples:
  tidemill load http://127.0.0.1:7080/hello/ --rps 50 --duration 30s
  tidemill load http://127.0.0.1:7080/hello/ --trace requests.csv.gz --speed 20 --duration 60s
  tidemill load http://127.0.0.1:7080/hello/ --rate rps.csv --scale 0.1 -o json";

/// Arguments of `load`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LoadArgs {
    /// Where requests go
    pub url: String,
    /// A trace with one request a line (CSV, may be gzipped): time, then token counts
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "rps"])]
    pub trace: Option<PathBuf>,
    /// A rate series (CSV `timestamp,value`, may be gzipped)
    #[arg(long, value_name = "FILE", conflicts_with = "rps")]
    pub rate: Option<PathBuf>,
    /// A constant rate, requests a second
    #[arg(long, value_name = "N", required_unless_present_any = ["trace", "rate"])]
    pub rps: Option<f64>,
    /// Multiply the rate
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub scale: f64,
    /// Run the trace's clock this much faster
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub speed: f64,
    /// End after this time
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Option<Duration>,
}

/// Runs `load`.
pub async fn run(args: LoadArgs, _global: &GlobalArgs) -> Result<(), CliError> {
    tracing::debug!(?args, "the generator is not wired");
    Err(CliError::not_yet("`load` is not wired yet", ""))
}
