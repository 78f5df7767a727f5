//! The last rows of what the state forgets.
//!
//! The state keeps a few ended instances a service; read models keep all. One event may both end and forget an
//! instance (two hundred are cancelled at once, sixteen are kept), so its last row is rendered before the event and
//! completed from it. Instances that changed earlier in the same batch, and whose rows are therefore not written yet,
//! are rendered too: where a batch ends must not show in the tables.

use std::collections::{BTreeSet, HashSet};

use tidemill_domain::events::Event;
use tidemill_domain::id::{InstanceId, ServiceId};
use tidemill_domain::state::{ENDED_KEPT, Entity, EventMeta, State};

use super::view::Retired;
use crate::rows::{InstanceRow, ServiceRow, SwitchRow, instance_row, service_row, switch_row};

/// Rows of what an event may make the state forget.
#[derive(Default)]
pub(super) struct Leaving {
    instances: Vec<InstanceRow>,
    service: Option<ServiceRow>,
    switches: Vec<SwitchRow>,
}

impl Leaving {
    /// Renders, from the state before `event`, what the event may remove. `dirty` = changed in this batch.
    pub(super) fn before(event: &Event, state: &State, dirty: &HashSet<Entity>) -> Self {
        let ending: &[InstanceId] = match event {
            Event::InstanceStopped(e) => std::slice::from_ref(&e.instance),
            Event::InstanceFailed(e) => std::slice::from_ref(&e.instance),
            Event::InstancesLost(e) => &e.instances,
            Event::InstancesCancelled(e) => &e.instances,
            // Instances lost with a node keep their holds, and with them their place in the state, but push others out; those
            // of a node that is forgotten let go of them.
            Event::NodeLost(e) => &e.instances,
            Event::NodeLeft(e) => &e.instances,
            Event::ServiceDeleted(e) => {
                let service = state.services.get(&e.service);
                let listed = service.iter().flat_map(|s| s.live.iter().chain(&s.ended));
                return Self {
                    instances: listed
                        .filter(|id| dirty.contains(&Entity::Instance(**id)))
                        .filter_map(|id| instance_row(state, *id))
                        .collect(),
                    service: service_row(state, e.service),
                    switches: Vec::new(),
                };
            }
            // The end of one pushes out those that ended long before; in a rebuild that is the same batch.
            Event::SwitchClosed(_) => {
                let closed = state.switches.values().filter(|switch| !switch.is_open());
                let unwritten = closed.filter(|switch| dirty.contains(&Entity::Switch(switch.id)));
                return Self {
                    switches: unwritten.filter_map(|switch| switch_row(state, switch.id)).collect(),
                    ..Self::default()
                };
            }
            _ => return Self::default(),
        };
        let services: BTreeSet<ServiceId> = ending
            .iter()
            .filter_map(|id| state.instances.get(id))
            .map(|i| i.service)
            .collect();
        let mut instances = Vec::new();
        for service in services.iter().filter_map(|id| state.services.get(id)) {
            let excess = (service.ended.len() + ending.len()).saturating_sub(ENDED_KEPT);
            if excess == 0 {
                continue;
            }
            // The oldest go first, except those that hold something and are not just now letting go of it.
            let goes = |id: &&InstanceId| state.instances.get(id).is_some_and(|i| !i.holding) || ending.contains(id);
            let own = |id: &&InstanceId| {
                state.instances.get(id).is_some_and(|i| i.service == service.id) && !service.ended.contains(id)
            };
            let candidates = service.ended.iter().filter(goes).chain(ending.iter().filter(own));
            let unwritten = |id: &&InstanceId| dirty.contains(&Entity::Instance(**id)) || ending.contains(id);
            instances.extend(
                candidates
                    .take(excess)
                    .filter(unwritten)
                    .filter_map(|id| instance_row(state, *id)),
            );
        }
        Self {
            instances,
            ..Self::default()
        }
    }

    /// What the event did remove, each with its last row.
    pub(super) fn after<'a>(
        self,
        event: &'a Event,
        meta: &'a EventMeta,
        state: &'a State,
    ) -> impl Iterator<Item = Retired> + 'a {
        let named = |id: InstanceId| match event {
            Event::InstanceStopped(e) => e.instance == id,
            Event::InstanceFailed(e) => e.instance == id,
            Event::InstancesLost(e) => e.instances.contains(&id),
            Event::InstancesCancelled(e) => e.instances.contains(&id),
            Event::NodeLeft(e) => e.instances.contains(&id),
            _ => false,
        };
        let instances = self
            .instances
            .into_iter()
            .filter(|row| !state.instances.contains_key(&row.id))
            .map(move |row| if named(row.id) { row.end_by(event, meta) } else { row })
            .map(Retired::Instance);
        let service = self
            .service
            .map(|row| Retired::Service(row.deleted(meta.address.sequence)));
        let switches = self.switches.into_iter();
        let switches = switches.filter(|row| !state.switches.contains_key(&row.id));
        instances.chain(service).chain(switches.map(Retired::Switch))
    }
}
