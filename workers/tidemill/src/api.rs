//! The CLI's side of the HTTP API: the client crate's errors turned into exit codes, and query strings.
//!
//! Every verb that asks or tells the control plane goes through [`Server`], so that authentication, failover and the
//! meaning of an error are decided once.
//!
//! Kept: each command carries an `Idempotency-Key` made once per invocation, so a retry on another server is the same
//! command; a read after a command of the same invocation asks for at least the sequence it was answered with.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tidemill_client::{Api, Call, ClientError, LineStream, ServerUrl, SseStream, Token, TokenFileError};

use crate::exit::{CliError, Exit};

/// Where the control plane is unless told otherwise.
pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7070";

/// The control plane as this invocation reaches it.
#[derive(Debug, Clone)]
pub struct Server {
    api: Api,
}

impl Server {
    /// A client of `servers` with the given token.
    pub fn new(servers: &[ServerUrl], token: Option<Token>) -> Self {
        Self {
            api: Api::new(servers.to_vec(), token),
        }
    }

    /// The same, with another time in which an answer must begin.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self {
            api: self.api.clone().with_timeout(timeout),
        }
    }

    /// Gets JSON.
    pub async fn get(&self, path: &str, query: &Query) -> Result<Value, CliError> {
        Ok(self.api.get_json(&query.on(path)).await?)
    }

    /// Gets an array of rows.
    pub async fn rows(&self, path: &str, query: &Query) -> Result<Vec<Value>, CliError> {
        Ok(self.api.get_json(&query.on(path)).await?)
    }

    /// Sends a command with a JSON body.
    pub async fn post(&self, path: &str, query: &Query, body: &Value) -> Result<Value, CliError> {
        Ok(self.api.post_json(&query.on(path), body, &command_id()).await?)
    }

    /// Sends a command with a body of another type.
    pub async fn post_text(
        &self,
        path: &str,
        query: &Query,
        content_type: &str,
        body: Bytes,
    ) -> Result<Value, CliError> {
        let id = command_id();
        let answer = self
            .api
            .send(&Call::post(&query.on(path), content_type, body, &id))
            .await?;
        Ok(answer.json()?)
    }

    /// Opens a body that goes on.
    pub async fn stream(&self, path: &str, query: &Query) -> Result<LineStream, CliError> {
        Ok(self.api.get_stream(&query.on(path)).await?)
    }

    /// Opens a stream of server-sent events.
    pub async fn events(&self, path: &str, query: &Query, last: Option<&str>) -> Result<SseStream, CliError> {
        Ok(self.api.get_events(&query.on(path), last).await?)
    }
}

fn command_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// Query parameters, encoded.
#[derive(Debug, Clone, Default)]
pub struct Query(String);

impl Query {
    /// Adds a parameter.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(key);
        self.0.push('=');
        self.0.push_str(&segment(&value.to_string()));
        self
    }

    /// Adds a parameter if there is a value.
    #[must_use]
    pub fn with_some(self, key: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    fn on(&self, path: &str) -> String {
        format!("{path}{}", self.0)
    }
}

/// Percent-encodes everything but RFC 3986's unreserved characters, so that a name can be a path segment or a value.
pub fn segment(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The sequence a command was answered with.
pub fn sequence(answer: &Value) -> Option<u64> {
    answer.get("sequence").and_then(Value::as_u64)
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Problem(problem) => (*problem).into(),
            ClientError::Unreachable { tried, reason } => Self::new(
                Exit::Unreachable,
                "unreachable",
                format!("no control-plane server answers ({tried}): {reason}"),
                "check that one runs (`tidemill up` starts one here) and that --server or TIDEMILL_SERVER names it",
            ),
            ClientError::Protocol { server, reason } => Self::new(
                Exit::Error,
                "protocol",
                format!("{server} gave an answer that cannot be understood: {reason}"),
                "check that it is a tidemill server, not older or newer by more than two releases",
            ),
        }
    }
}

/// A token as it was typed.
pub fn token_of_text(text: &str) -> Result<Token, CliError> {
    Token::new(text).ok_or_else(|| {
        CliError::usage(
            "the given token is empty or not printable ASCII",
            "check --token or TIDEMILL_TOKEN",
        )
    })
}

/// A token from a file.
pub fn token_of_file(path: &Path) -> Result<Token, CliError> {
    Token::from_file(path).map_err(|error| match error {
        TokenFileError::Unreadable { path, source } => CliError::new(
            Exit::Error,
            "token_file_unreadable",
            format!("token file {path} cannot be read: {source}"),
            "check the path and its permissions",
        ),
        TokenFileError::NoToken { path } => CliError::new(
            Exit::Error,
            "token_file_empty",
            format!("token file {path} does not hold a token"),
            "write what `tidemill token create` printed into it",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        let query = Query::default()
            .with("about", "a b&c")
            .with_some("seq", None::<u64>)
            .with("at", "2026-05-01T12:00:00Z");
        assert_eq!(
            query.on("/v1/events"),
            "/v1/events?about=a%20b%26c&at=2026-05-01T12%3A00%3A00Z"
        );
        assert_eq!(Query::default().on("/v1/nodes"), "/v1/nodes");
    }
}
