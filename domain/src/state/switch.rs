//! A switch: an instance's work moving to another.
//!
//! It names what it needs by value (tenant, workload, node): the instance it began with, and in the end even its
//! service, may be gone before somebody asks what became of it. How far it is follows from its replacement's own stages.

use serde::{Deserialize, Serialize};

use crate::commit::{Address, TraceContext};
use crate::events::switch::{SwitchCause, SwitchEffect, SwitchOutcome};
use crate::id::{InstanceId, NodeId, ServiceId, SwitchId};
use crate::time::{Span, Timestamp};
use crate::unit::Name;

/// How long a closed switch stays in the state; read models keep it.
pub const CLOSED_KEPT: Span = Span::from_secs(3600);

/// An instance's work moving to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Switch {
    /// Its id.
    pub id: SwitchId,
    /// Whose instance.
    pub service: ServiceId,
    /// Its service's tenant.
    pub tenant: Name,
    /// Its service's name.
    pub name: Name,
    /// The instance whose work moves.
    pub instance: InstanceId,
    /// Where that is.
    pub node: NodeId,
    /// Why.
    pub cause: SwitchCause,
    /// Why, in a sentence.
    pub detail: String,
    /// From the last sign of life to the opening.
    pub detect: Option<Span>,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// What takes over, once that is known.
    pub replacement: Option<InstanceId>,
    /// How it ended.
    pub closed: Option<Closed>,
    /// Last change.
    pub changed: Address,
    /// Trace of what opened it.
    pub trace: Option<TraceContext>,
}

/// How a switch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// When.
    pub at: Timestamp,
    /// How.
    pub outcome: SwitchOutcome,
    /// Where the replacement is.
    pub to_node: Option<NodeId>,
    /// From the opening until the replacement was in rotation.
    pub replace: Option<Span>,
    /// What customers noticed.
    pub effect: SwitchEffect,
}

impl Switch {
    /// `TENANT/NAME` of its service.
    pub fn workload(&self) -> String {
        format!("{}/{}", self.tenant, self.name)
    }

    /// Whether it has not ended.
    pub fn is_open(&self) -> bool {
        self.closed.is_none()
    }
}
