//! `status`: one thing with what belongs to it, as rows.

use serde::Serialize;
use tidemill_domain::state::{Entity, State};

use crate::rows::{
    DeviceRow, InstanceRow, NodeRow, QueueRow, ServiceRow, SwitchRow, device_row, instance_row, node_row, queue_row,
    service_row, switch_row,
};

/// One thing with what belongs to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Status {
    /// A node.
    Node {
        /// Its row.
        node: NodeRow,
        /// Its devices.
        devices: Vec<DeviceRow>,
        /// What is placed there.
        instances: Vec<InstanceRow>,
    },
    /// A device.
    Device {
        /// Its row.
        device: DeviceRow,
        /// Where it is.
        node: Option<NodeRow>,
        /// Who holds of it.
        instances: Vec<InstanceRow>,
    },
    /// A service.
    Service {
        /// Its row.
        service: Box<ServiceRow>,
        /// What it waits for, if it waits.
        queue: Option<QueueRow>,
        /// Its instances, the last ended ones too.
        instances: Vec<InstanceRow>,
    },
    /// A switch.
    Switch {
        /// Its row.
        switch: Box<SwitchRow>,
        /// The instance whose work moved and what took over, as far as they are still known.
        instances: Vec<InstanceRow>,
    },
    /// An instance.
    Instance {
        /// Its row.
        instance: Box<InstanceRow>,
        /// Its service.
        service: Option<Box<ServiceRow>>,
        /// Where it is.
        node: Option<NodeRow>,
    },
}

/// The status of what the state has; none for what it lacks, and for the cell, roles and tokens.
pub fn status(state: &State, entity: &Entity) -> Option<Status> {
    let rows = |ids: &mut dyn Iterator<Item = tidemill_domain::id::InstanceId>| {
        let mut rows: Vec<InstanceRow> = ids.filter_map(|id| instance_row(state, id)).collect();
        rows.sort_by_cached_key(InstanceRow::sort_key);
        rows
    };
    match entity {
        Entity::Node(id) => {
            let node = state.nodes.get(id)?;
            let mut devices: Vec<DeviceRow> = node.devices.iter().filter_map(|id| device_row(state, *id)).collect();
            devices.sort_by_cached_key(DeviceRow::sort_key);
            Some(Status::Node {
                node: node_row(state, *id)?,
                devices,
                instances: rows(&mut node.instances.iter().copied()),
            })
        }
        Entity::Device(id) => {
            let device = state.devices.get(id)?;
            Some(Status::Device {
                device: device_row(state, *id)?,
                node: node_row(state, device.node),
                instances: rows(&mut device.holds.iter().map(|h| h.instance)),
            })
        }
        Entity::Service(id) => {
            let service = state.services.get(id)?;
            Some(Status::Service {
                service: Box::new(service_row(state, *id)?),
                queue: queue_row(state, *id),
                instances: rows(&mut service.live.iter().chain(&service.ended).copied()),
            })
        }
        Entity::Instance(id) => {
            let instance = state.instances.get(id)?;
            Some(Status::Instance {
                instance: Box::new(instance_row(state, *id)?),
                service: service_row(state, instance.service).map(Box::new),
                node: instance.node.and_then(|n| node_row(state, n)),
            })
        }
        Entity::Switch(id) => {
            let switch = state.switches.get(id)?;
            Some(Status::Switch {
                switch: Box::new(switch_row(state, *id)?),
                instances: rows(&mut std::iter::once(switch.instance).chain(switch.replacement)),
            })
        }
        Entity::Cell | Entity::Term(_) | Entity::Credential(_) => None,
    }
}
