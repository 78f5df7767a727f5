//! What the rest of a server's process says about its health: the seam to what the door cannot see by itself.

use serde::Serialize;
use tidemill_bus::sequencer::SequencerMetrics;

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What, such as `disk_reserve`.
    pub check: String,
    /// How it is.
    pub state: CheckState,
    /// Stable code of what was found.
    pub code: String,
    /// What was seen.
    pub detail: String,
    /// What to do; empty where nothing is.
    pub next: String,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Cannot be told from here.
    Unknown,
    /// Works, and somebody should look.
    Warn,
    /// Broken: the server is not ready.
    Fail,
}

impl Check {
    /// As it should be.
    pub fn ok(check: &str, detail: impl Into<String>) -> Self {
        Self::new(check, CheckState::Ok, "ok", detail, "")
    }

    /// A check with everything spelled out.
    pub fn new(check: &str, state: CheckState, code: &str, detail: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            state,
            code: code.to_owned(),
            detail: detail.into(),
            next: next.into(),
        }
    }
}

/// The health of what stands around a door: disk reserve, the sequencer's role, JetStream.
pub trait Health: Send + Sync + 'static {
    /// `leader`, `standby`, or whatever this process is.
    fn role(&self) -> String;

    /// Everything looked at, now and without waiting.
    fn checks(&self) -> Vec<Check>;

    /// What this process's sequencer has done; none where there is no sequencer.
    fn sequencer(&self) -> Option<SequencerMetrics>;
}
