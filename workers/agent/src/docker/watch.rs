//! Whether an engine is there, and the removal of what nobody holds.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Engine;

/// Between two looks: an engine that was restarted is back in use within it, and a look costs one request.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Looks after the engine until `shutdown`, and says whether it answers; nothing before the first look.
pub(crate) fn watch(engine: Engine, shutdown: CancellationToken) -> watch::Receiver<Option<bool>> {
    let (say, said) = watch::channel(None);
    tokio::spawn(async move {
        let mut there = None;
        loop {
            there = Some(look(&engine, there).await);
            say.send_if_modified(|known| std::mem::replace(known, there) != there);
            // After the word: nobody waits for it.
            if there == Some(true)
                && let Err(trouble) = engine.sweep().await
            {
                tracing::warn!(code = "sweep_failed", %trouble, "containers could not be looked through");
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = say.closed() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    });
    said
}

async fn look(engine: &Engine, before: Option<bool>) -> bool {
    match engine.answers().await {
        Ok(()) => {
            if before == Some(false) {
                tracing::info!("a Docker engine answers now");
            }
            true
        }
        Err(trouble) => {
            if before != Some(false) {
                tracing::info!(%trouble, "runtime docker is not offered");
            }
            false
        }
    }
}
