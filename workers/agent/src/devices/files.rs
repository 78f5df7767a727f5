//! Files of the kernel, as something tests can stand in for.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::draft::Why;

/// Reads small files and lists folders; paths are relative to a root.
pub trait Files: Send {
    /// A file's text.
    ///
    /// # Errors
    /// What the system says; drivers use many codes to say that they have no value.
    fn read(&self, path: &str) -> io::Result<String>;

    /// Names in a folder, sorted.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, path: &str) -> io::Result<Vec<String>>;
}

/// The files below a folder.
#[derive(Debug, Clone)]
pub struct Rooted(PathBuf);

impl Rooted {
    /// Below `root`.
    pub fn new(root: &Path) -> Self {
        Self(root.to_owned())
    }
}

impl Files for Rooted {
    fn read(&self, path: &str) -> io::Result<String> {
        fs::read_to_string(self.0.join(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.0.join(path))? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }
}

/// A file's text, trimmed; else why there is none.
pub(super) fn text(files: &dyn Files, path: &str) -> Result<String, Why> {
    match files.read(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(error) => Err(why(&error)),
    }
}

/// A file's number.
pub(super) fn number(files: &dyn Files, path: &str) -> Result<u64, Why> {
    let text = text(files, path)?;
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(24).collect();
        Why::Owned(format!("not a number: `{shown}`"))
    })
}

fn why(error: &io::Error) -> Why {
    use nix::errno::Errno;
    // ENOTSUPP, which drivers return though it is the kernel's own and no errno of POSIX.
    const ENOTSUPP: i32 = 524;
    match error.raw_os_error() {
        Some(ENOTSUPP) => Why::Borrowed("not_supported"),
        Some(code) => match Errno::from_raw(code) {
            Errno::EOPNOTSUPP | Errno::ENODATA | Errno::EINVAL | Errno::ENOENT => Why::Borrowed("not_supported"),
            Errno::EBUSY | Errno::EAGAIN => Why::Borrowed("busy"),
            Errno::EACCES | Errno::EPERM => Why::Borrowed("no_permission"),
            Errno::ENODEV | Errno::ENXIO => Why::Borrowed("device_gone"),
            other => Why::Owned(other.desc().to_owned()),
        },
        None => Why::Owned(error.kind().to_string()),
    }
}
