//! What only a server's monitoring endpoint tells: whether it syncs each write, and how much disk it may use.

use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TIMEOUT: Duration = Duration::from_secs(3);

/// `/varz` is some tens of KiB.
const MAX_ANSWER_BYTES: u64 = 4 << 20;

/// The parts of `/varz` that are used.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Varz {
    pub(super) server_name: String,
    pub(super) jetstream: JetStreamVarz,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct JetStreamVarz {
    pub(super) config: Option<JetStreamConfig>,
    pub(super) stats: JetStreamStats,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct JetStreamConfig {
    pub(super) max_storage: u64,
    pub(super) sync_always: bool,
    /// Nanoseconds.
    pub(super) sync_interval: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct JetStreamStats {
    pub(super) storage: u64,
}

/// Fetches `/varz`. The request is two lines of HTTP/1.0, so that no HTTP client is needed for it.
pub(super) async fn varz(url: &str) -> Result<Varz, String> {
    let address = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    if address.contains("://") || address.contains('/') {
        return Err(format!("{url} is not a plain http://HOST:PORT"));
    }
    let fetch = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /varz HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(TIMEOUT, fetch)
        .await
        .map_err(|_| format!("{url} did not answer in time"))?;
    let answer = answer.map_err(|error| format!("{url}: {error}"))?;
    let body = answer
        .windows(4)
        .position(|end| end == b"\r\n\r\n")
        .map(|end| &answer[end + 4..]);
    match body {
        Some(body) if answer.starts_with(b"HTTP/1.0 200") || answer.starts_with(b"HTTP/1.1 200") => {
            serde_json::from_slice(body).map_err(|error| format!("{url}: {error}"))
        }
        _ => Err(format!("{url} did not answer /varz as a nats-server does")),
    }
}
