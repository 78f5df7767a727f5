//! Agent ↔ door.
//!
//! An agent opens with [`AgentMessage::Hello`]; the door answers [`DoorMessage::Welcome`] or [`DoorMessage::Refused`]
//! and from then on sends the node's whole desired state whenever it changed, and again every
//! [`Welcome::resend_ms`]. The agent beats every [`Welcome::beat_ms`] and reports facts from its outbox in order;
//! a fact stays in the outbox until [`DoorMessage::FactsAck`] says that the ledger has it.
//!
//! Facts are at-least-once: the door's command id is derived from (node, boot id, fact ids), so a repeated batch is
//! answered and not applied twice.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Problem, Stamp,
    telemetry::{DeviceReading, HostReading, Inspection},
};

/// What an agent sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentMessage {
    /// First message on a connection.
    Hello(Hello),
    /// Once each [`Welcome::beat_ms`].
    Beat(Beat),
    /// Facts from the outbox, oldest first, at most 512 in a message.
    Facts(Facts),
    /// A part of an instance's output, as answer to [`DoorMessage::LogsWanted`].
    Logs(LogPart),
    /// Its owner takes the machine back.
    Leave(Leave),
    /// The agent is about to end on purpose; its instances run on under their shims.
    Goodbye(Goodbye),
    /// A message of a newer agent.
    #[serde(other)]
    Unknown,
}

/// What a door sends to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum DoorMessage {
    /// The node is known; beats and facts may flow.
    Welcome(Welcome),
    /// All instances the node should have. What it runs besides these is to be stopped.
    Desired(Desired),
    /// All facts up to and including this id are on the ledger (or were refused for good).
    FactsAck {
        /// Highest fact id settled.
        through: u64,
    },
    /// Somebody asks for an instance's output.
    LogsWanted(LogsWanted),
    /// Nobody reads the answer to this [`LogsWanted::request`] any more.
    LogsDone {
        /// The request.
        request: String,
    },
    /// The node is being emptied, as [`AgentMessage::Leave`] asked.
    Leaving,
    /// What [`AgentMessage::Leave`] asked cannot be; the node stays in the pool.
    LeaveRefused(#[serde(with = "crate::problem::nested")] Problem),
    /// The node is empty and no longer in the pool: the agent may end.
    Left {
        /// One sentence.
        reason: String,
    },
    /// The connection ends now; `code` says whether trying again helps.
    Refused(#[serde(with = "crate::problem::nested")] Problem),
    /// A message of a newer door.
    #[serde(other)]
    Unknown,
}

/// Who the agent is and what it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL_VERSION`] of the agent.
    pub protocol: u32,
    /// Agent's release.
    #[serde(default)]
    pub version: String,
    /// Node name chosen by its owner; unique in the cell (a DNS label).
    pub name: String,
    /// `idc`, `cloud`, `enterprise`, `cafe`, `pc` or `partner`.
    pub supply: String,
    /// Provider name.
    pub provider: String,
    /// Region name.
    pub region: String,
    /// Zone name.
    pub zone: String,
    /// Host or IP at which gateways reach instances directly. `None` = only through a tunnel.
    #[serde(default)]
    pub address: Option<String>,
    /// Kernel boot id: changes with each boot of the machine.
    pub boot_id: String,
    /// Machine id: stays with the installation.
    pub machine_id: String,
    /// Random id of this agent process's start.
    pub agent_id: String,
    /// Devices found.
    pub devices: Vec<DeviceInfo>,
    /// Every instance the agent still has anything of: running, stopping, or ended with an unsent report.
    #[serde(default)]
    pub instances: Vec<InstanceStatus>,
    /// Stamp of the last desired state acted on, kept across restarts.
    #[serde(default)]
    pub applied: Option<Stamp>,
    /// Runtimes offered: `process`, `docker`. Empty of an older agent, which offers `process`.
    #[serde(default)]
    pub runtimes: Vec<String>,
    /// What could not be read or is not supported here, as `area: reason`.
    #[serde(default)]
    pub limitations: Vec<String>,
    /// What the node measured of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inspection: Option<Box<Inspection>>,
}

/// One device as its node reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Vendor UUID; for CPU capacity a stable name made from the machine id.
    pub uuid: String,
    /// `cuda`, `rocm`, `ascend` or `cpu`.
    pub kind: String,
    /// Model name, such as `A100-80G`.
    pub model: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Measured speed over the model's nominal, in thousandths (930 = 0.93).
    pub speed_milli: u32,
    /// Simulated: real processes run, no hardware behind them.
    #[serde(default)]
    pub simulated: bool,
}

