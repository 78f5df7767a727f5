//! What lists show: one typed row an entity, rendered from the state alone.
//!
//! Each row is a pure function of `(state, id)`. The read models upsert what it returns, time travel returns what it
//! returns, so the two agree by construction; the JSON keys are the contract's, with more beside them.
//!
//! A row depends on its own entity, on what never changes (names, UUIDs), and on entities whose change marks it as
//! changed too ([`dependents`]): a node's row on its devices, a service's on its instances, and nothing else. No row
//! speaks of the present time, only of points in time; ages are for whoever shows them.

mod device;
mod instance;
mod node;
mod pool;
mod queue;
mod service;
mod switch;

use tidemill_domain::state::{Entity, State};

pub use device::{DeviceRow, HoldRow, device_row};
pub use instance::{InstanceRow, TimingsRow, instance_row};
pub use node::{FindingRow, InspectionRow, NodeRow, node_row};
pub use pool::{Counts, PoolRow, pool_row};
pub use queue::{FilterRow, QueueRow, filter_sentence, queue_row};
pub(crate) use service::unconfirmed;
pub use service::{OverrideRow, RequestRow, ServiceCounts, ServiceRow, service_row};
pub use switch::{SwitchRow, switch_row};

/// Further entities whose rows change when `entity` does, as the state stands after the change.
pub fn dependents(state: &State, entity: &Entity) -> Option<Entity> {
    match entity {
        Entity::Device(id) => state.devices.get(id).map(|d| Entity::Node(d.node)),
        Entity::Instance(id) => state.instances.get(id).map(|i| Entity::Service(i.service)),
        _ => None,
    }
}

/// A supply kind's word, as in JSON.
pub(crate) fn supply_word(supply: &tidemill_domain::events::node::Supply) -> &'static str {
    supply.name()
}

/// `3 instances`, `1 instance`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}
