//! Errors that NVIDIA's driver writes into the kernel's log: some never reach its library.
//!
//! Only what is written from now on counts: what a card went through before this agent is another's story.

use std::{
    fs::{File, OpenOptions},
    io::{ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Records read at a time: a log that is written faster is read on in the next round.
const MOST: usize = 256;

pub(super) struct KernelLog {
    file: File,
    rest: Vec<u8>,
}

/// An error of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Xid {
    /// `DDDD:BB:DD` of the device, lower case.
    pub(super) pci: String,
    /// NVIDIA's number.
    pub(super) number: u64,
}

impl KernelLog {
    /// Opens it at its end; none where it cannot be read.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(path)
            .ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self { file, rest: Vec::new() })
    }

    /// What was written since the last call.
    pub(super) fn xids(&mut self) -> Vec<Xid> {
        let mut found = Vec::new();
        // `/dev/kmsg` gives one record a read, and EPIPE once if records were overwritten before they were read.
        let mut buffer = [0; 8192];
        for _ in 0..MOST {
            match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => self.rest.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted || error.kind() == ErrorKind::BrokenPipe => {
                    continue;
                }
                Err(_) => break,
            }
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                found.extend(parse(&String::from_utf8_lossy(&line)));
            }
            // No line of the kernel is this long.
            if self.rest.len() > buffer.len() {
                self.rest.clear();
            }
        }
        found
    }
}

/// `NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.`
fn parse(line: &str) -> Option<Xid> {
    let rest = &line[line.find("NVRM: Xid (PCI:")? + "NVRM: Xid (PCI:".len()..];
    let (pci, rest) = rest.split_once("):")?;
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    Some(Xid {
        pci: short(pci),
        number: digits.parse().ok()?,
    })
}

/// A PCI address as the kernel's log has it: four digits of domain, no function.
pub(super) fn short(pci: &str) -> String {
    let pci = pci.trim().to_ascii_lowercase();
    let without_function = pci.split('.').next().unwrap_or(&pci);
    match without_function.split_once(':') {
        Some((domain, rest)) if rest.contains(':') => {
            let domain = domain.trim_start_matches('0');
            format!("{domain:0>4}:{rest}")
        }
        _ => format!("0000:{without_function}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    #[test]
    fn errors_are_read_as_they_are_written() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        writeln!(log, "4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=1, before").unwrap();
        let mut reader = KernelLog::open(log.path()).unwrap();
        assert_eq!(reader.xids(), []);
        write!(log, "4,2,2,-;usb 1-1: new device\n4,3,3,-;NVRM: Xid (PCI:0000:af").unwrap();
        assert_eq!(reader.xids(), []);
        writeln!(log, ":00): 62, 0e4b(2a6c) 00000000 00000000").unwrap();
        let xid = Xid {
            pci: "0000:af:00".into(),
            number: 62,
        };
        assert_eq!(reader.xids(), [xid]);
        assert!(KernelLog::open(Path::new("/nowhere/kmsg")).is_none());
    }

    #[test]
    fn addresses_are_written_in_one_way() {
        for text in ["00000000:3B:00.0", "0000:3b:00.0", "3b:00.0", "0000:3B:00"] {
            assert_eq!(short(text), "0000:3b:00");
        }
    }
}
