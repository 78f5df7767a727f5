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
