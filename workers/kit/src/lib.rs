//! What every worker has in common.

pub mod observation;
