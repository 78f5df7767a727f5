//! `export` and `verify`: slices of the ledger as files, and the ledger checked through the log itself.
//!
//! `verify` never asks a server: it opens the log (an embedded ledger, which may be in use; a JetStream; an exported
//! file) and checks chain, density and seals. What it prints as `head` is what `--against` takes later.
//!
//! Kept: a ledger that fails the check is exit 8 with the first bad sequence, never a warning; a missing one is exit 4.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::Value;
use tidemill_client::ServerUrl;

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
    /// Read the embedded ledger in this directory [default: the user's data directory]
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

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Where a ledger of this machine lies: `TIDEMILL_DATA`, else where `up` keeps it.
pub(super) fn data_dir() -> PathBuf {
    variable("TIDEMILL_DATA").map_or_else(paths::default_data_dir, PathBuf::from)
}

/// The ledger meant: the one named, else `TIDEMILL_DATA`, `TIDEMILL_NATS`, else where `up` keeps it. A server that was
/// named is never asked, so the default directory is taken only where it is that server's own.
fn source_or_default(source: Option<Source>, servers: &[ServerUrl]) -> Result<Source, CliError> {
    let nats = || variable("TIDEMILL_NATS")?.into_string().ok();
    let named = source
        .or_else(|| variable("TIDEMILL_DATA").map(|dir| Source::Data(dir.into())))
        .or_else(|| nats().map(Source::Nats));
    if let Some(source) = named {
        return Ok(source);
    }
    let default = paths::default_data_dir();
    let api = last_api(&default);
    let own = |server| api.as_ref().is_some_and(|api| same_server(api, server));
    if servers.is_empty() || servers.iter().any(own) {
        return Ok(Source::Data(default));
    }
    let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
    Err(CliError::usage(
        format!(
            "this reads the log itself and never asks a server, and where the log of {} lies was not said",
            servers.join(", ")
        ),
        "name the log: --data DIR (the server's data directory, on its machine), --nats URL (the cluster's NATS) or, \
         with verify, --file EXPORT",
    ))
}

/// Where the process that last served from a data directory answered.
pub(super) fn last_api(data: &Path) -> Option<ServerUrl> {
    let text = std::fs::read_to_string(data.join("endpoints.json")).ok()?;
    let endpoints: Value = serde_json::from_str(&text).ok()?;
    endpoints.get("api")?.as_str()?.parse().ok()
}

/// Whether two addresses are one server: equal, or one port of this machine under two of its names.
pub(super) fn same_server(a: &ServerUrl, b: &ServerUrl) -> bool {
    let loopback = |server: &ServerUrl| {
        let host = server.host();
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    };
    a == b || (a.port() == b.port() && loopback(a) && loopback(b))
}

/// Runs `verify`.
pub async fn verify(args: VerifyArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let source = source_or_default(args.source.source(), &global.named_servers)?;
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
pub async fn export(args: ExportArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let source = args.data.map(Source::Data).or(args.nats.map(Source::Nats));
    let source = source_or_default(source, &global.named_servers)?;
    offline::export(&source, args.from, args.to, args.tenant.as_deref(), &args.file).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_named_log_is_taken_and_a_named_server_is_no_log() {
        let server = |text: &str| text.parse::<ServerUrl>().unwrap();
        let named = Source::Nats("nats://n:4222".to_owned());
        let source = source_or_default(Some(named.clone()), &[server("http://elsewhere:7070")]);
        assert_eq!(source.unwrap(), named);
        assert!(same_server(
            &server("http://127.0.0.1:7070"),
            &server("http://localhost:7070/")
        ));
        assert!(!same_server(
            &server("http://127.0.0.1:7070"),
            &server("http://127.0.0.1:7071")
        ));
        assert!(!same_server(&server("http://a:7070"), &server("http://localhost:7070")));
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(last_api(dir.path()), None);
        std::fs::write(dir.path().join("endpoints.json"), r#"{"api":"http://127.0.0.1:9"}"#).unwrap();
        assert_eq!(last_api(dir.path()), Some(server("http://127.0.0.1:9")));
    }

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
