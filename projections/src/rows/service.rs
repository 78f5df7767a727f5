//! `services`.

use serde::{Deserialize, Serialize};
use tidemill_domain::events::node::DeviceKind;
use tidemill_domain::events::service::{Class, DesiredReason};
use tidemill_domain::id::ServiceId;
use tidemill_domain::state::State;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::service::{Lifecycle, Service};
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::Name;

use super::count;
use super::queue::why;

/// One service.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServiceRow {
    /// Its id.
    pub id: ServiceId,
    /// Name, unique in the tenant.
    pub name: Name,
    /// Whose.
    pub tenant: Name,
    /// Priority class.
    pub class: Class,
    /// Replicas wanted.
    pub desired: u32,
    /// Replicas that answer.
    pub ready: u32,
    /// Replicas kept warm and out of rotation.
    pub standby: u32,
    /// `ready`, `updating`, `halted`, `starting`, `pending`, `degraded`, `failing`, `idle`, `stopping`, `stopped`, `deleting`,
    /// `deleted`.
    pub state: String,
    /// Where it is reached; filled in by who knows the gateway ([`ServiceRow::with_gateway`]).
    pub url: Option<String>,
    /// `Host` under which it is reached too.
    pub host: Option<String>,
    /// Of the declaration.
    pub generation: u64,
    /// The change from one generation to another that is under way or was halted.
    pub rollout: Option<RolloutRow>,
    /// The generation that `rollback` would return to.
    pub rollback_to: Option<u64>,
    /// Instances by stage.
    pub instances: ServiceCounts,
    /// What set `desired`.
    pub desired_reason: DesiredReason,
    /// When that was set.
    pub desired_since: Timestamp,
    /// Fewest replicas declared.
    pub min: u32,
    /// Most replicas declared.
    pub max: u32,
    /// Count set by hand.
    pub scale_override: Option<OverrideRow>,
    /// What each instance needs.
    pub request: RequestRow,
    /// Failures in a row.
    pub failures: u32,
    /// No new instance before this.
    pub retry_at: Option<Timestamp>,
    /// The last failure, in a sentence.
    pub last_failure: Option<String>,
    /// Sequence of its last change.
    pub changed_seq: u64,
    /// Why it is in its state; never empty.
    pub reason: String,
}

/// A change of generation on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutRow {
    /// `rolling` or `halted`.
    pub state: String,
    /// The generation left.
    pub from: u64,
    /// The generation aimed at.
    pub to: u64,
    /// Ready replicas of that.
    pub updated: u32,
    /// Since when.
    pub since: Timestamp,
    /// Why it was halted.
    pub reason: Option<String>,
}

/// A service's live instances by stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCounts {
    /// Wait for devices.
    pub pending: u32,
    /// Have devices, not started.
    pub placed: u32,
    /// Started, do not answer yet.
    pub starting: u32,
    /// Answer.
    pub ready: u32,
    /// Answer and are of the present generation.
    pub ready_current: u32,
    /// Are being left or stopped.
    pub draining: u32,
    /// Answer and stand by.
    pub standby: u32,
    /// Are to stand by and do not answer yet.
    pub standby_starting: u32,
}

/// A replica count set by hand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverrideRow {
    /// Replicas while it holds.
    pub replicas: u32,
    /// Begin; at once if none.
    pub from: Option<Timestamp>,
    /// End; until released if none.
    pub until: Option<Timestamp>,
}

/// What each instance needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRow {
    /// Devices, all on one node.
    pub count: u32,
    /// Of each, in thousandths.
    pub share_milli: u32,
    /// Allowed kinds; any if empty.
    pub kinds: Vec<DeviceKind>,
    /// Allowed models; any if empty.
    pub models: Vec<String>,
    /// Least memory, bytes.
    pub memory_bytes: u64,
}

impl ServiceRow {
    /// The row with its address under `gateway`, such as `http://127.0.0.1:7080`.
    #[must_use]
    pub fn with_gateway(mut self, gateway: &str) -> Self {
        let base = gateway.trim_end_matches('/');
        self.url = Some(if self.tenant == Name::default_tenant() {
            format!("{base}/{}/", self.name)
        } else {
            format!("{base}/~{}/{}/", self.tenant, self.name)
        });
        self
    }

    /// The row as it stays on record once the service is gone.
    pub(crate) fn deleted(mut self, sequence: u64) -> Self {
        "deleted".clone_into(&mut self.state);
        "its owner deleted it and nothing of it is left".clone_into(&mut self.reason);
        self.changed_seq = sequence;
        self
    }
}

/// The row of a service.
pub fn service_row(state: &State, id: ServiceId) -> Option<ServiceRow> {
    let service = state.services.get(&id)?;
    let spec = service.spec();
    let counts = counts(state, service);
    let (word, reason) = stage(state, service, &counts);
    Some(ServiceRow {
        id,
        name: service.name.clone(),
        tenant: service.tenant.clone(),
        class: spec.class,
        desired: service.desired,
        ready: counts.ready,
        standby: counts.standby,
        state: word.to_owned(),
        url: None,
        host: spec.route.host.clone(),
        generation: service.generation,
        rollout: rollout(service, &counts),
        rollback_to: service.rollback_target(),
        instances: counts,
        desired_reason: service.desired_reason,
        desired_since: service.desired_since,
        min: spec.scale.min,
        max: spec.scale.max,
        scale_override: service.scale_override.map(|o| OverrideRow {
            replicas: o.replicas,
            from: o.from,
            until: o.until,
        }),
        request: RequestRow {
            count: spec.devices.count,
            share_milli: spec.devices.share.0,
            kinds: spec.devices.kinds.clone(),
            models: spec.devices.models.clone(),
            memory_bytes: spec.devices.memory_bytes,
        },
        failures: service.failures,
        retry_at: service.retry_at,
        last_failure: service.last_failure.clone(),
        changed_seq: service.changed.sequence,
        reason,
    })
}

