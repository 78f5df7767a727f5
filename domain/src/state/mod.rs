//! The state of a cell: what its ledger's events add up to.
//!
//! `apply` is the only thing that changes it, takes one event at a time, and depends on nothing but the state and the
//! event: no clock, no configuration, no validation by today's rules. Every process that needs state folds this same
//! type; equal ledgers give equal states, byte for byte, which is what seals check. The alternative, a state per
//! consumer, would need a proof per pair that they agree.
//!
//! Invariants: `apply` of an event that `decide` produced on this state never fails; each entity that an event changes
//! is named in the [`Touched`] list (projections upsert exactly those, seals rehash exactly those); indexes are derived
//! and rebuilt after a snapshot is read; ended instances are kept only while they hold something or are among the
//! last [`ENDED_KEPT`] of their service, so the state is bounded by what exists, not by what has happened.

mod apply_instance;
mod apply_node;
mod apply_service;
mod apply_switch;
pub mod breaker;
pub mod device;
pub mod instance;
pub mod node;
pub mod seal;
pub mod service;
pub mod switch;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::commit::{Address, Commit, TraceContext};
use crate::events::Event;
use crate::events::credential::{CredentialCreated, Role};
use crate::events::node::Supply;
use crate::id::{CredentialId, DeviceId, InstanceId, LedgerId, NodeId, ServiceId, SwitchId};
use crate::time::{Span, Timestamp};
use crate::unit::Name;

use breaker::Breaker;
use device::Device;
use instance::Instance;
use node::Node;
use service::Service;
use switch::Switch;

/// Raised with every change of the state's shape or of `apply`: seals of other versions cannot be checked.
pub const STATE_VERSION: u32 = 4;

/// Ended instances kept per service, so that `status` and `explain` can still tell of them.
pub const ENDED_KEPT: usize = 16;

/// The span of one traffic record.
pub const MINUTE: Span = Span::from_secs(60);

/// What an event changed: the unit of upserts, seals and invariant checks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entity {
    /// The cell itself.
    Cell,
    /// A worker role.
    Term(String),
    /// A token's record.
    Credential(CredentialId),
    /// A node.
    Node(NodeId),
    /// A device.
    Device(DeviceId),
    /// A service.
    Service(ServiceId),
    /// An instance.
    Instance(InstanceId),
    /// A switch.
    Switch(SwitchId),
}

/// The entities that events changed, in order, with repeats.
pub type Touched = Vec<Entity>;

/// Where, when and in what trace an event was recorded.
#[derive(Debug, Clone, Copy)]
pub struct EventMeta {
    /// Its address.
    pub address: Address,
    /// Its commit's time.
    pub recorded_at: Timestamp,
    /// Its commit's trace.
    pub trace: Option<TraceContext>,
}

/// An event that does not fit the state: the ledger or this build is broken, and a reader stops.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event {event} at {sequence}.{index} names {entity}, which the state does not have", sequence = .address.sequence, index = .address.index)]
pub struct ApplyError {
    /// Where.
    pub address: Address,
    /// Kind.
    pub event: &'static str,
    /// The missing entity.
    pub entity: String,
}

/// The cell as a whole.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// Name.
    pub name: String,
    /// Identity of the ledger.
    pub ledger: LedgerId,
    /// Present epoch.
    pub epoch: u64,
    /// Present leader.
    pub leader: String,
    /// Features activated.
    pub features: BTreeSet<String>,
    /// When the epoch began.
    pub epoch_started_at: Timestamp,
    /// Observations are sealed up to and including this one.
    pub observations_through: u64,
    /// Whether many nodes seem to be gone at once.
    pub breaker: Breaker,
}

/// Who holds a worker role.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// Process.
    pub holder: String,
    /// Number.
    pub term: u64,
    /// Last change.
    pub changed: Address,
}

/// A token's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Credential {
    /// Its id.
    pub id: CredentialId,
    /// BLAKE3 of its text.
    pub hash: [u8; 32],
    /// What it allows.
    pub role: Role,
    /// Only supply kind it enrols.
    pub supply: Option<Supply>,
    /// Whose workloads.
    pub tenant: Option<Name>,
    /// End of validity.
    pub expires_at: Option<Timestamp>,
    /// When it was made.
    pub created_at: Timestamp,
    /// No longer taken.
    pub revoked: bool,
}

/// The state of a cell.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    /// The cell.
    pub cell: Cell,
    /// Sequence of the last record folded.
    pub sequence: u64,
    /// Time of the last record folded.
    pub recorded_at: Timestamp,
    /// Events folded.
    pub events: u64,
    /// Worker roles.
    pub terms: BTreeMap<String, Term>,
    /// Tokens.
    pub credentials: BTreeMap<CredentialId, Credential>,
    /// Nodes, left ones too.
    pub nodes: BTreeMap<NodeId, Node>,
    /// Devices.
    pub devices: BTreeMap<DeviceId, Device>,
    /// Services.
    pub services: BTreeMap<ServiceId, Service>,
    /// Instances that live, hold something, or ended lately.
    pub instances: BTreeMap<InstanceId, Instance>,
    /// Switches that are open or were closed lately.
    pub switches: BTreeMap<SwitchId, Switch>,
    #[serde(skip)]
    index: Index,
}

