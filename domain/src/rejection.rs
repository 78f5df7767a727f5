//! Why a command is refused: typed data with a stable code and a next step.

use serde::{Deserialize, Serialize};

/// A refusal. Nothing was written; the same command may be asked again under the same id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// No such entity.
    #[error("there is no {what} `{id}`")]
    NotFound {
        /// Kind of entity.
        what: String,
        /// As asked.
        id: String,
    },
    /// A declaration that cannot be.
    #[error("{key}: {reason}")]
    Invalid {
        /// The key, dotted.
        key: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// Reserved for a later release.
    #[error("{feature} is not there yet")]
    NotYet {
        /// What was asked for.
        feature: String,
    },
    /// The name belongs to another, living node.
    #[error("the node name `{name}` is in use by another machine ({state})")]
    NodeNameTaken {
        /// The name.
        name: String,
        /// State of who has it.
        state: String,
    },
    /// A node of this name and installation lives, from another boot.
    #[error(
        "node `{name}` is alive and was booted elsewhere: this is a copy of its disk, or it has just been restarted"
    )]
    NodeCloned {
        /// The name.
        name: String,
    },
    /// The device is on another, living node.
    #[error("device {uuid} is already in the pool on node `{node}`")]
    DeviceElsewhere {
        /// Vendor UUID.
        uuid: String,
        /// Name of that node.
        node: String,
    },
    /// The token does not allow this.
    #[error("{reason}")]
    NotAllowed {
        /// Why.
        reason: String,
    },
    /// The route's host belongs to another service.
    #[error("host `{host}` is already routed to service `{service}`")]
    HostTaken {
        /// The host.
        host: String,
        /// TENANT/NAME.
        service: String,
    },
    /// The entity is not in a state in which this makes sense.
    #[error("{what} is {state}: {reason}")]
    WrongState {
        /// Entity.
        what: String,
        /// Its state.
        state: String,
        /// Why that does not go.
        reason: String,
    },
    /// A placement names capacity that is not free any more.
    #[error("device {device} has {free} thousandths free, {asked} were asked for")]
    DeviceBusy {
        /// Device id.
        device: String,
        /// Free thousandths.
        free: u32,
        /// Asked for.
        asked: u32,
    },
    /// The worker's term is over.
    #[error("term {term} of role {role} is over; {holder} holds term {current}")]
    StaleTerm {
        /// Role.
        role: String,
        /// Term of the command.
        term: u64,
        /// Present term.
        current: u64,
        /// Present holder.
        holder: String,
    },
    /// Another process holds the role.
    #[error("role {role} is held by {holder}")]
    TermHeld {
        /// Role.
        role: String,
        /// Who holds it.
        holder: String,
    },
    /// The declaration changed meanwhile.
    #[error("service {service} is at generation {current}, not {asked}")]
    StaleGeneration {
        /// Which service.
        service: String,
        /// Generation asked for.
        asked: u64,
        /// Present generation.
        current: u64,
    },
    /// Too much in one command.
    #[error("{what}: {asked} in one command, at most {limit} go")]
    TooMany {
        /// Of what.
        what: String,
        /// Asked for.
        asked: u64,
        /// Limit.
        limit: u64,
    },
}

impl Rejection {
    /// Stable code that scripts may match.
    pub fn code(&self) -> &'static str {
        match self {
            Rejection::NotFound { .. } => "not_found",
            Rejection::Invalid { .. } => "invalid",
            Rejection::NotYet { .. } => "not_yet",
            Rejection::NodeNameTaken { .. } => "node_name_taken",
            Rejection::NodeCloned { .. } => "node_cloned",
            Rejection::DeviceElsewhere { .. } => "device_elsewhere",
            Rejection::NotAllowed { .. } => "not_allowed",
            Rejection::HostTaken { .. } => "host_taken",
            Rejection::WrongState { .. } => "wrong_state",
            Rejection::DeviceBusy { .. } => "device_busy",
            Rejection::StaleTerm { .. } => "stale_term",
            Rejection::TermHeld { .. } => "term_held",
            Rejection::StaleGeneration { .. } => "stale_generation",
            Rejection::TooMany { .. } => "too_many",
        }
    }

    /// What to do about it.
    pub fn next(&self) -> &'static str {
        match self {
            Rejection::NotFound { .. } => "list what there is, for example with `tidemill services`",
            Rejection::Invalid { .. } => "correct it and ask again; nothing was changed",
            Rejection::NotYet { .. } => "leave it out for now",
            Rejection::NodeNameTaken { .. } => "give this node another --name, or wait until the other is lost",
            Rejection::NodeCloned { .. } => {
                "a restarted machine is let in seconds after its silence is noticed; give a copy its own machine-id, --data and --name"
            }
            Rejection::DeviceElsewhere { .. } => "remove the other node first, or check for a cloned disk",
            Rejection::NotAllowed { .. } => "use a token whose role allows it (`tidemill token create`)",
            Rejection::HostTaken { .. } => "choose another route.host",
            Rejection::WrongState { .. } => "look at its state with `tidemill status`",
            Rejection::DeviceBusy { .. } => "the scheduler places it again in its next round",
            Rejection::StaleTerm { .. } => "the worker steps down and acquires the role anew",
            Rejection::TermHeld { .. } => "the worker waits for the holder's lease to end",
            Rejection::StaleGeneration { .. } => "the scheduler asks again with the present generation",
            Rejection::TooMany { .. } => "ask in smaller chunks",
        }
    }
}
