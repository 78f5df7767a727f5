//! `queue`: services that have fewer instances at work than they want, and what they wait for.

use serde::{Deserialize, Serialize};
use tidemill_domain::events::placement::{Explanation, Filter};
use tidemill_domain::events::service::Class;
use tidemill_domain::id::ServiceId;
use tidemill_domain::state::State;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::service::{Lifecycle, Service};
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::Name;

/// One service that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRow {
    /// `TENANT/NAME`.
    pub workload: String,
    /// Its id.
    pub service: ServiceId,
    /// Whose.
    pub tenant: Name,
    /// Priority class.
    pub class: Class,
    /// Instances that wait for devices.
    pub waiting: u32,
    /// Instances that are wanted and not yet asked for: the service backs off after failures.
    pub held_back: u32,
    /// Since when the oldest waits.
    pub since: Timestamp,
    /// The dominant reason; never empty.
    pub reason: String,
    /// Devices looked at.
    pub devices: u32,
    /// Devices that could have taken an instance when the round began.
    pub fitting: u32,
    /// Devices ruled out, by reason; with `fitting` they sum to `devices`.
    pub filters: Vec<FilterRow>,
    /// Failures in a row.
    pub failures: u32,
    /// No new instance before this.
    pub retry_at: Option<Timestamp>,
    /// What would help; never empty.
    pub next_step: String,
}

/// Devices ruled out for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRow {
    /// The reason's stable name.
    pub filter: Filter,
    /// How many devices.
    pub devices: u32,
    /// In words, to be read after the number.
    pub sentence: String,
}

/// A filter in words that follow a number of devices.
pub fn filter_sentence(filter: Filter) -> &'static str {
    match filter {
        Filter::NodeNotReady => "on nodes that take no work now",
        Filter::SupplyNotAllowed => "of a supply kind that the service does not allow",
        Filter::RegionNotAllowed => "in a region that the service does not allow",
        Filter::WrongKind => "of another kind",
        Filter::WrongModel => "of another model",
        Filter::TooLittleMemory => "with too little memory",
        Filter::DeviceNotHealthy => "not healthy or not confirmed clean",
        Filter::Busy => "held by others",
        Filter::TooFewOnNode => "free, with too few beside them on their node",
        Filter::TokenRevoked => "on nodes whose token was revoked",
        Filter::NodeUnsteady => "on nodes that were doubted several times lately",
        Filter::NodeOverloaded => "on nodes that are loaded too much",
        Filter::RuntimeMissing => "on nodes without the runtime it needs",
        Filter::NoRoomToFetch => "on nodes without room for what it fetches",
        Filter::DeviceQuarantined => "out of service for a fault",
    }
}

pub(crate) fn filter_rows(explanation: &Explanation) -> Vec<FilterRow> {
    let row = |f: &tidemill_domain::events::placement::FilterCount| FilterRow {
        filter: f.filter,
        devices: f.devices,
        sentence: filter_sentence(f.filter).to_owned(),
    };
    explanation.filtered.iter().map(row).collect()
}

/// The row of a service that waits; none for one that does not.
pub fn queue_row(state: &State, id: ServiceId) -> Option<QueueRow> {
    let service = state.services.get(&id)?;
    if service.lifecycle != Lifecycle::Active {
        return None;
    }
    let (mut waiting, mut staying, mut since) = (0, 0, None::<Timestamp>);
    for instance in service.live.iter().filter_map(|id| state.instances.get(id)) {
        if instance.state == InstanceState::Pending {
            waiting += 1;
            since = Some(since.map_or(instance.requested_at, |s| s.min(instance.requested_at)));
        }
        staying += u32::from(!instance.state.leaving());
    }
    let held_back = service.desired.saturating_sub(staying);
    if waiting + held_back == 0 {
        return None;
    }
    let explanation = service.pending.as_ref().filter(|_| waiting > 0);
    let (reason, next_step) = why(service, waiting, explanation);
    Some(QueueRow {
        workload: service.full_name(),
        service: id,
        tenant: service.tenant.clone(),
        class: service.spec().class,
        waiting,
        held_back,
        since: since.unwrap_or(service.desired_since),
        reason,
        devices: explanation.map_or(0, |e| e.devices),
        fitting: explanation.map_or(0, |e| e.fitting),
        filters: explanation.map(filter_rows).unwrap_or_default(),
        failures: service.failures,
        retry_at: service.retry_at,
        next_step,
    })
}

/// Dominant reason and next step of a service that waits.
pub(crate) fn why(service: &Service, waiting: u32, explanation: Option<&Explanation>) -> (String, String) {
    if let Some(explanation) = explanation {
        let next = match explanation.next_step.as_str() {
            "" => "wait: it is placed as soon as devices fit",
            next => next,
        };
        return (explanation.dominant.clone(), next.to_owned());
    }
    if waiting > 0 {
        return (
            "the scheduler has not looked at it yet".to_owned(),
            "wait a second; if it stays so, `tidemill doctor` tells whether a scheduler runs".to_owned(),
        );
    }
    match (&service.last_failure, service.retry_at) {
        (Some(failure), Some(retry_at)) if service.failures > 0 => (
            format!(
                "its instances failed {} times in a row, the last one so: {failure}",
                service.failures
            ),
            format!("correct the declaration and apply it again, or wait: the next try is not before {retry_at}"),
        ),
        _ => (
            "its instances have not been asked for yet".to_owned(),
            "wait a second; if it stays so, `tidemill doctor` tells whether a scheduler runs".to_owned(),
        ),
    }
}

impl QueueRow {
    /// The key that lists are ordered and paged by. By workload.
    pub fn sort_key(&self) -> String {
        self.workload.clone()
    }
}
