//! What an agent decides, without doing any of it.
//!
//! The core is told what happened (a desired state, a process event, a check's result, the time) and answers with what
//! is to be done. It holds one small state machine an instance and no clock, socket or file, so that tests and the
//! simulator drive the very code that runs on nodes. An instance's name stands for one life: it is started at most
//! once, and once it ended it stays known as ended until the control plane stops listing it.
//!
//! Invariants: nothing is done on a desired state older than the one acted on, and none of another ledger stops work
//! that runs; a device is never promised here beyond its whole, whatever the snapshot says: an instance waits until its
//! devices were really given back; a terminal fact is said once, and only when nothing of the instance is left.

mod desired;
mod life;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use tidemill_protocol::{
    Stamp,
    agent::{Desired, DesiredDevice, DesiredInstance, FactBody, InstanceStatus},
};

use crate::{InstanceId, shim::wire::Exit};

/// Without a readiness check, running this long is ready.
const READY_AFTER: Duration = Duration::from_secs(1);

/// First check after the process runs, and shortest time between two while it starts.
const FIRST_PROBE: Duration = Duration::from_millis(25);
const PROBE_GAP_MIN: Duration = Duration::from_millis(50);

/// Longest time between two checks while it starts. In between the gap is a tenth of the time it took so far, so the
/// moment of readiness is known to 10 % and a model that loads for minutes is not asked thousands of times.
const PROBE_GAP_MAX: Duration = Duration::from_secs(1);

/// Between two checks of a ready instance, and how many must fail in a row.
const CHECK_EVERY: Duration = Duration::from_secs(2);
const CHECK_FAILURES: u32 = 3;

/// Longest time for an instance that was ready to be so again, where its `ready.timeout` allows more: that one is the
/// time to load a model, and a process that hangs loads nothing. Then it is ended and another takes its place.
const LAPSE_MAX: Duration = Duration::from_secs(60);

/// What the core has to know of its node.
#[derive(Debug, Clone)]
pub(crate) struct CoreConfig {
    /// Host or IP gateways reach instances at; `None` = only by tunnel.
    pub(crate) address: Option<String>,
    /// How many instances may be between "launch it" and "it runs" at a time.
    pub(crate) max_launching: usize,
    /// Another ledger an operator confirmed to follow.
    pub(crate) accept_ledger: Option<String>,
}

/// Something happened.
#[derive(Debug)]
pub(crate) enum Input {
    /// A door greeted us; the next desired state is the first of its connection.
    Connected,
    /// A desired state came.
    Desired(Desired),
    /// The process of an instance runs.
    Launched {
        /// Which.
        instance: InstanceId,
        /// Its process.
        pid: u32,
        /// The port it was given.
        port: u16,
        /// Milliseconds spent on fetching.
        fetch_ms: u64,
        /// Milliseconds from there to the running process.
        start_ms: u64,
    },
    /// An instance could not be launched, and nothing of it is left.
    LaunchFailed {
        /// Which.
        instance: InstanceId,
        /// Stable code.
        code: String,
        /// One sentence.
        reason: String,
    },
    /// A check came back.
    Probed {
        /// Whose.
        instance: InstanceId,
        /// What it saw if it failed.
        result: Result<(), String>,
    },
    /// The main process ended, something of the instance is left.
    Exited {
        /// Which.
        instance: InstanceId,
        /// How.
        exit: Exit,
    },
    /// Nothing of the instance is left.
    Gone {
        /// Which.
        instance: InstanceId,
        /// How its main process ended.
        exit: Exit,
        /// Whether SIGKILL was needed.
        killed: bool,
    },
    /// Its shim ended before its time (or the machine did); what it left was killed, nothing is left.
    Lost {
        /// Which.
        instance: InstanceId,
        /// One sentence.
        reason: String,
    },
    /// An instance of an earlier agent process on this data directory, told before anything else.
    Adopt(Adopted),
    /// The terminal facts of these are on the ledger.
    Settled(Vec<InstanceId>),
    /// Only the time went on.
    Tick,
}

/// An instance found after the agent's restart.
#[derive(Debug, Clone)]
pub(crate) struct Adopted {
    /// Which.
    pub(crate) instance: InstanceId,
    /// Devices it holds.
    pub(crate) devices: Vec<DesiredDevice>,
    /// Its readiness check.
    pub(crate) ready_http: Option<String>,
    /// Time it may take to become ready.
    pub(crate) ready_timeout: Duration,
    /// Its stop's grace.
    pub(crate) grace: Duration,
    /// The port it was given.
    pub(crate) port: u16,
    /// How long ago it was launched.
    pub(crate) age: Duration,
    /// What was last said of it.
    pub(crate) said: Option<Said>,
    /// Where it stands.
    pub(crate) found: Found,
}

