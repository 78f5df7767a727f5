//! The workers against a real sequencer over the ledger in memory: scheduler, failover, evidence and the kit's shell.
//!
//! Nodes are played by the test, and doors' observations carry stamps that the test makes up, so that minutes of silence
//! take as long as it takes to read them.
#![allow(clippy::unwrap_used)]

mod evidence;
mod failing;
mod gateways;
mod scheduling;
mod terms;
mod world;
