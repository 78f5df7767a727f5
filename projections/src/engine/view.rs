//! A view: a converter from what happened to rows, and the table they go to.
//!
//! Current rows are converted once a batch for each entity that changed; histories once an event. A converter is a
//! function of the state in `rows` or `history`; what stands here is the sink: one upsert each. To add a read model:
//! a row in `rows`, a table in a new migration and in `schema.sql`, a sink here, a line in [`views`].

use std::cell::RefCell;
use std::collections::HashMap;

use rusqlite::{CachedStatement, Connection, params};
use serde::Serialize;
use tidemill_domain::commit::{Address, CommitHeader};
use tidemill_domain::events::Event;
use tidemill_domain::id::{InstanceId, ServiceId};
use tidemill_domain::state::{Entity, State};

use crate::history::{Told, actor_text, cause_text, entity_key, entity_text};
use crate::rows::{
    InstanceRow, ServiceRow, SwitchRow, device_row, instance_row, node_row, queue_row, service_row, supply_word,
    switch_row,
};

/// Bits of an event's number that are its index in the record: a record's 256 KiB hold fewer events than that.
pub const INDEX_BITS: u32 = 20;

/// The number of an event in the events table.
pub fn event_number(address: Address) -> i64 {
    (address.sequence << INDEX_BITS | u64::from(address.index)).cast_signed()
}

/// The address behind an event's number.
pub fn event_address(number: i64) -> Address {
    let number = number.cast_unsigned();
    Address {
        sequence: number >> INDEX_BITS,
        index: (number & ((1 << INDEX_BITS) - 1)) as u32,
    }
}

/// One event on its way into histories.
pub struct HistoryEvent<'a> {
    /// Where it stands.
    pub address: Address,
    /// Who, why, when.
    pub header: &'a CommitHeader,
    /// What happened.
    pub event: &'a Event,
    /// In words, with what it concerns.
    pub told: &'a Told,
}

/// The last row of what the state forgets.
pub enum Retired {
    /// An instance.
    Instance(InstanceRow),
    /// A service.
    Service(ServiceRow),
    /// A switch.
    Switch(SwitchRow),
}

impl Retired {
    /// Which.
    pub fn entity(&self) -> Entity {
        match self {
            Retired::Instance(row) => Entity::Instance(row.id),
            Retired::Service(row) => Entity::Service(row.id),
            Retired::Switch(row) => Entity::Switch(row.id),
        }
    }
}

/// Writes rows of one kind. Each method is called inside the batch's transaction.
pub trait View: Send {
    /// An event, in order.
    fn event(&self, _conn: &Connection, _event: &HistoryEvent<'_>) -> rusqlite::Result<()> {
        Ok(())
    }

    /// The end of the batch, after its rows.
    fn finish(&self, _conn: &Connection) -> rusqlite::Result<()> {
        Ok(())
    }

    /// An entity that changed, with the state as it is at the end of the batch.
    fn entity(&self, _conn: &Connection, _state: &State, _entity: &Entity) -> rusqlite::Result<()> {
        Ok(())
    }

    /// An entity that the state forgot: called once instead of [`View::entity`].
    fn retire(&self, _conn: &Connection, _retired: &Retired) -> rusqlite::Result<()> {
        Ok(())
    }
}

/// Every view.
pub fn views() -> Vec<Box<dyn View>> {
    vec![
        Box::new(Nodes),
        Box::new(Devices),
        Box::new(Services),
        Box::new(Instances::default()),
        Box::new(Queue),
        Box::new(Switches),
        Box::new(Events::default()),
    ]
}

fn json(row: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(row).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))
}

fn cached<'a>(conn: &'a Connection, sql: &str) -> rusqlite::Result<CachedStatement<'a>> {
    conn.prepare_cached(sql)
}

struct Nodes;

