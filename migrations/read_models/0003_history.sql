-- One row an event. `id` = sequence * 2^20 + index, so that the ledger's order is the table's. `body` is the event's
-- stored body; what people read of it is rendered when asked for.
CREATE TABLE IF NOT EXISTS events (
    id          INTEGER PRIMARY KEY,
    time        INTEGER NOT NULL,
    kind        INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    tenant      TEXT,
    target      TEXT NOT NULL,
    target_name TEXT NOT NULL,
    change      TEXT NOT NULL,
    reason      TEXT NOT NULL,
    actor       TEXT NOT NULL,
    cause       TEXT NOT NULL,
    trace       BLOB,
    command     BLOB NOT NULL,
    body        BLOB NOT NULL
) STRICT;

-- Which entities a record's events concern, by the number that stands for an entity: a row an entity and record, with
-- the events' indexes in the record as differences, each a LEB128 number. Instances hold theirs in their own rows.
CREATE TABLE IF NOT EXISTS event_about (
    entity   INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    indexes  BLOB NOT NULL,
    PRIMARY KEY (entity, sequence)
) STRICT, WITHOUT ROWID;
