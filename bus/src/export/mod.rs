//! Exports: a slice of the ledger as a file that verifies by itself.
//!
//! An export is a ledger file (SQLite, the embedded backend's layout) that holds the records of a stretch and, beside them, the
//! state it opens with. It begins with a record that ends in a seal, so the opening state is bound to the chain by a hash
//! that stands on the ledger itself. For a tenant, other tenants' commits are replaced by their hashes and their entities
//! by theirs: the chain and the opening seal still verify, and what is not theirs is not in the file.
//!
//! Invariants: a file is written whole or not at all, and never over another. A commit stays in a tenant's export only if
//! nothing it touched belongs to another tenant; what concerns several tenants at once is left out, what concerns the
//! pool alone (nodes, epochs, terms) stays. Rejected: a format of its own, which would need a reader of its own.

mod read;
mod write;

pub use read::{Export, ExportMeta, verify_file};
pub use write::{ExportError, ExportReport, ExportRequest, export};

const SCHEMA: &str = include_str!("../../../migrations/export/0001.sql");
