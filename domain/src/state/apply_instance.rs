//! What the instance family's events do, and how holds on devices follow an instance's stages.

use crate::events::Event;
use crate::events::instance::{InstanceFailed, InstancesPlaced, InstancesRequested};
use crate::id::InstanceId;
use crate::time::Timestamp;

use super::device::{DeviceHold, HoldPhase};
use super::instance::{Instance, InstanceState, Timings};
use super::{ApplyError, ENDED_KEPT, Entity, EventMeta, State, Touched, missing};

impl State {
    pub(super) fn apply_instance(
        &mut self,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        match event {
            Event::InstancesRequested(e) => self.request(e, event, meta, touched)?,
            Event::InstancesPlaced(e) => self.place(e, event, meta, touched)?,
            Event::PlacementDeferred(e) => {
                let service = self.changed_service(e.service, event, meta, touched)?;
                service.waiting = e.waiting;
                service.pending = Some(e.explanation.clone());
                for id in service.live.clone() {
                    let Some(instance) = self.instances.get_mut(&id) else {
                        continue;
                    };
                    if instance.state == InstanceState::Pending {
                        instance.reason.clone_from(&e.explanation.dominant);
                        touched.push(Entity::Instance(id));
                    }
                }
            }
            Event::InstanceStarted(e) => {
                let instance = self.fact(e.instance, e.occurred_at, event, meta, touched)?;
                // A stop that was asked meanwhile stands: a late "started" does not undo it.
                if matches!(instance.state, InstanceState::Placed) {
                    instance.state = InstanceState::Starting;
                    "its process runs".clone_into(&mut instance.reason);
                }
                instance.pid = Some(e.pid);
                instance.port = Some(e.port);
                instance.timings.fetch = Some(e.fetch);
                instance.timings.start = Some(e.start);
            }
            Event::InstanceReady(e) => {
                let instance = self.fact(e.instance, e.occurred_at, event, meta, touched)?;
                if matches!(instance.state, InstanceState::Placed | InstanceState::Starting) {
                    instance.state = InstanceState::Ready;
                    "it answers".clone_into(&mut instance.reason);
                }
                instance.endpoint.clone_from(&e.endpoint);
                instance.ready_at = Some(instance.occurred_at);
                instance.timings.load = Some(e.load);
                instance.timings.ready = instance.placed_at.map(|placed| meta.recorded_at.since(placed));
                let (service, generation) = (instance.service, instance.generation);
                let service = self.changed_service(service, event, meta, touched)?;
                // There is nothing to come from before the first generation that served.
                service.settled.get_or_insert(generation);
            }
            Event::InstanceUnready(e) => {
                let instance = self.fact(e.instance, e.occurred_at, event, meta, touched)?;
                if instance.state == InstanceState::Ready {
                    instance.state = InstanceState::Starting;
                    instance.reason.clone_from(&e.reason);
                }
                let service = instance.service;
                self.changed_service(service, event, meta, touched)?;
            }
            Event::InstancesInRotation(e) => {
                for id in &e.instances {
                    let Some(instance) = self.instances.get_mut(id) else {
                        continue;
                    };
                    let since = instance.available_at().unwrap_or(meta.recorded_at);
                    instance.timings.in_rotation = Some(meta.recorded_at.since(since));
                    touched.push(Entity::Instance(*id));
                }
            }
            Event::InstancesDrainRequested(e) => {
                for id in &e.instances {
                    let instance = self.changed_instance(*id, event, meta, touched)?;
                    instance.state = InstanceState::Draining(e.reason);
                    e.reason.sentence().clone_into(&mut instance.reason);
                    let service = instance.service;
                    self.set_hold_phase(*id, HoldPhase::Draining, touched);
                    self.changed_service(service, event, meta, touched)?;
                }
            }
            Event::InstancesStopRequested(e) => {
                for id in &e.instances {
                    let instance = self.changed_instance(*id, event, meta, touched)?;
                    if let InstanceState::Draining(reason) = instance.state {
                        instance.state = InstanceState::Stopping(reason);
                    }
                    let node = instance.node;
                    if let Some(node) = node.and_then(|n| self.nodes.get_mut(&n)) {
                        node.work_changed = meta.address;
                    }
                }
            }
            Event::InstanceStopped(e) => {
                let instance = self.fact(e.instance, e.occurred_at, event, meta, touched)?;
                let was_live = !instance.state.ended();
                if was_live {
                    instance.state = InstanceState::Stopped;
                    instance.endpoint = None;
                }
                self.drop_holds(e.instance, touched);
                if was_live {
                    self.end_instance(e.instance, meta, touched);
                }
                self.forget_old_ends(e.instance, touched);
            }
            Event::InstanceFailed(e) => self.fail(e, event, meta, touched)?,
            Event::InstanceMoveRequested(e) => {
                let instance = self.changed_instance(e.instance, event, meta, touched)?;
                instance.moving = Some(e.reason.clone());
                instance.reason = format!("it was asked to move: {}", e.reason);
                let service = instance.service;
                self.changed_service(service, event, meta, touched)?;
            }
            Event::StandbysPromoted(e) => {
                for id in &e.promoted {
                    let instance = self.changed_instance(*id, event, meta, touched)?;
                    instance.standby = false;
                    instance.promoted_at = Some(meta.recorded_at);
                    "it stood by and was promoted".clone_into(&mut instance.reason);
                }
                for id in &e.stood_by {
                    let instance = self.changed_instance(*id, event, meta, touched)?;
                    instance.standby = true;
                    "it stands by in place of one that was promoted".clone_into(&mut instance.reason);
                }
                self.changed_service(e.service, event, meta, touched)?;
            }
            Event::InstancesLost(e) => self.lose_instances(&e.instances, &e.reason, false, meta, touched),
            Event::InstancesCancelled(e) => {
                for id in &e.instances {
                    let instance = self.changed_instance(*id, event, meta, touched)?;
                    instance.state = InstanceState::Stopped;
                    e.reason.sentence().clone_into(&mut instance.reason);
                    let service = instance.service;
                    self.end_instance(*id, meta, touched);
                    self.changed_service(service, event, meta, touched)?.one_waits_less();
                }
            }
            _ => unreachable!("the caller sends only this family"),
        }
        Ok(())
    }

