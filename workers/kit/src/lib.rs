//! What every worker has in common: a term, a view of the state, observations, and a way to ask.
//!
//! A worker's core ([`Worker`]) is sans-I/O: it looks at a state and says what it wants. This crate is the thin shell
//! around it. [`spawn`] starts a task that keeps the role's term, feeds observations, takes a step when something
//! changed, submits the wishes and waits until their answers are in the state before it looks again: so no worker ever
//! decides on a state older than its own last decision. The alternative, a queue of events each handled once, would have
//! to remember what was handled; here nothing has to be remembered at all.
//!
//! Invariants: one holder per role (its term goes with every command, and the sequencer refuses older ones); the same
//! wish about the same version of its target is the same command; at most [`IN_FLIGHT`] commands are under way; whatever
//! stands in the way is waited out with growing, jittered pauses and is visible in [`WorkerStatus`].

mod ask;
mod backoff;
mod clock;
pub mod observation;
mod pump;
mod shell;
mod status;
mod term;
mod worker;

pub use ask::{Asked, Asker, Outcome};
pub use clock::{LedgerClock, span};
pub use shell::{IN_FLIGHT, Setup, WorkerHandle, spawn};
pub use status::{WorkerState, WorkerStatus};
pub use worker::{ObservedBlock, Reads, Step, StepInput, Wish, Worker, chunks};