impl View for Nodes {
    fn entity(&self, conn: &Connection, state: &State, entity: &Entity) -> rusqlite::Result<()> {
        let Entity::Node(id) = entity else { return Ok(()) };
        let Some(row) = node_row(state, *id) else { return Ok(()) };
        cached(
            conn,
            "INSERT INTO nodes (id, sort, state, supply, provider, since, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (id) DO UPDATE SET state = excluded.state, supply = excluded.supply,
             provider = excluded.provider, body = excluded.body",
        )?
        .execute(params![
            id.to_string(),
            row.sort_key(),
            row.state,
            supply_word(&row.supply),
            row.provider,
            row.joined_at.0,
            json(&row)?,
        ])?;
        Ok(())
    }
}

struct Devices;

impl View for Devices {
    fn entity(&self, conn: &Connection, state: &State, entity: &Entity) -> rusqlite::Result<()> {
        let Entity::Device(id) = entity else { return Ok(()) };
        let (Some(row), Some(device)) = (device_row(state, *id), state.devices.get(id)) else {
            return Ok(());
        };
        let classes = device.classes();
        cached(
            conn,
            "INSERT INTO devices (id, uuid, sort, node, state, supply, provider, model, free, held, draining, dirty,
             quarantined, lost, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)
             ON CONFLICT (id) DO UPDATE SET sort = excluded.sort, node = excluded.node, state = excluded.state,
             supply = excluded.supply, provider = excluded.provider, model = excluded.model, free = excluded.free,
             held = excluded.held, draining = excluded.draining, dirty = excluded.dirty,
             quarantined = excluded.quarantined, lost = excluded.lost, body = excluded.body",
        )?
        .execute(params![
            id.to_string(),
            row.uuid,
            row.sort_key(),
            row.node.to_string(),
            row.state,
            supply_word(&row.supply),
            row.provider,
            row.model,
            classes.free.0,
            classes.held.0,
            classes.draining.0,
            classes.dirty.0,
            classes.quarantined.0,
            classes.lost.0,
            json(&row)?,
        ])?;
        Ok(())
    }
}

struct Services;

impl Services {
    fn put(conn: &Connection, row: &ServiceRow, present: bool) -> rusqlite::Result<()> {
        cached(
            conn,
            "INSERT INTO services (id, sort, tenant, name, present, state, since, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO UPDATE SET present = excluded.present, state = excluded.state,
             since = excluded.since, body = excluded.body",
        )?
        .execute(params![
            row.id.to_string(),
            row.sort_key(),
            row.tenant.as_str(),
            row.name.as_str(),
            present,
            row.state,
            row.desired_since.0,
            json(row)?,
        ])?;
        Ok(())
    }
}

impl View for Services {
    fn entity(&self, conn: &Connection, state: &State, entity: &Entity) -> rusqlite::Result<()> {
        let Entity::Service(id) = entity else { return Ok(()) };
        match service_row(state, *id) {
            Some(row) => Self::put(conn, &row, true),
            None => Ok(()),
        }
    }

    fn retire(&self, conn: &Connection, retired: &Retired) -> rusqlite::Result<()> {
        match retired {
            Retired::Service(row) => Self::put(conn, row, false),
            Retired::Instance(_) | Retired::Switch(_) => Ok(()),
        }
    }
}

/// Rows of instances. Each holds the numbers of the events that concern it as well: instances are many and short-lived,
/// and an index of them would touch a page of its own for each, where the row is being written anyway.
#[derive(Default)]
struct Instances {
    /// Numbers of the batch's events, big-endian, by the instance that they concern.
    events: RefCell<HashMap<InstanceId, Vec<u8>>>,
}

impl Instances {
    fn put(&self, conn: &Connection, row: &InstanceRow, present: bool) -> rusqlite::Result<()> {
        let events = self.events.borrow_mut().remove(&row.id).unwrap_or_default();
        cached(
            conn,
            "INSERT INTO instances (id, sort, service, tenant, node, present, state, since, body, events)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
             ON CONFLICT (id) DO UPDATE SET node = excluded.node, present = excluded.present,
             state = excluded.state, since = excluded.since, body = excluded.body,
             events = CAST(events || excluded.events AS BLOB)",
        )?
        .execute(params![
            row.id.to_string(),
            row.sort_key(),
            row.service.to_string(),
            row.tenant.as_str(),
            row.node.map(|n| n.to_string()),
            present,
            row.state,
            row.since.0,
            json(row)?,
            events,
        ])?;
        Ok(())
    }
}

