-- The embedded ledger: one row a record, sequence dense from 1, body exactly as appended.
-- `meta` holds what is fixed at creation: format, cell, ledger_id.
CREATE TABLE meta (
    key   TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID, STRICT;

CREATE TABLE record (
    sequence INTEGER PRIMARY KEY NOT NULL CHECK (sequence > 0),
    body     BLOB NOT NULL
) STRICT;

-- A ledger only grows. Whoever means to change it has to remove these first.
CREATE TRIGGER record_is_never_changed BEFORE UPDATE ON record
BEGIN SELECT RAISE(ABORT, 'ledger records are never changed'); END;

CREATE TRIGGER record_is_never_deleted BEFORE DELETE ON record
BEGIN SELECT RAISE(ABORT, 'ledger records are never deleted'); END;
