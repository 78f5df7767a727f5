//! The bus: how commits become durable and how everything else learns of them.
//!
//! The bottom of it is the [`ledger`]: records of opaque commits on a hash chain, behind one trait with three stores
//! ([`embedded`] SQLite, [`jetstream`], [`memory`]). Beside it stand [`observations`], which are many, short-lived and bounded.
//! This is the only crate that knows how either is stored; above it nobody can tell the backends apart.
//!
//! Invariants: the ledger is appended to in one place, read through [`chain::ChainReader`], and never created, cut or
//! repaired behind an operator's back.

pub mod ahead;
pub mod audit;
mod backoff;
pub mod chain;
pub mod checkpoint;
pub mod commands;
pub mod digest;
pub mod disk;
pub mod embedded;
pub mod export;
pub mod fold;
pub mod identity;
pub mod jetstream;
pub mod ledger;
pub mod memory;
pub mod observations;
pub mod record;
pub mod remote;
pub mod sequencer;
pub mod snapshots;
pub mod verify;
pub mod view;
