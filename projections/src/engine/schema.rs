//! The read models' schema: numbered migrations, and the whole of it.
//!
//! A migration runs in a transaction together with the number that says it has run; each may run twice. Read models
//! can always be rebuilt, so a migration never moves data: whoever opens an older file migrates it and rebuilds.

use rusqlite::{Connection, Transaction, TransactionBehavior};

/// Migrations by number, beginning with 1. Published ones never change.
pub const MIGRATIONS: &[&str] = &[
    include_str!("../../../migrations/read_models/0001_engine.sql"),
    include_str!("../../../migrations/read_models/0002_current.sql"),
    include_str!("../../../migrations/read_models/0003_history.sql"),
    include_str!("../../../migrations/read_models/0004_switches.sql"),
];

/// What the migrations add up to.
pub const SCHEMA: &str = include_str!("../../../migrations/read_models/schema.sql");

/// Tables of rows, in order: what [`dump`] compares.
pub const TABLES: &[&str] = &[
    "cursor",
    "nodes",
    "devices",
    "services",
    "instances",
    "queue",
    "switches",
    "events",
    "event_about",
];

/// Number of the last migration that ran.
pub fn version(conn: &Connection) -> rusqlite::Result<u32> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Runs the migrations that have not run. Returns how many did.
pub fn migrate(conn: &Connection) -> rusqlite::Result<usize> {
    let done = version(conn)? as usize;
    let pending = MIGRATIONS.iter().enumerate().skip(done);
    let mut ran = 0;
    for (index, sql) in pending {
        let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        tx.execute_batch(sql)?;
        tx.pragma_update(None, "user_version", index as u32 + 1)?;
        tx.commit()?;
        ran += 1;
    }
    Ok(ran)
}

/// Drops everything and lays the full schema anew, inside the caller's transaction.
pub fn reset(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    let tables = tx
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")?
        .query_map([], |row| row.get::<_, String>(0))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    for table in tables {
        tx.execute_batch(&format!("DROP TABLE \"{table}\""))?;
    }
    tx.execute_batch(SCHEMA)?;
    tx.pragma_update(None, "user_version", MIGRATIONS.len() as u32)
}

/// Every row of every table as text, sorted: equal dumps are equal read models.
pub fn dump(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    use rusqlite::types::ValueRef;
    use std::fmt::Write as _;
    let mut out = Vec::new();
    for table in TABLES {
        let mut statement = conn.prepare(&format!("SELECT * FROM {table}"))?;
        let columns = statement.column_count();
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let mut line = table.to_string();
            for column in 0..columns {
                line.push('|');
                match row.get_ref(column)? {
                    ValueRef::Null => line.push('∅'),
                    ValueRef::Integer(n) => _ = write!(line, "{n}"),
                    ValueRef::Real(x) => _ = write!(line, "{x}"),
                    ValueRef::Text(text) => line.push_str(&String::from_utf8_lossy(text)),
                    ValueRef::Blob(blob) => line.push_str(&tidemill_domain::commit::to_hex(blob)),
                }
            }
            out.push(line);
        }
    }
    out.sort_unstable();
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shape(conn: &Connection) -> Vec<(String, String, Option<String>)> {
        conn.prepare("SELECT type, name, sql FROM sqlite_master ORDER BY type, name")
            .unwrap()
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    }

    #[test]
    fn migrations_add_up_to_the_schema_and_run_again() {
        let migrated = Connection::open_in_memory().unwrap();
        assert_eq!(migrate(&migrated).unwrap(), MIGRATIONS.len());
        assert_eq!(migrate(&migrated).unwrap(), 0);
        for sql in MIGRATIONS {
            migrated.execute_batch(sql).unwrap();
        }
        let whole = Connection::open_in_memory().unwrap();
        whole.execute_batch(SCHEMA).unwrap();
        assert_eq!(shape(&migrated), shape(&whole));
        let reset_one = Connection::open_in_memory().unwrap();
        reset_one.execute_batch("CREATE TABLE old (x)").unwrap();
        let tx = Transaction::new_unchecked(&reset_one, TransactionBehavior::Immediate).unwrap();
        reset(&tx).unwrap();
        tx.commit().unwrap();
        assert_eq!(shape(&reset_one), shape(&whole));
        assert_eq!(version(&reset_one).unwrap() as usize, MIGRATIONS.len());
    }

    #[test]
    fn each_start_between_two_migrations_ends_in_the_same_schema() {
        for stop in 0..MIGRATIONS.len() {
            let conn = Connection::open_in_memory().unwrap();
            for (index, sql) in MIGRATIONS.iter().take(stop).enumerate() {
                conn.execute_batch(sql).unwrap();
                conn.pragma_update(None, "user_version", index as u32 + 1).unwrap();
            }
            assert_eq!(migrate(&conn).unwrap(), MIGRATIONS.len() - stop);
            let whole = Connection::open_in_memory().unwrap();
            whole.execute_batch(SCHEMA).unwrap();
            assert_eq!(shape(&conn), shape(&whole));
        }
    }
}
