//! The role `server`: a candidate for the sequencer, with door and read models, on JetStream.

use std::time::Duration;

use super::plane::{self, Plane};
use super::store::{self, JetStreamOptions};
use super::{ServerOptions, until_told_to_end};
use crate::exit::CliError;
use crate::output::note;

/// How long readiness is waited for before the server says that it is still catching up.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs a server until told to end.
pub async fn server(options: ServerOptions) -> Result<(), CliError> {
    let shutdown = until_told_to_end()?;
    super::check_free(options.listen)?;
    let _lock = store::lock_dir(&options.data)?;
    let jetstream = JetStreamOptions {
        urls: options.nats,
        monitors: options.nats_monitor.into_iter().collect(),
        replicas: options.replicas,
        cell: options.cell,
    };
    let store = store::open_jetstream(&options.data, &jetstream, true).await?;
    let name = store::stable_name(&options.data, "server")?;
    let plane = Plane::start(&name, &options.data, &store).await?;
    let door = plane.door(&name, options.listen, &store, Vec::new()).await?;
    let api = super::url_of(door.local_addr());
    let (stop_door, serving) = plane::serve(door);
    super::write_endpoints(&options.data, &api, None)?;
    if plane.ready(PATIENCE).await {
        note(&format!("server {name} at {api}"));
    } else {
        note(&format!(
            "server {name} at {api} is still catching up; see {api}/readyz?verbose"
        ));
    }
    shutdown.cancelled().await;
    stop_door.cancel();
    let _ = serving.await;
    plane.stop().await;
    Ok(())
}
