//! Addresses of control-plane servers and the token shown to them.
//!
//! A server is an origin (`http://HOST:PORT`), optionally below a path prefix, checked once when it is read rather than
//! at each request. A token is held in a type that never prints itself.

use std::{fmt, path::Path, str::FromStr, sync::Arc};

/// Origin of one control-plane server, such as `http://127.0.0.1:7070`; a path is kept as a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerUrl {
    authority: http::uri::Authority,
    host: String,
    prefix: String,
}

/// Why a server address was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerUrlError {
    /// Not a URL with a host.
    #[error("server address `{0}` is not of the form http://HOST:PORT [bad_server_url]")]
    Malformed(String),
    /// A scheme this release does not speak.
    #[error("server address `{0}`: only http:// is spoken so far; put a TLS proxy in front [not_yet]")]
    Scheme(String),
    /// The list held no address at all.
    #[error("no server address given; set TIDEMILL_SERVER or --server [no_server]")]
    Empty,
}

impl ServerUrl {
    /// Host name or address, without brackets around IPv6.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port; 80 where none was given.
    pub fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(80)
    }

    pub(crate) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// The whole URL of `path_and_query` (beginning with `/`) on this server.
    pub fn url(&self, path_and_query: &str) -> String {
        format!("http://{}{}{path_and_query}", self.authority, self.prefix)
    }

    pub(crate) fn websocket_url(&self, path: &str) -> String {
        format!("ws://{}{}{path}", self.authority, self.prefix)
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let malformed = || ServerUrlError::Malformed(text.to_owned());
        let uri: http::Uri = text.parse().map_err(|_| malformed())?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(_) => return Err(ServerUrlError::Scheme(text.to_owned())),
            None => return Err(malformed()),
        }
        let authority = uri.authority().ok_or_else(malformed)?.clone();
        let host = authority.host().trim_matches(|c| c == '[' || c == ']').to_owned();
        if host.is_empty() || uri.query().is_some() {
            return Err(malformed());
        }
        Ok(Self {
            host,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authority,
        })
    }
}

/// Reads a list of servers separated by commas or blanks, as `TIDEMILL_SERVER` holds it.
pub fn parse_servers(list: &str) -> Result<Vec<ServerUrl>, ServerUrlError> {
    let servers = list
        .split(|c: char| c == ',' || c.is_whitespace())
        .filter(|part| !part.is_empty())
        .map(str::parse)
        .collect::<Result<Vec<_>, _>>()?;
    if servers.is_empty() {
        return Err(ServerUrlError::Empty);
    }
    Ok(servers)
}

/// A bearer token. Its `Debug` form shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Arc<str>);

/// Why a token file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It could not be read.
    #[error("token file {path} cannot be read: {source} [token_file_unreadable]")]
    Unreadable {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// It holds no token, or something that cannot be one.
    #[error(
        "token file {path} does not hold a token; write what `tidemill token create` printed into it [token_file_empty]"
    )]
    NoToken {
        /// The file.
        path: String,
    },
}

impl Token {
    /// Takes a token as it was shown; blanks around it are dropped. `None` if it is empty or not printable ASCII.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let printable = text.bytes().all(|b| b.is_ascii_graphic());
        (!text.is_empty() && printable).then(|| Self(text.into()))
    }

    /// Reads a token from the first line of a file.
    pub fn from_file(path: &Path) -> Result<Self, TokenFileError> {
        let name = || path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| TokenFileError::Unreadable { path: name(), source })?;
        text.lines()
            .next()
            .and_then(Self::new)
            .ok_or_else(|| TokenFileError::NoToken { path: name() })
    }

    pub(crate) fn header(&self) -> http::HeaderValue {
        let mut value = http::HeaderValue::from_str(&format!("Bearer {}", self.0))
            .expect("a token is printable ASCII by construction");
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn servers_are_read_and_checked() {
        let servers = parse_servers("http://a:1, http://[::1]:7070/cell/ http://b").unwrap();
        assert_eq!(servers[0].url("/v1/nodes"), "http://a:1/v1/nodes");
        assert_eq!(servers[1].host(), "::1");
        assert_eq!(servers[1].url("/x"), "http://[::1]:7070/cell/x");
        assert_eq!((servers[2].host(), servers[2].port()), ("b", 80));
        assert_eq!(parse_servers(" ,"), Err(ServerUrlError::Empty));
        assert!(matches!(parse_servers("https://a"), Err(ServerUrlError::Scheme(_))));
        for bad in ["a:7070", "http://", "//x", "http://a?x=1"] {
            assert!(parse_servers(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tokens_do_not_print_themselves() {
        let token = Token::new(" tm_secret \n").unwrap();
        assert!(!format!("{token:?}").contains("secret"));
        assert_eq!(token.header(), "Bearer tm_secret");
        assert!(Token::new("  ").is_none());
        assert!(Token::new("a\nb").is_none());
    }
}
