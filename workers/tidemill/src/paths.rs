//! Where things lie on this machine when nobody says otherwise, after the XDG base directory rules
//! (<https://specifications.freedesktop.org/basedir-spec/latest/>).
//!
//! `up` keeps its ledger in the data directory; a local command that reads a ledger without a server looks there too. No
//! token is kept anywhere: a server on loopback asks its own machine for none, and one that listens elsewhere is given
//! its token by flag or environment.

use std::path::PathBuf;

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
