//! What agent and shim tell each other: files in the instance's directory, and JSON lines over a socket.
//!
//! The shim reads [`Spec`] once and replaces [`State`] at each change. Over the socket (its standard input at first,
//! `shim.sock` for an agent that was restarted) it reports [`Event`]s and takes [`Ask`]s. A new connection is told the
//! events so far, so an agent that was away loses none.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tidemill_protocol::agent::DesiredDevice;

/// Held exclusively by a living shim.
pub(crate) const LOCK: &str = "lock";
/// [`Spec`] as JSON.
pub(crate) const SPEC: &str = "spec.json";
/// [`State`] as JSON.
pub(crate) const STATE: &str = "state.json";
/// Where a living shim takes connections.
pub(crate) const SOCKET: &str = "shim.sock";
/// Appears when the instance is to leave.
pub(crate) const NOTICE: &str = "notice.json";
/// Working directory of the command.
pub(crate) const WORK: &str = "work";

/// What to run. Written by the agent before the shim starts; holds the instance's whole environment, so mode 0600.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// `inst-…`
    pub(crate) instance: String,
    /// `TENANT/NAME`
    pub(crate) workload: String,
    /// Program and arguments, after substitution.
    pub(crate) command: Vec<String>,
    /// The whole environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Milliseconds between SIGTERM and SIGKILL where a stop does not say.
    pub(crate) grace_ms: u64,
    /// Soft limit of open files the agent itself was started with; its own is raised.
    pub(crate) nofile: Option<u64>,
    /// The port handed to the command.
    pub(crate) port: u16,
    /// Kernel boot id when it was started.
    pub(crate) boot_id: String,
    /// `CLOCK_BOOTTIME` when this was written, milliseconds.
    pub(crate) created_ms: u64,
    /// What it holds.
    pub(crate) devices: Vec<DesiredDevice>,
    /// HTTP path of its readiness check.
    pub(crate) ready_http: Option<String>,
    /// Milliseconds it may take to become ready.
    pub(crate) ready_timeout_ms: u64,
    /// What else a container needs; none for a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) container: Option<Container>,
}

/// What a container is made of beside its command and environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Container {
    /// Image.
    pub(crate) image: String,
    /// `node-…`, for its label.
    pub(crate) node: String,
    /// UUIDs of the NVIDIA cards it is given.
    pub(crate) gpus: Vec<String>,
    /// Processor time, thousandths of one CPU.
    pub(crate) cpu_milli: Option<u32>,
    /// Memory, bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Processes and threads.
    pub(crate) processes: Option<u32>,
    /// Address of the node on which its port is published.
    pub(crate) publish: String,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Kernel boot id of this life.
    pub(crate) boot_id: String,
    /// The shim.
    pub(crate) shim: Identity,
    /// The command's main process, once it ran.
    pub(crate) main: Option<Identity>,
    /// Events so far, oldest first; at most three.
    pub(crate) events: Vec<Event>,
}

/// A process that cannot be confused with a later one of the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// Process id.
    pub(crate) pid: i32,
    /// Field 22 of `/proc/PID/stat`: ticks from boot to its start.
    pub(crate) start: u64,
}

/// What a shim reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// The command runs.
    Started {
        /// Its process.
        pid: i32,
        /// Milliseconds from the shim's start to the running command.
        start_ms: u64,
        /// Milliseconds spent on fetching before that.
        #[serde(default)]
        fetch_ms: u64,
    },
    /// It could not be started. Last event.
    Failed {
        /// Stable code.
        code: String,
        /// One sentence.
        reason: String,
    },
    /// Its main process ended; what it left behind is being ended.
    Exited(Exit),
    /// Nothing is left. Last event.
    Gone {
        /// How the main process ended.
        exit: Exit,
        /// Whether SIGKILL was needed.
        killed: bool,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
    /// Exit code, unless by a signal.
    pub(crate) code: Option<i32>,
    /// Signal number, if by one.
    pub(crate) signal: Option<i32>,
    /// Last line it wrote to stderr.
    pub(crate) last_line: Option<String>,
    /// The kernel ended it for want of memory; its limit in bytes, where it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) out_of_memory: Option<Option<u64>>,
}

/// What an agent asks of a shim.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Notice and SIGTERM now, SIGKILL after the grace. Asking again may only shorten the grace.
    Stop {
        /// Milliseconds.
        grace_ms: u64,
        /// Content of the notice.
        notice: Notice,
    },
}

/// Content of the file `TIDEMILL_NOTICE` names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Notice {
    /// `stop`.
    pub(crate) kind: String,
    /// RFC 3339 time of the SIGKILL by the node's clock.
    pub(crate) deadline: String,
    /// Why.
    pub(crate) reason: String,
}

/// Reads a JSON file. `None` if it does not exist.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a JSON file whole, readable by its owner only. Not synced: it has to survive processes, and what power loss
/// takes with it (a running instance) is told by the boot id.
pub(crate) fn replace<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut temporary = PathBuf::from(path);
    temporary.as_mut_os_string().push(".new");
    let bytes = serde_json::to_vec(value)?;
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    io::Write::write_all(&mut file, &bytes)?;
    fs::rename(&temporary, path)
}
