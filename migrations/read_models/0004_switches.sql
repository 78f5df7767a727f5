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
