//! What the node family's events do.

use std::collections::{BTreeSet, VecDeque};

use crate::events::Event;
use crate::events::node::{DrainCause, NodeJoined};
use crate::id::{InstanceId, NodeId};

use super::device::{Device, DeviceCondition, HoldPhase};
use super::instance::InstanceState;
use super::node::{DOUBTS_KEPT, Drain, Intake, Node, NodeState};
use super::{ApplyError, Entity, EventMeta, State, Touched, missing};

impl State {
    pub(super) fn apply_node(
        &mut self,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        match event {
            Event::NodeJoined(e) => self.join_node(e, meta, touched),
            Event::NodeReady(e) => {
                let node = self
                    .nodes
                    .get_mut(&e.node)
                    .ok_or_else(|| missing(meta, event, e.node))?;
                set(node, NodeState::Ready, "inventory accepted", meta);
                touched.push(Entity::Node(e.node));
            }
            Event::NodeSuspected(e) => {
                let node = self
                    .nodes
                    .get_mut(&e.node)
                    .ok_or_else(|| missing(meta, event, e.node))?;
                set(node, NodeState::Suspect, &e.reason, meta);
                node.doubts.push_back(meta.recorded_at);
                if node.doubts.len() > DOUBTS_KEPT {
                    node.doubts.pop_front();
                }
                touched.push(Entity::Node(e.node));
                self.services_notice(e.node, meta, touched);
            }
            Event::NodeRecovered(e) => {
                let node = self
                    .nodes
                    .get_mut(&e.node)
                    .ok_or_else(|| missing(meta, event, e.node))?;
                let was_lost = node.state == NodeState::Lost;
                set(node, NodeState::Ready, &e.reason, meta);
                touched.push(Entity::Node(e.node));
                if was_lost {
                    self.set_device_conditions(e.node, DeviceCondition::Usable, touched);
                }
                self.services_notice(e.node, meta, touched);
            }
            Event::NodeLost(e) => {
                let node = self
                    .nodes
                    .get_mut(&e.node)
                    .ok_or_else(|| missing(meta, event, e.node))?;
                set(node, NodeState::Lost, &e.reason, meta);
                touched.push(Entity::Node(e.node));
                self.lose_instances(
                    &e.instances,
                    &format!("its node was lost: {}", e.reason),
                    true,
                    meta,
                    touched,
                );
                self.set_device_conditions(e.node, DeviceCondition::Lost, touched);
            }
            Event::NodeLeft(e) => {
                let node = self
                    .nodes
                    .get_mut(&e.node)
                    .ok_or_else(|| missing(meta, event, e.node))?;
                // Given up before: nobody will confirm what is left there, so nothing waits for that, and the name is
                // no longer bound to who enrolled it.
                let forgotten = matches!(node.state, NodeState::Lost | NodeState::Left);
                if forgotten {
                    node.credential = None;
                }
                set(node, NodeState::Left, &e.reason, meta);
                touched.push(Entity::Node(e.node));
                self.lose_instances(
                    &e.instances,
                    &format!("its node left: {}", e.reason),
                    !forgotten,
                    meta,
                    touched,
                );
                self.set_device_conditions(e.node, DeviceCondition::Lost, touched);
            }
            Event::NodeCordoned(e) => self.set_intake(e.node, event, meta, touched, |_| Intake::Cordoned {
                reason: e.reason.clone(),
            })?,
            Event::NodeUncordoned(e) => {
                self.set_intake(e.node, event, meta, touched, |_| Intake::Open)?;
                // Who gives a node work by hand trusts it.
                if let Some(node) = self.nodes.get_mut(&e.node) {
                    node.doubts.clear();
                }
            }
            Event::NodeDrainRequested(e) => self.set_intake(e.node, event, meta, touched, |_| {
                Intake::Draining(Drain {
                    cause: e.cause,
                    reason: e.reason.clone(),
                    since: meta.recorded_at,
                    deadline: e.deadline,
                })
            })?,
            Event::NodeDrained(e) => self.set_intake(e.node, event, meta, touched, |before| match before {
                Intake::Draining(drain) => Intake::Drained(drain),
                other => other,
            })?,
            Event::NodeInspected(e) => {
                let node = self
                    .nodes
                    .get_mut(&e.node)
                    .ok_or_else(|| missing(meta, event, e.node))?;
                let before = node.inspection.replace(e.clone());
                node.changed = meta.address;
                touched.push(Entity::Node(e.node));
                let cleared = before.iter().flat_map(|i| &i.findings);
                let found = cleared.chain(&e.findings).filter_map(|f| f.device);
                touched.extend(found.map(Entity::Device));
            }
            _ => unreachable!("the caller sends only this family"),
        }
        Ok(())
    }

