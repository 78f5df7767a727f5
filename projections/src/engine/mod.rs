//! The generic engine behind every read model.
//!
//! One [`Projection`] folds the ledger's state and writes, for each batch of records, all rows of all [`view`]s, the
//! cursor and the last record's hash in one transaction. [`Projector`] feeds it from a ledger's follower: at once when
//! idle, in batches under load. Since rows and cursor move together, a kill at any point loses at most work, never
//! consistency; since records before the cursor are skipped, a redelivery changes nothing.
//!
//! A cursor names a ledger, a sequence and a hash. If the ledger is another one, shorter, or has another hash there, or
//! if the state's or schema's version changed, everything is dropped and built again from record 1, in place and in the
//! open: [`Progress`] says why, lists stand at the sequence reached. Rejected: building a second file and serving the
//! old one meanwhile; the old rows would be of a ledger that is no longer, or of a shape that this build cannot read.
//! Rejected: one consumer and one file a view; they would stand at different sequences, and a page that joins two of
//! them would show what never was.

mod error;
pub mod progress;
mod projection;
mod projector;
mod retire;
pub mod schema;
pub mod snapshots;
pub mod view;

pub use error::{ProjectError, Stale};
pub use progress::{Condition, Progress};
pub use projection::{Point, Projection, ProjectionOptions};
pub use projector::{Projector, ProjectorConfig};
