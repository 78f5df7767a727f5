//! Errors of starting a gateway. Errors of requests are answers ([`crate::refusal`]), not values of this type.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The listen address cannot be bound.
    #[error(
        "cannot listen on {address}: {source} [listen_failed]\n  next: free the port, or give another address (port 0 picks a free one)"
    )]
    Listen {
        /// Address asked for.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The data directory cannot be made.
    #[error(
        "cannot create {path}: {source} [data_dir_failed]\n  next: give a directory this user may write to with --data"
    )]
    DataDir {
        /// Directory asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error(
        "cannot serve TLS with {path}: {reason} [tls_file_bad]\n  next: give a PEM certificate chain with --tls-cert and its PEM private key with --tls-key"
    )]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl GatewayError {
    /// Stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Listen { .. } => "listen_failed",
            Self::DataDir { .. } => "data_dir_failed",
            Self::Tls { .. } => "tls_file_bad",
        }
    }
}
