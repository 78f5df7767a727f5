//! Reading an instance's output, on this machine or for a door.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
    time::Duration,
};

use tidemill_client::Connection;
use tidemill_protocol::{
    Problem,
    agent::{AgentMessage, LogPart, LogsWanted},
};
use tokio::task::JoinHandle;

use crate::{InstanceId, launch::Homes, shim::log_files};

/// Most bytes handed out at a time.
pub const MAX_CHUNK: usize = 64 * 1024;

/// Between two looks at a log that is followed: well below what a reader notices.
const FOLLOW_EVERY: Duration = Duration::from_millis(250);

/// Questions answered at a time, over all instances.
const MAX_READERS: usize = 32;

/// A part of an instance's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChunk {
    /// Position of its first byte in the stream of output; later than asked for where that part was rotated away.
    pub offset: u64,
    /// The bytes, at most [`MAX_CHUNK`]. Empty at the end of what there is.
    pub data: Vec<u8>,
}

impl LogChunk {
    /// Where to go on.
    pub fn next(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// Reads output of `instance` from position `after`, or the oldest byte kept, below an agent's data directory.
/// `Ok(None)` if nothing is known of the instance. Blocks.
pub fn read_log(data_dir: &Path, instance: &InstanceId, after: Option<u64>) -> io::Result<Option<LogChunk>> {
    read_from(&Homes::new(data_dir), instance, after.unwrap_or(0))
}

fn read_from(homes: &Homes, instance: &InstanceId, after: u64) -> io::Result<Option<LogChunk>> {
    // A file may be rotated away, or the directory put away, between listing and opening; then all is looked up again.
    for _ in 0..3 {
        let Some(dir) = homes.with_log(instance) else {
            return Ok(None);
        };
        match read_dir(&dir, after) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done.map(Some),
        }
    }
    Ok(None)
}

fn read_dir(dir: &Path, after: u64) -> io::Result<LogChunk> {
    let mut end = 0;
    for (start, path) in log_files(dir)? {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        end = start + length;
        if end <= after {
            continue;
        }
        let offset = after.max(start);
        file.seek(SeekFrom::Start(offset - start))?;
        let mut data = Vec::new();
        file.take(MAX_CHUNK as u64).read_to_end(&mut data)?;
        return Ok(LogChunk { offset, data });
    }
    Ok(LogChunk {
        offset: end,
        data: Vec::new(),
    })
}

/// The questions of one connection.
#[derive(Debug, Default)]
pub(crate) struct LogReaders {
    readers: HashMap<String, JoinHandle<()>>,
}

impl LogReaders {
    /// Begins to answer a question.
    pub(crate) fn begin(&mut self, homes: &Homes, wanted: LogsWanted, connection: Connection<AgentMessage>) {
        self.readers.retain(|_, reader| !reader.is_finished());
        let request = wanted.request.clone();
        let homes = homes.clone();
        let refused = (self.readers.len() >= MAX_READERS).then(|| {
            Problem::new(
                429,
                "too_many_log_readers",
                format!("this node answers {MAX_READERS} questions for logs at a time"),
                "end one and ask again",
            )
        });
        let reader = tokio::spawn(async move {
            let request = wanted.request.clone();
            let problem = match refused {
                Some(problem) => Some(problem),
                None => answer(&homes, wanted, &connection).await,
            };
            let last = LogPart {
                request,
                offset: 0,
                next: 0,
                data: String::new(),
                end: true,
                problem,
            };
            // Nobody to tell if the connection went.
            let _ = connection.send(AgentMessage::Logs(last)).await;
        });
        if let Some(old) = self.readers.insert(request, reader) {
            old.abort();
        }
    }

    /// Nobody reads this answer any more.
    pub(crate) fn end(&mut self, request: &str) {
        if let Some(reader) = self.readers.remove(request) {
            reader.abort();
        }
    }
}

impl Drop for LogReaders {
    fn drop(&mut self) {
        for reader in self.readers.values() {
            reader.abort();
        }
    }
}

/// Sends all there is, and what comes if asked to. Returns why it could not.
async fn answer(homes: &Homes, wanted: LogsWanted, connection: &Connection<AgentMessage>) -> Option<Problem> {
    let Some(instance) = InstanceId::parse(&wanted.instance) else {
        return Some(unknown(&wanted.instance));
    };
    let mut after = wanted.after.unwrap_or(0);
    loop {
        let (homes_here, instance_here) = (homes.clone(), instance.clone());
        let read = tokio::task::spawn_blocking(move || {
            let living = homes_here.of(&instance_here).is_dir();
            read_from(&homes_here, &instance_here, after).map(|chunk| (living, chunk))
        });
        let (living, chunk) = match read.await {
            Ok(Ok((living, Some(chunk)))) => (living, chunk),
            Ok(Ok((_, None))) => return Some(unknown(&wanted.instance)),
            Ok(Err(error)) => {
                return Some(Problem::new(500, "log_unreadable", error.to_string(), ""));
            }
            Err(_) => return None,
        };
        if chunk.data.is_empty() {
            if !(wanted.follow && living) {
                return None;
            }
            after = chunk.offset.max(after);
            tokio::time::sleep(FOLLOW_EVERY).await;
            continue;
        }
        let data = whole_characters(&chunk.data);
        let part = LogPart {
            request: wanted.request.clone(),
            offset: chunk.offset,
            next: chunk.offset + data.len() as u64,
            data: String::from_utf8_lossy(data).into_owned(),
            end: false,
            problem: None,
        };
        after = part.next;
        connection.send(AgentMessage::Logs(part)).await.ok()?;
    }
}

fn unknown(instance: &str) -> Problem {
    Problem::new(
        404,
        "no_log",
        format!("this node keeps no output of {instance}"),
        "output is kept while an instance lives and for the last 64 that ended",
    )
}

/// `data` without a character begun at its end, unless nothing else is left of it.
fn whole_characters(data: &[u8]) -> &[u8] {
    match std::str::from_utf8(data) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => &data[..error.valid_up_to()],
        _ => data,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn output_is_read_by_position_across_files() {
        let dir = tempfile::tempdir().unwrap();
        let homes = Homes::new(dir.path());
        homes.create().unwrap();
        let instance = InstanceId::parse("inst-1").unwrap();
        let read = |after| read_log(dir.path(), &instance, after).unwrap();
        assert_eq!(read(None), None);
        let home = homes.of(&instance);
        std::fs::create_dir(&home).unwrap();
        assert_eq!(read(None).unwrap().data, b"");
        std::fs::write(home.join("log.10"), b"ten--").unwrap();
        std::fs::write(home.join("log.15"), b"fifteen").unwrap();
        let chunk = read(Some(3)).unwrap();
        assert_eq!((chunk.offset, &*chunk.data), (10, &b"ten--"[..]));
        let chunk = read(Some(chunk.next() + 4)).unwrap();
        assert_eq!((chunk.offset, &*chunk.data, chunk.next()), (19, &b"een"[..], 22));
        assert_eq!(
            read(Some(22)).unwrap(),
            LogChunk {
                offset: 22,
                data: Vec::new()
            }
        );
        homes.retire(&instance).unwrap();
        assert_eq!(read(None).unwrap().data, b"ten--", "kept after its end");
    }

    #[test]
    fn characters_are_not_cut() {
        assert_eq!(whole_characters("aé".as_bytes()), "aé".as_bytes());
        assert_eq!(whole_characters(&"aé".as_bytes()[..2]), b"a");
        assert_eq!(whole_characters(b"\xc3"), b"\xc3");
        assert_eq!(whole_characters(b"a\xff"), b"a\xff");
    }
}
