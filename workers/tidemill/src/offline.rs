//! Reading a ledger without a server: a data directory, a JetStream, or an exported file.
//!
//! The same lists and events as the API's, computed here by the same projections, and the checks of `verify`, which go
//! through the log itself on purpose: a server that lies about its ledger must not be the one to verify it.
//!
//! Kept: a source is only ever read; an embedded ledger may be in use by a running `up` meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::Value;
use tidemill_bus::audit;
use tidemill_bus::checkpoint::{Checkpoint, Standing};
use tidemill_bus::digest::{Anchor, Digest};
use tidemill_bus::embedded::EmbeddedLedger;
use tidemill_bus::export::{self as slice, Export, ExportRequest, verify_file};
use tidemill_bus::identity::CellName;
use tidemill_bus::jetstream::{JetStreamLedger, Nats};
use tidemill_bus::ledger::{Ledger, OpenError};
use tidemill_bus::sequencer::checkpoint_path;
use tidemill_domain::time::Timestamp;
use tidemill_projections::engine::snapshots::{NoSnapshots, Snapshot, SnapshotSource};
use tidemill_projections::filter::{EventFilter, Filter, List as Rows};
use tidemill_projections::query::ReadModels;
use tidemill_projections::travel::{At, TimeTravel, TravelError};

use crate::exit::{CliError, Exit};
use crate::output::lists::List;
use crate::output::note;
use crate::roles::reads::{known_tenant, list_of, values};
use crate::roles::store::{DEFAULT_CELL, ledger_path};
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

fn open_failed(error: &OpenError) -> CliError {
    let exit = match error {
        OpenError::Missing { .. } => Exit::NotFound,
        OpenError::Unavailable { .. } => Exit::Unreachable,
        _ => Exit::Error,
    };
    CliError::new(exit, error.code(), error.to_string(), error.next_step())
}

fn travel_failed(error: &TravelError) -> CliError {
    let exit = match error {
        TravelError::AfterEnd { .. } | TravelError::BeforeBegin { .. } | TravelError::Empty => Exit::NotFound,
        _ => Exit::Error,
    };
    CliError::new(exit, error.code(), error.to_string(), error.next())
}

fn failed(code: &str, reason: &dyn std::fmt::Display, next: &str) -> CliError {
    CliError::new(Exit::Error, code, reason.to_string(), next)
}

/// The state an export opens with, as the one snapshot it has.
struct Opening(Snapshot);

impl SnapshotSource for Opening {
    fn nearest(&self, sequence: u64) -> Option<Snapshot> {
        (self.0.anchor.sequence <= sequence).then(|| self.0.clone())
    }
}

async fn nats_ledger(url: &str) -> Result<JetStreamLedger, CliError> {
    let nats = Nats::connect(url, "tidemill", Vec::new())
        .await
        .map_err(|e| open_failed(&e))?;
    let cell = std::env::var("TIDEMILL_CELL").unwrap_or_else(|_| DEFAULT_CELL.to_owned());
    let cell = CellName::new(&cell).map_err(|e| CliError::usage(e.to_string(), "correct TIDEMILL_CELL"))?;
    JetStreamLedger::open(&nats, &cell).await.map_err(|e| open_failed(&e))
}

