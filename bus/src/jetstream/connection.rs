//! The connection to NATS and raw requests to the JetStream API.

use std::time::Duration;

use async_nats::client::Request;
use async_nats::connection::State;
use async_nats::{Client, ConnectOptions, Event, RequestErrorKind};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::ledger::OpenError;

/// Oldest server whose streams keep every setting the ledger depends on.
pub const MIN_SERVER_VERSION: &str = "2.12";
const MIN_SERVER: (u64, u64) = (2, 12);

/// How long an answer may take before its outcome counts as unknown.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a dead connection goes unnoticed: two unanswered pings.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// A connection to NATS, shared by all that use it. It reconnects by itself for ever, with back-off.
#[derive(Clone)]
pub struct Nats {
    client: Client,
    monitors: Vec<String>,
}

impl Nats {
    /// Connects. `urls` is one server or a comma-separated list (`nats://user:pass@host:4222`); `name` is what the
    /// server's operator sees; `monitors` are the servers' monitoring URLs (`http://host:8222`), which let
    /// [`crate::ledger::Ledger::describe`] see settings that a client cannot.
    pub async fn connect(urls: &str, name: &str, monitors: Vec<String>) -> Result<Self, OpenError> {
        let unavailable = |reason: String| OpenError::Unavailable {
            place: without_password(urls),
            reason,
        };
        let servers = urls.split(',').map(str::trim).filter(|url| !url.is_empty());
        let servers = servers
            .map(str::parse::<async_nats::ServerAddr>)
            .collect::<Result<Vec<_>, _>>();
        let servers = servers.map_err(|error| unavailable(format!("not a NATS URL: {error}")))?;
        let options = ConnectOptions::new()
            .name(name)
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(PING_INTERVAL)
            .request_timeout(Some(ANSWER_TIMEOUT))
            .reconnect_delay_callback(|attempts| {
                Duration::from_millis(50 << attempts.min(5)).min(Duration::from_secs(2))
            })
            .event_callback(log_event);
        let client = options
            .connect(servers)
            .await
            .map_err(|error| unavailable(error.to_string()))?;
        Ok(Self { client, monitors })
    }

    /// The client, for requests of other modules.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn monitors(&self) -> &[String] {
        &self.monitors
    }

    /// True while a server is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Version the connected server announced.
    #[must_use]
    pub fn server_version(&self) -> String {
        self.client.server_info().version
    }

    /// Whether that version is new enough.
    pub(crate) fn version_is_enough(&self) -> bool {
        let version = self.server_version();
        let mut parts = version.split(['.', '-']).map_while(|part| part.parse::<u64>().ok());
        matches!((parts.next(), parts.next()), (Some(major), Some(minor)) if (major, minor) >= MIN_SERVER)
    }

    pub(crate) fn require_version(&self) -> Result<(), OpenError> {
        if self.version_is_enough() {
            return Ok(());
        }
        Err(OpenError::ServerTooOld {
            found: self.server_version(),
            needed: MIN_SERVER_VERSION,
        })
    }

    pub(crate) fn context(&self) -> async_nats::jetstream::Context {
        async_nats::jetstream::new(self.client.clone())
    }

    /// One request to the JetStream API, such as `STREAM.INFO.NAME`.
    pub(crate) async fn api<T: DeserializeOwned>(&self, operation: &str, payload: Bytes) -> Result<T, ApiError> {
        self.answer(format!("$JS.API.{operation}"), Request::new().payload(payload))
            .await
    }

    /// Sends a request and reads JetStream's answer, an error or a `T`.
    pub(crate) async fn answer<T: DeserializeOwned>(&self, subject: String, request: Request) -> Result<T, ApiError> {
        let answer = self
            .client
            .send_request(subject, request)
            .await
            .map_err(|error| match error.kind() {
                RequestErrorKind::TimedOut => ApiError::NoAnswer("no answer in time".to_owned()),
                RequestErrorKind::NoResponders => ApiError::NoResponders,
                RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                    ApiError::NotSent(error.to_string())
                }
                RequestErrorKind::Other => ApiError::NoAnswer(error.to_string()),
            })?;
        match serde_json::from_slice(&answer.payload) {
            Ok(Answer::Error { error }) => Err(ApiError::JetStream(error)),
            Ok(Answer::Value(value)) => Ok(value),
            Err(error) => Err(ApiError::NoAnswer(format!("an answer that does not parse: {error}"))),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Answer<T> {
    Error { error: JetStreamError },
    Value(T),
}

/// JetStream's own refusal.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct JetStreamError {
    /// HTTP-like class.
    pub(crate) code: u16,
    /// What it is, exactly.
    #[serde(default)]
    pub(crate) err_code: u64,
    #[serde(default)]
    pub(crate) description: String,
}

