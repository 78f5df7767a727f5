//! Events as people read them: who, what it is about, what changed, why.
//!
//! A row is a pure function of an event, its commit's header and the state *before* it; what the event creates, it
//! names itself. So the line that stands in the read model and the one that time travel or `events --file` renders
//! without a server are the same. [`about`] lists every entity an event concerns, so that asking about a service finds
//! its instances' events too.
//!
//! Invariants: `target`, `change` and `reason` are never empty. Rejected: rendering sentences at query time from the
//! present state, which would tell yesterday's story in today's names.

mod about;
mod describe;

use serde::{Deserialize, Serialize};
use tidemill_domain::commit::{Actor, Address, Cause, CommitHeader, TraceContext};
use tidemill_domain::events::Event;
use tidemill_domain::id::CommandId;
use tidemill_domain::state::{ApplyError, Entity, EventMeta, State, Touched};
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::Name;

pub use about::{about, entity_key};
pub use describe::{Description, describe};

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EventRow {
    /// Sequence of its record.
    pub seq: u64,
    /// Index in the record.
    pub index: u32,
    /// When it was recorded.
    pub time: Timestamp,
    /// Who asked: `sequencer`, `local`, a token's or node's id, `gateway/NAME`, `worker/ROLE#TERM`.
    pub actor: String,
    /// Kind.
    pub kind: String,
    /// Id of the entity it is mainly about.
    pub target: String,
    /// Its name.
    pub target_name: String,
    /// What changed, in a few words.
    pub change: String,
    /// Why, in a sentence.
    pub reason: String,
    /// What it answers to: `request`, `event SEQ.INDEX`, `observations FIRST-LAST`.
    pub cause: String,
    /// Trace it belongs to.
    pub trace_id: Option<String>,
    /// Command that produced it.
    pub command: CommandId,
    /// The event's body.
    pub data: serde_json::Value,
}

/// An event with all that is kept of it: what a row is rendered from, and what finds it again.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// What it says.
    pub description: Description,
    /// Whose workload it is about; none for the pool's.
    pub tenant: Option<Name>,
    /// Every entity it concerns, in order, without repeats.
    pub about: Vec<Entity>,
}

/// Tells of `event` from the state before it.
pub fn tell(event: &Event, actor: &Actor, before: &State) -> Told {
    let description = describe(event, before);
    let tenant = match event {
        Event::ServiceApplied(e) => Some(e.tenant.clone()),
        Event::CredentialCreated(e) => e.tenant.clone(),
        _ => before.tenant_of(&description.target).cloned(),
    };
    Told {
        about: about(event, actor, &description.target, before),
        description,
        tenant,
    }
}

/// The row of an event.
pub fn event_row(event: &Event, header: &CommitHeader, address: Address, description: Description) -> EventRow {
    EventRow {
        seq: address.sequence,
        index: address.index,
        time: header.recorded_at,
        actor: actor_text(&header.actor),
        kind: event.name().to_owned(),
        target: entity_text(&description.target),
        target_name: description.name,
        change: description.change,
        reason: description.reason,
        cause: cause_text(header.cause),
        trace_id: header.trace.as_ref().map(TraceContext::trace_id_hex),
        command: header.command,
        data: readable(event.to_json()),
    }
}

/// Folds a record's commits into `state` and hands each event's row and telling to `each`: the `events` of whoever has
/// a ledger and no read models.
pub fn fold_rows<'a>(
    state: &mut State,
    sequence: u64,
    commits: impl IntoIterator<Item = &'a tidemill_domain::commit::Commit>,
    mut each: impl FnMut(EventRow, Told),
) -> Result<(), ApplyError> {
    let mut touched = Touched::new();
    let mut index = 0;
    for commit in commits {
        for event in &commit.events {
            let address = Address { sequence, index };
            let told = tell(event, &commit.header.actor, state);
            let meta = EventMeta {
                address,
                recorded_at: commit.header.recorded_at,
                trace: commit.header.trace,
            };
            state.apply(event, &meta, &mut touched)?;
            each(
                event_row(event, &commit.header, address, told.description.clone()),
                told,
            );
            touched.clear();
            index += 1;
        }
    }
    Ok(())
}

/// An actor in one word.
pub fn actor_text(actor: &Actor) -> String {
    match actor {
        Actor::Sequencer => "sequencer".to_owned(),
        Actor::Local => "local".to_owned(),
        Actor::Credential(id) => id.to_string(),
        Actor::Node(id) => id.to_string(),
        Actor::Gateway(name) => format!("gateway/{name}"),
        Actor::Worker { role, term } => format!("worker/{role}#{term}"),
    }
}

/// A cause in a few words.
pub fn cause_text(cause: Cause) -> String {
    match cause {
        Cause::Request => "request".to_owned(),
        Cause::Event(Address { sequence, index }) => format!("event {sequence}.{index}"),
        Cause::Observations { first, last } => format!("observations {first}-{last}"),
    }
}

/// An entity's id as text.
pub fn entity_text(entity: &Entity) -> String {
    match entity {
        Entity::Cell => "cell".to_owned(),
        Entity::Term(role) => format!("role/{role}"),
        Entity::Credential(id) => id.to_string(),
        Entity::Node(id) => id.to_string(),
        Entity::Device(id) => id.to_string(),
        Entity::Service(id) => id.to_string(),
        Entity::Instance(id) => id.to_string(),
        Entity::Switch(id) => id.to_string(),
    }
}

/// Digests as hex: an array of 32 numbers tells nobody anything.
pub(crate) fn readable(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Array(items) => {
            let bytes = |v: &Value| v.as_u64().and_then(|n| u8::try_from(n).ok());
            if items.len() == 32
                && let Some(digest) = items.iter().map(bytes).collect::<Option<Vec<u8>>>()
            {
                return Value::String(tidemill_domain::commit::to_hex(&digest));
            }
            Value::Array(items.into_iter().map(readable).collect())
        }
        Value::Object(fields) => Value::Object(fields.into_iter().map(|(k, v)| (k, readable(v))).collect()),
        other => other,
    }
}
