//! The query side as the door sees it: the read models' and time travel's answers as JSON.
//!
//! A seam rather than a direct call, so that the API's tests need no SQLite and so that a `server` whose read models are
//! being rebuilt can say so in one place.

use async_trait::async_trait;
use serde_json::Value;
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::Name;

/// As of when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Point {
    /// Now.
    #[default]
    Latest,
    /// As recorded by this time.
    At(Timestamp),
    /// As of this record.
    Seq(u64),
}

/// Lists of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// `nodes`.
    Nodes,
    /// `devices`.
    Devices,
    /// `services`.
    Services,
    /// `instances`.
    Instances,
    /// `queue`.
    Queue,
    /// Switches.
    Switches,
}

impl ListKind {
    /// Its word in paths.
    pub fn name(self) -> &'static str {
        match self {
            ListKind::Nodes => "nodes",
            ListKind::Devices => "devices",
            ListKind::Services => "services",
            ListKind::Instances => "instances",
            ListKind::Queue => "queue",
            ListKind::Switches => "switches",
        }
    }
}

/// What narrows a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// As of when.
    pub point: Point,
    /// Any of these states.
    pub state: Vec<String>,
    /// Any of these supply kinds.
    pub supply: Vec<String>,
    /// Any of these providers.
    pub provider: Vec<String>,
    /// Of this tenant.
    pub tenant: Option<Name>,
    /// Not before.
    pub since: Option<Timestamp>,
    /// At most so many.
    pub limit: Option<usize>,
    /// Base URL services are shown with.
    pub gateway_url: Option<String>,
}

/// What narrows events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// As of when.
    pub point: Point,
    /// Behind this record; with `index`, behind that event of it.
    pub after: u64,
    /// See `after`.
    pub index: Option<u32>,
    /// That concern this id or name.
    pub about: Option<String>,
    /// About this tenant's workloads.
    pub tenant: Option<Name>,
    /// Recorded at or after.
    pub since: Option<Timestamp>,
    /// At most so many.
    pub limit: usize,
}

/// What is asked of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShowQuery {
    /// Id, name, or unique prefix of an id.
    pub id: String,
    /// Only within this tenant.
    pub tenant: Option<Name>,
    /// As of when.
    pub point: Point,
    /// Base URL services are shown with.
    pub gateway_url: Option<String>,
}

/// A page of events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventPage {
    /// The rows, oldest first.
    pub rows: Vec<Value>,
    /// Everything up to and including this record was looked at, whether or not it passed the filter.
    pub through: u64,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadsError {
    /// No such thing.
    #[error("there is no `{id}`")]
    NotFound {
        /// As asked.
        id: String,
    },
    /// A prefix of several ids.
    #[error("`{id}` may be any of {}", candidates.join(", "))]
    Ambiguous {
        /// As asked.
        id: String,
        /// The first of what it may be.
        candidates: Vec<String>,
    },
    /// The question makes no sense.
    #[error("{reason}")]
    Invalid {
        /// Why.
        reason: String,
        /// What would.
        next: &'static str,
    },
    /// Nothing is known of this tenant: neither a service nor a token.
    #[error(
        "there is no tenant `{tenant}`: no service and no token of it is known{}",
        others(known)
    )]
    NoSuchTenant {
        /// As asked.
        tenant: Name,
        /// Some that there are.
        known: Vec<Name>,
    },
    /// The point asked for is not there: before the ledger's begin or behind its end.
    #[error("{reason}")]
    NoSuchPoint {
        /// Why.
        reason: String,
    },
    /// The read models cannot answer now.
    #[error("{reason}")]
    Unavailable {
        /// Stable code.
        code: String,
        /// Why.
        reason: String,
        /// What to do.
        next: String,
    },
}

fn others(known: &[Name]) -> String {
    match known {
        [] => String::new(),
        known => {
            let words: Vec<&str> = known.iter().map(Name::as_str).collect();
            format!("; there are {}", words.join(", "))
        }
    }
}

/// Answers questions.
#[async_trait]
pub trait Reads: Send + Sync + 'static {
    /// A list's rows.
    async fn list(&self, kind: ListKind, query: ListQuery) -> Result<Vec<Value>, ReadsError>;

    /// The pool's sums.
    async fn pool(&self, point: Point) -> Result<Value, ReadsError>;

    /// Everything about one thing.
    async fn status(&self, query: ShowQuery) -> Result<Value, ReadsError>;

    /// Why it is as it is.
    async fn explain(&self, query: ShowQuery) -> Result<Value, ReadsError>;

    /// Events, oldest first.
    async fn events(&self, query: EventQuery) -> Result<EventPage, ReadsError>;

    /// Last record the read models have applied.
    fn applied(&self) -> u64;

    /// Waits until they have applied record `sequence`; false if that takes longer than `timeout`.
    async fn wait_for(&self, sequence: u64, timeout: std::time::Duration) -> bool;

    /// Why they do not follow, if they do not.
    fn problem(&self) -> Option<String>;
}
