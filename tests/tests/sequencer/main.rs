//! The sequencer against ledgers that fail in every way they can: what was acknowledged is there once, what was not is
//! told apart, and nobody decides on a ledger that is not theirs.
#![allow(clippy::unwrap_used)]

mod core;
mod export;
mod idempotence;
mod life;
mod nats;
mod outcomes;
mod support;