    fn join_node(&mut self, e: &NodeJoined, meta: &EventMeta, touched: &mut Touched) {
        let node = self.nodes.entry(e.node).or_insert_with(|| Node {
            id: e.node,
            name: e.name.clone(),
            supply: e.supply,
            provider: String::new(),
            region: String::new(),
            zone: String::new(),
            address: None,
            boot_id: String::new(),
            machine_id: String::new(),
            agent_id: String::new(),
            credential: None,
            state: NodeState::Joining,
            reason: String::new(),
            joined_at: meta.recorded_at,
            devices: BTreeSet::new(),
            runtimes: Vec::new(),
            instances: BTreeSet::new(),
            inspection: None,
            intake: Intake::Open,
            doubts: VecDeque::new(),
            changed: meta.address,
            work_changed: meta.address,
        });
        node.supply = e.supply;
        node.provider.clone_from(&e.provider);
        node.region.clone_from(&e.region);
        node.zone.clone_from(&e.zone);
        node.address.clone_from(&e.address);
        node.boot_id.clone_from(&e.boot_id);
        node.machine_id.clone_from(&e.machine_id);
        node.agent_id.clone_from(&e.agent_id);
        node.credential = e.credential;
        node.runtimes.clone_from(&e.runtimes);
        node.work_changed = meta.address;
        // Whoever took the machine away and brings it back wants it to work again.
        if node.state == NodeState::Left
            && let Intake::Draining(drain) | Intake::Drained(drain) = &node.intake
            && drain.cause == DrainCause::Leave
        {
            node.intake = Intake::Open;
        }
        set(node, NodeState::Joining, "inventory received", meta);
        self.index.node_names.insert(e.name.clone(), e.node);

        let listed: BTreeSet<_> = e.devices.iter().map(|d| d.device).collect();
        let gone: Vec<_> = node.devices.difference(&listed).copied().collect();
        node.devices.extend(&listed);
        for joined in &e.devices {
            // Holds outlive a rejoin: the processes may well run on. A device seen on another node before has moved.
            let before = self.devices.remove(&joined.device);
            if let Some(other) = before.as_ref().map(|d| d.node).filter(|n| *n != e.node) {
                if let Some(other) = self.nodes.get_mut(&other) {
                    other.devices.remove(&joined.device);
                }
                touched.push(Entity::Node(other));
            }
            let holds = before.filter(|d| d.node == e.node).map(|d| d.holds).unwrap_or_default();
            self.devices.insert(
                joined.device,
                Device {
                    id: joined.device,
                    uuid: joined.uuid.clone(),
                    node: e.node,
                    kind: joined.kind,
                    model: joined.model.clone(),
                    memory_bytes: joined.memory_bytes,
                    speed_milli: joined.speed_milli,
                    simulated: joined.simulated,
                    condition: DeviceCondition::Usable,
                    holds,
                },
            );
            touched.push(Entity::Device(joined.device));
        }
        for device in gone {
            if let Some(device) = self.devices.get_mut(&device) {
                device.condition = DeviceCondition::Lost;
            }
            touched.push(Entity::Device(device));
        }
        touched.push(Entity::Node(e.node));
    }

    fn set_intake(
        &mut self,
        id: NodeId,
        event: &Event,
        meta: &EventMeta,
        touched: &mut Touched,
        change: impl FnOnce(Intake) -> Intake,
    ) -> Result<(), ApplyError> {
        let node = self.nodes.get_mut(&id).ok_or_else(|| missing(meta, event, id))?;
        node.intake = change(std::mem::replace(&mut node.intake, Intake::Open));
        node.changed = meta.address;
        touched.push(Entity::Node(id));
        self.services_notice(id, meta, touched);
        Ok(())
    }

    /// Marks the services of the node's instances as changed: what they need may be another thing now.
    pub(super) fn services_notice(&mut self, node: NodeId, meta: &EventMeta, touched: &mut Touched) {
        let Some(node) = self.nodes.get(&node) else { return };
        for instance in node.instances.iter().filter_map(|id| self.instances.get(id)) {
            if let Some(service) = self.services.get_mut(&instance.service)
                && service.changed != meta.address
            {
                service.changed = meta.address;
                touched.push(Entity::Service(service.id));
            }
        }
    }

    fn set_device_conditions(&mut self, node: NodeId, condition: DeviceCondition, touched: &mut Touched) {
        let Some(node) = self.nodes.get(&node) else { return };
        for id in &node.devices {
            if let Some(device) = self.devices.get_mut(id) {
                device.condition = condition;
                touched.push(Entity::Device(*id));
            }
        }
    }

    /// Ends instances without their node's word. With `may_remain` something of them may still run there: their holds
    /// turn dirty and stay until the node confirms.
    pub(super) fn lose_instances(
        &mut self,
        instances: &[InstanceId],
        reason: &str,
        may_remain: bool,
        meta: &EventMeta,
        touched: &mut Touched,
    ) {
        for id in instances {
            let Some(instance) = self.instances.get_mut(id) else {
                continue;
            };
            instance.state = InstanceState::Lost;
            reason.clone_into(&mut instance.reason);
            instance.endpoint = None;
            instance.occurred_at = meta.recorded_at;
            instance.changed = meta.address;
            touched.push(Entity::Instance(*id));
            if may_remain {
                self.set_hold_phase(*id, HoldPhase::Dirty, touched);
            } else {
                self.drop_holds(*id, touched);
            }
            self.end_instance(*id, meta, touched);
        }
    }
}

fn set(node: &mut Node, state: NodeState, reason: &str, meta: &EventMeta) {
    node.state = state;
    reason.clone_into(&mut node.reason);
    node.changed = meta.address;
}
