//! What people mean: an id, a name, a UUID, or any unique prefix of an id.
//!
//! An exact match wins over prefixes; a service's bare name means the default tenant's if it has one of that name. What
//! stays ambiguous is answered with the choices and never by picking one. `node/NAME`, `service/NAME`, `device/UUID` and
//! so on narrow the kind.

use serde::Serialize;
use tidemill_domain::id::{CredentialId, DeviceId, InstanceId, NodeId, ServiceId, SwitchId};
use tidemill_domain::state::{Entity, State};
use tidemill_domain::unit::Name;

use crate::history::entity_text;

/// Most choices shown.
const CHOICES: usize = 10;

/// One thing that the text may mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Match {
    /// Which.
    #[serde(skip)]
    pub entity: Entity,
    /// `node`, `device`, `service`, `instance`, `switch`, `token`, `role`, `cell`.
    pub kind: &'static str,
    /// Its id.
    pub id: String,
    /// Its name, or its id again.
    pub name: String,
}

/// What the text means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// This.
    Found(Match),
    /// One of these, and maybe more.
    Ambiguous(Vec<Match>),
    /// Nothing.
    NotFound,
}

impl Match {
    pub(crate) fn new(entity: Entity, name: impl Into<String>) -> Self {
        Self {
            kind: kind(&entity),
            id: entity_text(&entity),
            name: name.into(),
            entity,
        }
    }
}

/// The word for an entity's kind.
pub fn kind(entity: &Entity) -> &'static str {
    match entity {
        Entity::Cell => "cell",
        Entity::Term(_) => "role",
        Entity::Credential(_) => "token",
        Entity::Node(_) => "node",
        Entity::Device(_) => "device",
        Entity::Service(_) => "service",
        Entity::Instance(_) => "instance",
        Entity::Switch(_) => "switch",
    }
}

/// What was asked, taken apart.
pub(crate) struct Query<'a> {
    kind: Option<&'static str>,
    pub(crate) text: &'a str,
}

impl<'a> Query<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let text = text.trim();
        let narrowed = text.split_once('/').and_then(|(kind, rest)| {
            let kinds = ["node", "device", "service", "instance", "switch", "token", "role"];
            let kind = kinds.into_iter().find(|k| *k == kind.trim_end_matches('s'))?;
            (!rest.is_empty()).then_some((kind, rest))
        });
        match narrowed {
            Some((kind, text)) => Self { kind: Some(kind), text },
            None => Self { kind: None, text },
        }
    }

    pub(crate) fn wants(&self, kind: &str) -> bool {
        self.kind.is_none_or(|k| k == kind)
    }

    /// Tenant and name of the service that the text would name; tenant none = a bare name.
    pub(crate) fn service(&self) -> (Option<&'a str>, &'a str) {
        match self.text.split_once('/') {
            Some((tenant, name)) => (Some(tenant.trim_start_matches('~')), name),
            None => (None, self.text),
        }
    }
}

/// Finds what people mean by `text` in the state.
pub fn resolve(state: &State, text: &str) -> Resolution {
    let query = Query::parse(text);
    if query.text.is_empty() {
        return Resolution::NotFound;
    }
    choose(exact(state, &query), || prefixed(state, &query))
}

/// One exact match, or else one match by prefix.
pub(crate) fn choose(exact: Vec<Match>, prefixed: impl FnOnce() -> Vec<Match>) -> Resolution {
    let mut found = exact;
    let services = found.iter().filter(|m| m.kind == "service").count();
    if services > 1 {
        let default = format!("{}/", Name::default_tenant());
        if found
            .iter()
            .any(|m| m.kind == "service" && m.name.starts_with(&default))
        {
            found.retain(|m| m.kind != "service" || m.name.starts_with(&default));
        }
    }
    if found.is_empty() {
        found = prefixed();
    }
    match found.len() {
        0 => Resolution::NotFound,
        1 => Resolution::Found(found.remove(0)),
        _ => {
            found.truncate(CHOICES);
            Resolution::Ambiguous(found)
        }
    }
}