/// A source's ledger, and what spares folding it from the beginning.
async fn open(source: &Source) -> Result<(Arc<dyn Ledger>, Arc<dyn SnapshotSource>), CliError> {
    match source {
        Source::Data(dir) => {
            let ledger = EmbeddedLedger::open_read_only(&ledger_path(dir)).map_err(|e| open_failed(&e))?;
            let snapshots: Arc<dyn SnapshotSource> = match ReadModels::open(dir) {
                Ok(models) => Arc::new(models),
                Err(_) => Arc::new(NoSnapshots),
            };
            Ok((Arc::new(ledger), snapshots))
        }
        Source::Nats(url) => Ok((Arc::new(nats_ledger(url).await?), Arc::new(NoSnapshots))),
        Source::Export(path) => {
            let Some(export) = Export::open(path).map_err(|e| open_failed(&e))? else {
                let ledger = EmbeddedLedger::open_read_only(path).map_err(|e| open_failed(&e))?;
                return Ok((Arc::new(ledger), Arc::new(NoSnapshots)));
            };
            let fold = export
                .fold()
                .map_err(|e| failed(e.code(), &e, "run `tidemill verify --file` on it"))?;
            let fold = fold.ok_or_else(|| {
                CliError::new(
                    Exit::Error,
                    "export_not_foldable",
                    "this file holds one tenant's part, or was written by a release with another state",
                    "`tidemill verify --file` checks it; ask for a whole export to list from",
                )
            })?;
            let opening = Snapshot {
                anchor: fold.head(),
                state: fold.state().clone(),
            };
            Ok((Arc::new(export.ledger().clone()), Arc::new(Opening(opening))))
        }
    }
}

fn at(point: Point) -> At {
    match point {
        Point::Latest => At::Latest,
        Point::At(time) => At::Time(Timestamp::from(time)),
        Point::Seq(sequence) => At::Sequence(sequence),
    }
}

async fn travel(source: &Source) -> Result<TimeTravel, CliError> {
    let (ledger, snapshots) = open(source).await?;
    Ok(TimeTravel::new(ledger, vec![snapshots]))
}

/// Refuses a time that lies ahead: an answer as of now would pass for one as of then.
async fn not_ahead(travel: &TimeTravel, point: Point) -> Result<(), CliError> {
    let Point::At(asked) = point else { return Ok(()) };
    if asked <= Utc::now() {
        return Ok(());
    }
    let head = travel.head_time().await.map_err(|e| travel_failed(&e))?;
    if Timestamp::from(asked) <= head {
        return Ok(());
    }
    Err(CliError::new(
        Exit::NotFound,
        "no_such_point",
        format!("{asked} is not there yet: the ledger's last record is of {head}"),
        "choose a time that is over; leave --at out for the present",
    ))
}

/// Rows of a list at a point, of those that pass the filter.
pub async fn rows(source: &Source, list: List, filter: &Filter, point: Point) -> Result<Vec<Value>, CliError> {
    let travel = travel(source).await?;
    not_ahead(&travel, point).await?;
    let moment = travel.moment(at(point)).await.map_err(|e| travel_failed(&e))?;
    if let Some(tenant) = &filter.tenant {
        known_tenant(&moment.state, tenant).map_err(|e| {
            CliError::new(
                Exit::NotFound,
                "not_found",
                e.to_string(),
                "correct the name of the tenant",
            )
        })?;
    }
    let kind = match list {
        List::Nodes => Rows::Nodes,
        List::Devices => Rows::Devices,
        List::Services => Rows::Services,
        List::Instances => Rows::Instances,
        List::Queue => Rows::Queue,
        List::Switches => Rows::Switches,
        List::Pool => return shown(values([moment.lists().pool()])),
        List::Tokens | List::Doctor | List::Changes => {
            return Err(CliError::usage(
                "this list comes from a server only",
                "leave --data, --nats or --file out",
            ));
        }
    };
    let rows = list_of(&moment.lists(), kind, filter).map_err(|e| CliError::usage(e.to_string(), e.next()))?;
    shown(rows)
}

fn shown(rows: Result<Vec<Value>, serde_json::Error>) -> Result<Vec<Value>, CliError> {
    rows.map_err(|e| failed("row_unreadable", &e, "report this with the command you ran"))
}

/// Events after a sequence, up to and including a point, at most `limit`; whole records.
pub async fn events(source: &Source, after: u64, point: Point, limit: usize) -> Result<Vec<Value>, CliError> {
    let filter = EventFilter {
        after,
        limit: Some(limit),
        ..EventFilter::default()
    };
    let travel = travel(source).await?;
    not_ahead(&travel, point).await?;
    let page = travel.events(filter, at(point)).await.map_err(|e| travel_failed(&e))?;
    shown(values(page.rows))
}

