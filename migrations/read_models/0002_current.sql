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
