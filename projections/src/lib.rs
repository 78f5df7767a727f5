//! What is asked of a cell: read models in SQLite, and the same rows at any point of the past.
//!
//! Everything here follows from the ledger. [`rows`] and [`history`] turn state and events into what people see;
//! [`engine`] keeps tables of that up to date; [`query`] reads them; [`travel`] folds a state of the past and renders the
//! same rows without any table; [`explain`] and [`status`] tell of one thing, [`resolve`] finds it by what people call it.
//!
//! Invariants: a rebuilt read model equals the updated one wherever it was interrupted; a list at sequence N equals what
//! the read models listed when they stood at N; every table can be dropped and built again. Workers never read this.

pub mod engine;
pub mod explain;
pub mod filter;
pub mod history;
pub mod query;
pub mod resolve;
pub mod rows;
pub mod status;
pub mod travel;
