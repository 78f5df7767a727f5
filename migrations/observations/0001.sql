-- Embedded observations: one row a block, pruned from the old end. AUTOINCREMENT keeps a sequence from being given twice
-- once everything before it is pruned.
CREATE TABLE block (
    sequence    INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    received_at INTEGER NOT NULL, -- latest in the block, microseconds since the Unix epoch
    body        BLOB NOT NULL
) STRICT;
