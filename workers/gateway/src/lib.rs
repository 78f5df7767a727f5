//! The gateway: the reverse proxy through which clients reach services.
//!
//! A request is resolved to a service, admitted (an instance now, or a place in a bounded queue until one has room),
//! tried, and tried again elsewhere while that is safe; the answer streams back as it comes. Doors send whole route
//! snapshots and get back what clients perceived, second by second. The hot path takes short locks that belong to one
//! service and never one that all services share, and it does no I/O but the request's own.
//!
//! Invariants: a slot of an instance is held by exactly one guard, so in-flight counters cannot leak or go negative
//! (`admission`); a request is resent only while nothing of its answer was passed on and the rule of `forward`
//! allows it; an answer cut after it began is cut for the client as well, never ended as if whole (`download`);
//! routes of an older stamp never replace newer ones (`table`). Rejected: `hyper-util`'s pooled client, because it
//! hides which connection a request went over, and with that whether a byte was sent and which instance is to blame.

mod admission;
mod attempt;
mod choice;
mod client;
mod config;
mod conn;
mod control;
mod dial;
mod download;
mod error;
mod forward;
mod headers;
mod health;
mod instance;
mod line;
mod mux;
mod outlook;
mod pool;
mod proxy;
mod refusal;
mod report;
mod roster;
mod server;
mod store;
mod table;
mod tls;
mod traffic;
mod tunnel;
mod upload;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

pub use config::{GatewayConfig, Limits};
pub use error::GatewayError;
pub use server::Gateway;
pub use tls::TlsFiles;
