//! What agents and gateways say to a door, and what a door says to them: JSON over one WebSocket each.
//!
//! Both sides of a connection may be two releases apart, so every type here ignores fields it does not know and gives
//! new fields a default; an unknown message or fact decodes to `Unknown` and is skipped with a log line. The ledger's
//! own types are deliberately not used: the wire and the ledger evolve separately, and the door translates.
//!
//! Invariants: identity is never taken from a message (the door stamps what arrives with the authenticated token's
//! node or gateway and its own receive time); no wall-clock time travels up, only ages measured on the sender's
//! monotonic clock; everything that comes down is a whole snapshot carrying a [`Stamp`], so a lost message is healed
//! by the next one.

pub mod agent;
pub mod gateway;
pub mod problem;
pub mod stamp;
pub mod telemetry;

pub use problem::Problem;
pub use stamp::Stamp;

/// WebSocket path on which an agent connects. The token goes into `Authorization: Bearer …`.
pub const AGENT_PATH: &str = "/v1/connect/agent";

/// WebSocket path on which a gateway connects. The token goes into `Authorization: Bearer …`.
pub const GATEWAY_PATH: &str = "/v1/connect/gateway";

/// The version of these messages a peer was built with. Raised when a field is added that the other side should know of.
pub const PROTOCOL_VERSION: u32 = 1;

/// Largest single message a door, agent or gateway accepts, in bytes. A node's desired state with a thousand instances
/// stays below a quarter of it.
pub const MAX_MESSAGE_BYTES: usize = 8 * 1024 * 1024;
