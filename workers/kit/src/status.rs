//! What a worker does, for readiness, metrics and people.

use std::fmt;

use tidemill_domain::time::Timestamp;
use tokio::sync::watch;

/// Whether a worker works, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum WorkerState {
    /// It has begun and asks for the role.
    #[default]
    Starting,
    /// It holds the role and works.
    Holding,
    /// Another process holds the role; this one stands by.
    Waiting {
        /// Who holds it.
        holder: String,
    },
    /// It cannot do anything now and tries again.
    BackingOff {
        /// Stable code of what is in the way.
        code: String,
        /// What happened.
        reason: String,
    },
    /// It has ended.
    Stopped,
}

impl WorkerState {
    /// One word for it.
    pub fn name(&self) -> &'static str {
        match self {
            WorkerState::Starting => "starting",
            WorkerState::Holding => "holding",
            WorkerState::Waiting { .. } => "waiting",
            WorkerState::BackingOff { .. } => "backing_off",
            WorkerState::Stopped => "stopped",
        }
    }
}

impl fmt::Display for WorkerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerState::Waiting { holder } => write!(f, "waiting: {holder} holds the role"),
            WorkerState::BackingOff { code, reason } => write!(f, "backing off: {reason} [{code}]"),
            other => f.write_str(other.name()),
        }
    }
}

/// A worker's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStatus {
    /// Its role.
    pub role: &'static str,
    /// Whether it works.
    pub state: WorkerState,
    /// The term it holds.
    pub term: Option<u64>,
    /// Ledger time of its last step.
    pub last_step: Option<Timestamp>,
    /// The last thing that went wrong, refusals included; kept until something else does.
    pub last_error: Option<String>,
    /// Steps taken.
    pub steps: u64,
    /// Commands that changed something.
    pub commands: u64,
    /// Commands that were refused.
    pub refused: u64,
    /// Observations that could not be read.
    pub unreadable: u64,
    /// Last block of observations taken in.
    pub observed: u64,
}

impl WorkerStatus {
    pub(crate) fn new(role: &'static str) -> Self {
        Self {
            role,
            state: WorkerState::Starting,
            term: None,
            last_step: None,
            last_error: None,
            steps: 0,
            commands: 0,
            refused: 0,
            unreadable: 0,
            observed: 0,
        }
    }
}

/// Sets the state and logs one line where it is another than before.
pub(crate) fn enter(status: &watch::Sender<WorkerStatus>, state: WorkerState, term: Option<u64>) {
    status.send_if_modified(|status| {
        if status.state == state && status.term == term {
            return false;
        }
        // The words of a reason may change with every try; only another kind of state is news.
        let news = status.state.name() != state.name();
        if news {
            tracing::info!(role = status.role, from = status.state.name(), term, "worker {state}");
        }
        if let WorkerState::BackingOff { code, reason } = &state {
            status.last_error = Some(format!("{reason} [{code}]"));
        }
        status.state = state;
        status.term = term;
        true
    });
}