    fn request(
        &mut self,
        e: &InstancesRequested,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        let service = self.changed_service(e.service, event, meta, touched)?;
        service.live.extend(&e.instances);
        let timings = Timings {
            decide: Some(meta.recorded_at.since(service.desired_since)),
            ..Timings::default()
        };
        let trace = meta.trace.or(service.trace);
        for id in &e.instances {
            self.instances.insert(
                *id,
                Instance {
                    id: *id,
                    service: e.service,
                    generation: e.generation,
                    state: InstanceState::Pending,
                    reason: "waits for placement".to_owned(),
                    node: None,
                    standby: e.standby,
                    promoted_at: None,
                    holds: Vec::new(),
                    holding: false,
                    endpoint: None,
                    pid: None,
                    port: None,
                    requested_at: meta.recorded_at,
                    placed_at: None,
                    ready_at: None,
                    occurred_at: meta.recorded_at,
                    timings,
                    moving: None,
                    changed: meta.address,
                    trace,
                },
            );
            touched.push(Entity::Instance(*id));
        }
        Ok(())
    }

    fn place(
        &mut self,
        e: &InstancesPlaced,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        for placement in &e.placements {
            let instance = self.changed_instance(placement.instance, event, meta, touched)?;
            instance.state = InstanceState::Placed;
            instance.reason.clone_from(&e.explanation.dominant);
            instance.node = Some(placement.node);
            instance.holds.clone_from(&placement.holds);
            instance.holding = true;
            instance.placed_at = Some(meta.recorded_at);
            instance.occurred_at = meta.recorded_at;
            instance.timings.place = Some(meta.recorded_at.since(instance.requested_at));
            for hold in &placement.holds {
                let device = self
                    .devices
                    .get_mut(&hold.device)
                    .ok_or_else(|| missing(meta, event, hold.device))?;
                device.holds.push(DeviceHold {
                    instance: placement.instance,
                    share: hold.share,
                    phase: HoldPhase::Held,
                });
                touched.push(Entity::Device(hold.device));
            }
            let node = self
                .nodes
                .get_mut(&placement.node)
                .ok_or_else(|| missing(meta, event, placement.node))?;
            node.instances.insert(placement.instance);
            node.work_changed = meta.address;
            touched.push(Entity::Node(placement.node));
        }
        let service = self.changed_service(e.service, event, meta, touched)?;
        service.placed = Some(e.explanation.clone());
        for _ in &e.placements {
            service.one_waits_less();
        }
        Ok(())
    }

