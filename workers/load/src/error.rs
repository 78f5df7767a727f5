//! Why a load could not run. What happens to its requests is a result ([`crate::LoadReport`]), not an error.

use std::path::PathBuf;

/// Input that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Not a URL requests can go to.
    #[error("{url}: {reason} [bad_url]\n  next: give it as http://HOST:PORT/PATH")]
    Url {
        /// As given.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// HTTPS is not supported yet.
    #[error("{url}: https is not supported yet [not_yet]\n  next: give an http:// URL")]
    NotYet {
        /// As given.
        url: String,
    },
    /// A number outside its range.
    #[error("{option} is {value} [bad_number]\n  next: give a number above 0 and at most {most}")]
    Number {
        /// Name of the option.
        option: &'static str,
        /// As given.
        value: f64,
        /// Largest value allowed.
        most: f64,
    },
    /// The file cannot be opened or read.
    #[error("{}: {source} [file_failed]\n  next: check the path and its permissions", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A row that cannot be understood.
    #[error("{}, line {line}: {what} [bad_row]\n  next: {next}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Line in the (unpacked) file, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
        /// What to do.
        next: &'static str,
    },
    /// A file without a request.
    #[error("{}: no rows after the heading [empty_file]\n  next: {next}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What to do.
        next: &'static str,
    },
}

impl LoadError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Url { .. } => "bad_url",
            Self::NotYet { .. } => "not_yet",
            Self::Number { .. } => "bad_number",
            Self::File { .. } => "file_failed",
            Self::Row { .. } => "bad_row",
            Self::Empty { .. } => "empty_file",
        }
    }
}
