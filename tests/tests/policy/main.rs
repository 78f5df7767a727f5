//! The pure policies: what workers would ask for in a given state.
#![allow(clippy::unwrap_used)]

mod breaker;
mod drive;
mod liveness;
mod moves;
mod placement;
mod placement_properties;
mod replicas;
mod rollout;
mod standby;