impl View for Instances {
    fn event(&self, _conn: &Connection, event: &HistoryEvent<'_>) -> rusqlite::Result<()> {
        let number = event_number(event.address).to_be_bytes();
        let mut events = self.events.borrow_mut();
        for entity in &event.told.about {
            if let Entity::Instance(id) = entity {
                events.entry(*id).or_default().extend_from_slice(&number);
            }
        }
        Ok(())
    }

    fn entity(&self, conn: &Connection, state: &State, entity: &Entity) -> rusqlite::Result<()> {
        let Entity::Instance(id) = entity else { return Ok(()) };
        if let Some(row) = instance_row(state, *id) {
            return self.put(conn, &row, true);
        }
        // Forgotten by the state: its last row stands already, from an earlier batch or as retired.
        cached(conn, "UPDATE instances SET present = 0 WHERE id = ?1")?.execute([id.to_string()])?;
        Ok(())
    }

    fn retire(&self, conn: &Connection, retired: &Retired) -> rusqlite::Result<()> {
        match retired {
            Retired::Instance(row) => self.put(conn, row, false),
            Retired::Service(_) | Retired::Switch(_) => Ok(()),
        }
    }

    fn finish(&self, conn: &Connection) -> rusqlite::Result<()> {
        // Events that named an instance and changed nothing of it.
        for (id, events) in self.events.borrow_mut().drain() {
            cached(
                conn,
                "UPDATE instances SET events = CAST(events || ?2 AS BLOB) WHERE id = ?1",
            )?
            .execute(params![id.to_string(), events])?;
        }
        Ok(())
    }
}

struct Queue;

impl Queue {
    fn delete(conn: &Connection, id: ServiceId) -> rusqlite::Result<()> {
        cached(conn, "DELETE FROM queue WHERE id = ?1")?.execute([id.to_string()])?;
        Ok(())
    }
}

impl View for Queue {
    fn retire(&self, conn: &Connection, retired: &Retired) -> rusqlite::Result<()> {
        match retired {
            Retired::Service(row) => Self::delete(conn, row.id),
            Retired::Instance(_) | Retired::Switch(_) => Ok(()),
        }
    }

    fn entity(&self, conn: &Connection, state: &State, entity: &Entity) -> rusqlite::Result<()> {
        let Entity::Service(id) = entity else { return Ok(()) };
        let Some(row) = queue_row(state, *id) else {
            return Self::delete(conn, *id);
        };
        cached(
            conn,
            "INSERT INTO queue (id, sort, tenant, since, body) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (id) DO UPDATE SET since = excluded.since, body = excluded.body",
        )?
        .execute(params![
            id.to_string(),
            row.sort_key(),
            row.tenant.as_str(),
            row.since.0,
            json(&row)?
        ])?;
        Ok(())
    }
}

struct Switches;

impl Switches {
    fn put(conn: &Connection, row: &SwitchRow) -> rusqlite::Result<()> {
        cached(
            conn,
            "INSERT INTO switches (id, sort, service, tenant, node, state, since, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO UPDATE SET state = excluded.state, body = excluded.body",
        )?
        .execute(params![
            row.id.to_string(),
            row.sort_key(),
            row.service.to_string(),
            row.tenant.as_str(),
            row.from_node.to_string(),
            row.state,
            row.opened_at.0,
            json(row)?,
        ])?;
        Ok(())
    }
}

impl View for Switches {
    fn entity(&self, conn: &Connection, state: &State, entity: &Entity) -> rusqlite::Result<()> {
        let Entity::Switch(id) = entity else { return Ok(()) };
        // One that the state has forgotten stands as it was closed.
        switch_row(state, *id).map_or(Ok(()), |row| Self::put(conn, &row))
    }

