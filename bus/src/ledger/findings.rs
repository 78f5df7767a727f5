//! What a backend can say about the settings it depends on: for `doctor`, `/readyz` and start-up logs.

use serde::Serialize;

use crate::identity::{CellName, LedgerId};

/// Whether a setting is as it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingState {
    /// Read back and right.
    Verified,
    /// Cannot be seen from here; the next step says how to make it visible.
    NotVerifiable,
    /// Read back and wrong.
    Wrong,
}

/// One setting or condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable code of the setting, such as `nats_sync_always`.
    pub code: &'static str,
    /// Whether it is as it must be.
    pub state: FindingState,
    /// What was seen, and what it means.
    pub message: String,
    /// What to do; empty if verified.
    pub next_step: &'static str,
}

impl Finding {
    pub(crate) fn verified(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            state: FindingState::Verified,
            message: message.into(),
            next_step: "",
        }
    }

    pub(crate) fn not_verifiable(code: &'static str, message: impl Into<String>, next_step: &'static str) -> Self {
        Self {
            code,
            state: FindingState::NotVerifiable,
            message: message.into(),
            next_step,
        }
    }

    pub(crate) fn wrong(code: &'static str, message: impl Into<String>, next_step: &'static str) -> Self {
        Self {
            code,
            state: FindingState::Wrong,
            message: message.into(),
            next_step,
        }
    }
}

/// What stores a ledger, and how well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Description {
    /// `embedded`, `jetstream` or `memory`.
    pub backend: &'static str,
    /// File or stream, for people.
    pub place: String,
    /// The cell.
    pub cell: CellName,
    /// The ledger's id.
    pub ledger_id: LedgerId,
    /// Everything that was checked.
    pub findings: Vec<Finding>,
}

impl Description {
    /// The findings that are wrong.
    pub fn wrong(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.state == FindingState::Wrong)
    }
}
