//! What crosses crates: drivers and makers for the tests of this folder.
#![allow(clippy::unwrap_used)]

pub mod cell;
pub mod drivers;
pub mod make;
pub mod nats;
pub mod product;
pub mod random;
pub mod samples;
