//! Where things lie on this machine when nobody says otherwise, after the XDG base directory rules
//! (<https://specifications.freedesktop.org/basedir-spec/latest/>).
//!
//! `up` keeps its ledger in the data directory and, so that the same user's next command needs no token, writes the
//! operator token it made into the state directory under the address it serves. A token is looked up by exactly that
//! address and only for loopback, so it is never sent to some other server.
//!
//! Kept: token files are readable by their owner alone. Rejected: one well-known token file per user, which would offer
//! the token of one `up` to another.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use tidemill_client::{ServerUrl, Token};

/// Where `up` keeps its data, and where `verify` looks for a ledger, unless told.
pub fn default_data_dir() -> PathBuf {
    base("XDG_DATA_HOME", ".local/share").join("tidemill")
}

fn base(variable: &str, below_home: &str) -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match (set(variable), set("HOME")) {
        (Some(dir), _) => PathBuf::from(dir),
        (None, Some(home)) => PathBuf::from(home).join(below_home),
        (None, None) => PathBuf::from("."),
    }
}

fn credential_file(server: &ServerUrl) -> PathBuf {
    let host: String = server
        .host()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' })
        .collect();
    base("XDG_STATE_HOME", ".local/state")
        .join("tidemill/credentials")
        .join(format!("{host}_{}", server.port()))
}

/// Keeps the operator token of the server at this address for this user's next commands.
pub fn remember_token(server: &ServerUrl, secret: &str) -> io::Result<()> {
    let path = credential_file(server);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // Written aside and renamed: a command running now reads the old or the new token, never half of one.
    let aside = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)?;
    writeln!(file, "{secret}")?;
    fs::rename(aside, path)
}

/// The token a local `up` left for this server, if it is on this machine and did.
pub fn remembered_token(server: &ServerUrl) -> Option<Token> {
    let host = server.host();
    let loopback = host == "localhost"
        || host
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback());
    if !loopback {
        return None;
    }
    Token::from_file(&credential_file(server)).ok()
}
