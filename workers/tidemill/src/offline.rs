//! Reading a ledger without a server: a data directory, a JetStream, or an exported file.
//!
//! The same lists and events as the API's, computed here by the same projections, and the checks of `verify`, which go
//! through the log itself on purpose: a server that lies about its ledger must not be the one to verify it.
//!
//! Kept: a source is only ever read; an embedded ledger may be in use by a running `up` meanwhile.

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::exit::CliError;
use crate::output::lists::List;
use crate::verbs::ledger::End;

/// Where a ledger is read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Data directory of an `up` or embedded server.
    Data(PathBuf),
    /// URL of a NATS server.
    Nats(String),
    /// File written by `export`.
    Export(PathBuf),
}

/// The instant a question is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Point {
    /// The end of the ledger.
    #[default]
    Latest,
    /// After the last record recorded at or before this time.
    At(DateTime<Utc>),
    /// After the record of this sequence.
    Seq(u64),
}

/// Rows of a list at a point.
pub async fn rows(source: &Source, list: List, point: Point) -> Result<Vec<Value>, CliError> {
    Err(unwired("lists", &(source, list, point)))
}

/// Events after a sequence, up to and including a point, at most `limit`; whole records.
pub async fn events(source: &Source, after: u64, point: Point, limit: usize) -> Result<Vec<Value>, CliError> {
    Err(unwired("events", &(source, after, point, limit)))
}

/// The report of `verify`, with the fields of the contract; `against` is (sequence, hash in hex).
pub async fn verify(source: &Source, against: Option<(u64, String)>) -> Result<Value, CliError> {
    Err(unwired("verify", &(source, against)))
}

/// Writes the slice from one end to the other, both included, to a file that must not exist yet.
pub async fn export(source: &Source, from: End, to: End, tenant: Option<&str>, file: &Path) -> Result<(), CliError> {
    Err(unwired("export", &(source, from, to, tenant, file)))
}

fn unwired(what: &str, arguments: &dyn std::fmt::Debug) -> CliError {
    tracing::debug!(?arguments, what, "reading a ledger directly is not wired");
    CliError::not_yet(format!("`{what}` without a server is not wired yet"), "")
}
