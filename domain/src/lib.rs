//! What Tidemill knows and decides, with nothing of the world in it.
//!
//! The ring of the system begins here: a [`command::Command`] meets the [`state::State`] in [`decide::decide`], which
//! answers with events or a typed refusal; [`state::State::apply`] folds events into the next state; [`policy`] holds
//! what workers would decide, as pure functions of the same state. Time and ids come in with the command.
//!
//! Invariants: no clock, no randomness, no I/O, no async, no global; equal inputs give equal outputs on every machine.
//! That is what replay, time travel, what-if and simulation rest on, so it is checked by the repository's own tests
//! rather than left to care.

pub mod command;
pub mod commit;
pub mod decide;
pub mod events;
pub mod id;
pub mod invariants;
pub mod policy;
pub mod rejection;
pub mod state;
pub mod time;
pub mod unit;
