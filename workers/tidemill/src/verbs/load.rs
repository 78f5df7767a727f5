//! `load`: what clients of a URL would see under a trace, a rate series or a constant rate.
//!
//! This file holds the arguments and the printing; the generator itself is a crate of its own, shared with the tests.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tidemill_load::{LoadError, LoadOptions, LoadReport, Progress, Source};

use super::follow::until_interrupt;

use crate::cli::GlobalArgs;
use crate::exit::{CliError, Exit};
use crate::output::{Format, note, print};
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

/// Runs `load`. Some failed requests are its result and no error, all of them are; an interrupt ends the sending and still reports.
pub async fn run(args: LoadArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let source = match (args.trace, args.rate, args.rps) {
        (Some(file), _, _) => Source::Trace(file),
        (None, Some(file), _) => Source::Rate(file),
        (None, None, rps) => Source::Rps(rps.unwrap_or_default()),
    };
    let mut options = LoadOptions::new(args.url, source);
    options.scale = args.scale;
    options.speed = args.speed;
    options.duration = args.duration;
    let stop = options.stop.clone();
    let terminal = std::io::stderr().is_terminal();
    let mut work = pin!(tidemill_load::run_with(options, |progress| {
        if terminal {
            note(&progress_line(progress));
        }
    }));
    let report = match until_interrupt(work.as_mut()).await {
        Some(report) => report,
        None => {
            note("no more requests are sent; awaiting those in flight");
            stop.cancel();
            work.await
        }
    };
    let report = report.map_err(|error| {
        let exit = match error {
            LoadError::Url { .. } | LoadError::Number { .. } => Exit::Usage,
            _ => Exit::Error,
        };
        CliError::told(exit, &error)
    })?;
    match global.output {
        Format::Table => print(&summary(&report))?,
        _ => print(&global.printer().object(&json!(report))?)?,
    }
    verdict(&report)
}

/// Nothing was measured where no request got through: that is no result that a script may go on with.
fn verdict(report: &LoadReport) -> Result<(), CliError> {
    if report.sent == 0 || report.ok > 0 {
        return Ok(());
    }
    let next = match report.by_status.keys().next() {
        Some(404) => "check the path: `tidemill services` shows where each service is reached",
        Some(_) => "see what waits with `tidemill services`, and why with `tidemill explain SERVICE`",
        None => "check that the address is right and that a gateway listens there",
    };
    Err(CliError::new(
        Exit::CheckFailed,
        "all_failed",
        format!("none of {} requests succeeded: {}", report.sent, kinds(report)),
        next,
    ))
}

/// Failures by kind, statuses spelled out.
fn kinds(report: &LoadReport) -> String {
    let statuses = report.by_status.iter().filter(|(status, _)| **status >= 400);
    let statuses = statuses.map(|(status, count)| format!("{count} × status {status}"));
    let others = report.failures.iter().filter(|(kind, _)| !kind.starts_with("status_"));
    let others = others.map(|(kind, count)| format!("{count} × {kind}"));
    statuses.chain(others).collect::<Vec<_>>().join(", ")
}

fn progress_line(progress: &Progress) -> String {
    let ms = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), |us| format!("{} ms", us / 1_000));
    format!(
        "{:>5} s  {} sent  {} failed  {} in flight  p50 {}  p99 {}",
        progress.elapsed.as_secs(),
        progress.sent,
        progress.failed,
        progress.in_flight,
        ms(progress.p50_us),
        ms(progress.p99_us)
    )
}

/// The figures a person looks for first; the whole report is in JSON.
fn summary(report: &LoadReport) -> String {
    let ms = |ms: Option<u64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
    let mut lines = vec![
        ("sent", format!("{} ({:.1}/s)", report.sent, report.rate_rps)),
        ("ok", report.ok.to_string()),
        ("failed", report.failed.to_string()),
        ("p50", ms(report.p50_ms)),
        ("p90", ms(report.p90_ms)),
        ("p99", ms(report.p99_ms)),
        ("longest gap", ms(Some(report.longest_gap_ms))),
        ("instances", report.instances.len().to_string()),
        ("retried", report.retried.to_string()),
    ];
    if report.failed > 0 {
        let kinds: Vec<String> = report
            .failures
            .iter()
            .map(|(kind, count)| format!("{kind} {count}"))
            .collect();
        lines.push(("failures", kinds.join(", ")));
    }
    if report.lateness.over_10ms > 0 {
        let late = format!("{} requests left over 10 ms late", report.lateness.over_10ms);
        lines.push(("late", late));
    }
    lines
        .into_iter()
        .map(|(name, value)| format!("{name:<12} {value}\n"))
        .collect()
}