/// Where an adopted instance stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its shim lives and will report, all it reported so far included.
    Living,
    /// It ended, its terminal fact was said and waits in the outbox.
    Ended,
    /// As `Ended`, and the fact is on the ledger.
    Settled,
}

/// The last fact said of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// `started`
    Started,
    /// `ready`
    Ready,
    /// `unready`
    Unready,
    /// One of the terminal facts.
    Ended,
}

impl Said {
    /// What a fact says.
    pub(crate) fn of(body: &FactBody) -> Option<Self> {
        match body {
            FactBody::Started { .. } => Some(Self::Started),
            FactBody::Ready { .. } => Some(Self::Ready),
            FactBody::Unready { .. } => Some(Self::Unready),
            FactBody::Exited { .. } | FactBody::StartFailed { .. } | FactBody::Stopped { .. } => Some(Self::Ended),
            FactBody::Unknown => None,
        }
    }
}

/// Something is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Output {
    /// Keep this as the highest stamp acted on.
    Remember(Stamp),
    /// Launch it; answer with `Launched` or `LaunchFailed`.
    Launch(Box<DesiredInstance>),
    /// Stop it with notice; `Gone` or `Lost` follows.
    Stop {
        /// Which.
        instance: InstanceId,
        /// Between SIGTERM and SIGKILL.
        grace: Duration,
        /// For the notice.
        reason: String,
    },
    /// Check it; answer with `Probed`.
    Probe {
        /// Which.
        instance: InstanceId,
        /// Port on this machine.
        port: u16,
        /// HTTP path.
        path: String,
    },
    /// Put a fact into the outbox.
    Fact {
        /// About which.
        instance: InstanceId,
        /// What.
        body: FactBody,
    },
    /// Remove what is kept of it.
    Forget(InstanceId),
    /// Something an operator has to know.
    Alarm {
        /// Stable code.
        code: &'static str,
        /// What happened and what to do.
        text: String,
    },
}

/// The state machine of a node's instances.
#[derive(Debug)]
pub(crate) struct Core {
    config: CoreConfig,
    applied: Option<Stamp>,
    /// The next desired state is the first since a door greeted us.
    greeted: bool,
    instances: BTreeMap<InstanceId, Entry>,
    /// Instances to launch, in the order they were asked for.
    queue: VecDeque<InstanceId>,
    launching: usize,
    /// Thousandths held, by device.
    held: BTreeMap<String, u32>,
    timers: BTreeSet<(Duration, InstanceId)>,
    out: Vec<Output>,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    devices: Vec<DesiredDevice>,
    ready_http: Option<String>,
    ready_timeout: Duration,
    grace: Duration,
    port: u16,
    pid: Option<u32>,
    said: Option<Said>,
    /// What to launch, until it was.
    plan: Option<Box<DesiredInstance>>,
    timer: Option<Duration>,
    /// A check is on its way.
    probing: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Waits for its turn or its devices.
    Queued,
    /// Being launched; `stop` once it was asked to stop meanwhile.
    Launching { stop: Option<String> },
    /// Runs since `launched`, not ready yet.
    Starting {
        launched: Duration,
        deadline: Duration,
        next_probe: Duration,
    },
    /// Was ready once. `failures` in a row; at three it is said to be unready.
    Ready { failures: u32, unready: Option<Lapse> },
    /// On its way out.
    Ending(Because),
    /// Nothing of it is left. `settled`: the ledger knows.
    Ended { settled: bool },
}

/// An instance that was ready no longer is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Lapse {
    /// Ended if it is not ready again by then.
    deadline: Duration,
    /// What its last check saw.
    reason: String,
}

/// Why an instance ends: decides its terminal fact.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Because {
    /// It was asked to.
    Asked,
    /// It was not ready for too long.
    Failed { code: String, reason: String },
    /// Its main process ended by itself.
    Own { was_ready: bool },
}

