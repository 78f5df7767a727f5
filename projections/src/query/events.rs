//! Events from the history tables.

use std::ops::Range;

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};
use tidemill_domain::commit::Address;
use tidemill_domain::events::{Event, KINDS};
use tidemill_domain::id::{CommandId, InstanceId};
use tidemill_domain::state::Entity;
use tidemill_domain::time::Timestamp;

use super::lists::Where;
use super::{QueryError, cursor};
use crate::engine::view::{INDEX_BITS, event_address, event_number, indexes};
use crate::filter::{EventFilter, Page};
use crate::history::{EventRow, entity_key, readable};

const COLUMNS: &str =
    "id, time, kind, version, target, target_name, change, reason, actor, cause, trace, command, body";

pub(super) fn events(conn: &Connection, filter: &EventFilter) -> Result<Page<EventRow>, QueryError> {
    let mut from = match &filter.page {
        Some(mark) => parse_mark(mark).ok_or_else(|| QueryError::BadPage(mark.clone()))? + 1,
        None => first_of(filter.after.saturating_add(1)),
    };
    if let Some(since) = filter.since {
        from = from.max(first_since(conn, since)?);
    }
    let until = filter.until.map_or(i64::MAX, |until| first_of(until.saturating_add(1)));
    let mut narrow = Where::default();
    if let Some(tenant) = &filter.tenant {
        narrow.value("tenant = ?", tenant.to_string());
    }
    let numbers = |name: &String| {
        let known = KINDS.iter().find(|k| k.name.eq_ignore_ascii_case(name));
        known.map_or(-1, |k| i64::from(k.kind))
    };
    narrow.any("kind", filter.kinds.iter().map(numbers), "");
    // One more than asked for tells whether there is a next page.
    let wanted = filter.limit() + 1;
    let mut rows = match &filter.about {
        Some(entity) => about(conn, entity, from..until, filter.newest, &narrow, wanted)?,
        None => all(conn, from..until, filter.newest, narrow, wanted)?,
    };
    let more = rows.len() == wanted;
    rows.truncate(wanted - 1);
    if filter.newest {
        rows.reverse();
    }
    let mark = rows.last().map(|row: &EventRow| format!("{}.{}", row.seq, row.index));
    Ok(Page {
        next: mark.filter(|_| more && !filter.newest),
        rows,
        anchor: cursor(conn)?,
    })
}

/// The number of the first event that a record can have.
fn first_of(sequence: u64) -> i64 {
    (sequence.min(1 << (63 - INDEX_BITS)) << INDEX_BITS)
        .min(i64::MAX as u64)
        .cast_signed()
}

fn all(
    conn: &Connection,
    range: Range<i64>,
    newest: bool,
    mut filters: Where,
    wanted: usize,
) -> Result<Vec<EventRow>, QueryError> {
    filters.value("id >= ?", range.start);
    filters.value("id < ?", range.end);
    let order = if newest { "DESC" } else { "ASC" };
    let sql = format!(
        "SELECT {COLUMNS} FROM events{} ORDER BY id {order} LIMIT {wanted}",
        filters.sql()
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = statement.query(params_from_iter(filters.values))?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        rows.push(event_row(row)?);
    }
    Ok(rows)
}

/// Events that concern an entity.
fn about(
    conn: &Connection,
    entity: &Entity,
    range: Range<i64>,
    newest: bool,
    filters: &Where,
    wanted: usize,
) -> Result<Vec<EventRow>, QueryError> {
    let mut narrowed = filters.clone();
    narrowed.term("id = ?");
    let mut one = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM events{}", narrowed.sql()))?;
    let mut rows = Vec::new();
    // True once there are enough.
    let mut take = |number: i64| {
        if range.contains(&number) {
            let values = narrowed.values.iter().cloned().chain([Value::Integer(number)]);
            if let Some(row) = one.query(params_from_iter(values))?.next()? {
                rows.push(event_row(row)?);
            }
        }
        Ok::<_, QueryError>(rows.len() == wanted)
    };
    if let Entity::Instance(id) = entity {
        let mut numbers = of_instance(conn, *id)?;
        if newest {
            numbers.reverse();
        }
        for number in numbers {
            if take(number)? {
                break;
            }
        }
        return Ok(rows);
    }
    let order = if newest { "DESC" } else { "ASC" };
    let mut records = conn.prepare_cached(&format!(
        "SELECT sequence, indexes FROM event_about WHERE entity = ?1 AND sequence BETWEEN ?2 AND ?3
         ORDER BY sequence {order}"
    ))?;
    let bounds = [entity_key(entity), range.start >> INDEX_BITS, range.end >> INDEX_BITS];
    let mut records = records.query(bounds)?;
    while let Some(record) = records.next()? {
        let sequence = record.get::<_, i64>(0)?.cast_unsigned();
        let mut indexes = indexes(record.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?);
        if newest {
            indexes.reverse();
        }
        for index in indexes {
            if take(event_number(Address { sequence, index }))? {
                return Ok(rows);
            }
        }
    }
    Ok(rows)
}

/// Numbers of the events that concern an instance, in order.
fn of_instance(conn: &Connection, id: InstanceId) -> Result<Vec<i64>, QueryError> {
    let packed: Option<Vec<u8>> = conn
        .prepare_cached("SELECT events FROM instances WHERE id = ?1")?
        .query_row([id.to_string()], |row| row.get(0))
        .optional()?;
    let packed = packed.unwrap_or_default();
    let (numbers, _) = packed.as_chunks::<8>();
    Ok(numbers.iter().map(|bytes| i64::from_be_bytes(*bytes)).collect())
}

fn parse_mark(mark: &str) -> Option<i64> {
    let (sequence, index) = mark.split_once('.')?;
    let (sequence, index): (u64, u64) = (sequence.parse().ok()?, index.parse().ok()?);
    (index < 1 << INDEX_BITS && sequence < 1 << 43).then(|| (sequence << INDEX_BITS | index).cast_signed())
}

/// The number of the first event recorded at `since` or later. Times never decrease along the table, so it is searched
/// by halves; an index on time would cost every insert.
fn first_since(conn: &Connection, since: Timestamp) -> Result<i64, QueryError> {
    let last: Option<i64> = conn.query_row("SELECT MAX(id) FROM events", [], |row| row.get(0))?;
    let (mut low, mut high) = (0, last.map_or(0, |last| last + 1));
    let mut at_or_behind = conn.prepare_cached("SELECT id, time FROM events WHERE id >= ?1 ORDER BY id LIMIT 1")?;
    while low < high {
        let middle = low + (high - low) / 2;
        let (id, time): (i64, i64) = at_or_behind.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if time < since.0 {
            low = id + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

fn event_row(row: &Row<'_>) -> Result<EventRow, QueryError> {
    let address = event_address(row.get(0)?);
    let event = Event::decode(
        row.get(2)?,
        row.get(3)?,
        row.get_ref(12)?.as_blob().map_err(rusqlite::Error::from)?,
    )?;
    let trace: Option<[u8; 16]> = row.get(10)?;
    Ok(EventRow {
        seq: address.sequence,
        index: address.index,
        time: Timestamp(row.get(1)?),
        actor: row.get(8)?,
        kind: event.name().to_owned(),
        target: row.get(4)?,
        target_name: row.get(5)?,
        change: row.get(6)?,
        reason: row.get(7)?,
        cause: row.get(9)?,
        trace_id: trace.map(|t| tidemill_domain::commit::to_hex(&t)),
        command: CommandId(row.get(11)?),
        data: readable(event.to_json()),
    })
}