/// Answer to [`Hello`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Welcome {
    /// The node's id, `node-…`.
    pub node: String,
    /// Cell, ledger, epoch and sequence at this moment.
    pub stamp: Stamp,
    /// How often to beat, in milliseconds.
    pub beat_ms: u64,
    /// How often the door repeats the desired state unasked, in milliseconds.
    pub resend_ms: u64,
}

/// A heartbeat with telemetry. What cannot be read is `None`, never 0.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Beat {
    /// Counts up from 1 within one agent process.
    pub number: u64,
    /// Milliseconds of the agent's monotonic clock since it started.
    pub uptime_ms: u64,
    /// Busy share of all host CPUs, thousandths.
    #[serde(default)]
    pub cpu_milli: Option<u32>,
    /// Host memory in use and in all, bytes.
    #[serde(default)]
    pub memory_used_bytes: Option<u64>,
    /// Host memory in all, bytes.
    #[serde(default)]
    pub memory_total_bytes: Option<u64>,
    /// Free bytes where the agent keeps its data.
    #[serde(default)]
    pub disk_free_bytes: Option<u64>,
    /// Instances running now.
    #[serde(default)]
    pub running: u32,
    /// Facts waiting in the outbox.
    #[serde(default)]
    pub outbox: u64,
    /// Stamp of the desired state acted on last.
    #[serde(default)]
    pub applied: Option<Stamp>,
    /// The host's further figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostReading>,
    /// Readings of devices that have any; at most [`crate::telemetry::MAX_READINGS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceReading>,
    /// Readings that found no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub devices_left_out: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref)] // The signature serde asks for.
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A batch of facts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Oldest first; ids are dense within the outbox.
    pub facts: Vec<Fact>,
}

/// One thing that happened on the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// Position in the agent's outbox; never reused on that data directory.
    pub id: u64,
    /// How long ago it happened by the agent's monotonic clock, milliseconds; after a restart of the agent the time
    /// since its start plus what is known.
    pub age_ms: u64,
    /// The instance it is about, `inst-…`.
    pub instance: String,
    /// What happened.
    #[serde(flatten)]
    pub body: FactBody,
}

/// What happened to an instance on its node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum FactBody {
    /// Its process runs. Step timings so far.
    Started {
        /// Process id of the workload (not of its shim).
        pid: u32,
        /// The port it was given.
        port: u16,
        /// Time spent fetching, milliseconds.
        #[serde(default)]
        fetch_ms: u64,
        /// Time from command to running process, milliseconds.
        #[serde(default)]
        start_ms: u64,
    },
    /// It answers its readiness check.
    Ready {
        /// Host or IP and port gateways reach it at, unless only by tunnel.
        #[serde(default)]
        endpoint: Option<String>,
        /// Time from running process to ready, milliseconds.
        #[serde(default)]
        load_ms: u64,
    },
    /// It was ready and its check fails now, process still running.
    Unready {
        /// What the check saw.
        reason: String,
    },
    /// Its process ended without having been asked to; nothing of it is left on the node.
    Exited {
        /// Exit code, unless by a signal.
        #[serde(default)]
        code: Option<i32>,
        /// Signal number, if by one.
        #[serde(default)]
        signal: Option<i32>,
        /// One sentence, with the last line of stderr where that helps.
        reason: String,
    },
    /// It could not be started: command missing, fetch failed, port taken, never ready within its timeout, …
    /// Nothing of it is left on the node.
    StartFailed {
        /// Stable code: `command_not_found`, `not_ready_in_time`, `exited_before_ready`, `spawn_failed`, …
        code: String,
        /// One sentence.
        reason: String,
    },
    /// Stopped as asked: its whole process group is gone and its devices are free.
    Stopped {
        /// Whether it had to be killed after the grace.
        #[serde(default)]
        killed: bool,
    },
    /// A fact of a newer agent.
    #[serde(other)]
    Unknown,
}

/// What the agent knows of an instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceStatus {
    /// `inst-…`
    pub instance: String,
    /// `starting`, `running`, `ready`, `stopping` or `gone`.
    pub state: String,
    /// Process id if one runs.
    #[serde(default)]
    pub pid: Option<u32>,
    /// Devices it holds, by UUID.
    #[serde(default)]
    pub devices: Vec<String>,
}

/// The node's owner takes the machine back: its work is to move elsewhere, then it leaves the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leave {
    /// One sentence, in the owner's words.
    pub reason: String,
    /// By when the node is to be empty, in milliseconds from now, with replacements or without. `None`: whenever its work
    /// has been replaced.
    #[serde(default)]
    pub deadline_ms: Option<u64>,
}

