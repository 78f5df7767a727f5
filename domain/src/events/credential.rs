//! Tokens: only their hashes are here.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use crate::id::CredentialId;
use crate::time::Timestamp;
use crate::unit::Name;

use super::node::Supply;

/// A token was made. Its text was shown once and is not kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct CredentialCreated {
    /// Its record's id.
    pub credential: CredentialId,
    /// BLAKE3 of the token's text (the text has 256 bits of entropy, so a plain hash cannot be searched).
    pub hash: [u8; 32],
    /// What it allows.
    pub role: Role,
    /// For nodes: the only supply kind it enrols; any if none.
    pub supply: Option<Supply>,
    /// For tenants and their readers: whose workloads; all if none.
    pub tenant: Option<Name>,
    /// End of validity; never if none.
    pub expires_at: Option<Timestamp>,
}

/// A token is no longer taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct CredentialRevoked {
    /// Its record's id.
    pub credential: CredentialId,
}

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Everything.
    Operator,
    /// One tenant's workloads.
    Tenant,
    /// Enrolling nodes and speaking for them.
    Node,
    /// Serving as a gateway.
    Gateway,
    /// Reading.
    ReadOnly,
}
