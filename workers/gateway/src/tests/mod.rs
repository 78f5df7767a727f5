//! The gateway against real sockets: small servers as instances, raw clients where the bytes matter.
#![allow(clippy::unwrap_used)]

mod chaos;
mod door;
mod http2;
mod leaks;
mod limits;
mod load;
mod queue;
mod resilience;
mod routing;
mod streaming;
mod support;
mod suspicion;
mod tls;
mod websocket;
