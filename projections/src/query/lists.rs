//! Lists of current rows.

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use serde::de::DeserializeOwned;

use super::{QueryError, cursor};
use crate::filter::{Filter, List, Page};
use crate::rows::{Counts, DeviceRow, InstanceRow, NodeRow, PoolRow, QueueRow, ServiceRow, SwitchRow, supply_word};

/// A `WHERE` clause as it grows.
#[derive(Clone, Default)]
pub(super) struct Where {
    terms: Vec<String>,
    pub(super) values: Vec<Value>,
}

impl Where {
    pub(super) fn term(&mut self, sql: impl Into<String>) {
        self.terms.push(sql.into());
    }

    /// `sql` with `?` for the value.
    pub(super) fn value(&mut self, sql: &str, value: impl Into<Value>) {
        self.term(sql);
        self.values.push(value.into());
    }

    /// `left IN (…)`, with `right` closing what `left` opened; nothing for no values.
    pub(super) fn any<V: Into<Value>>(&mut self, left: &str, values: impl IntoIterator<Item = V>, right: &str) {
        let before = self.values.len();
        self.values.extend(values.into_iter().map(Into::into));
        let marks = vec!["?"; self.values.len() - before].join(", ");
        if !marks.is_empty() {
            self.term(format!("{left} IN ({marks}){right}"));
        }
    }

    pub(super) fn sql(&self) -> String {
        match self.terms.len() {
            0 => String::new(),
            _ => format!(" WHERE {}", self.terms.join(" AND ")),
        }
    }
}

pub(super) fn nodes(conn: &Connection, filter: &Filter) -> Result<Page<NodeRow>, QueryError> {
    filter.check(List::Nodes)?;
    let mut filters = Where::default();
    filters.any("state", filter.state.iter().cloned(), "");
    filters.any("supply", filter.supply.iter().map(|s| supply_word(s).to_owned()), "");
    filters.any("provider", filter.provider.iter().cloned(), "");
    since(&mut filters, filter);
    list(conn, "nodes", filters, filter)
}

pub(super) fn devices(conn: &Connection, filter: &Filter) -> Result<Page<DeviceRow>, QueryError> {
    filter.check(List::Devices)?;
    let mut filters = Where::default();
    filters.any("state", filter.state.iter().cloned(), "");
    filters.any("supply", filter.supply.iter().map(|s| supply_word(s).to_owned()), "");
    filters.any("provider", filter.provider.iter().cloned(), "");
    filters.any("node", filter.node.map(|n| n.to_string()), "");
    list(conn, "devices", filters, filter)
}

pub(super) fn services(conn: &Connection, filter: &Filter) -> Result<Page<ServiceRow>, QueryError> {
    filter.check(List::Services)?;
    let mut filters = Where::default();
    filters.any("state", filter.state.iter().cloned(), "");
    filters.any("tenant", filter.tenant.iter().map(ToString::to_string), "");
    since(&mut filters, filter);
    present(&mut filters, filter);
    list(conn, "services", filters, filter)
}

pub(super) fn instances(conn: &Connection, filter: &Filter) -> Result<Page<InstanceRow>, QueryError> {
    filter.check(List::Instances)?;
    let mut filters = Where::default();
    filters.any("state", filter.state.iter().cloned(), "");
    filters.any("tenant", filter.tenant.iter().map(ToString::to_string), "");
    filters.any("service", filter.service.map(|s| s.to_string()), "");
    filters.any("node", filter.node.map(|n| n.to_string()), "");
    let supply = filter.supply.iter().map(|s| supply_word(s).to_owned());
    filters.any("node IN (SELECT id FROM nodes WHERE supply", supply, ")");
    filters.any(
        "node IN (SELECT id FROM nodes WHERE provider",
        filter.provider.iter().cloned(),
        ")",
    );
    since(&mut filters, filter);
    present(&mut filters, filter);
    list(conn, "instances", filters, filter)
}

pub(super) fn queue(conn: &Connection, filter: &Filter) -> Result<Page<QueueRow>, QueryError> {
    filter.check(List::Queue)?;
    let mut filters = Where::default();
    filters.any("tenant", filter.tenant.iter().map(ToString::to_string), "");
    since(&mut filters, filter);
    list(conn, "queue", filters, filter)
}

pub(super) fn switches(conn: &Connection, filter: &Filter) -> Result<Page<SwitchRow>, QueryError> {
    filter.check(List::Switches)?;
    let mut filters = Where::default();
    filters.any("state", filter.state.iter().cloned(), "");
    filters.any("tenant", filter.tenant.iter().map(ToString::to_string), "");
    filters.any("service", filter.service.map(|s| s.to_string()), "");
    filters.any("node", filter.node.map(|n| n.to_string()), "");
    since(&mut filters, filter);
    list(conn, "switches", filters, filter)
}

fn since(filters: &mut Where, filter: &Filter) {
    if let Some(since) = filter.since {
        filters.value("since >= ?", since.0);
    }
}

fn present(filters: &mut Where, filter: &Filter) {
    if !filter.forgotten {
        filters.term("present = 1");
    }
}

/// One page of `table`, in the order of its sort key.
fn list<T: DeserializeOwned>(
    conn: &Connection,
    table: &str,
    mut filters: Where,
    filter: &Filter,
) -> Result<Page<T>, QueryError> {
    if let Some(after) = &filter.after {
        let (sort, id) = after
            .rsplit_once(' ')
            .ok_or_else(|| QueryError::BadPage(after.clone()))?;
        filters.term("(sort, id) > (?, ?)");
        filters.values.push(Value::Text(sort.to_owned()));
        filters.values.push(Value::Text(id.to_owned()));
    }
    let limit = filter.limit();
    let sql = format!(
        "SELECT sort, id, body FROM {table}{} ORDER BY sort, id LIMIT {}",
        filters.sql(),
        limit + 1
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut found = statement.query(params_from_iter(filters.values))?;
    let (mut rows, mut mark, mut more) = (Vec::new(), None, false);
    while let Some(row) = found.next()? {
        if rows.len() == limit {
            more = true;
            break;
        }
        rows.push(serde_json::from_str(
            row.get_ref(2)?.as_str().map_err(rusqlite::Error::from)?,
        )?);
        if rows.len() == limit {
            mark = Some(format!("{} {}", row.get::<_, String>(0)?, row.get::<_, String>(1)?));
        }
    }
    Ok(Page {
        rows,
        next: mark.filter(|_| more),
        anchor: cursor(conn)?,
    })
}

pub(super) fn pool(conn: &Connection) -> Result<(PoolRow, tidemill_bus::digest::Anchor), QueryError> {
    let mut pool = PoolRow::default();
    let mut statement = conn.prepare_cached(
        "SELECT state, model, supply, COUNT(*), SUM(free), SUM(held), SUM(draining), SUM(dirty), SUM(quarantined),
         SUM(lost) FROM devices GROUP BY state, model, supply",
    )?;
    let mut groups = statement.query([])?;
    while let Some(group) = groups.next()? {
        let (state, model, supply): (String, String, String) = (group.get(0)?, group.get(1)?, group.get(2)?);
        let number = |column: usize| group.get::<_, i64>(column).map(i64::cast_unsigned);
        pool.add(&state, &model, &supply, number(3)?);
        let classes = ["free", "held", "draining", "dirty", "quarantined", "lost"];
        for (class, column) in classes.iter().zip(4..) {
            Counts::add(&mut pool.devices_milli, class, number(column)?);
        }
    }
    Ok((pool, cursor(conn)?))
}
