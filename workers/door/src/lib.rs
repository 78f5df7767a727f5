//! The door: the HTTP side of every `server`.

pub mod workload;
