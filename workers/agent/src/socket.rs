//! Sockets in directories of any depth.
//!
//! A socket's path may have 107 bytes only, and data directories may lie deeper. So sockets are reached by way of `/proc`,
//! through a handle of their directory. Rejected: changing the working directory, which all threads share.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// The way to `name` in `dir`; it is open for as long as the handle is.
fn way(dir: &Path, name: &str) -> io::Result<(File, PathBuf)> {
    let handle = File::open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{name}", handle.as_raw_fd()));
    Ok((handle, path))
}

/// Connects to the socket `name` in `dir`.
pub(crate) fn connect(dir: &Path, name: &str) -> io::Result<UnixStream> {
    let (_handle, path) = way(dir, name)?;
    UnixStream::connect(path)
}

/// Listens on the socket `name` in `dir`, in place of one that was left there.
pub(crate) fn listen(dir: &Path, name: &str) -> io::Result<UnixListener> {
    let (_handle, path) = way(dir, name)?;
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}