/// A request that got no value.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{} (error {})", .0.description, .0.err_code)]
    JetStream(JetStreamError),
    /// The request reached nobody.
    #[error("JetStream is not available")]
    NoResponders,
    /// The request was not sent.
    #[error("{0}")]
    NotSent(String),
    /// It may have been carried out.
    #[error("{0}")]
    NoAnswer(String),
}

impl ApiError {
    /// True if the stream certainly does not exist.
    pub(crate) fn is_stream_missing(&self) -> bool {
        use async_nats::jetstream::ErrorCode;
        matches!(self, Self::JetStream(error) if error.err_code == ErrorCode::STREAM_NOT_FOUND.0)
    }

    /// True if the same request may be answered a little later: nobody answered, or JetStream is still electing.
    pub(crate) fn is_passing(&self) -> bool {
        use async_nats::jetstream::ErrorCode;
        match self {
            Self::JetStream(error) => ErrorCode(error.err_code) == ErrorCode::CLUSTER_NOT_AVAILABLE,
            Self::NoAnswer(_) => true,
            // A server without JetStream says no more than this.
            Self::NoResponders | Self::NotSent(_) => false,
        }
    }

    /// True if the server has less room than the stream would set aside.
    pub(crate) fn is_too_large_a_limit(&self) -> bool {
        use async_nats::jetstream::ErrorCode;
        // In a cluster the same shortage reads "no suitable peers for placement".
        let codes = [
            ErrorCode::STORAGE_RESOURCES_EXCEEDED,
            ErrorCode::INSUFFICIENT_RESOURCES,
            ErrorCode::CLUSTER_NO_PEERS,
        ];
        matches!(self, Self::JetStream(error) if codes.contains(&ErrorCode(error.err_code)))
    }
}

/// One line a change of state; what the client notes in between is for debugging.
async fn log_event(event: Event) {
    match event {
        Event::Connected => tracing::info!(code = "nats_connected", "connected to NATS"),
        Event::Disconnected => tracing::warn!(code = "nats_disconnected", "connection to NATS lost; reconnecting"),
        Event::LameDuckMode => tracing::info!(code = "nats_lame_duck", "the NATS server is about to shut down"),
        Event::SlowConsumer(_) => tracing::warn!(
            code = "nats_slow_consumer",
            "messages from NATS were dropped; re-reading"
        ),
        other => tracing::debug!(event = %other, "NATS client"),
    }
}

/// The URLs as they may be shown: user names and passwords left out.
fn without_password(urls: &str) -> String {
    let shown = urls.split(',').map(|url| match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}://{}", &url[..scheme], &url[at + 1..])
        }
        (None, Some(at)) => url[at + 1..].to_owned(),
        _ => url.to_owned(),
    });
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::without_password;

    #[test]
    fn credentials_never_reach_an_error_message() {
        assert_eq!(
            without_password("nats://u:p@a:1,nats://b:2,t@c:3"),
            "nats://a:1,nats://b:2,c:3"
        );
    }
}
