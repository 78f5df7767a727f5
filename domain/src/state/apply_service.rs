//! What the service family's events do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::events::Event;
use crate::events::service::{DesiredReason, ServiceApplied};
use crate::id::ServiceId;

use super::service::{Lifecycle, ScaleOverride, Service};
use super::{ApplyError, Entity, EventMeta, State, Touched, missing};

impl State {
    pub(super) fn apply_service(
        &mut self,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        match event {
            Event::ServiceApplied(e) => self.put_service(e, meta, touched),
            Event::ServiceStopRequested(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.lifecycle = Lifecycle::Stopped;
                service.trace = meta.trace;
            }
            Event::ServiceStarted(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.lifecycle = Lifecycle::Active;
                service.failures = 0;
                service.retry_at = None;
                service.trace = meta.trace;
            }
            Event::ServiceDeleteRequested(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.lifecycle = Lifecycle::Deleting;
                service.trace = meta.trace;
            }
            Event::ServiceDeleted(e) => {
                let service = self
                    .services
                    .remove(&e.service)
                    .ok_or_else(|| missing(meta, event, e.service))?;
                for instance in service.live.iter().chain(&service.ended) {
                    self.instances.remove(instance);
                    touched.push(Entity::Instance(*instance));
                }
                self.index.service_names.remove(&(service.tenant, service.name));
                touched.push(Entity::Service(e.service));
            }
            Event::ServiceScaleOverridden(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.scale_override = Some(ScaleOverride {
                    replicas: e.replicas,
                    from: e.from,
                    until: e.until,
                });
                service.trace = meta.trace;
            }
            Event::ServiceScaleReleased(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.scale_override = None;
                service.trace = meta.trace;
            }
            Event::ServiceDesiredChanged(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.desired = e.desired;
                service.desired_reason = e.reason;
                service.desired_since = meta.recorded_at;
            }
            Event::ServiceRolledOut(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.previous = service.settled;
                service.settled = Some(e.generation);
                self.drop_unused_specs(e.service);
            }
            Event::ServiceRolloutHalted(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.halted = Some(e.reason.clone());
                // What failed was the new generation; the one that serves on starts with a clean record.
                service.failures = 0;
                service.retry_at = None;
            }
            Event::ServiceRolledBack(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.specs.insert(e.to, Arc::new(e.spec.clone()));
                service.turn_to(e.to, meta);
                service.trace = meta.trace;
                self.drop_unused_specs(e.service);
            }
            _ => unreachable!("the caller sends only this family"),
        }
        Ok(())
    }

    fn put_service(&mut self, e: &ServiceApplied, meta: &EventMeta, touched: &mut Touched) {
        let service = self.services.entry(e.service).or_insert_with(|| Service {
            id: e.service,
            tenant: e.tenant.clone(),
            name: e.name.clone(),
            generation: e.generation,
            newest: e.generation,
            declared_at: meta.recorded_at,
            settled: None,
            previous: None,
            halted: None,
            specs: BTreeMap::new(),
            lifecycle: Lifecycle::Active,
            desired: 0,
            desired_reason: DesiredReason::Minimum,
            desired_since: meta.recorded_at,
            scale_override: None,
            live: BTreeSet::new(),
            ended: VecDeque::new(),
            failures: 0,
            retry_at: None,
            last_failure: None,
            pending: None,
            waiting: 0,
            placed: None,
            traffic_through: None,
            changed: meta.address,
            trace: meta.trace,
        });
        if e.generation != service.generation {
            service.turn_to(e.generation, meta);
        }
        service.specs.insert(e.generation, Arc::new(e.spec.clone()));
        service.changed = meta.address;
        service.trace = meta.trace;
        self.index
            .service_names
            .insert((e.tenant.clone(), e.name.clone()), e.service);
        touched.push(Entity::Service(e.service));
        self.drop_unused_specs(e.service);
    }

    /// Forgets declarations of which no instance is left.
    pub(super) fn drop_unused_specs(&mut self, service: ServiceId) {
        let Some(service) = self.services.get_mut(&service) else {
            return;
        };
        if service.specs.len() < 2 {
            return;
        }
        let used: BTreeSet<u64> = service
            .live
            .iter()
            .chain(&service.ended)
            .filter_map(|id| self.instances.get(id))
            .map(|i| i.generation)
            .collect();
        let kept = [Some(service.generation), service.settled, service.previous];
        service
            .specs
            .retain(|generation, _| kept.contains(&Some(*generation)) || used.contains(generation));
    }

    pub(super) fn changed_service(
        &mut self,
        id: ServiceId,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<&mut Service, ApplyError> {
        let service = self.services.get_mut(&id).ok_or_else(|| missing(meta, event, id))?;
        service.changed = meta.address;
        touched.push(Entity::Service(id));
        Ok(service)
    }
}
