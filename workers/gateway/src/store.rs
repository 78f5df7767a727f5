//! The last routes on disk, so that a gateway that starts while no door answers serves all the same.
//!
//! Written beside and renamed over, so that a crash leaves the old file or the new one. Losing the file costs only this
//! ability; whatever is wrong with it is logged and never stops the gateway.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidemill_protocol::gateway::Routes;
use tokio::sync::watch;

/// Routes change in bursts while many instances start; one write takes in all changes of this time.
const WRITE_PAUSE: Duration = Duration::from_millis(200);

/// Where the routes lie within the data directory.
pub(crate) fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("routes.json")
}

/// The routes on disk, if there are any that can be read.
pub(crate) fn load(path: &Path) -> Option<Routes> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "routes on disk cannot be read; waiting for a door");
            return None;
        }
    };
    serde_json::from_slice(&bytes)
        .inspect_err(|error| {
            tracing::warn!(path = %path.display(), %error, "routes on disk are damaged; waiting for a door");
        })
        .ok()
}

/// Replaces the routes on disk.
pub(crate) fn save(path: &Path, routes: &Routes) -> io::Result<()> {
    let beside = path.with_extension("json.new");
    let mut file = File::create(&beside)?;
    file.write_all(&serde_json::to_vec(routes)?)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

/// Writes the latest routes whenever they change, until the sender is gone.
pub(crate) async fn keep(path: PathBuf, mut latest: watch::Receiver<Option<std::sync::Arc<Routes>>>) {
    while latest.changed().await.is_ok() {
        let Some(routes) = latest.borrow_and_update().clone() else {
            continue;
        };
        let target = path.clone();
        let written = tokio::task::spawn_blocking(move || save(&target, &routes)).await;
        match written {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(path = %path.display(), %error, "routes not written to disk; serving goes on");
            }
            // The runtime is shutting down.
            Err(_) => return,
        }
        tokio::time::sleep(WRITE_PAUSE).await;
    }
}