fn rollout(service: &Service, counts: &ServiceCounts) -> Option<RolloutRow> {
    let from = service.rolling_from()?;
    let state = if service.halted.is_some() { "halted" } else { "rolling" };
    Some(RolloutRow {
        state: state.to_owned(),
        from,
        to: service.generation,
        updated: counts.ready_current,
        since: service.declared_at,
        reason: service.halted.clone(),
    })
}

fn counts(state: &State, service: &Service) -> ServiceCounts {
    let mut counts = ServiceCounts::default();
    for instance in service.live.iter().filter_map(|id| state.instances.get(id)) {
        let slot = match instance.state {
            InstanceState::Ready if instance.standby => &mut counts.standby,
            InstanceState::Pending | InstanceState::Placed | InstanceState::Starting if instance.standby => {
                &mut counts.standby_starting
            }
            InstanceState::Pending => &mut counts.pending,
            InstanceState::Placed => &mut counts.placed,
            InstanceState::Starting => &mut counts.starting,
            InstanceState::Ready => {
                counts.ready_current += u32::from(instance.generation == service.generation);
                &mut counts.ready
            }
            InstanceState::Draining(_) | InstanceState::Stopping(_) => &mut counts.draining,
            InstanceState::Stopped | InstanceState::Failed | InstanceState::Lost => continue,
        };
        *slot += 1;
    }
    counts
}

/// One word and one sentence. Neither looks at a clock: a service that backs off is `failing` until it is not.
fn stage(state: &State, service: &Service, counts: &ServiceCounts) -> (&'static str, String) {
    let left = || match service.live.len() {
        0 => match unconfirmed(state, service) {
            (0, _) => "nothing of it runs".to_owned(),
            (n, nodes) => format!(
                "it waits for {} to confirm that nothing of {} is left",
                nodes.join(", "),
                count(n, "lost instance")
            ),
        },
        n => format!("{} still end", count(n, "instance")),
    };
    match service.lifecycle {
        Lifecycle::Deleting => return ("deleting", format!("its owner deleted it; {}", left())),
        Lifecycle::Stopped if service.live.is_empty() => return ("stopped", "its owner stopped it".to_owned()),
        Lifecycle::Stopped => return ("stopping", format!("its owner stopped it; {}", left())),
        Lifecycle::Active => {}
    }
    let (desired, ready) = (service.desired, counts.ready);
    if desired == 0 {
        let why = match service.desired_reason {
            DesiredReason::Override => "zero replicas were set by hand",
            _ => "its declared minimum is zero",
        };
        return ("idle", why.to_owned());
    }
    if let (Some(why), Some(from)) = (&service.halted, service.rolling_from()) {
        let generation = service.generation;
        let serving = format!("{ready} of {} answer", count(desired as usize, "replica"));
        let reason =
            format!("the rollout of generation {generation} was halted: {why}; generation {from} serves on, {serving}");
        return ("halted", reason);
    }
    if ready >= desired {
        return if counts.ready_current < desired {
            let generation = service.generation;
            (
                "updating",
                format!(
                    "{} of {desired} replicas are of generation {generation}",
                    counts.ready_current
                ),
            )
        } else {
            ("ready", format!("all {} answer", count(desired as usize, "replica")))
        };
    }
    let so_far = format!("{ready} of {} answer", count(desired as usize, "replica"));
    if counts.pending > 0 || counts.placed + counts.starting == 0 {
        let (reason, _) = why(service, counts.pending, service.pending.as_ref());
        let word = match (ready, service.failures) {
            (0, 0) => "pending",
            (0, _) if counts.pending == 0 => "failing",
            (0, _) => "pending",
            _ => "degraded",
        };
        return (word, format!("{so_far}: {reason}"));
    }
    match (&service.last_failure, service.failures) {
        (Some(failure), 1..) => (
            if ready == 0 { "failing" } else { "degraded" },
            format!(
                "{so_far}, after {} in a row: {failure}",
                count(service.failures as usize, "failure")
            ),
        ),
        _ => (
            "starting",
            format!("{so_far}, {} on the way", counts.placed + counts.starting),
        ),
    }
}

/// Instances that ended without their nodes' word, and these nodes' names: something of them may be left there.
pub(crate) fn unconfirmed(state: &State, service: &Service) -> (usize, Vec<String>) {
    let ended = service.ended.iter().filter_map(|id| state.instances.get(id));
    let waited_for: Vec<_> = ended.filter(|i| i.holding).filter_map(|i| i.node).collect();
    let mut nodes: Vec<String> = waited_for
        .iter()
        .map(|id| {
            let node = state.nodes.get(id);
            node.map_or_else(|| id.to_string(), |node| format!("node {}", node.name))
        })
        .collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.truncate(NODES_NAMED);
    (waited_for.len(), nodes)
}

/// Most nodes named in one reason.
const NODES_NAMED: usize = 5;

impl ServiceRow {
    /// The key that lists are ordered and paged by. By tenant, then name.
    pub fn sort_key(&self) -> String {
        format!("{}/{}", self.tenant, self.name)
    }
}
