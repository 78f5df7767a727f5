//! Opening what a process reads and writes: ledger, observations, and the way commands travel.
//!
//! The embedded form is two SQLite files in the data directory, the clustered one two streams in JetStream; from here
//! up nobody can tell which it is. A ledger comes into being only here, and only where there is no sign that there ever
//! was one: a data directory that holds a checkpoint but no ledger is an alarm, not an empty start.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidemill_bus::checkpoint::Checkpoint;
use tidemill_bus::embedded::EmbeddedLedger;
use tidemill_bus::identity::{CellName, Genesis, LedgerId};
use tidemill_bus::jetstream::{JetStreamLedger, Nats, StreamLimits};
use tidemill_bus::ledger::{Ledger, OpenError};
use tidemill_bus::observations::{EmbeddedObservations, JetStreamObservations, ObservationLimits, Observations};
use tidemill_bus::remote::NatsTransport;
use tidemill_bus::sequencer::{checkpoint_path, snapshots_path};
use tidemill_projections::engine::ProjectorConfig;

use crate::exit::{CliError, Exit};

/// The cell's name where nobody gives one.
pub const DEFAULT_CELL: &str = "main";

/// File of the embedded ledger in a data directory.
pub fn ledger_path(data: &Path) -> PathBuf {
    data.join("ledger.sqlite")
}

/// What a process works with.
#[derive(Clone)]
pub struct Store {
    /// The log.
    pub ledger: Arc<dyn Ledger>,
    /// Beats and samples.
    pub observations: Arc<dyn Observations>,
    /// How commands reach a leader in another process; none where there is only this one.
    pub transport: Option<NatsTransport>,
}

/// Where JetStream is and how its streams are made.
#[derive(Debug, Clone)]
pub struct JetStreamOptions {
    /// Servers, comma-separated.
    pub urls: String,
    /// Their monitoring addresses.
    pub monitors: Vec<String>,
    /// Copies kept of each stream, where they are made anew.
    pub replicas: usize,
    /// The cell.
    pub cell: String,
}

fn refused(error: &OpenError) -> CliError {
    let exit = match error {
        OpenError::Missing { .. } | OpenError::Exists { .. } | OpenError::OtherCell { .. } => Exit::Refused,
        OpenError::Unavailable { .. } => Exit::Unreachable,
        OpenError::DataInUse { .. } => Exit::Conflict,
        OpenError::Unreadable { .. } | OpenError::ServerTooOld { .. } => Exit::Error,
    };
    CliError::new(exit, error.code(), error.to_string(), error.next_step())
}

fn cell_name(cell: &str) -> Result<CellName, CliError> {
    CellName::new(cell).map_err(|error| CliError::usage(error.to_string(), "give the cell another name"))
}

/// Makes a role's data directory.
pub fn make_dir(data: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(data).map_err(|error| unusable(data, &error))
}

/// A data directory, or a file of one, that the system refuses.
pub fn unusable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(
        Exit::Error,
        "data_dir_unusable",
        format!("{} in the data directory cannot be used: {error}", path.display()),
        "check its owner, its mode and the disk, or give another with --data",
    )
}

/// Holds a role's data directory for this process: two processes under one name would hold one worker's term or one
/// server's checkpoint twice. The lock ends with the process, however it ends.
pub fn lock_dir(data: &Path) -> Result<File, CliError> {
    make_dir(data)?;
    let path = data.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|error| unusable(&path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(CliError::new(
            Exit::Conflict,
            "data_in_use",
            format!("{} is in use by another process", data.display()),
            "stop the other process, or use another --data directory",
        )),
        Err(TryLockError::Error(error)) => Err(unusable(&path, &error)),
    }
}

/// What this directory last knew of its ledger. A file that cannot be read stops the start: it may be the only witness
/// against a ledger that went backwards.
fn known(data: &Path) -> Result<Option<Checkpoint>, CliError> {
    let checkpoint = Checkpoint::load(&checkpoint_path(data)).map_err(|error| {
        CliError::new(
            Exit::Refused,
            error.code(),
            error.to_string(),
            "restore the file; if `tidemill verify` says that the ledger is whole, move it away to go on without",
        )
    })?;
    Ok(checkpoint.filter(|checkpoint| checkpoint.anchor.sequence > 0))
}

/// That nothing in this directory speaks of a ledger that should be here.
fn check_never_existed(data: &Path, known: Option<&Checkpoint>, place: &str) -> Result<(), CliError> {
    let sign = match known {
        Some(checkpoint) => format!("has seen one up to sequence {}", checkpoint.anchor.sequence),
        None if has_snapshots(data) => "holds snapshots of one".to_owned(),
        None if read_models_path(data).exists() => "holds read models of one".to_owned(),
        None if observations_path(data).exists() => "holds observations of one".to_owned(),
        None => return Ok(()),
    };
    Err(CliError::new(
        Exit::Refused,
        "ledger_missing",
        format!("{place} holds no ledger, but this data directory {sign}"),
        "restore the ledger from a backup; to begin anew, give an empty data directory with --data",
    ))
}

fn has_snapshots(data: &Path) -> bool {
    std::fs::read_dir(snapshots_path(data)).is_ok_and(|mut files| files.next().is_some())
}

fn observations_path(data: &Path) -> PathBuf {
    data.join("observations.sqlite")
}

fn read_models_path(data: &Path) -> PathBuf {
    ProjectorConfig::in_dir(data).path
}