/// The report of `verify`, with the fields of the contract; `against` is (sequence, hash in hex).
pub async fn verify(source: &Source, against: Option<(u64, String)>) -> Result<Value, CliError> {
    let against = against.map(|(sequence, hash)| anchor(sequence, &hash)).transpose()?;
    let mut told = std::time::Instant::now();
    let progress = |reached: u64, last: u64| {
        if told.elapsed() >= std::time::Duration::from_secs(2) {
            told = std::time::Instant::now();
            note(&format!("verified {reached} of {last} records"));
        }
    };
    note(&format!("verifying {}", named(source)));
    let there = readable(source)?;
    let checked = async {
        let (report, ledger) = match source {
            Source::Export(path) => {
                let report = verify_file(path, against, progress).await;
                (report.map_err(|e| open_failed(&e))?, None)
            }
            Source::Data(_) | Source::Nats(_) => {
                let (ledger, _) = open(source).await?;
                (audit::verify(&*ledger, against, progress).await, Some(ledger))
            }
        };
        report
            .map(|report| (report, ledger))
            .map_err(|e| CliError::new(Exit::Unreachable, e.code(), e.to_string(), "try again"))
    };
    let (report, ledger) = checked.await.map_err(|error| match source {
        // A file that is there and can be read, and still holds no ledger, is a damaged one.
        Source::Data(_) | Source::Export(_) if there && error.exit != Exit::Usage => CliError {
            exit: Exit::CheckFailed,
            next: "compare with a backup or another copy; nothing of this one can be checked".to_owned(),
            ..error
        },
        _ => error,
    })?;
    let mut report = serde_json::to_value(report).map_err(|e| failed("report_unreadable", &e, "report this"))?;
    report["source"] = Value::String(named(source));
    if let (Source::Data(dir), Some(ledger), Some(true)) = (source, ledger, report["ok"].as_bool()) {
        witness(dir, &*ledger, &mut report).await?;
    }
    Ok(report)
}

/// Asks what the data directory remembers of its ledger: an older copy that was put back is whole in itself.
async fn witness(dir: &Path, ledger: &dyn Ledger, report: &mut Value) -> Result<(), CliError> {
    let path = checkpoint_path(dir);
    let unread =
        |e: &dyn std::fmt::Display| failed("checkpoint_unreadable", e, "move the file aside, then verify again");
    let Some(known) = Checkpoint::load(&path).map_err(|e| unread(&e))? else {
        return Ok(());
    };
    let standing = known.compare(ledger).await.map_err(|e| unread(&e))?;
    let first_bad = match standing {
        Standing::Same | Standing::Behind { .. } => return Ok(()),
        Standing::Vanished { .. } => 1,
        Standing::Shorter { last, .. } => last + 1,
        Standing::Forked { known, .. } => known.sequence,
    };
    report["ok"] = Value::Bool(false);
    report["code"] = standing.code().into();
    report["first_bad_seq"] = first_bad.into();
    report["reason"] = standing.to_string().into();
    Ok(())
}

/// Whether the source's file is there. That the system does not let it be read is an error of its own: it says nothing
/// of what is in it.
fn readable(source: &Source) -> Result<bool, CliError> {
    let path = match source {
        Source::Data(dir) => ledger_path(dir),
        Source::Export(path) => path.clone(),
        Source::Nats(_) => return Ok(true),
    };
    if path.is_dir() {
        return Err(CliError::usage(
            format!("{} is a directory", path.display()),
            "--data reads a data directory, --file an exported file or a ledger file",
        ));
    }
    match std::fs::File::open(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(CliError::new(
            Exit::Error,
            "file_unreadable",
            format!("{} cannot be read: {error}", path.display()),
            "check its owner and mode",
        )),
        // What is missing is told by who opens it.
        file => Ok(file.is_ok()),
    }
}