impl Core {
    /// A core that acted on `applied` last.
    pub(crate) fn new(config: CoreConfig, applied: Option<Stamp>) -> Self {
        Self {
            config,
            applied,
            greeted: false,
            instances: BTreeMap::new(),
            queue: VecDeque::new(),
            launching: 0,
            held: BTreeMap::new(),
            timers: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    /// Takes one input at monotonic time `now` and says what is to be done, in order. Also does what has fallen due.
    pub(crate) fn step(&mut self, input: Input, now: Duration) -> Vec<Output> {
        match input {
            Input::Connected => self.greeted = true,
            Input::Desired(desired) => self.desired(desired),
            Input::Launched {
                instance,
                pid,
                port,
                fetch_ms,
                start_ms,
            } => self.launched(&instance, pid, port, (fetch_ms, start_ms), now),
            Input::LaunchFailed { instance, code, reason } => self.launch_failed(&instance, code, reason),
            Input::Probed { instance, result } => self.probed(&instance, result, now),
            Input::Exited { instance, exit } => self.exited(&instance, &exit),
            Input::Gone { instance, exit, killed } => self.gone(&instance, &exit, killed),
            Input::Lost { instance, reason } => self.lost(&instance, reason),
            Input::Adopt(adopted) => self.adopt(adopted, now),
            Input::Settled(instances) => self.settled(&instances),
            Input::Tick => {}
        }
        self.due(now);
        self.launch_queued();
        std::mem::take(&mut self.out)
    }

    /// When [`Core::step`] must be called next though nothing happens.
    pub(crate) fn next_wake(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The stamp acted on last.
    pub(crate) fn applied(&self) -> Option<&Stamp> {
        self.applied.as_ref()
    }

    /// Instances whose process runs.
    pub(crate) fn running(&self) -> u32 {
        let running = self.instances.values().filter(|entry| entry.runs()).count();
        u32::try_from(running).unwrap_or(u32::MAX)
    }

    /// All instances, for the greeting: those that run and those whose end the ledger does not know.
    pub(crate) fn statuses(&self) -> Vec<InstanceStatus> {
        self.instances
            .iter()
            .filter(|(_, entry)| entry.phase != Phase::Ended { settled: true })
            .map(|(instance, entry)| InstanceStatus {
                instance: instance.to_string(),
                state: entry.state().to_owned(),
                pid: entry.pid.filter(|_| entry.runs()),
                devices: entry.devices.iter().map(|d| d.uuid.clone()).collect(),
            })
            .collect()
    }

    fn fact(&mut self, instance: &InstanceId, body: FactBody) {
        if let Some(entry) = self.instances.get_mut(instance) {
            entry.said = Said::of(&body).or(entry.said);
        }
        self.out.push(Output::Fact {
            instance: instance.clone(),
            body,
        });
    }

    fn set_timer(&mut self, instance: &InstanceId, at: Option<Duration>) {
        let Some(entry) = self.instances.get_mut(instance) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut entry.timer, at) {
            self.timers.remove(&(old, instance.clone()));
        }
        if let Some(at) = at {
            self.timers.insert((at, instance.clone()));
        }
    }

    fn hold(&mut self, devices: &[DesiredDevice]) {
        for device in devices {
            *self.held.entry(device.uuid.clone()).or_default() += device.milli;
        }
    }

    fn release(&mut self, devices: &[DesiredDevice]) {
        for device in devices {
            if let Some(held) = self.held.get_mut(&device.uuid) {
                *held = held.saturating_sub(device.milli);
                if *held == 0 {
                    self.held.remove(&device.uuid);
                }
            }
        }
    }

    fn free(&self, devices: &[DesiredDevice]) -> bool {
        devices
            .iter()
            .all(|device| self.held.get(&device.uuid).copied().unwrap_or(0) + device.milli <= 1000)
    }

    fn launch_queued(&mut self) {
        let mut waiting = VecDeque::new();
        while self.launching < self.config.max_launching {
            let Some(instance) = self.queue.pop_front() else {
                break;
            };
            let Some(entry) = self.instances.get(&instance) else {
                continue;
            };
            if entry.phase != Phase::Queued {
                continue;
            }
            let devices = entry.devices.clone();
            if !self.free(&devices) {
                waiting.push_back(instance);
                continue;
            }
            self.hold(&devices);
            if let Some(entry) = self.instances.get_mut(&instance) {
                entry.phase = Phase::Launching { stop: None };
                if let Some(plan) = entry.plan.take() {
                    self.launching += 1;
                    self.out.push(Output::Launch(plan));
                }
            }
        }
        // Those that wait for devices keep their place in front.
        waiting.append(&mut self.queue);
        self.queue = waiting;
    }
}

impl Entry {
    fn runs(&self) -> bool {
        matches!(
            self.phase,
            Phase::Starting { .. } | Phase::Ready { .. } | Phase::Ending(_)
        )
    }

    /// Holds its devices.
    fn holds(&self) -> bool {
        !matches!(self.phase, Phase::Queued | Phase::Ended { .. })
    }

    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Queued | Phase::Launching { .. } => "starting",
            Phase::Starting { .. } | Phase::Ready { unready: Some(_), .. } => "running",
            Phase::Ready { .. } => "ready",
            Phase::Ending(_) => "stopping",
            Phase::Ended { .. } => "gone",
        }
    }
}
