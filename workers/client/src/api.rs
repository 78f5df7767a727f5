//! Calls to the HTTP API with failover.
//!
//! A call tries the server that answered last and goes round the list on anything that is not an answer (no connection,
//! reset, no headers in time). That is safe for every call made here: `GET`s by nature, `POST`s by their
//! `Idempotency-Key`. An answer, also a refusal, is final; whether to ask again is the caller's policy.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use serde::{Serialize, de::DeserializeOwned};
use tidemill_protocol::Problem;

use crate::{ClientError, LineStream, ServerUrl, SseStream, Token};

/// Time to establish a connection. A LAN needs milliseconds; a SYN lost once needs one second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Default time until the headers of an answer are there, on each server.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest body taken into memory. Lists of 100,000 instances stay below it.
const MAX_BODY_BYTES: usize = 256 * 1024 * 1024;

/// What a server says that the node in question is not connected to.
const NODE_NOT_CONNECTED: &str = "node_not_connected";

/// A client of the control plane's HTTP API. Cheap to clone; clones share connections.
#[derive(Debug, Clone)]
pub struct Api {
    shared: Arc<Shared>,
    timeout: Duration,
    traceparent: Option<Arc<str>>,
}

#[derive(Debug)]
struct Shared {
    servers: Vec<ServerUrl>,
    preferred: AtomicUsize,
    token: Option<Token>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// One request, for what the shorthands of [`Api`] do not cover.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// Method.
    pub method: Method,
    /// Path and query, beginning with `/`, already percent-encoded.
    pub path: &'a str,
    /// Body and its content type.
    pub body: Option<(&'a str, Bytes)>,
    /// `Idempotency-Key`. Without one a `POST` is tried on one server only.
    pub idempotency_key: Option<&'a str>,
    /// `Accept`.
    pub accept: &'a str,
    /// `Last-Event-ID`, to resume a stream.
    pub last_event_id: Option<&'a str>,
}

impl<'a> Call<'a> {
    /// A `GET` of JSON.
    pub fn get(path: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            body: None,
            idempotency_key: None,
            accept: "application/json",
            last_event_id: None,
        }
    }

    /// A `POST` of `body` that may be repeated under its key.
    pub fn post(path: &'a str, content_type: &'a str, body: Bytes, key: &'a str) -> Self {
        Self {
            method: Method::POST,
            body: Some((content_type, body)),
            idempotency_key: Some(key),
            ..Self::get(path)
        }
    }

    fn repeatable(&self) -> bool {
        self.idempotency_key.is_some() || self.method.is_safe()
    }
}

/// A successful answer read to its end.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Status, below 400.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
    /// The server that answered.
    pub server: String,
}

impl Answer {
    /// The body decoded from JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ClientError> {
        serde_json::from_slice(&self.body).map_err(|error| ClientError::Protocol {
            server: self.server.clone(),
            reason: error.to_string(),
        })
    }
}

impl Api {
    /// A client of `servers` (any of which will do) that shows `token`.
    pub fn new(servers: Vec<ServerUrl>, token: Option<Token>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self {
            shared: Arc::new(Shared {
                servers,
                preferred: AtomicUsize::new(0),
                token,
                client,
            }),
            timeout: ANSWER_TIMEOUT,
            traceparent: None,
        }
    }

    /// The same client with another time until an answer's headers must be there (30 s by default). A call that asks
    /// the server to wait needs at least that wait.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same client within the trace of this W3C `traceparent`.
    #[must_use]
    pub fn with_traceparent(mut self, traceparent: &str) -> Self {
        self.traceparent = Some(traceparent.into());
        self
    }

    /// The servers this client tries.
    pub fn servers(&self) -> &[ServerUrl] {
        &self.shared.servers
    }

