//! Long-lived connections of agents and gateways.
//!
//! One WebSocket each: facts and beats come up, whole snapshots (desired state, routes) go down. A connection is a
//! reading task, a writing task and, for what must reach the ledger, a settling task; a slow ledger never keeps a beat
//! from being heard, and a slow peer keeps only its latest snapshot waiting. One fan-out task looks at each change of
//! the state and wakes exactly the connections it concerns, so a thousand idle connections cost nothing.
//!
//! Invariants: identity comes from the token and the join that was decided, never from a later message; one connection
//! a node and a gateway, the newest; every queue is bounded; a door that ends says nothing that reads as a node going.

mod agent;
mod facts;
mod fan;
mod gateway;
mod logs;
mod registry;
mod rotation;
mod socket;
mod translate_agent;
mod translate_gateway;

pub(crate) use agent::connect as agent;
pub(crate) use fan::fan_out;
pub(crate) use gateway::connect as gateway;
pub(crate) use logs::{LogStream, NextPart};
pub(crate) use registry::Registry;
