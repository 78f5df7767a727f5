//! The process between the agent and one instance.
//!
//! A shim starts the instance's command, keeps its output and exit status, and carries out its stop, so that the agent
//! may be replaced, crash or be killed and the work does not notice. It is a sub-reaper: whatever the command leaves
//! behind, however it detached itself, becomes the shim's child and is ended with it; the shim itself ends only when
//! nothing is left, which is what makes "stopped" mean that the devices are free.
//!
//! Invariants: one shim an instance (an exclusive lock on a file of its directory, and a directory that has a state
//! never starts again); the state file is replaced whole; the shim never waits for the agent, a disk or a reader of its
//! output. It is single-threaded, without a runtime, so that a thousand of them cost little. Rejected: the agent as
//! parent (its death would orphan the work and lose exit statuses), cgroups (need root or delegation, which a café's
//! PC does not give). A service manager that runs the agent must end its main process only (systemd:
//! `KillMode=process`), else it ends the work with it.

mod log;
mod run;
pub(crate) mod tree;
pub(crate) mod wire;

pub(crate) use log::{LastLine, LogWriter, files as log_files};
/// Size of one file of an instance's output.
pub(crate) fn log_file_bytes() -> u64 {
    log::FILE_BYTES
}

pub(crate) use run::{shim_with_args, stdin_of};
