//! The door: the HTTP side of every `server`, and the only way into a cell.
//!
//! People, tenants, agents and gateways speak HTTP with a door and with nothing else; behind it, commands go to the
//! leading sequencer, what is heard goes into the observations' log, and answers come from the folded state and the read
//! models. Every server has one, they are alike, and any of them serves anyone. [`routes`] is the table of what it
//! answers, [`gate`] what happens to each request first, [`connect`] the long-lived connections.
//!
//! Invariants: a caller is authenticated before anything of a request is acted on, and identity is never taken from a
//! message; whatever comes in is bounded in size, number and time; everything that goes to the ledger has an id under
//! which asking twice is asking once; a refusal has a stable code and a next step. Letting agents and gateways hold NATS
//! credentials was rejected: one stolen machine would read and write the whole cell.

mod api;
pub mod auth;
mod clock;
mod config;
mod connect;
mod gate;
pub mod health;
mod metrics;
mod observer;
mod openapi;
mod problem;
pub mod reads;
mod routes;
mod server;
mod shared;
mod telemetry;
mod trace;
pub mod workload;

pub use config::{DoorConfig, DoorDeps, Limits};
pub use health::{Check, CheckState, Health};
pub use openapi::document as openapi;
pub use problem::Refusal;
pub use server::{BindError, Door};