/// Opens the embedded ledger and observations in `data`, making them where there never were any.
pub fn open_embedded(data: &Path) -> Result<Store, CliError> {
    make_dir(data)?;
    let known = known(data)?;
    let path = ledger_path(data);
    let opened = match EmbeddedLedger::open(&path, None) {
        Err(OpenError::Missing { place }) => {
            check_never_existed(data, known.as_ref(), &place)?;
            let genesis = Genesis::new(cell_name(DEFAULT_CELL)?, LedgerId::generate());
            EmbeddedLedger::create(&path, &genesis, None)
        }
        opened => opened,
    };
    let ledger = opened.map_err(|error| refused(&error))?;
    let observations = EmbeddedObservations::open(&observations_path(data), ObservationLimits::default())
        .map_err(|error| refused(&error))?;
    Ok(Store {
        ledger: Arc::new(ledger),
        observations: Arc::new(observations),
        transport: None,
    })
}

/// Opens the cell's streams. With `create`, makes them where neither JetStream nor `data` knows of any.
pub async fn open_jetstream(data: &Path, options: &JetStreamOptions, create: bool) -> Result<Store, CliError> {
    make_dir(data)?;
    let known = known(data)?;
    let cell = cell_name(&options.cell)?;
    let nats = Nats::connect(&options.urls, "tidemill", options.monitors.clone())
        .await
        .map_err(|error| refused(&error))?;
    let limits = StreamLimits {
        replicas: options.replicas,
        ..StreamLimits::default()
    };
    let opened = match JetStreamLedger::open(&nats, &cell).await {
        Err(OpenError::Missing { place }) if create => {
            check_never_existed(data, known.as_ref(), &place)?;
            let genesis = Genesis::new(cell.clone(), LedgerId::generate());
            match JetStreamLedger::create(&nats, &genesis, &limits).await {
                // Another server was quicker: its ledger is the cell's.
                Err(OpenError::Exists { .. }) => JetStreamLedger::open(&nats, &cell).await,
                created => created,
            }
        }
        opened => opened,
    };
    let ledger = opened.map_err(|error| refused(&error))?;
    let observations = JetStreamObservations::open(&nats, ledger.genesis(), &limits)
        .await
        .map_err(|error| refused(&error))?;
    Ok(Store {
        ledger: Arc::new(ledger),
        observations: Arc::new(observations),
        transport: Some(NatsTransport::new(&nats, &cell)),
    })
}

/// A process's name among those of the cell, recorded with each epoch and term it holds: made up at the first start on
/// a data directory and kept there, so that a restart is the same holder coming back.
pub fn stable_name(data: &Path, role: &str) -> Result<String, CliError> {
    let path = data.join("name");
    if let Ok(name) = std::fs::read_to_string(&path)
        && !name.trim().is_empty()
    {
        return Ok(name.trim().to_owned());
    }
    let random = LedgerId::generate().to_string();
    let name = format!("{role}-{}", &random[random.len() - 6..]);
    let kept = std::fs::write(&path, format!("{name}\n"));
    kept.map(|()| name).map_err(|error| unusable(&path, &error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn where_anything_speaks_of_a_ledger_none_is_made_anew() {
        for sign in [
            "checkpoint.json",
            "snapshots",
            "read-models.sqlite",
            "observations.sqlite",
        ] {
            let dir = tempfile::tempdir().unwrap();
            let data = dir.path();
            match sign {
                "checkpoint.json" => {
                    let ledger_id = LedgerId::generate();
                    let genesis = Genesis::new(cell_name(DEFAULT_CELL).unwrap(), ledger_id);
                    let mut anchor = genesis.anchor();
                    anchor.sequence = 7;
                    Checkpoint { ledger_id, anchor }.save(&checkpoint_path(data)).unwrap();
                }
                "snapshots" => {
                    std::fs::create_dir(data.join(sign)).unwrap();
                    std::fs::write(data.join(sign).join("00000000000000000007.snapshot"), "x").unwrap();
                }
                _ => std::fs::write(data.join(sign), "x").unwrap(),
            }
            let error = open_embedded(data).err().unwrap();
            assert_eq!((error.code.as_str(), error.exit as u8), ("ledger_missing", 9), "{sign}");
            assert!(!ledger_path(data).exists(), "{sign}");
        }
        // A start that was interrupted before there was a ledger left only its lock.
        let dir = tempfile::tempdir().unwrap();
        drop(lock_dir(dir.path()).unwrap());
        std::fs::create_dir(dir.path().join("snapshots")).unwrap();
        open_embedded(dir.path()).unwrap();
    }

    #[tokio::test]
    async fn a_checkpoint_that_cannot_be_read_stops_the_start() {
        for garbage in ["", "{", "not json", "{\"ledger_id\":1}"] {
            let dir = tempfile::tempdir().unwrap();
            drop(open_embedded(dir.path()).unwrap());
            std::fs::write(checkpoint_path(dir.path()), garbage).unwrap();
            let error = open_embedded(dir.path()).err().unwrap();
            assert_eq!(
                (error.code.as_str(), error.exit as u8),
                ("checkpoint_damaged", 9),
                "{garbage:?}"
            );
            assert!(!error.next.is_empty(), "{garbage:?}");
            let kept = std::fs::read_to_string(checkpoint_path(dir.path())).unwrap();
            assert_eq!(kept, garbage, "it is left as it was");
        }
    }
}
