//! What people mean, among everything that ever was: for asking about a service that was deleted, an instance long over.

use rusqlite::{Connection, Row, params};
use tidemill_domain::id::{CredentialId, DeviceId, InstanceId, NodeId, ServiceId, SwitchId};
use tidemill_domain::state::Entity;

use super::QueryError;
use crate::resolve::{Match, Query, Resolution, choose};

/// Most matches read for one kind: enough to see that a prefix is not unique.
const SOME: &str = "LIMIT 11";

pub(super) fn resolve(conn: &Connection, text: &str) -> Result<Resolution, QueryError> {
    let query = Query::parse(text);
    if query.text.is_empty() {
        return Ok(Resolution::NotFound);
    }
    let mut exact = exact(conn, &query)?;
    // What is there wins over what is over; and a token or role, which has no table, is found by its events.
    if exact.iter().any(|(_, present)| *present) {
        exact.retain(|(_, present)| *present);
    }
    let exact: Vec<Match> = exact.into_iter().map(|(found, _)| found).collect();
    let prefixed = if exact.is_empty() {
        prefixed(conn, &query)?
    } else {
        Vec::new()
    };
    Ok(choose(exact, || prefixed))
}

fn exact(conn: &Connection, query: &Query<'_>) -> Result<Vec<(Match, bool)>, QueryError> {
    let mut found = Vec::new();
    let text = query.text;
    if query.wants("node") {
        let sql = "SELECT id, sort, 1 FROM nodes WHERE id = ?1 OR sort = ?1";
        read(conn, sql, params![text], &mut found, node)?;
    }
    if query.wants("service") {
        let (tenant, name) = query.service();
        let sql = "SELECT id, sort, present FROM services
                   WHERE id = ?1 OR (name = ?2 AND (?3 IS NULL OR tenant = ?3)) LIMIT 11";
        read(conn, sql, params![text, name, tenant], &mut found, service)?;
    }
    if query.wants("instance") {
        let sql = "SELECT id, sort, present FROM instances WHERE id = ?1";
        read(conn, sql, params![text], &mut found, instance)?;
    }
    if query.wants("switch") {
        let sql = "SELECT id, json_extract(body, '$.workload'), 1 FROM switches WHERE id = ?1";
        read(conn, sql, params![text], &mut found, switch)?;
    }
    if query.wants("device") {
        let sql = "SELECT id, uuid, 1 FROM devices WHERE id = ?1 OR uuid = ?1";
        read(conn, sql, params![text], &mut found, device)?;
    }
    if query.wants("token")
        && let Ok(token) = text.parse::<CredentialId>()
    {
        let entity = Entity::Credential(token);
        let mut events = conn.prepare_cached("SELECT 1 FROM event_about WHERE entity = ?1 LIMIT 1")?;
        if events.exists([crate::history::entity_key(&entity)])? {
            found.push((Match::new(entity, text), true));
        }
    }
    Ok(found)
}

fn prefixed(conn: &Connection, query: &Query<'_>) -> Result<Vec<Match>, QueryError> {
    // Ids are ASCII: everything that begins with the text lies below the text followed by the last ASCII character.
    let (low, high) = (query.text, format!("{}\u{7f}", query.text));
    let range = params![low, high];
    let mut found = Vec::new();
    if query.wants("node") {
        let sql = format!("SELECT id, sort, 1 FROM nodes WHERE id BETWEEN ?1 AND ?2 {SOME}");
        read(conn, &sql, range, &mut found, node)?;
    }
    if query.wants("service") {
        let sql = format!("SELECT id, sort, present FROM services WHERE id BETWEEN ?1 AND ?2 {SOME}");
        read(conn, &sql, range, &mut found, service)?;
    }
    if query.wants("instance") {
        let sql = format!("SELECT id, sort, present FROM instances WHERE id BETWEEN ?1 AND ?2 {SOME}");
        read(conn, &sql, range, &mut found, instance)?;
    }
    if query.wants("device") {
        let sql =
            format!("SELECT id, uuid, 1 FROM devices WHERE id BETWEEN ?1 AND ?2 OR uuid BETWEEN ?1 AND ?2 {SOME}");
        read(conn, &sql, range, &mut found, device)?;
    }
    if query.wants("switch") {
        let sql =
            format!("SELECT id, json_extract(body, '$.workload'), 1 FROM switches WHERE id BETWEEN ?1 AND ?2 {SOME}");
        read(conn, &sql, range, &mut found, switch)?;
    }
    Ok(found.into_iter().map(|(found, _)| found).collect())
}

fn read(
    conn: &Connection,
    sql: &str,
    params: &[&dyn rusqlite::ToSql],
    found: &mut Vec<(Match, bool)>,
    make: fn(&str, &str) -> Option<Match>,
) -> Result<(), QueryError> {
    let mut statement = conn.prepare_cached(sql)?;
    let row = |row: &Row<'_>| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, bool>(2)?,
        ))
    };
    for row in statement.query_map(params, row)? {
        let (id, name, present) = row?;
        found.extend(make(&id, &name).map(|found| (found, present)));
    }
    Ok(())
}

fn node(id: &str, name: &str) -> Option<Match> {
    Some(Match::new(Entity::Node(id.parse::<NodeId>().ok()?), name))
}

fn service(id: &str, name: &str) -> Option<Match> {
    Some(Match::new(Entity::Service(id.parse::<ServiceId>().ok()?), name))
}

fn switch(id: &str, workload: &str) -> Option<Match> {
    Some(Match::new(Entity::Switch(id.parse::<SwitchId>().ok()?), workload))
}

fn device(id: &str, name: &str) -> Option<Match> {
    Some(Match::new(Entity::Device(id.parse::<DeviceId>().ok()?), name))
}

/// An instance's sort key begins with its workload.
fn instance(id: &str, sort: &str) -> Option<Match> {
    let workload = sort.splitn(3, '/').take(2).collect::<Vec<_>>().join("/");
    Some(Match::new(Entity::Instance(id.parse::<InstanceId>().ok()?), workload))
}
