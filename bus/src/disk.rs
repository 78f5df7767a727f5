//! How much room a file system has left: the reserve refuses new commands before an append fails for want of space.

use std::path::Path;

use crate::ledger::Finding;

/// Free space a data directory should keep; below it the server refuses new commands. Enough for thousands of full
/// records and the log they pass through.
pub const DISK_RESERVE_BYTES: u64 = 512 << 20;

/// Room on the file system that holds a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Bytes an unprivileged process can still write.
    pub available_bytes: u64,
    /// Size of the file system in bytes.
    pub total_bytes: u64,
}

/// Asks the file system that holds `path` (which must exist).
pub fn space(path: &Path) -> std::io::Result<DiskSpace> {
    let stat = nix::sys::statvfs::statvfs(path)?;
    // The field widths differ between platforms.
    #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
    let (unit, available, total) = (
        stat.fragment_size() as u64,
        stat.blocks_available() as u64,
        stat.blocks() as u64,
    );
    Ok(DiskSpace {
        available_bytes: unit.saturating_mul(available),
        total_bytes: unit.saturating_mul(total),
    })
}

pub(crate) fn finding(path: &Path) -> Finding {
    const CODE: &str = "disk_reserve";
    match space(path) {
        Err(error) => Finding::not_verifiable(
            CODE,
            format!("the free space of {} is not known: {error}", path.display()),
            "check that the data directory exists and can be read",
        ),
        Ok(space) if space.available_bytes < DISK_RESERVE_BYTES => Finding::wrong(
            CODE,
            format!(
                "{} MiB free at {}, under the reserve of {} MiB: new commands are refused",
                space.available_bytes >> 20,
                path.display(),
                DISK_RESERVE_BYTES >> 20
            ),
            "free space on the disk that holds the data directory, or move it to a larger one",
        ),
        Ok(space) => Finding::verified(
            CODE,
            format!("{} MiB free at {}", space.available_bytes >> 20, path.display()),
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_system_has_room_and_a_missing_path_is_an_error() {
        let space = space(Path::new("/")).unwrap();
        assert!(space.available_bytes <= space.total_bytes && space.total_bytes > 0);
        assert!(super::space(Path::new("/no/such/place")).is_err());
    }
}
