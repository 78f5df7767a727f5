//! Worker terms.

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

/// A worker role has a new holder. Commands of earlier terms are refused from here on; renewals are not recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct WorkerTermGranted {
    /// Role, such as `scheduler`.
    pub role: String,
    /// Process that holds it.
    pub holder: String,
    /// One more than the role's term before.
    pub term: u64,
}
