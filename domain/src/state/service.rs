//! A service.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::commit::{Address, TraceContext};
use crate::events::placement::Explanation;
use crate::events::service::{DesiredReason, Scale, ServiceSpec};
use crate::id::{InstanceId, ServiceId};
use crate::time::Timestamp;
use crate::unit::Name;

use super::instance::{Instance, InstanceState};
use super::{EventMeta, State};

/// Inference replicas behind a route.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Service {
    /// Its id.
    pub id: ServiceId,
    /// Whose.
    pub tenant: Name,
    /// Unique in the tenant.
    pub name: Name,
    /// Of the declaration.
    pub generation: u64,
    /// The highest generation there was: going back to an earlier one does not free its number.
    pub newest: u64,
    /// When the present generation became the present one.
    pub declared_at: Timestamp,
    /// The generation that was served last by all replicas; none before the first was ready.
    pub settled: Option<u64>,
    /// The one settled before that.
    pub previous: Option<u64>,
    /// Why no more instances of the present generation are started, where its rollout was halted.
    pub halted: Option<String>,
    /// Declarations that are in use: the present one, what a rollback could return to, and others while instances made
    /// from them live.
    pub specs: BTreeMap<u64, Arc<ServiceSpec>>,
    /// Stage of its life.
    pub lifecycle: Lifecycle,
    /// Replicas wanted.
    pub desired: u32,
    /// What set that.
    pub desired_reason: DesiredReason,
    /// When that was set.
    pub desired_since: Timestamp,
    /// Count set by hand.
    pub scale_override: Option<ScaleOverride>,
    /// Instances that have not ended.
    pub live: BTreeSet<InstanceId>,
    /// The last that ended, oldest first.
    pub ended: VecDeque<InstanceId>,
    /// Failures in a row.
    pub failures: u32,
    /// No new instance before this.
    pub retry_at: Option<Timestamp>,
    /// The last failure, in a sentence.
    pub last_failure: Option<String>,
    /// Why instances wait, as recorded last; none when none wait.
    pub pending: Option<Explanation>,
    /// How many waited then.
    pub waiting: u32,
    /// The last placement's explanation.
    pub placed: Option<Explanation>,
    /// Traffic is on record up to here.
    pub traffic_through: Option<Timestamp>,
    /// Last change of the declaration, count, lifecycle, or of an instance's stage.
    pub changed: Address,
    /// Trace of the request that last changed what is wanted.
    pub trace: Option<TraceContext>,
}

/// Stage of a service's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// To be served.
    Active,
    /// Stopped by its owner.
    Stopped,
    /// Deleted by its owner; ends when its instances have.
    Deleting,
}

/// A replica count set by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScaleOverride {
    /// Replicas while it holds.
    pub replicas: u32,
    /// Begin.
    pub from: Option<Timestamp>,
    /// End.
    pub until: Option<Timestamp>,
}

impl ScaleOverride {
    /// Whether it holds at `now`.
    pub fn holds_at(&self, now: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= now) && self.until.is_none_or(|until| now < until)
    }
}

impl Service {
    /// The present declaration.
    pub fn spec(&self) -> &Arc<ServiceSpec> {
        self.specs
            .get(&self.generation)
            .expect("apply keeps the present generation's declaration")
    }

    /// The generation that a rollout under way, halted or not, comes from; none if there is no rollout.
    pub fn rolling_from(&self) -> Option<u64> {
        self.settled.filter(|settled| *settled != self.generation)
    }

    /// The generation that a rollout comes from which goes on: under way and not halted.
    pub fn advancing_from(&self) -> Option<u64> {
        self.rolling_from().filter(|_| self.halted.is_none())
    }

    /// The generation that new instances are made from: while a rollout is halted, the one that serves.
    pub fn made_generation(&self) -> u64 {
        match (&self.halted, self.settled) {
            (Some(_), Some(settled)) => settled,
            _ => self.generation,
        }
    }

    /// The declaration that new instances are made from.
    pub fn made_spec(&self) -> &Arc<ServiceSpec> {
        self.specs.get(&self.made_generation()).unwrap_or_else(|| self.spec())
    }

    /// From when on a replica counts as proof of its generation: it is ready and stays so for its declaration's hold. None
    /// while it is not ready.
    pub fn proven_at(&self, instance: &Instance) -> Option<Timestamp> {
        let ready = (instance.state == InstanceState::Ready).then_some(instance.ready_at)??;
        let spec = self.specs.get(&instance.generation).unwrap_or_else(|| self.spec());
        Some(ready + spec.run.ready_hold)
    }

    /// Instances to keep warm and out of rotation: none for a service that is not to serve.
    pub fn standbys(&self) -> u32 {
        match (self.lifecycle, self.desired) {
            (Lifecycle::Active, 1..) => self.made_spec().scale.standby,
            _ => 0,
        }
    }

    /// Where a rollback would go: out of a rollout to where it came from, else to the generation settled before.
    pub fn rollback_target(&self) -> Option<u64> {
        self.rolling_from().or(self.previous)
    }

    /// Makes `generation` the present one. It deserves a fresh start: what failed before says nothing of it.
    pub(super) fn turn_to(&mut self, generation: u64, meta: &EventMeta) {
        self.generation = generation;
        self.newest = self.newest.max(generation);
        self.declared_at = meta.recorded_at;
        self.halted = None;
        self.failures = 0;
        self.retry_at = None;
        self.last_failure = None;
    }

    /// One instance fewer waits; nobody waits for a reason that concerns nobody.
    pub(super) fn one_waits_less(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0 {
            self.pending = None;
        }
    }

    /// `TENANT/NAME`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.tenant, self.name)
    }

    /// The replica count that holds at `now` under the present declaration, with what sets it.
    pub fn desired_at(&self, now: Timestamp) -> (u32, DesiredReason) {
        self.desired_under(&self.spec().scale, now)
    }

    /// The replica count that would hold at `now` under `scale`. Floors and ceilings apply last, on every path.
    pub fn desired_under(&self, scale: &Scale, now: Timestamp) -> (u32, DesiredReason) {
        match self.lifecycle {
            Lifecycle::Stopped => (0, DesiredReason::Stopped),
            Lifecycle::Deleting => (0, DesiredReason::Deleted),
            Lifecycle::Active => match self.scale_override {
                Some(o) if o.holds_at(now) => (o.replicas.min(scale.max), DesiredReason::Override),
                _ => (scale.min, DesiredReason::Minimum),
            },
        }
    }
}

impl State {
    /// Whether a rollout of `service` is under way of which nothing is left to do at `now`: every replica wanted is ready,
    /// has been for its hold, and is of the present generation, and none of another stays.
    pub fn rollout_through(&self, service: &Service, now: Timestamp) -> bool {
        if service.advancing_from().is_none() || service.lifecycle != Lifecycle::Active || service.desired == 0 {
            return false;
        }
        let mut ready = 0;
        let live = service.live.iter().filter_map(|id| self.instances.get(id));
        for instance in live.filter(|i| !i.state.leaving() && !i.standby) {
            if instance.generation != service.generation {
                return false;
            }
            ready += u32::from(service.proven_at(instance).is_some_and(|at| at <= now));
        }
        ready >= service.desired
    }
}
