//! Events from the history tables.

use rusqlite::{Connection, Row, params_from_iter};
use tidemill_domain::events::{Event, KINDS};
use tidemill_domain::id::CommandId;
use tidemill_domain::time::Timestamp;

use super::lists::Where;
use super::{QueryError, cursor};
use crate::engine::view::{INDEX_BITS, event_address};
use crate::filter::{EventFilter, Page};
use crate::history::{EventRow, entity_key, readable};

pub(super) fn events(conn: &Connection, filter: &EventFilter) -> Result<Page<EventRow>, QueryError> {
    let behind = match &filter.page {
        Some(mark) => parse_mark(mark).ok_or_else(|| QueryError::BadPage(mark.clone()))?,
        // The last number that a record can have.
        None => (filter.after << INDEX_BITS | ((1 << INDEX_BITS) - 1)).cast_signed(),
    };
    let mut filters = Where::default();
    // Asked about one entity, its index drives; else the table's own order does.
    let (from, id) = match &filter.about {
        Some(entity) => {
            filters.value("a.entity = ?", entity_key(entity));
            ("event_about a JOIN events e ON e.id = a.event", "a.event")
        }
        None => ("events e", "e.id"),
    };
    filters.value(&format!("{id} > ?"), behind);
    if let Some(until) = filter.until {
        filters.value(&format!("{id} < ?"), ((until + 1) << INDEX_BITS).cast_signed());
    }
    if let Some(since) = filter.since {
        filters.value(&format!("{id} >= ?"), first_since(conn, since)?);
    }
    if let Some(tenant) = &filter.tenant {
        filters.value("e.tenant = ?", tenant.to_string());
    }
    let numbers = |name: &String| {
        let known = KINDS.iter().find(|k| k.name.eq_ignore_ascii_case(name));
        known.map_or(-1, |k| i64::from(k.kind))
    };
    filters.any("e.kind", filter.kinds.iter().map(numbers), "");
    let limit = filter.limit();
    let order = if filter.newest { "DESC" } else { "ASC" };
    let sql = format!(
        "SELECT e.id, e.time, e.kind, e.version, e.target, e.target_name, e.change, e.reason, e.actor, e.cause, e.trace,
         e.command, e.body FROM {from}{} ORDER BY {id} {order} LIMIT {}",
        filters.sql(),
        limit + 1
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = statement.query(params_from_iter(filters.values))?;
    let (mut rows, mut more) = (Vec::new(), false);
    while let Some(row) = found.next()? {
        if rows.len() == limit {
            more = true;
            break;
        }
        rows.push(event_row(row)?);
    }
    if filter.newest {
        rows.reverse();
        more = false;
    }
    let mark = rows.last().map(|row: &EventRow| format!("{}.{}", row.seq, row.index));
    Ok(Page {
        next: mark.filter(|_| more),
        rows,
        anchor: cursor(conn)?,
    })
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