/// Why the agent ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Goodbye {
    /// One sentence.
    pub reason: String,
    /// The node leaves the pool for good (its instances were stopped), rather than just restarting its agent.
    #[serde(default)]
    pub leaving: bool,
}

/// The node's whole desired state at a stamp.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Desired {
    /// From which ledger position it was computed.
    pub stamp: Stamp,
    /// Every instance the node should have or should be stopping.
    pub instances: Vec<DesiredInstance>,
}

/// One instance the node should run, or should stop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DesiredInstance {
    /// `inst-…`
    pub instance: String,
    /// What to do: run it, or stop it with notice.
    pub want: Want,
    /// How to run it. Given in both cases.
    pub run: RunSpec,
    /// Name of its workload, `TENANT/NAME`.
    pub workload: String,
    /// Devices held, by UUID, with the share in thousandths.
    pub devices: Vec<DesiredDevice>,
    /// Fencing token of a singleton.
    #[serde(default)]
    pub fence: Option<u64>,
    /// W3C `traceparent` of the decision that placed it.
    #[serde(default)]
    pub traceparent: Option<String>,
}

/// A device or share of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredDevice {
    /// Vendor UUID.
    pub uuid: String,
    /// Thousandths of the device.
    pub milli: u32,
    /// `cuda`, `rocm`, `ascend` or `cpu`.
    #[serde(default)]
    pub kind: String,
}

/// Run or stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "want", rename_all = "snake_case")]
pub enum Want {
    /// Run it and keep reporting.
    Run,
    /// Notice and SIGTERM now, SIGKILL to the whole group after the grace; then report `stopped`.
    Stop {
        /// Why, for `TIDEMILL_NOTICE` and the log.
        reason: String,
    },
    /// A wish of a newer door: leave the instance as it is.
    #[serde(other)]
    Unknown,
}

/// How an instance is run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunSpec {
    /// `process` or `docker`.
    pub runtime: String,
    /// Program and arguments; `$PORT` and `${PORT}` are replaced, and other `TIDEMILL_…` names of its environment too.
    /// Empty: what the image is made to run.
    pub command: Vec<String>,
    /// Container image, with `docker`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What must be on the node before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fetch: Vec<FetchSpec>,
    /// What of the host it may use.
    #[serde(default)]
    pub limits: LimitSpec,
    /// Extra environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// HTTP path that answers 2xx when ready. `None`: running for 1 s is ready.
    #[serde(default)]
    pub ready_http: Option<String>,
    /// How long it may take to become ready, milliseconds.
    pub ready_timeout_ms: u64,
    /// Time between SIGTERM and SIGKILL, milliseconds.
    pub stop_grace_ms: u64,
}

/// A file an instance needs, known by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchSpec {
    /// `http` or `https`.
    pub url: String,
    /// BLAKE3 of its content, 64 hex digits.
    pub blake3: String,
    /// Path below the instance's working directory. `None`: an archive of images for the node's engine to load.
    #[serde(default)]
    pub to: Option<String>,
}

/// What of the host an instance may use at most; none: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitSpec {
    /// Processor time, thousandths of one CPU.
    #[serde(default)]
    pub cpu_milli: Option<u32>,
    /// Memory, bytes.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Processes and threads.
    #[serde(default)]
    pub processes: Option<u32>,
}

/// A question for an instance's output (standard output and error, interleaved as they came).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsWanted {
    /// Chosen by the door, unique within the connection; repeated in each [`LogPart`].
    pub request: String,
    /// `inst-…`
    pub instance: String,
    /// Position in the stream of output to begin at. `None`, or one that was rotated away: the oldest byte kept.
    #[serde(default)]
    pub after: Option<u64>,
    /// Go on when the end is reached, until the instance is gone or [`DoorMessage::LogsDone`].
    #[serde(default)]
    pub follow: bool,
}

/// A part of an instance's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPart {
    /// [`LogsWanted::request`].
    pub request: String,
    /// Position of its first byte in the stream of output.
    pub offset: u64,
    /// Position after its last byte: where to go on. Not `offset` + length of `data`, since bytes that are not UTF-8
    /// are replaced.
    pub next: u64,
    /// At most 64 KiB of output.
    pub data: String,
    /// No further part follows.
    #[serde(default)]
    pub end: bool,
    /// Why it ended, if not because all was sent.
    #[serde(default)]
    pub problem: Option<Problem>,
}
