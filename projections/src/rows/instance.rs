//! `instances`.

use serde::{Deserialize, Serialize};
use tidemill_domain::events::Event;
use tidemill_domain::id::{InstanceId, NodeId, ServiceId};
use tidemill_domain::state::instance::Timings;
use tidemill_domain::state::{EventMeta, State};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::Name;

/// One instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InstanceRow {
    /// Its id.
    pub id: InstanceId,
    /// `TENANT/NAME` of its service.
    pub workload: String,
    /// Id of its service.
    pub service: ServiceId,
    /// Whose.
    pub tenant: Name,
    /// Which declaration it was made from.
    pub generation: u64,
    /// Where it was placed.
    pub node: Option<NodeId>,
    /// Name of that node.
    pub node_name: Option<String>,
    /// UUIDs of the devices it was given.
    pub devices: Vec<String>,
    /// Of each of them, in thousandths; 0 before placement.
    pub share_milli: u32,
    /// Something of it may be left on its node.
    pub holding: bool,
    /// Stage, in the contract's words.
    pub state: String,
    /// `HOST:PORT` while it answers.
    pub endpoint: Option<String>,
    /// Process id on its node.
    pub pid: Option<u32>,
    /// Port on its node.
    pub port: Option<u16>,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// When it was placed.
    pub placed_at: Option<Timestamp>,
    /// When it became ready last.
    pub ready_at: Option<Timestamp>,
    /// When the last thing about it happened.
    pub since: Timestamp,
    /// The start-up chain, step by step.
    pub timings_ms: TimingsRow,
    /// Sequence of its last change.
    pub changed_seq: u64,
    /// Trace of what made it.
    pub trace_id: Option<String>,
    /// Why it is in its state; never empty.
    pub reason: String,
}

/// The start-up chain in milliseconds; what has not happened is null.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimingsRow {
    /// From the change of what is wanted to the request for it.
    pub decide: Option<u64>,
    /// From request to placement.
    pub place: Option<u64>,
    /// Fetching, on the node.
    pub fetch: Option<u64>,
    /// From order to running process.
    pub start: Option<u64>,
    /// From running process to ready.
    pub load: Option<u64>,
    /// From placement to ready.
    pub ready: Option<u64>,
    /// From ready to the first gateway sending requests.
    pub in_rotation: Option<u64>,
}

impl From<&Timings> for TimingsRow {
    fn from(timings: &Timings) -> Self {
        let ms = |span: Option<Span>| span.map(Span::millis);
        Self {
            decide: ms(timings.decide),
            place: ms(timings.place),
            fetch: ms(timings.fetch),
            start: ms(timings.start),
            load: ms(timings.load),
            ready: ms(timings.ready),
            in_rotation: ms(timings.in_rotation),
        }
    }
}

/// The row of an instance.
pub fn instance_row(state: &State, id: InstanceId) -> Option<InstanceRow> {
    let instance = state.instances.get(&id)?;
    let service = state.services.get(&instance.service)?;
    let node = instance.node.and_then(|n| state.nodes.get(&n));
    let uuid = |hold: &tidemill_domain::events::instance::Hold| {
        state
            .devices
            .get(&hold.device)
            .map_or_else(|| hold.device.to_string(), |d| d.uuid.clone())
    };
    Some(InstanceRow {
        id,
        workload: service.full_name(),
        service: instance.service,
        tenant: service.tenant.clone(),
        generation: instance.generation,
        node: instance.node,
        node_name: node.map(|n| n.name.to_string()),
        devices: instance.holds.iter().map(uuid).collect(),
        share_milli: instance.holds.first().map_or(0, |h| h.share.0),
        holding: instance.holding,
        state: instance.state_name().to_owned(),
        endpoint: instance.endpoint.clone(),
        pid: instance.pid,
        port: instance.port,
        requested_at: instance.requested_at,
        placed_at: instance.placed_at,
        ready_at: instance.ready_at,
        since: instance.occurred_at,
        timings_ms: TimingsRow::from(&instance.timings),
        changed_seq: instance.changed.sequence,
        trace_id: instance.trace.map(|t| t.trace_id_hex()),
        reason: instance.reason.clone(),
    })
}

impl InstanceRow {
    /// What remains on record of an instance that `event` both ended and made the state forget; `self` is its row
    /// before the event. Needed because a large change ends more instances of a service at once than the state keeps.
    pub(crate) fn end_by(mut self, event: &Event, meta: &EventMeta) -> Self {
        let ended = matches!(self.state.as_str(), "stopped" | "failed" | "lost");
        let (word, reason, at) = match event {
            Event::InstanceStopped(e) if ended => (None, None, e.occurred_at),
            Event::InstanceStopped(e) => (Some("stopped"), None, e.occurred_at),
            Event::InstanceFailed(e) => (Some("failed"), Some(e.reason.clone()), e.occurred_at),
            Event::InstancesLost(e) => (Some("lost"), Some(e.reason.clone()), meta.recorded_at),
            Event::NodeLeft(e) => (
                Some("lost"),
                Some(format!("its node left: {}", e.reason)),
                meta.recorded_at,
            ),
            Event::InstancesCancelled(e) => (Some("stopped"), Some(e.reason.sentence().to_owned()), self.since),
            _ => return self,
        };
        if let Some(word) = word {
            word.clone_into(&mut self.state);
            self.endpoint = None;
        }
        if let Some(reason) = reason {
            self.reason = reason;
        }
        self.since = self.since.max(at);
        self.holding = false;
        self.changed_seq = meta.address.sequence;
        self
    }
}

impl InstanceRow {
    /// The key that lists are ordered and paged by. By workload, then age.
    pub fn sort_key(&self) -> String {
        format!("{}/{:020}/{}", self.workload, self.requested_at.0, self.id)
    }
}