/// A source in words.
fn named(source: &Source) -> String {
    match source {
        Source::Data(dir) => format!("the ledger in {}", dir.display()),
        Source::Nats(url) => format!("the ledger at {}", url.rsplit('@').next().unwrap_or(url)),
        Source::Export(path) => format!("the file {}", path.display()),
    }
}

fn anchor(sequence: u64, hash: &str) -> Result<Anchor, CliError> {
    let hash: Digest = hash.parse().map_err(|_| {
        CliError::usage(
            format!("`{hash}` is not a whole hash"),
            "give SEQ:HASH with the 64 hex digits that `verify` printed under `head`",
        )
    })?;
    Ok(Anchor { sequence, hash })
}

/// Writes the slice from one end to the other, both included, to a file that must not exist yet.
pub async fn export(source: &Source, from: End, to: End, tenant: Option<&str>, file: &Path) -> Result<(), CliError> {
    let (ledger, _) = open(source).await?;
    let travel = TimeTravel::new(ledger.clone(), Vec::new());
    let request = ExportRequest {
        from: first(&travel, from).await?,
        to: last(&travel, to).await?,
        tenant: tenant
            .map(|name| {
                name.parse()
                    .map_err(|e: tidemill_domain::unit::NameError| CliError::usage(e.to_string(), ""))
            })
            .transpose()?,
    };
    let report = slice::export(&*ledger, None, &request, file, |_, _| {})
        .await
        .map_err(|e| CliError::new(Exit::Error, e.code(), e.to_string(), e.next_step()))?;
    if report.first < request.from {
        note(&format!(
            "the slice begins at record {}, the last seal before {}",
            report.first, request.from
        ));
    }
    note(&format!(
        "{}: from {}, records {} to {}, {} commits, {} left out as hashes",
        file.display(),
        named(source),
        report.first,
        report.head.sequence,
        report.commits,
        report.left_out
    ));
    note(&format!("next: tidemill verify --file {}", file.display()));
    Ok(())
}

/// The first record at or after an end.
async fn first(travel: &TimeTravel, end: End) -> Result<u64, CliError> {
    match end {
        End::Seq(sequence) => Ok(sequence.max(1)),
        End::Time(time) => {
            let before = Timestamp(Timestamp::from(time).0.saturating_sub(1));
            match travel.sequence(At::Time(before)).await {
                Ok(sequence) => Ok(sequence + 1),
                Err(TravelError::BeforeBegin { .. }) => Ok(1),
                Err(error) => Err(travel_failed(&error)),
            }
        }
    }
}

/// The last record at or before an end.
async fn last(travel: &TimeTravel, end: End) -> Result<u64, CliError> {
    match end {
        End::Seq(sequence) => Ok(sequence),
        End::Time(time) => travel
            .sequence(At::Time(Timestamp::from(time)))
            .await
            .map_err(|e| travel_failed(&e)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidemill_bus::identity::{Genesis, LedgerId};

    #[tokio::test]
    async fn a_ledger_that_ends_before_what_was_known_does_not_verify() {
        let dir = tempfile::tempdir().unwrap();
        let genesis = Genesis::new(CellName::new("main").unwrap(), LedgerId::generate());
        drop(EmbeddedLedger::create(&ledger_path(dir.path()), &genesis, None).unwrap());
        let source = Source::Data(dir.path().to_owned());
        assert_eq!(verify(&source, None).await.unwrap()["ok"], true);
        let known = |ledger_id, sequence| Checkpoint {
            ledger_id,
            anchor: Anchor {
                sequence,
                hash: Digest::of(b"x"),
            },
        };
        for (known, code) in [
            (known(genesis.ledger_id, 5), "ledger_shorter"),
            (known(LedgerId::generate(), 5), "ledger_vanished"),
        ] {
            known.save(&checkpoint_path(dir.path())).unwrap();
            let report = verify(&source, None).await.unwrap();
            assert_eq!(
                (&report["ok"], &report["code"]),
                (&false.into(), &code.into()),
                "{report}"
            );
            assert_eq!(report["first_bad_seq"], 1);
        }
    }
}
