-- What an exported slice has besides the tables of a ledger file.
-- `export`: from, to, previous (the hash before the first record), opening (sequence behind which the slice opens; 0 = at
-- the ledger's beginning), state_version, and tenant if others' commits were left out.
CREATE TABLE export (
    key   TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID, STRICT;

-- The state the slice opens with, entity by entity: the hash of each, the content only where the reader may have it.
CREATE TABLE opening_entity (
    entity BLOB PRIMARY KEY NOT NULL,
    hash   BLOB NOT NULL CHECK (length(hash) = 32),
    body   BLOB
) WITHOUT ROWID, STRICT;

-- The same state in one piece, for readers of the same state version; absent from a tenant's export.
CREATE TABLE opening_state (
    one  INTEGER PRIMARY KEY NOT NULL CHECK (one = 1),
    body BLOB NOT NULL
) STRICT;
