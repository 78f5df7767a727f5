//! Commands between processes, and how a standby knows that its leader is alive: plain NATS, beside the streams.
//!
//! The leading candidate, and no other, answers requests on `tidemill.CELL.commands` and says every half second on
//! `tidemill.CELL.leader` that it leads. Neither is stored and neither has authority: a command that reaches nobody is
//! asked again under the same id, a leader falsely thought dead is deposed by an append like any other. Queue groups and
//! leader election by key-value buckets were rejected: each would be a second opinion about who leads.
//!
//! Invariants: both sides are bounded (requests at work, time per try, time in all). A command may be delivered more
//! than once and is carried out once, by its id.

mod client;
mod leader;
mod wire;

pub use client::{PATIENCE, RemoteCommands};

pub(crate) use client::Tries;
pub(crate) use leader::{Beats, Presence, announce_leaving, lead};

use crate::identity::CellName;
use crate::jetstream::Nats;

/// NATS as the way between the processes of one cell. Cloning is cheap.
#[derive(Clone)]
pub struct NatsTransport {
    nats: Nats,
    cell: CellName,
}

impl NatsTransport {
    /// Speaks for `cell` over `nats`.
    #[must_use]
    pub fn new(nats: &Nats, cell: &CellName) -> Self {
        Self {
            nats: nats.clone(),
            cell: cell.clone(),
        }
    }

    fn commands_subject(&self) -> String {
        format!("tidemill.{}.commands", self.cell)
    }

    fn leader_subject(&self) -> String {
        format!("tidemill.{}.leader", self.cell)
    }

    fn ping_subject(&self) -> String {
        format!("tidemill.{}.leader.ping", self.cell)
    }
}

impl std::fmt::Debug for NatsTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsTransport")
            .field("cell", &self.cell)
            .finish_non_exhaustive()
    }
}
