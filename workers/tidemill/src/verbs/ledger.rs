//! `export` and `verify`: slices of the ledger as files, and the ledger checked through the log itself.
//!
//! `verify` never asks a server: it opens the log (an embedded ledger, which may be in use; a JetStream; an exported
//! file) and checks chain, density and seals. What it prints as `head` is what `--against` takes later.
//!
//! Kept: a ledger that fails the check is exit 8 with the first bad sequence, never a warning; a missing one is exit 4.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::Value;

use super::lists::SourceArgs;
use crate::cli::GlobalArgs;
use crate::exit::{CliError, Exit};
use crate::offline::{self, Source};
use crate::output::print;
use crate::paths;
use crate::time::parse_instant;

const VERIFY_EXAMPLES: &str = "\
Examples:
  tidemill verify
  tidemill verify --data /var/lib/tidemill
  tidemill verify --nats nats://127.0.0.1:4222 --against 4711:9f2c…
  tidemill verify --file may.tml -o json";

const EXPORT_EXAMPLES: &str = "\
Examples:
  tidemill export --from 2026-05-01T00:00:00Z --to 2026-06-01T00:00:00Z may.tml
  tidemill export --from 1 --to 4711 --tenant acme acme.tml";

/// Arguments of `verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub struct VerifyArgs {
    /// Which ledger; the default data directory if left out.
    #[command(flatten)]
    pub source: SourceArgs,
    /// Check that the ledger holds what was printed once
    #[arg(long, value_name = "SEQ:HASH", value_parser = parse_anchor)]
    pub against: Option<(u64, String)>,
}

/// One end of a slice: a sequence or a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A sequence of the ledger.
    Seq(u64),
    /// A time.
    Time(DateTime<Utc>),
}

/// Arguments of `export`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_EXAMPLES)]
pub struct ExportArgs {
    /// First sequence or time
    #[arg(long, value_name = "SEQ|TIME", value_parser = parse_end)]
    pub from: End,
    /// Last sequence or time
    #[arg(long, value_name = "SEQ|TIME", value_parser = parse_end)]
    pub to: End,
    /// Only this tenant's commits; hashes stand in for the others'
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Which ledger; the default data directory if left out. (`--file` is what `review` reads, not a source here.)
    #[arg(long, value_name = "DIR", conflicts_with = "nats")]
    pub data: Option<PathBuf>,
    /// Read the ledger from this NATS server
    #[arg(long, value_name = "URL")]
    pub nats: Option<String>,
    /// Where it is written
    pub file: PathBuf,
}

fn parse_anchor(text: &str) -> Result<(u64, String), String> {
    let wrong = || format!("`{text}` is not SEQ:HASH, as `verify` prints it under `head`");
    let (seq, hash) = text.split_once(':').ok_or_else(wrong)?;
    let seq = seq.parse().map_err(|_| wrong())?;
    if hash.len() < 8 || hash.len() > 64 || !hash.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    Ok((seq, hash.to_ascii_lowercase()))
}

fn parse_end(text: &str) -> Result<End, String> {
    if let Ok(seq) = text.parse() {
        return Ok(End::Seq(seq));
    }
    parse_instant(text)
        .map(End::Time)
        .map_err(|_| format!("`{text}` is neither a sequence nor a time (RFC 3339, or how long ago)"))
}

/// The ledger meant when none is named: `TIDEMILL_DATA`, `TIDEMILL_NATS`, else where `up` keeps it.
pub fn source_or_default(source: Option<Source>) -> Source {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    source
        .or_else(|| variable("TIDEMILL_DATA").map(|dir| Source::Data(dir.into())))
        .or_else(|| {
            let url = variable("TIDEMILL_NATS")?.into_string().ok()?;
            Some(Source::Nats(url))
        })
        .unwrap_or_else(|| Source::Data(paths::default_data_dir()))
}

/// Runs `verify`.
pub async fn verify(args: VerifyArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let source = source_or_default(args.source.source());
    let report = offline::verify(&source, args.against).await?;
    print(&global.printer().object(&report)?)?;
    if report.get("ok").and_then(Value::as_bool) == Some(true) {
        return Ok(());
    }
    let at = match report.get("first_bad_seq").and_then(Value::as_u64) {
        Some(seq) => format!(", first at sequence {seq}"),
        None => String::new(),
    };
    Err(CliError::new(
        Exit::CheckFailed,
        "ledger_not_ok",
        format!("the ledger does not verify{at}"),
        "stop writing to it, keep a copy, and compare with a backup or another replica",
    ))
}

/// Runs `export`.
pub async fn export(args: ExportArgs, _global: &GlobalArgs) -> Result<(), CliError> {
    let source = source_or_default(args.data.map(Source::Data).or(args.nats.map(Source::Nats)));
    offline::export(&source, args.from, args.to, args.tenant.as_deref(), &args.file).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn anchors_and_ends() {
        assert_eq!(parse_anchor("12:ABCDEF01").unwrap(), (12, "abcdef01".to_owned()));
        for bad in ["12", "x:abcdef01", "12:", "12:xyz", "12:abc"] {
            assert!(parse_anchor(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_end("4711").unwrap(), End::Seq(4711));
        assert!(matches!(parse_end("2026-05-01T00:00:00Z").unwrap(), End::Time(_)));
        assert!(parse_end("soon").is_err());
    }
}
