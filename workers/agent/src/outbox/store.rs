//! The outbox's file.

use std::{collections::BTreeMap, path::Path};

use rusqlite::{Connection, OptionalExtension, params};
use tidemill_protocol::{
    Stamp,
    agent::{Fact, FactBody},
};

use super::{Change, said_from, said_text};
use crate::{InstanceId, core::Said};

/// Why the outbox could not be opened or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A fact could not be written as JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// It was written by a later release.
    #[error("it has format {found}, this release knows {known}; use the release that wrote it or a later one")]
    Version {
        /// Format found.
        found: i64,
        /// Format of this release.
        known: i64,
    },
    /// No thread could be started.
    #[error("no thread for it: {0}")]
    Thread(std::io::Error),
}

/// Raised with each change of the tables below.
const VERSION: i64 = 1;

const SCHEMA: &str = "
    CREATE TABLE facts(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        boot_id TEXT NOT NULL,
        at_ms INTEGER NOT NULL,
        instance TEXT NOT NULL,
        terminal INTEGER NOT NULL,
        body TEXT NOT NULL
    ) STRICT;
    CREATE INDEX passing ON facts(id) WHERE terminal = 0;
    CREATE TABLE said(instance TEXT PRIMARY KEY, last TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE memory(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
";

/// What an earlier agent left.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The stamp it acted on last.
    pub(crate) applied: Option<Stamp>,
    /// What it last said of each instance, and whether a terminal fact of it still waits.
    pub(crate) said: BTreeMap<InstanceId, (Said, bool)>,
}

/// A fact as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    id: u64,
    same_boot: bool,
    at_ms: u64,
    instance: String,
    body: FactBody,
}

impl Row {
    /// The fact with its age at `now_ms` of `CLOCK_BOOTTIME`. One of an earlier boot happened before this boot; how
    /// long before, no clock here can say.
    pub(crate) fn fact(&self, now_ms: u64) -> Fact {
        Fact {
            id: self.id,
            age_ms: match self.same_boot {
                true => now_ms.saturating_sub(self.at_ms),
                false => now_ms,
            },
            instance: self.instance.clone(),
            body: self.body.clone(),
        }
    }
}

/// The file; see the module above.
pub(crate) struct Store {
    connection: Connection,
    boot_id: String,
    max_facts: u64,
}

