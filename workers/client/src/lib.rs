//! How agents, gateways and the CLI speak to the control plane: plain HTTP for questions and commands ([`Api`]), one
//! long-lived WebSocket for nodes and gateways ([`Link`]). Both take a *list* of servers and any of them will do, so
//! failing over is a property of this crate and nobody above it thinks about which server answered.
//!
//! Invariants: nothing is sent twice that may not be (a `POST` carries an `Idempotency-Key`, so a retry on the next
//! server is the same request); a message queued for a connection dies with it and never leaks into the next one; every
//! retry waits a full-jitter back-off, so a thousand peers do not return in the same millisecond; a peer that stopped
//! answering is noticed within seconds though TCP would take minutes. Rejected: a general HTTP client crate — its
//! retries, redirects and cookie handling are policy this product has to own.

mod api;
mod backoff;
mod error;
mod link;
mod server;
mod stream;

pub use api::{Answer, Api, Call};
pub use backoff::Backoff;
pub use error::ClientError;
pub use link::{Connection, Link, LinkClosed, LinkConfig, LinkEvent};
pub use server::{ServerUrl, ServerUrlError, Token, TokenFileError, parse_servers};
pub use stream::{LineStream, SseEvent, SseStream};
