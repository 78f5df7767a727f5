//! Connections that changed their protocol (WebSocket): bytes both ways, understood by neither hop.
//!
//! A tunnel holds its slot like a request does, for as long as it lasts. It is read from only as fast as the other side
//! takes, through one small buffer a direction. A drain of its instance leaves it alone: the instance decides how to
//! say goodbye within its grace. When one side has ended, the other may still say its last for [`FAREWELL`].

use std::io;
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::download::Hold;

/// Bytes under way in one direction.
const BUFFER: usize = 8 * 1024;
/// How long one side may go on after the other ended.
const FAREWELL: Duration = Duration::from_secs(10);

/// How a direction ended by fault.
enum Fault {
    Reading(io::Error),
    Writing,
}

/// Passes bytes both ways until both sides have ended, one of them broke, or one stays on alone for too long.
pub(crate) async fn run(client: OnUpgrade, instance: OnUpgrade, hold: Hold) {
    let (client, instance) = match tokio::try_join!(client, instance) {
        Ok(both) => both,
        Err(error) => {
            tracing::debug!(%error, "a connection did not change its protocol");
            return;
        }
    };
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_instance, to_instance) = tokio::io::split(TokioIo::new(instance));
    let up = pass(from_client, to_instance);
    let down = pass(from_instance, to_client);
    tokio::pin!(up, down);
    let broke = tokio::select! {
        sent = &mut up => match sent {
            // The client said all, so however the instance ends, it cuts nothing.
            Ok(()) => {
                let _ = tokio::time::timeout(FAREWELL, down).await;
                None
            }
            Err(Fault::Reading(_)) => None,
            // The instance takes nothing more; what it said last comes by the other way.
            Err(Fault::Writing) => tokio::time::timeout(FAREWELL, down).await.unwrap_or(Ok(())).err(),
        },
        heard = &mut down => match heard {
            Ok(()) => {
                let _ = tokio::time::timeout(FAREWELL, up).await;
                None
            }
            Err(fault) => Some(fault),
        },
    };
    if let Some(Fault::Reading(error)) = broke {
        hold.cut(&error);
    }
}

/// Passes one direction on to its end, and the end as well.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> Result<(), Fault> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = from.read(&mut buffer).await.map_err(Fault::Reading)?;
        if n == 0 {
            let _ = to.shutdown().await;
            return Ok(());
        }
        to.write_all(&buffer[..n]).await.map_err(|_| Fault::Writing)?;
        to.flush().await.map_err(|_| Fault::Writing)?;
    }
}
