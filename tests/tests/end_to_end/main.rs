//! End to end: the binary as users run it, with real processes behind the gateway.
#![allow(clippy::unwrap_used)]

mod crashes;
mod errors;
mod first_light;
mod hardware;
mod long_ledger;
mod on_nats;
mod rollout;
mod switches;
mod wide;
