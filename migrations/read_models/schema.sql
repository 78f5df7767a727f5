-- The full schema of the read models: what the numbered migrations add up to (a test compares the two).

-- Where the read models stand: one row, changed in the same transaction as what it speaks of.
CREATE TABLE IF NOT EXISTS cursor (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    cell          TEXT NOT NULL,
    ledger        TEXT NOT NULL,
    sequence      INTEGER NOT NULL,
    hash          BLOB NOT NULL,
    recorded_at   INTEGER NOT NULL,
    events        INTEGER NOT NULL,
    state_version INTEGER NOT NULL
) STRICT;

-- The state at some records, so that folding to any point begins nearby. A cache: not part of what is compared.
CREATE TABLE IF NOT EXISTS snapshot (
    sequence      INTEGER PRIMARY KEY,
    hash          BLOB NOT NULL,
    state_version INTEGER NOT NULL,
    body          BLOB NOT NULL
) STRICT;

-- Current rows: `body` is the row as JSON, the other columns are what lists are narrowed and ordered by.
-- `sort` never changes for an id. `present` = the state still has it.
CREATE TABLE IF NOT EXISTS nodes (
    id       TEXT PRIMARY KEY,
    sort     TEXT NOT NULL,
    state    TEXT NOT NULL,
    supply   TEXT NOT NULL,
    provider TEXT NOT NULL,
    since    INTEGER NOT NULL,
    body     TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS nodes_sort ON nodes (sort);

CREATE TABLE IF NOT EXISTS devices (
    id          TEXT PRIMARY KEY,
    uuid        TEXT NOT NULL,
    sort        TEXT NOT NULL,
    node        TEXT NOT NULL,
    state       TEXT NOT NULL,
    supply      TEXT NOT NULL,
    provider    TEXT NOT NULL,
    model       TEXT NOT NULL,
    free        INTEGER NOT NULL,
    held        INTEGER NOT NULL,
    draining    INTEGER NOT NULL,
    dirty       INTEGER NOT NULL,
    quarantined INTEGER NOT NULL,
    lost        INTEGER NOT NULL,
    body        TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS devices_uuid ON devices (uuid);

CREATE TABLE IF NOT EXISTS services (
    id      TEXT PRIMARY KEY,
    sort    TEXT NOT NULL,
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    present INTEGER NOT NULL,
    state   TEXT NOT NULL,
    since   INTEGER NOT NULL,
    body    TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS services_sort ON services (sort);
CREATE INDEX IF NOT EXISTS services_name ON services (name);

-- `events`: the numbers (see `events`) of the events that concern it, 8 bytes each, big-endian, in order.
CREATE TABLE IF NOT EXISTS instances (
    id      TEXT PRIMARY KEY,
    sort    TEXT NOT NULL,
    service TEXT NOT NULL,
    tenant  TEXT NOT NULL,
    node    TEXT,
    present INTEGER NOT NULL,
    state   TEXT NOT NULL,
    since   INTEGER NOT NULL,
    body    TEXT NOT NULL,
    events  BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS instances_present ON instances (sort) WHERE present = 1;

CREATE TABLE IF NOT EXISTS queue (
    id     TEXT PRIMARY KEY,
    sort   TEXT NOT NULL,
    tenant TEXT NOT NULL,
    since  INTEGER NOT NULL,
    body   TEXT NOT NULL
) STRICT;

-- Switches, closed ones for ever: the state keeps them for an hour.
CREATE TABLE IF NOT EXISTS switches (
    id      TEXT PRIMARY KEY,
    sort    TEXT NOT NULL,
    service TEXT NOT NULL,
    tenant  TEXT NOT NULL,
    node    TEXT NOT NULL,
    state   TEXT NOT NULL,
    since   INTEGER NOT NULL,
    body    TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS switches_sort ON switches (sort);

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