    fn fail(
        &mut self,
        e: &InstanceFailed,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        let instance = self.fact(e.instance, e.occurred_at, event, meta, touched)?;
        instance.state = InstanceState::Failed;
        instance.reason.clone_from(&e.reason);
        instance.endpoint = None;
        let (service, generation) = (instance.service, instance.generation);
        self.drop_holds(e.instance, touched);
        self.end_instance(e.instance, meta, touched);
        let service = self.changed_service(service, event, meta, touched)?;
        service.failures = e.failures;
        service.retry_at = Some(e.retry_at);
        if service.made_generation() == generation {
            service.last_failure = Some(e.reason.clone());
        }
        Ok(())
    }

    fn changed_instance(
        &mut self,
        id: InstanceId,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<&mut Instance, ApplyError> {
        let instance = self.instances.get_mut(&id).ok_or_else(|| missing(meta, event, id))?;
        instance.changed = meta.address;
        touched.push(Entity::Instance(id));
        Ok(instance)
    }

    /// The instance, changed by something that happened at `occurred_at`, clamped to what happened to it before.
    fn fact(
        &mut self,
        id: InstanceId,
        occurred_at: Timestamp,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<&mut Instance, ApplyError> {
        let instance = self.changed_instance(id, event, meta, touched)?;
        instance.occurred_at = instance.occurred_at.max(occurred_at);
        Ok(instance)
    }

    pub(super) fn set_hold_phase(&mut self, id: InstanceId, phase: HoldPhase, touched: &mut Touched) {
        let Some(instance) = self.instances.get(&id).filter(|i| i.holding) else {
            return;
        };
        for hold in &instance.holds {
            let Some(device) = self.devices.get_mut(&hold.device) else {
                continue;
            };
            for held in device.holds.iter_mut().filter(|h| h.instance == id) {
                held.phase = phase;
            }
            touched.push(Entity::Device(hold.device));
        }
    }

    pub(super) fn drop_holds(&mut self, id: InstanceId, touched: &mut Touched) {
        let Some(instance) = self.instances.get_mut(&id).filter(|i| i.holding) else {
            return;
        };
        instance.holding = false;
        // What a service still waits for is shown with it.
        touched.push(Entity::Service(instance.service));
        for hold in &instance.holds {
            if let Some(device) = self.devices.get_mut(&hold.device) {
                device.holds.retain(|h| h.instance != id);
                touched.push(Entity::Device(hold.device));
            }
        }
        if let Some(node) = instance.node.and_then(|n| self.nodes.get_mut(&n)) {
            node.instances.remove(&id);
            touched.push(Entity::Node(node.id));
        }
    }

    /// Moves an instance from its service's live to its ended ones, and tells its node that its work changed.
    pub(super) fn end_instance(&mut self, id: InstanceId, meta: &EventMeta, touched: &mut Touched) {
        let Some(instance) = self.instances.get(&id) else {
            return;
        };
        let (service, node) = (instance.service, instance.node);
        if let Some(node) = node.and_then(|n| self.nodes.get_mut(&n)) {
            node.work_changed = meta.address;
        }
        if let Some(service) = self.services.get_mut(&service)
            && service.live.remove(&id)
        {
            service.ended.push_back(id);
            service.changed = meta.address;
            touched.push(Entity::Service(service.id));
        }
        self.forget_old_ends(id, touched);
    }

    /// Drops a service's oldest ended instances beyond what is kept, except those of which something may be left.
    fn forget_old_ends(&mut self, id: InstanceId, touched: &mut Touched) {
        let Some(service) = self.instances.get(&id).map(|i| i.service) else {
            return;
        };
        let Some(entry) = self.services.get_mut(&service) else {
            return;
        };
        let mut excess = entry.ended.len().saturating_sub(ENDED_KEPT);
        if excess == 0 {
            return;
        }
        let instances = &mut self.instances;
        entry.ended.retain(|ended| {
            if excess == 0 || instances.get(ended).is_some_and(|i| i.holding) {
                return true;
            }
            excess -= 1;
            instances.remove(ended);
            touched.push(Entity::Instance(*ended));
            false
        });
        self.drop_unused_specs(service);
    }
}
