//! What workers would do, as pure functions of the state.
//!
//! A policy names commands and gives reasons; it never reads a clock, and what it proposes is checked again by
//! `decide`. Kept apart from the workers so that the simulator, the benchmarks on public traces and `explain` run the
//! production policy itself and not a likeness.

pub mod liveness;
pub mod placement;
pub mod replicas;
pub mod work;