fn exact(state: &State, query: &Query<'_>) -> Vec<Match> {
    let mut found = Vec::new();
    if query.wants("node") {
        let node = query.text.parse::<NodeId>().ok().and_then(|id| state.nodes.get(&id));
        let node = node.or_else(|| state.node_named(query.text));
        found.extend(node.map(|n| Match::new(Entity::Node(n.id), n.name.as_str())));
    }
    if query.wants("service") {
        let by_id = query
            .text
            .parse::<ServiceId>()
            .ok()
            .and_then(|id| state.services.get(&id));
        let (tenant, name) = query.service();
        let named = state
            .services
            .values()
            .filter(|s| s.name.as_str() == name && tenant.is_none_or(|t| s.tenant.as_str() == t));
        found.extend(
            by_id
                .into_iter()
                .chain(named)
                .map(|s| Match::new(Entity::Service(s.id), s.full_name())),
        );
    }
    if query.wants("instance")
        && let Some(instance) = query
            .text
            .parse::<InstanceId>()
            .ok()
            .and_then(|id| state.instances.get(&id))
    {
        found.push(instance_match(state, instance.id));
    }
    if query.wants("device") {
        let by_uuid = Some(DeviceId::of_uuid(query.text));
        let by_id = query.text.parse::<DeviceId>().ok();
        let device = by_id.or(by_uuid).and_then(|id| state.devices.get(&id));
        found.extend(device.map(|d| Match::new(Entity::Device(d.id), d.uuid.as_str())));
    }
    if query.wants("switch")
        && let Some(switch) = query
            .text
            .parse::<SwitchId>()
            .ok()
            .and_then(|id| state.switches.get(&id))
    {
        found.push(Match::new(Entity::Switch(switch.id), switch.workload()));
    }
    if query.wants("token")
        && let Some(token) = query
            .text
            .parse::<CredentialId>()
            .ok()
            .and_then(|id| state.credentials.get(&id))
    {
        found.push(Match::new(Entity::Credential(token.id), token.id.to_string()));
    }
    if query.kind == Some("role") && state.terms.contains_key(query.text) {
        found.push(Match::new(Entity::Term(query.text.to_owned()), query.text));
    }
    if query.kind.is_none() && query.text == "cell" {
        found.push(Match::new(Entity::Cell, state.cell.name.as_str()));
    }
    found
}

fn prefixed(state: &State, query: &Query<'_>) -> Vec<Match> {
    let begins = |id: String| id.starts_with(query.text);
    let mut found = Vec::new();
    if query.wants("node") {
        let nodes = state.nodes.values().filter(|n| begins(n.id.to_string()));
        found.extend(nodes.map(|n| Match::new(Entity::Node(n.id), n.name.as_str())));
    }
    if query.wants("service") {
        let services = state.services.values().filter(|s| begins(s.id.to_string()));
        found.extend(services.map(|s| Match::new(Entity::Service(s.id), s.full_name())));
    }
    if query.wants("instance") {
        let instances = state.instances.keys().filter(|id| begins(id.to_string()));
        found.extend(instances.map(|id| instance_match(state, *id)));
    }
    if query.wants("device") {
        let devices = state
            .devices
            .values()
            .filter(|d| d.uuid.starts_with(query.text) || begins(d.id.to_string()));
        found.extend(devices.map(|d| Match::new(Entity::Device(d.id), d.uuid.as_str())));
    }
    if query.wants("switch") {
        let switches = state.switches.values().filter(|s| begins(s.id.to_string()));
        found.extend(switches.map(|s| Match::new(Entity::Switch(s.id), s.workload())));
    }
    if query.wants("token") {
        let tokens = state.credentials.keys().filter(|id| begins(id.to_string()));
        found.extend(tokens.map(|id| Match::new(Entity::Credential(*id), id.to_string())));
    }
    found
}

fn instance_match(state: &State, id: InstanceId) -> Match {
    let service = state.instances.get(&id).and_then(|i| state.services.get(&i.service));
    let name = service.map_or_else(|| id.to_string(), |s| s.full_name());
    Match::new(Entity::Instance(id), name)
}
