//! TLS at the front: a certificate chain and its key from PEM files, read again when they change.
//!
//! A file that cannot serve stops the start with a code and a next step. Later it does not stop anything: the last
//! good pair stays in use and the log says why. What counts as a change is the content, not a time stamp, since tools
//! that renew certificates replace files, links or directories, each in its own way.
//!
//! Invariants: certificate and key in use always belong together; a connection keeps what it began with.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_util::sync::CancellationToken;

use crate::error::GatewayError;

/// Pause between looks at the files.
const LOOK: Duration = Duration::from_secs(2);
/// No chain or key comes near this size.
const MAX_FILE: u64 = 1024 * 1024;

/// Where certificate and key lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, then its intermediates, as PEM.
    pub cert: PathBuf,
    /// Its private key, as PEM.
    pub key: PathBuf,
}

/// The pair in use.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    current: RwLock<Arc<ServerConfig>>,
    seen: Mutex<Contents>,
}

#[derive(Clone, PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Contents")
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// When they cannot be read or cannot serve.
    pub(crate) fn load(files: TlsFiles) -> Result<Self, GatewayError> {
        let contents = read(&files)?;
        let config = config(&files, &contents)?;
        Ok(Self {
            files,
            current: RwLock::new(Arc::new(config)),
            seen: Mutex::new(contents),
        })
    }

    /// What new connections use.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Reads the files again if they changed. Whether a new pair is in use.
    ///
    /// # Errors
    ///
    /// When they changed to something that cannot serve; told once per change.
    pub(crate) fn refresh(&self) -> Result<bool, GatewayError> {
        let contents = read(&self.files)?;
        {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if *seen == contents {
                return Ok(false);
            }
            seen.clone_from(&contents);
        }
        let config = Arc::new(config(&self.files, &contents)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(true)
    }

    /// Keeps the pair in use fresh until `shutdown`.
    pub(crate) async fn keep_fresh(self: Arc<Self>, shutdown: CancellationToken) {
        let mut told = false;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let tls = Arc::clone(&self);
            let Ok(refreshed) = tokio::task::spawn_blocking(move || tls.refresh()).await else {
                return;
            };
            match refreshed {
                Ok(true) => tracing::info!(cert = %self.files.cert.display(), "new certificate in use"),
                Ok(false) => told = false,
                // A pair is written one file after the other, so the first look may find halves.
                Err(error) if !told => {
                    tracing::warn!(%error, "the certificate in use stays");
                    told = true;
                }
                Err(_) => {}
            }
        }
    }
}

fn read(files: &TlsFiles) -> Result<Contents, GatewayError> {
    let read = |path: &Path| {
        let failed = |reason: String| GatewayError::Tls {
            path: path.to_owned(),
            reason,
        };
        let length = std::fs::metadata(path)
            .map_err(|error| failed(error.to_string()))?
            .len();
        if length > MAX_FILE {
            return Err(failed(format!("{length} bytes are no PEM file of this kind")));
        }
        std::fs::read(path).map_err(|error| failed(error.to_string()))
    };
    Ok(Contents {
        cert: read(&files.cert)?,
        key: read(&files.key)?,
    })
}

fn config(files: &TlsFiles, contents: &Contents) -> Result<ServerConfig, GatewayError> {
    let bad = |path: &Path, reason: String| GatewayError::Tls {
        path: path.to_owned(),
        reason,
    };
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&contents.cert)
        .collect::<Result<_, _>>()
        .map_err(|error| bad(&files.cert, error.to_string()))?;
    if chain.is_empty() {
        return Err(bad(&files.cert, "there is no certificate in it".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| bad(&files.key, error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => bad(&files.key, "the key is not that of the certificate".to_owned()),
            error => bad(&files.cert, error.to_string()),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