#[derive(Debug, Clone, Default)]
struct Index {
    node_names: BTreeMap<Name, NodeId>,
    service_names: BTreeMap<(Name, Name), ServiceId>,
    credential_hashes: HashMap<[u8; 32], CredentialId>,
}

impl State {
    /// Folds all of a record's commits. `sequence` is the record's; addresses count events over its commits.
    pub fn apply_record<'a>(
        &mut self,
        sequence: u64,
        commits: impl IntoIterator<Item = &'a Commit>,
        touched: &mut Touched,
    ) -> Result<(), ApplyError> {
        let mut index = 0;
        for commit in commits {
            for event in &commit.events {
                let meta = EventMeta {
                    address: Address { sequence, index },
                    recorded_at: commit.header.recorded_at,
                    trace: commit.header.trace,
                };
                self.apply(event, &meta, touched)?;
                index += 1;
            }
        }
        Ok(())
    }

    /// Folds one event.
    pub fn apply(&mut self, event: &Event, meta: &EventMeta, touched: &mut Touched) -> Result<(), ApplyError> {
        self.events += 1;
        self.sequence = meta.address.sequence;
        self.recorded_at = meta.recorded_at;
        match event {
            Event::LedgerCreated(e) => {
                self.cell.name.clone_from(&e.cell);
                self.cell.ledger = e.ledger;
                touched.push(Entity::Cell);
            }
            Event::EpochStarted(e) => {
                self.cell.epoch = e.epoch;
                self.cell.leader.clone_from(&e.leader);
                self.cell.epoch_started_at = meta.recorded_at;
                touched.push(Entity::Cell);
            }
            // A seal speaks of the state and is not part of it: else it could not be checked against it.
            Event::StateSealed(_) => {}
            Event::FeatureActivated(e) => {
                self.cell.features.insert(e.feature.clone());
                touched.push(Entity::Cell);
            }
            Event::WorkerTermGranted(e) => {
                let term = Term {
                    holder: e.holder.clone(),
                    term: e.term,
                    changed: meta.address,
                };
                self.terms.insert(e.role.clone(), term);
                touched.push(Entity::Term(e.role.clone()));
            }
            Event::CredentialCreated(e) => self.create_credential(e, meta, touched),
            Event::CredentialRevoked(e) => {
                let credential = self
                    .credentials
                    .get_mut(&e.credential)
                    .ok_or_else(|| missing(meta, event, e.credential))?;
                credential.revoked = true;
                touched.push(Entity::Credential(e.credential));
            }
            Event::NodeJoined(_)
            | Event::NodeReady(_)
            | Event::NodeSuspected(_)
            | Event::NodeRecovered(_)
            | Event::NodeLost(_)
            | Event::NodeLeft(_)
            | Event::NodeInspected(_)
            | Event::NodeCordoned(_)
            | Event::NodeUncordoned(_)
            | Event::NodeDrainRequested(_)
            | Event::NodeDrained(_) => self.apply_node(event, meta, touched)?,
            Event::BreakerTripped(_) => self.trip_breaker(meta, touched),
            Event::BreakerConfirmed(_) | Event::BreakerReset(_) => self.close_breaker(meta, touched),
            Event::ServiceApplied(_)
            | Event::ServiceStopRequested(_)
            | Event::ServiceStarted(_)
            | Event::ServiceDeleteRequested(_)
            | Event::ServiceDeleted(_)
            | Event::ServiceScaleOverridden(_)
            | Event::ServiceScaleReleased(_)
            | Event::ServiceDesiredChanged(_)
            | Event::ServiceRolledOut(_)
            | Event::ServiceRolloutHalted(_)
            | Event::ServiceRolledBack(_) => self.apply_service(event, meta, touched)?,
            Event::InstancesRequested(_)
            | Event::InstancesPlaced(_)
            | Event::PlacementDeferred(_)
            | Event::InstanceStarted(_)
            | Event::InstanceReady(_)
            | Event::InstanceUnready(_)
            | Event::InstancesInRotation(_)
            | Event::InstancesDrainRequested(_)
            | Event::InstancesStopRequested(_)
            | Event::InstanceStopped(_)
            | Event::InstanceFailed(_)
            | Event::InstancesLost(_)
            | Event::InstancesCancelled(_)
            | Event::StandbysPromoted(_)
            | Event::InstanceMoveRequested(_) => self.apply_instance(event, meta, touched)?,
            Event::SwitchOpened(_) | Event::SwitchReplacementChosen(_) | Event::SwitchClosed(_) => {
                self.apply_switch(event, meta, touched)?;
            }
            // Evidence itself is read from the ledger by those who need it; here only how far it reaches is kept.
            Event::TrafficMinuteClosed(e) => {
                let service = self
                    .services
                    .get_mut(&e.service)
                    .ok_or_else(|| missing(meta, event, e.service))?;
                service.traffic_through = Some(e.minute + MINUTE);
                touched.push(Entity::Service(e.service));
            }
            Event::ObservationWindowSealed(e) => {
                self.cell.observations_through = e.last;
                touched.push(Entity::Cell);
            }
        }
        Ok(())
    }

    fn create_credential(&mut self, e: &CredentialCreated, meta: &EventMeta, touched: &mut Touched) {
        self.credentials.insert(
            e.credential,
            Credential {
                id: e.credential,
                hash: e.hash,
                role: e.role,
                supply: e.supply,
                tenant: e.tenant.clone(),
                expires_at: e.expires_at,
                created_at: meta.recorded_at,
                revoked: false,
            },
        );
        self.index.credential_hashes.insert(e.hash, e.credential);
        touched.push(Entity::Credential(e.credential));
    }

    /// The node of this name.
    pub fn node_named(&self, name: &str) -> Option<&Node> {
        self.index.node_names.get(name).and_then(|id| self.nodes.get(id))
    }

    /// The service of this tenant and name.
    pub fn service_named(&self, tenant: &Name, name: &Name) -> Option<&Service> {
        self.index
            .service_names
            .get(&(tenant.clone(), name.clone()))
            .and_then(|id| self.services.get(id))
    }

    /// The token's record whose text has this hash, revoked and expired ones too.
    pub fn credential_hashed(&self, hash: &[u8; 32]) -> Option<&Credential> {
        self.index
            .credential_hashes
            .get(hash)
            .and_then(|id| self.credentials.get(id))
    }

    /// Encodes the whole state for a snapshot. The bytes are readable only by a build of the same [`STATE_VERSION`].
    pub fn to_snapshot(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("a Vec takes any number of bytes and the state holds no unsized sequences")
    }

    /// Reads what [`State::to_snapshot`] wrote.
    pub fn from_snapshot(bytes: &[u8]) -> Result<State, postcard::Error> {
        let mut state: State = postcard::from_bytes(bytes)?;
        state.rebuild_index();
        Ok(state)
    }

    fn rebuild_index(&mut self) {
        self.index = Index {
            node_names: self.nodes.values().map(|n| (n.name.clone(), n.id)).collect(),
            service_names: self
                .services
                .values()
                .map(|s| ((s.tenant.clone(), s.name.clone()), s.id))
                .collect(),
            credential_hashes: self.credentials.values().map(|c| (c.hash, c.id)).collect(),
        };
    }

    /// Every entity, in order.
    pub fn entities(&self) -> impl Iterator<Item = Entity> + '_ {
        std::iter::once(Entity::Cell)
            .chain(self.terms.keys().cloned().map(Entity::Term))
            .chain(self.credentials.keys().copied().map(Entity::Credential))
            .chain(self.nodes.keys().copied().map(Entity::Node))
            .chain(self.devices.keys().copied().map(Entity::Device))
            .chain(self.services.keys().copied().map(Entity::Service))
            .chain(self.instances.keys().copied().map(Entity::Instance))
            .chain(self.switches.keys().copied().map(Entity::Switch))
    }

    /// The encoding of one entity that seals hash; `None` when the state does not have it.
    pub fn entity_bytes(&self, entity: &Entity, out: Vec<u8>) -> Option<Vec<u8>> {
        let encoded = match entity {
            Entity::Cell => postcard::to_extend(&self.cell, out),
            Entity::Term(role) => postcard::to_extend(self.terms.get(role)?, out),
            Entity::Credential(id) => postcard::to_extend(self.credentials.get(id)?, out),
            Entity::Node(id) => postcard::to_extend(self.nodes.get(id)?, out),
            Entity::Device(id) => postcard::to_extend(self.devices.get(id)?, out),
            Entity::Service(id) => postcard::to_extend(self.services.get(id)?, out),
            Entity::Instance(id) => postcard::to_extend(self.instances.get(id)?, out),
            Entity::Switch(id) => postcard::to_extend(self.switches.get(id)?, out),
        };
        Some(encoded.expect("a Vec takes any number of bytes and entities hold no unsized sequences"))
    }

    /// The tenant an entity belongs to; `None` for what is the pool's.
    pub fn tenant_of(&self, entity: &Entity) -> Option<&Name> {
        match entity {
            Entity::Service(id) => self.services.get(id).map(|s| &s.tenant),
            Entity::Instance(id) => self
                .instances
                .get(id)
                .and_then(|i| self.services.get(&i.service))
                .map(|s| &s.tenant),
            Entity::Credential(id) => self.credentials.get(id).and_then(|c| c.tenant.as_ref()),
            Entity::Switch(id) => self.switches.get(id).map(|s| &s.tenant),
            Entity::Cell | Entity::Term(_) | Entity::Node(_) | Entity::Device(_) => None,
        }
    }
}

/// The error for an event that names an entity the state lacks.
fn missing(meta: &EventMeta, event: &Event, entity: impl ToString) -> ApplyError {
    ApplyError {
        address: meta.address,
        event: event.name(),
        entity: entity.to_string(),
    }
}
