//! An instance's output on disk: a stream of bytes in two files.
//!
//! A file is named after the position of its first byte in the stream (`log.0`, `log.8388608`), so positions stay valid
//! across rotation and a reader needs no index. Output that cannot be written (disk full) is dropped, never waited for:
//! the work goes on.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// Size at which a file is closed and a new one begun. Two of them are kept: 16 MiB an instance at most.
pub(crate) const FILE_BYTES: u64 = 8 * 1024 * 1024;

/// Longest part of a line of stderr kept for reports.
const LINE_BYTES: usize = 400;

/// Appends to an instance's log.
pub(crate) struct LogWriter {
    dir: PathBuf,
    file: Option<File>,
    start: u64,
    length: u64,
    limit: u64,
}

impl LogWriter {
    /// A writer into `dir`, which holds no log yet.
    pub(crate) fn new(dir: &Path, limit: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            file: None,
            start: 0,
            length: 0,
            limit,
        }
    }

    /// A writer that goes on in `dir` at `position`. What lies beyond is cut off.
    pub(crate) fn resume(dir: &Path, limit: u64, position: u64) -> io::Result<Self> {
        let mut writer = Self::new(dir, limit);
        let all = files(dir)?;
        writer.start = position;
        for (start, path) in all.into_iter().rev() {
            if start > position {
                fs::remove_file(path)?;
                continue;
            }
            let length = fs::metadata(&path)?.len().min(position - start);
            File::options().write(true).open(path)?.set_len(length)?;
            // With a gap, as after lost files, a new file begins.
            if start + length == position {
                (writer.start, writer.length) = (start, length);
            }
            break;
        }
        Ok(writer)
    }

    /// Position of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.start + self.length
    }

    /// Appends, as far as the disk takes it.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        // A failed write leaves the stream without these bytes; the next one is tried afresh.
        if self.try_append(bytes).is_err() {
            self.file = None;
        }
    }

    fn try_append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.length >= self.limit {
            let full = self.start;
            self.start += self.length;
            self.length = 0;
            self.file = None;
            for (start, path) in files(&self.dir)? {
                if start < full {
                    fs::remove_file(path)?;
                }
            }
        }
        if self.file.is_none() {
            let path = self.dir.join(format!("log.{}", self.start));
            let file = fs::OpenOptions::new().create(true).append(true).open(path)?;
            self.length = file.metadata()?.len();
            self.file = Some(file);
        }
        if let Some(file) = &mut self.file {
            file.write_all(bytes)?;
            self.length += bytes.len() as u64;
        }
        Ok(())
    }
}

/// The log files in `dir` with the position of their first byte, oldest first.
pub(crate) fn files(dir: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let start = path
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_prefix("log."))
            .and_then(|start| start.parse().ok());
        if let Some(start) = start {
            found.push((start, path));
        }
    }
    found.sort();
    Ok(found)
}

/// Remembers the last line of a stream.
#[derive(Default)]
pub(crate) struct LastLine {
    complete: Vec<u8>,
    partial: Vec<u8>,
}

impl LastLine {
    /// Takes the next bytes of the stream.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.partial.len() < LINE_BYTES {
                    self.partial.push(*byte);
                }
            } else {
                if !self.partial.trim_ascii().is_empty() {
                    self.complete.clone_from(&self.partial);
                }
                self.partial.clear();
            }
        }
    }

    /// The last line that was not blank.
    pub(crate) fn get(&self) -> Option<String> {
        let line = match self.partial.trim_ascii() {
            [] => self.complete.trim_ascii(),
            partial => partial,
        };
        (!line.is_empty()).then(|| String::from_utf8_lossy(line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn two_files_are_kept_and_named_by_position() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = LogWriter::new(dir.path(), 10);
        for _ in 0..7 {
            log.append(b"12345");
        }
        let names: Vec<u64> = files(dir.path()).unwrap().into_iter().map(|(start, _)| start).collect();
        assert_eq!(names, [20, 30]);
    }

    #[test]
    fn the_last_line_that_says_something() {
        let mut last = LastLine::default();
        assert_eq!(last.get(), None);
        last.feed(b"first\nsec");
        assert_eq!(last.get().as_deref(), Some("sec"));
        last.feed(b"ond\n\n  \n");
        assert_eq!(last.get().as_deref(), Some("second"));
        last.feed(&[b'x'; 10_000]);
        assert_eq!(last.get().unwrap().len(), LINE_BYTES);
    }
}
