//! Output of instances on its way through a connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidemill_domain::id::InstanceId;
use tidemill_protocol::Problem;
use tidemill_protocol::agent::{DoorMessage, LogPart, LogsWanted};
use tokio::sync::mpsc;

use super::socket::Outgoing;

/// Parts that may wait for a reader: with 64 KiB each, 2 MiB.
const PARTS: usize = 32;

/// The questions open on one connection.
#[derive(Default)]
pub(super) struct LogTable {
    next: AtomicU64,
    open: Mutex<HashMap<String, mpsc::Sender<LogPart>>>,
}

impl LogTable {
    fn open(&self) -> MutexGuard<'_, HashMap<String, mpsc::Sender<LogPart>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a part to its reader. False: nobody reads it, or too slowly; the agent is to stop sending.
    pub(super) fn part(&self, part: LogPart) -> bool {
        let mut open = self.open();
        let Some(reader) = open.get(&part.request) else {
            return part.end;
        };
        let (request, end) = (part.request.clone(), part.end);
        let taken = reader.try_send(part).is_ok();
        if !taken || end {
            // A reader whose channel closes before its end asks again from where it is.
            open.remove(&request);
        }
        taken
    }

    /// The connection ends: every reader learns of it.
    pub(super) fn close(&self) {
        self.open().clear();
    }
}

/// What a reader gets next.
pub(crate) enum NextPart {
    /// Output.
    Data(String),
    /// That was all.
    End,
    /// The agent cannot give it.
    Problem(Problem),
    /// The connection is gone.
    Gone,
}

/// An instance's output as it comes.
pub(crate) struct LogStream {
    table: Arc<LogTable>,
    outgoing: Outgoing<DoorMessage>,
    request: String,
    instance: InstanceId,
    /// Where the next part begins.
    position: Option<u64>,
    follow: bool,
    /// The last part was handed out.
    finished: bool,
    parts: mpsc::Receiver<LogPart>,
}

impl LogStream {
    pub(super) fn begin(
        table: Arc<LogTable>,
        outgoing: Outgoing<DoorMessage>,
        instance: InstanceId,
        after: Option<u64>,
        follow: bool,
    ) -> Option<Self> {
        let (request, parts, wanted) = ask(&table, instance, after, follow);
        let stream = Self {
            table,
            outgoing,
            request,
            instance,
            position: after,
            follow,
            finished: false,
            parts,
        };
        // Dropping the stream takes the question back.
        stream.outgoing.try_send(wanted).then_some(stream)
    }

    /// The next piece.
    pub(crate) async fn next(&mut self) -> NextPart {
        loop {
            if self.finished {
                return NextPart::End;
            }
            match self.parts.recv().await {
                Some(part) => {
                    self.position = Some(part.next);
                    self.finished = part.end;
                    return match part.problem {
                        Some(problem) => NextPart::Problem(problem),
                        None => NextPart::Data(part.data),
                    };
                }
                None => {
                    // The channel overran, or the connection is gone: go on from the position reached.
                    let (request, parts, wanted) = ask(&self.table, self.instance, self.position, self.follow);
                    (self.request, self.parts) = (request, parts);
                    if !self.outgoing.send(wanted).await {
                        return NextPart::Gone;
                    }
                }
            }
        }
    }
}

impl Drop for LogStream {
    fn drop(&mut self) {
        if self.table.open().remove(&self.request).is_some() {
            // A full queue is no harm: the agent is told when its next part finds no reader.
            self.outgoing.try_send(DoorMessage::LogsDone {
                request: std::mem::take(&mut self.request),
            });
        }
    }
}

fn ask(
    table: &LogTable,
    instance: InstanceId,
    after: Option<u64>,
    follow: bool,
) -> (String, mpsc::Receiver<LogPart>, DoorMessage) {
    let request = table.next.fetch_add(1, Ordering::Relaxed).to_string();
    let (sender, parts) = mpsc::channel(PARTS);
    table.open().insert(request.clone(), sender);
    let wanted = DoorMessage::LogsWanted(LogsWanted {
        request: request.clone(),
        instance: instance.to_string(),
        after,
        follow,
    });
    (request, parts, wanted)
}