    /// Gets `path` and decodes it from JSON.
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(&Call::get(path)).await?.json()
    }

    /// Posts `body` as JSON under an `Idempotency-Key` and decodes the answer.
    pub async fn post_json<B: Serialize + ?Sized, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        key: &str,
    ) -> Result<T, ClientError> {
        let bytes = serde_json::to_vec(body).map_err(|error| ClientError::Protocol {
            server: "the request".to_owned(),
            reason: error.to_string(),
        })?;
        self.send(&Call::post(path, "application/json", bytes.into(), key))
            .await?
            .json()
    }

    /// Opens a stream of lines (NDJSON, or a log followed as text) that lasts until either side ends it.
    pub async fn get_stream(&self, path: &str) -> Result<LineStream, ClientError> {
        self.open(&Call {
            accept: "application/x-ndjson, text/plain;q=0.5",
            ..Call::get(path)
        })
        .await
    }

    /// Opens a stream of server-sent events, from the one after `last_event_id` if given.
    pub async fn get_events(&self, path: &str, last_event_id: Option<&str>) -> Result<SseStream, ClientError> {
        let lines = self
            .open(&Call {
                accept: "text/event-stream",
                last_event_id,
                ..Call::get(path)
            })
            .await?;
        Ok(SseStream::new(lines))
    }

    /// Makes a call and reads the whole answer.
    pub async fn send(&self, call: &Call<'_>) -> Result<Answer, ClientError> {
        let (server, response) = self.exchange(call).await?;
        let (parts, body) = response.into_parts();
        let body = tokio::time::timeout(self.timeout, Limited::new(body, MAX_BODY_BYTES).collect())
            .await
            .map_err(|_| ClientError::Unreachable {
                tried: server.clone(),
                reason: "the answer's body did not arrive in time".to_owned(),
            })?
            .map_err(|error| ClientError::Unreachable {
                tried: server.clone(),
                reason: format!("the answer broke off: {error}"),
            })?
            .to_bytes();
        if parts.status.as_u16() >= 400 {
            return Err(refusal(&server, parts.status, &body));
        }
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body,
            server,
        })
    }

    /// Opens a body that goes on. What only the server that a node is connected to can give is asked of each.
    async fn open(&self, call: &Call<'_>) -> Result<LineStream, ClientError> {
        let mut elsewhere = None;
        for _ in 0..self.shared.servers.len() {
            match self.open_once(call).await {
                Err(ClientError::Problem(problem)) if problem.code == NODE_NOT_CONNECTED => {
                    self.prefer_next();
                    elsewhere = Some(ClientError::Problem(problem));
                }
                // The server that might have known is away: what the others said is the better answer.
                Err(ClientError::Unreachable { .. }) if elsewhere.is_some() => break,
                other => return other,
            }
        }
        Err(elsewhere.unwrap_or_else(|| self.unreachable("no server is configured".to_owned())))
    }

    fn prefer_next(&self) {
        let next = (self.shared.preferred.load(Ordering::Relaxed) + 1) % self.shared.servers.len();
        self.shared.preferred.store(next, Ordering::Relaxed);
    }

    async fn open_once(&self, call: &Call<'_>) -> Result<LineStream, ClientError> {
        let (server, response) = self.exchange(call).await?;
        let status = response.status();
        let body = response.into_body();
        if status.as_u16() >= 400 {
            let bytes = Limited::new(body, MAX_BODY_BYTES)
                .collect()
                .await
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            return Err(refusal(&server, status, &bytes));
        }
        Ok(LineStream::new(server, body))
    }

    async fn exchange(&self, call: &Call<'_>) -> Result<(String, Response<Incoming>), ClientError> {
        let servers = &self.shared.servers;
        let first = self.shared.preferred.load(Ordering::Relaxed);
        let mut reason = "no server is configured".to_owned();
        for turn in 0..servers.len() {
            let index = (first + turn) % servers.len();
            let server = &servers[index];
            let request = self.request(server, call)?;
            match tokio::time::timeout(self.timeout, self.shared.client.request(request)).await {
                Ok(Ok(response)) => {
                    self.shared.preferred.store(index, Ordering::Relaxed);
                    return Ok((server.to_string(), response));
                }
                Ok(Err(error)) => {
                    reason = with_sources(&error);
                    if !call.repeatable() && !error.is_connect() {
                        break;
                    }
                }
                Err(_) => {
                    reason = format!("no answer within {} ms", self.timeout.as_millis());
                    if !call.repeatable() {
                        break;
                    }
                }
            }
        }
        Err(self.unreachable(reason))
    }

    fn unreachable(&self, reason: String) -> ClientError {
        let tried: Vec<String> = self.shared.servers.iter().map(ToString::to_string).collect();
        ClientError::Unreachable {
            tried: tried.join(", "),
            reason,
        }
    }

    fn request(&self, server: &ServerUrl, call: &Call<'_>) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut builder = Request::builder()
            .method(&call.method)
            .uri(server.url(call.path))
            .header(header::ACCEPT, call.accept)
            .header(header::USER_AGENT, concat!("tidemill/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.shared.token {
            builder = builder.header(header::AUTHORIZATION, token.header());
        }
        if let Some(key) = call.idempotency_key {
            builder = builder.header("idempotency-key", key);
        }
        if let Some(traceparent) = &self.traceparent {
            builder = builder.header("traceparent", &**traceparent);
        }
        if let Some(id) = call.last_event_id {
            builder = builder.header("last-event-id", id);
        }
        let body = match &call.body {
            Some((content_type, bytes)) => {
                builder = builder.header(header::CONTENT_TYPE, *content_type);
                Full::new(bytes.clone())
            }
            None => Full::default(),
        };
        builder.body(body).map_err(|error| ClientError::Protocol {
            server: server.to_string(),
            reason: format!("the request cannot be written: {error}"),
        })
    }
}

fn refusal(server: &str, status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<Problem>(body) {
        Ok(mut problem) => {
            problem.status = status.as_u16();
            problem.into()
        }
        Err(_) => ClientError::Protocol {
            server: server.to_owned(),
            reason: format!(
                "status {status} without a problem document: {}",
                String::from_utf8_lossy(&body[..body.len().min(200)])
            ),
        },
    }
}

/// An error with what caused it: hyper's outer errors say little by themselves.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
