//! `switches`.

use serde::{Deserialize, Serialize};
use tidemill_domain::id::{InstanceId, NodeId, ServiceId, SwitchId};
use tidemill_domain::state::State;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::Name;

/// One switch: an instance's work moving to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwitchRow {
    /// Its id.
    pub id: SwitchId,
    /// `TENANT/NAME` of the service.
    pub workload: String,
    /// Id of the service.
    pub service: ServiceId,
    /// Whose.
    pub tenant: Name,
    /// The instance whose work moved.
    pub instance: InstanceId,
    /// What took over; null until that is known.
    pub replacement: Option<InstanceId>,
    /// Where the work was.
    pub from_node: NodeId,
    /// Name of that node.
    pub from_node_name: String,
    /// Where it went; null until it is closed.
    pub to_node: Option<NodeId>,
    /// Name of that node.
    pub to_node_name: Option<String>,
    /// Why, in a word.
    pub cause: String,
    /// Whether the replacement was to be ready before the old one went.
    pub planned: bool,
    /// `open`, `replaced`, `recovered` or `not_needed`.
    pub state: String,
    /// When it was opened.
    pub opened_at: Timestamp,
    /// When it was closed.
    pub closed_at: Option<Timestamp>,
    /// From the last sign of life, or the failure, until it was opened; null where nothing had to be noticed.
    pub detect_ms: Option<u64>,
    /// From the opening until the replacement was in rotation.
    pub replace_ms: Option<u64>,
    /// Requests of the service that failed for a platform reason meanwhile; null while it is open.
    pub failed_requests: Option<u64>,
    /// Streams of the service that were cut meanwhile.
    pub cut_streams: Option<u64>,
    /// Longest time in which nobody was answered while somebody waited.
    pub longest_gap_ms: Option<u64>,
    /// Whether customers noticed.
    pub perceived: Option<bool>,
    /// Seconds of that time for which gateways reported.
    pub covered_seconds: Option<u32>,
    /// Sequence of its last change.
    pub changed_seq: u64,
    /// Trace of what opened it.
    pub trace_id: Option<String>,
    /// Why, in a sentence.
    pub reason: String,
}

/// The row of a switch.
pub fn switch_row(state: &State, id: SwitchId) -> Option<SwitchRow> {
    let switch = state.switches.get(&id)?;
    let name = |id: NodeId| {
        let node = state.nodes.get(&id);
        node.map_or_else(|| id.to_string(), |n| n.name.to_string())
    };
    let closed = switch.closed;
    let effect = closed.map(|closed| closed.effect);
    let to_node = closed.and_then(|closed| closed.to_node);
    Some(SwitchRow {
        id,
        workload: switch.workload(),
        service: switch.service,
        tenant: switch.tenant.clone(),
        instance: switch.instance,
        replacement: switch.replacement,
        from_node: switch.node,
        from_node_name: name(switch.node),
        to_node,
        to_node_name: to_node.map(name),
        cause: switch.cause.name().to_owned(),
        planned: switch.cause.is_planned(),
        state: closed.map_or("open", |closed| closed.outcome.name()).to_owned(),
        opened_at: switch.opened_at,
        closed_at: closed.map(|closed| closed.at),
        detect_ms: switch.detect.map(Span::millis),
        replace_ms: closed.and_then(|closed| closed.replace).map(Span::millis),
        failed_requests: effect.map(|effect| effect.failed_requests),
        cut_streams: effect.map(|effect| effect.cut_streams),
        longest_gap_ms: effect.map(|effect| effect.longest_gap.millis()),
        perceived: effect.map(|effect| effect.is_perceived()),
        covered_seconds: effect.map(|effect| effect.covered_seconds),
        changed_seq: switch.changed.sequence,
        trace_id: switch.trace.map(|t| t.trace_id_hex()),
        reason: switch.detail.clone(),
    })
}

impl SwitchRow {
    /// The key that lists are ordered and paged by. By age.
    pub fn sort_key(&self) -> String {
        format!("{:020}/{}", self.opened_at.0, self.id)
    }
}
