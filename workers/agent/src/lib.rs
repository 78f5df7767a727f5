//! The agent: what runs on every node, starts and stops instances there, and reports what became of them.
//!
//! An agent is a sans-I/O core that decides, a runner that carries out, a session that talks with a door, an outbox that keeps
//! facts until the ledger has them, and one shim process for each instance. The control plane says what a node should
//! have, as a whole; the agent makes it so and says what happened. It can be killed at any moment: its instances run on
//! under their shims and the next agent on the same data directory takes them over.
//!
//! Invariants: an instance is started at most once in its life; its end is reported when nothing of it is left and its
//! devices are free, never before; a fact is on disk before it is sent and until it is on the ledger; no older
//! snapshot and no other ledger stops work. Rejected: instances as children of the agent, and desired state as a stream
//! of changes, where one lost message would be a lost instance.

mod adopt;
mod clock;
mod config;
mod core;
pub mod devices;
mod docker;
mod environment;
pub mod example;
mod id;
mod inspection;
mod launch;
pub mod leave;
mod logs;
mod machine;
mod monitor;
mod outbox;
mod probe;
mod run;
mod runner;
mod session;
mod shim;
mod socket;

pub use config::{AgentConfig, AgentError};
pub use id::InstanceId;
pub use logs::{LogChunk, MAX_CHUNK, read_log};
pub use machine::Machine;
pub use outbox::StoreError as OutboxError;
pub use run::run;

/// Runs the shim of one instance: what the binary does for its hidden verb `shim`. Call it before a runtime or a second
/// thread exists. `args` are those after the verb: `--dir DIR`.
pub fn shim_main(args: impl Iterator<Item = std::ffi::OsString>) -> std::process::ExitCode {
    shim::shim_with_args(args)
}