    fn retire(&self, conn: &Connection, retired: &Retired) -> rusqlite::Result<()> {
        match retired {
            Retired::Switch(row) => Self::put(conn, row),
            Retired::Instance(_) | Retired::Service(_) => Ok(()),
        }
    }
}

#[derive(Default)]
struct Events {
    body: RefCell<Vec<u8>>,
    /// What the batch's events concern, instances apart: entity, sequence, index. Written in the index's order at the end of the batch:
    /// entities are scattered over it, and so each of its pages is touched once a batch instead of once an event.
    about: RefCell<Vec<(i64, u64, u32)>>,
}

/// Appends rising numbers as differences.
fn put_indexes(indexes: impl Iterator<Item = u32>, out: &mut Vec<u8>) {
    let mut last = 0;
    for index in indexes {
        let mut step = index - last;
        last = index;
        while step >= 0x80 {
            out.push(step as u8 | 0x80);
            step >>= 7;
        }
        out.push(step as u8);
    }
}

/// Reads what [`put_indexes`] wrote.
pub fn indexes(bytes: &[u8]) -> Vec<u32> {
    let (mut out, mut last, mut step, mut shift) = (Vec::new(), 0u32, 0u32, 0);
    for byte in bytes {
        step |= u32::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            last += step;
            out.push(last);
            (step, shift) = (0, 0);
        }
    }
    out
}

impl View for Events {
    fn event(&self, conn: &Connection, event: &HistoryEvent<'_>) -> rusqlite::Result<()> {
        let (kind, version) = event.event.kind();
        let number = event_number(event.address);
        let mut buffer = self.body.borrow_mut();
        buffer.clear();
        *buffer = event.event.encode_body(std::mem::take(&mut *buffer));
        let told = event.told;
        let description = &told.description;
        cached(
            conn,
            "INSERT INTO events (id, time, kind, version, tenant, target, target_name, change, reason, actor, cause,
             trace, command, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            number,
            event.header.recorded_at.0,
            kind,
            version,
            told.tenant.as_ref().map(|t| t.as_str()),
            entity_text(&description.target),
            description.name,
            description.change,
            description.reason,
            actor_text(&event.header.actor),
            cause_text(event.header.cause),
            event.header.trace.map(|t| t.trace_id),
            event.header.command.0,
            *buffer,
        ])?;
        let Address { sequence, index } = event.address;
        let about = told
            .about
            .iter()
            .filter(|entity| !matches!(entity, Entity::Instance(_)));
        let about = about.map(|entity| (entity_key(entity), sequence, index));
        self.about.borrow_mut().extend(about);
        Ok(())
    }

    fn finish(&self, conn: &Connection) -> rusqlite::Result<()> {
        let mut about = self.about.borrow_mut();
        about.sort_unstable();
        let mut insert = cached(
            conn,
            "INSERT INTO event_about (entity, sequence, indexes) VALUES (?1, ?2, ?3)",
        )?;
        let mut packed = Vec::new();
        // Records never span batches, so each row is written whole and once.
        for row in about.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            packed.clear();
            put_indexes(row.iter().map(|(.., index)| *index), &mut packed);
            let (entity, sequence, _) = row[0];
            insert.execute(params![entity, sequence.cast_signed(), packed])?;
        }
        about.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_survive_packing() {
        for case in [&[][..], &[0], &[0, 1, 2], &[5, 127, 128, 16_383, 16_384, 90_000]] {
            let mut packed = Vec::new();
            put_indexes(case.iter().copied(), &mut packed);
            assert_eq!(indexes(&packed), case);
        }
    }

    #[test]
    fn numbers_and_addresses_are_one() {
        let address = Address {
            sequence: 7_000_000_000,
            index: 99_999,
        };
        assert_eq!(event_address(event_number(address)), address);
    }
}
