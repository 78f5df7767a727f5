//! A container's output: from the engine's keeping into the instance's directory.
//!
//! The engine keeps each piece with its time. What was taken over, up to which time and position, is noted beside the
//! log, and an agent that was restarted cuts the log there and goes on: nothing is missing and nothing stands twice.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bollard::{container::LogOutput, query_parameters::LogsOptions};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::engine::{Engine, name_of};
use crate::shim::{LastLine, LogWriter, log_file_bytes, wire};

/// The note's file.
const TAKEN: &str = "taken.json";

/// Between two notes, and before an ended stream of a running container is asked for again.
const PAUSE: Duration = Duration::from_secs(1);

/// How far the output was taken over.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Taken {
    /// The engine's time of the last piece, as it writes it; such texts order as their times do.
    time: String,
    /// Pieces of that very time.
    pieces: u32,
    /// Position in the log after it.
    position: u64,
}

/// The log of one instance.
pub(super) struct Log {
    dir: PathBuf,
    writer: LogWriter,
    taken: Taken,
    noted: Instant,
    last_line: LastLine,
}

impl Log {
    /// Opens the log in `dir` where it was left.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let taken: Option<Taken> = wire::read(&dir.join(TAKEN)).unwrap_or_default();
        let writer = LogWriter::resume(dir, log_file_bytes(), taken.as_ref().map_or(0, |taken| taken.position))?;
        Ok(Self {
            dir: dir.to_owned(),
            writer,
            taken: taken.unwrap_or_default(),
            noted: Instant::now(),
            last_line: LastLine::default(),
        })
    }

    /// A line of the agent's own.
    pub(super) fn say(&mut self, text: &str) {
        self.writer.append(format!("tidemill: {text}\n").as_bytes());
        self.note();
    }

    fn note(&mut self) {
        self.taken.position = self.writer.position();
        self.noted = Instant::now();
        // On a full disk the next agent repeats a little.
        let _ = wire::replace(&self.dir.join(TAKEN), &self.taken);
    }

    /// Takes one piece, `TIME BYTES`, unless it was taken before; `seen` counts those of the noted time.
    fn take(&mut self, piece: &[u8], is_stderr: bool, seen: &mut u32) {
        let Some(at) = piece.iter().position(|byte| *byte == b' ') else {
            return;
        };
        let time = String::from_utf8_lossy(&piece[..at]);
        let bytes = &piece[at + 1..];
        match time.as_ref().cmp(self.taken.time.as_str()) {
            std::cmp::Ordering::Less => return,
            std::cmp::Ordering::Equal => {
                *seen += 1;
                if *seen <= self.taken.pieces {
                    return;
                }
                self.taken.pieces += 1;
            }
            std::cmp::Ordering::Greater => {
                self.taken.time = time.into_owned();
                self.taken.pieces = 1;
                *seen = 1;
            }
        }
        self.writer.append(bytes);
        if is_stderr {
            self.last_line.feed(bytes);
        }
        if self.noted.elapsed() >= PAUSE {
            self.note();
        }
    }

    /// Follows the container until it `ended` and all it wrote was taken. Returns the last line of its stderr.
    pub(super) async fn follow(
        mut self,
        engine: Engine,
        instance: String,
        mut ended: watch::Receiver<bool>,
    ) -> Option<String> {
        loop {
            let over = *ended.borrow();
            self.stream(&engine, &instance).await;
            self.note();
            if over {
                return self.last_line.get();
            }
            // A stream ends with its container, or with the engine.
            let _ = tokio::time::timeout(PAUSE, ended.wait_for(|ended| *ended)).await;
        }
    }

    async fn stream(&mut self, engine: &Engine, instance: &str) {
        let Ok(client) = engine.client().await else {
            return;
        };
        let since = chrono::DateTime::parse_from_rfc3339(&self.taken.time)
            .ok()
            .and_then(|time| i32::try_from(time.timestamp()).ok())
            .unwrap_or(0);
        let options = LogsOptions {
            follow: true,
            stdout: true,
            stderr: true,
            timestamps: true,
            since,
            tail: "all".to_owned(),
            ..LogsOptions::default()
        };
        let mut seen = 0;
        let name = name_of(instance);
        let mut pieces = std::pin::pin!(client.logs(&name, Some(options)));
        while let Some(Ok(piece)) = pieces.next().await {
            match piece {
                LogOutput::StdErr { message } => self.take(&message, true, &mut seen),
                LogOutput::StdOut { message } | LogOutput::Console { message } => self.take(&message, false, &mut seen),
                LogOutput::StdIn { .. } => {}
            }
        }
    }
}

/// The log's files, for tests.
#[cfg(test)]
fn text(dir: &Path) -> String {
    crate::shim::log_files(dir)
        .into_iter()
        .flatten()
        .filter_map(|(_, path)| std::fs::read_to_string(path).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn output_goes_on_where_it_was_noted() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::open(dir.path()).unwrap();
        log.say("pulling");
        let pieces: [&[u8]; 4] = [
            b"2026-01-01T00:00:00.000000001Z a\n",
            b"2026-01-01T00:00:00.000000002Z b\n",
            b"2026-01-01T00:00:00.000000002Z c\n",
            b"2026-01-01T00:00:00.000000003Z d\n",
        ];
        let mut seen = 0;
        for piece in &pieces[..2] {
            log.take(piece, false, &mut seen);
        }
        log.note();
        // Taken, and not noted: the agent was killed.
        log.take(pieces[2], true, &mut seen);
        assert_eq!(log.last_line.get().as_deref(), Some("c"));
        drop(log);
        let mut log = Log::open(dir.path()).unwrap();
        let mut seen = 0;
        for piece in &pieces {
            log.take(piece, false, &mut seen);
        }
        assert_eq!(text(dir.path()), "tidemill: pulling\na\nb\nc\nd\n");
    }
}