impl Store {
    /// Opens or creates the file.
    pub(crate) fn open(path: &Path, boot_id: &str, max_facts: u64) -> Result<Self, StoreError> {
        let mut connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = connection.transaction()?;
        let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0))?;
        match found {
            0 => {
                transaction.execute_batch(SCHEMA)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            VERSION => {}
            _ => {
                return Err(StoreError::Version { found, known: VERSION });
            }
        }
        transaction.commit()?;
        Ok(Self {
            connection,
            boot_id: boot_id.to_owned(),
            max_facts,
        })
    }

    /// What an earlier agent left.
    pub(crate) fn memory(&mut self) -> Result<Memory, StoreError> {
        let applied: Option<String> = self
            .connection
            .query_row("SELECT value FROM memory WHERE key = 'applied'", [], |row| row.get(0))
            .optional()?;
        let mut statement = self.connection.prepare(
            "SELECT instance, last, EXISTS(
                 SELECT 1 FROM facts WHERE facts.instance = said.instance AND terminal = 1)
             FROM said",
        )?;
        let rows = statement.query_map([], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get(2)?))
        })?;
        let mut said = BTreeMap::new();
        for row in rows {
            let (instance, last, waits) = row?;
            if let (Some(instance), Some(last)) = (InstanceId::parse(&instance), said_from(&last)) {
                said.insert(instance, (last, waits));
            }
        }
        Ok(Memory {
            applied: applied.and_then(|text| serde_json::from_str(&text).ok()),
            said,
        })
    }

    /// Facts kept.
    pub(crate) fn len(&self) -> Result<u64, StoreError> {
        Ok(self
            .connection
            .query_row("SELECT count(*) FROM facts", [], |row| row.get(0))?)
    }

    /// Writes changes in one transaction. Returns how many facts had to make room.
    pub(crate) fn keep(&mut self, changes: &[Change]) -> Result<usize, StoreError> {
        let transaction = self.connection.transaction()?;
        {
            let mut fact = transaction
                .prepare_cached("INSERT INTO facts(boot_id, at_ms, instance, terminal, body) VALUES (?, ?, ?, ?, ?)")?;
            let mut said = transaction.prepare_cached(
                "INSERT INTO said(instance, last) VALUES (?, ?)
                 ON CONFLICT(instance) DO UPDATE SET last = excluded.last",
            )?;
            let mut forget = transaction.prepare_cached("DELETE FROM said WHERE instance = ?")?;
            for change in changes {
                for new in &change.facts {
                    let last = Said::of(&new.body);
                    fact.execute(params![
                        self.boot_id,
                        new.at_ms,
                        new.instance.as_str(),
                        last == Some(Said::Ended),
                        serde_json::to_string(&new.body)?,
                    ])?;
                    if let Some(last) = last {
                        said.execute(params![new.instance.as_str(), said_text(last)])?;
                    }
                }
                for instance in &change.forget {
                    forget.execute([instance.as_str()])?;
                }
            }
            if let Some(applied) = changes.iter().rev().find_map(|c| c.applied.as_ref()) {
                transaction.execute(
                    "INSERT INTO memory(key, value) VALUES ('applied', ?)
                     ON CONFLICT(key) DO UPDATE SET value = excluded.value",
                    [serde_json::to_string(applied)?],
                )?;
            }
        }
        let kept: u64 = transaction.query_row("SELECT count(*) FROM facts", [], |row| row.get(0))?;
        let mut dropped = 0;
        if kept > self.max_facts {
            // A tenth more than needed, so that a full outbox does not pay for this with every fact.
            let excess = kept - self.max_facts + self.max_facts / 10;
            dropped = transaction.execute(
                "DELETE FROM facts WHERE id IN (
                     SELECT id FROM facts WHERE terminal = 0 ORDER BY id LIMIT ?)",
                [excess],
            )?;
        }
        transaction.commit()?;
        Ok(dropped)
    }

    /// The oldest facts.
    pub(crate) fn read(&self, limit: usize) -> Result<Vec<Row>, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT id, boot_id, at_ms, instance, body FROM facts ORDER BY id LIMIT ?")?;
        let mut rows = statement.query([limit])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let body: String = row.get(4)?;
            found.push(Row {
                id: row.get(0)?,
                same_boot: row.get::<_, String>(1)? == self.boot_id,
                at_ms: row.get(2)?,
                instance: row.get(3)?,
                body: serde_json::from_str(&body)?,
            });
        }
        Ok(found)
    }

    /// Drops facts up to and including `through`; returns the instances whose terminal fact was among them.
    pub(crate) fn settle(&mut self, through: u64) -> Result<Vec<InstanceId>, StoreError> {
        let transaction = self.connection.transaction()?;
        let ended = {
            let mut statement =
                transaction.prepare_cached("SELECT instance FROM facts WHERE id <= ? AND terminal = 1")?;
            let rows = statement.query_map([through], |row| row.get::<_, String>(0))?;
            rows.collect::<Result<Vec<_>, _>>()?
        };
        transaction.execute("DELETE FROM facts WHERE id <= ?", [through])?;
        transaction.commit()?;
        Ok(ended
            .iter()
            .filter_map(|instance| InstanceId::parse(instance))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::outbox::NewFact;

    fn instance(n: usize) -> InstanceId {
        InstanceId::parse(&format!("inst-{n}")).unwrap()
    }

    fn fact(n: usize, body: FactBody) -> NewFact {
        NewFact {
            instance: instance(n),
            at_ms: 1_000,
            body,
        }
    }

    fn unready() -> FactBody {
        FactBody::Unready {
            reason: "no answer".into(),
        }
    }

    fn change(facts: Vec<NewFact>) -> Change {
        Change {
            facts,
            ..Change::default()
        }
    }

    #[test]
    fn facts_and_memory_survive_and_ids_are_not_reused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("outbox.sqlite");
        let stamp = Stamp {
            cell: "c".into(),
            ledger: "l".into(),
            epoch: 1,
            sequence: 9,
        };
        let mut store = Store::open(&path, "boot-1", 100).unwrap();
        let ended = FactBody::Stopped { killed: true };
        let mut first = change(vec![fact(1, unready()), fact(2, ended.clone())]);
        first.applied = Some(stamp.clone());
        store.keep(&[first]).unwrap();
        drop(store);

        let mut store = Store::open(&path, "boot-2", 100).unwrap();
        let memory = store.memory().unwrap();
        assert_eq!(memory.applied, Some(stamp));
        assert_eq!(memory.said[&instance(1)], (Said::Unready, false));
        assert_eq!(memory.said[&instance(2)], (Said::Ended, true));
        let rows = store.read(10).unwrap();
        let ids: Vec<u64> = rows.iter().map(|row| row.id).collect();
        assert_eq!(ids, [1, 2]);
        assert_eq!(
            rows[0].fact(7_000).age_ms,
            7_000,
            "of another boot: at least as old as this one"
        );
        assert_eq!(store.settle(2).unwrap(), [instance(2)]);
        assert_eq!(store.len().unwrap(), 0);
        store.keep(&[change(vec![fact(3, unready())])]).unwrap();
        let row = &store.read(1).unwrap()[0];
        assert_eq!(row.id, 3, "ids go on after all facts are gone");
        assert_eq!(row.fact(1_500).age_ms, 500);
        let mut last = Change::default();
        last.forget.push(instance(2));
        store.keep(&[last]).unwrap();
        assert!(!store.memory().unwrap().said.contains_key(&instance(2)));
    }

    #[test]
    fn a_full_outbox_keeps_terminal_facts() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(&dir.path().join("o"), "boot", 10).unwrap();
        let ended = (0..5).map(|n| fact(n, FactBody::Stopped { killed: false }));
        store.keep(&[change(ended.collect())]).unwrap();
        let flapping = (0..20).map(|n| fact(n + 10, unready()));
        assert_eq!(store.keep(&[change(flapping.collect())]).unwrap(), 16);
        let rows = store.read(100).unwrap();
        assert_eq!(rows.len(), 9);
        assert!(rows[..5].iter().all(|row| Said::of(&row.body) == Some(Said::Ended)));
    }

    #[test]
    fn a_later_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o");
        let store = Store::open(&path, "boot", 10).unwrap();
        store.connection.pragma_update(None, "user_version", 99).unwrap();
        drop(store);
        assert!(matches!(
            Store::open(&path, "boot", 10),
            Err(StoreError::Version { found: 99, known: 1 })
        ));
    }
}
