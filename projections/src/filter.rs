//! What to list: filters, paging, and where a page stood.
//!
//! The same [`Filter`] narrows a list from the read models and one from time travel. A filter that a list cannot honour
//! is an error and not ignored: a script that asks for one tenant's devices must not be shown everybody's.

use serde::{Deserialize, Serialize};
use tidemill_bus::digest::Anchor;
use tidemill_domain::events::node::Supply;
use tidemill_domain::id::{NodeId, ServiceId};
use tidemill_domain::state::Entity;
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::Name;

/// Most rows of a page, and how many there are when none are asked for.
pub const PAGE: usize = 10_000;

/// Narrows `nodes`, `devices`, `services`, `instances`, `queue`, `switches`. Empty = everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Filter {
    /// Any of these states, in the contract's words.
    pub state: Vec<String>,
    /// Any of these supply kinds; of instances: of the node they were placed on.
    pub supply: Vec<Supply>,
    /// Any of these providers; of instances: of the node they were placed on.
    pub provider: Vec<String>,
    /// Of this tenant.
    pub tenant: Option<Name>,
    /// Not before: a node's first joining, a service's last change of replica count, the last thing that happened to
    /// an instance, the begin of waiting, the opening of a switch.
    pub since: Option<Timestamp>,
    /// Instances or switches of this service.
    pub service: Option<ServiceId>,
    /// Instances or devices on this node; switches away from it.
    pub node: Option<NodeId>,
    /// Also services and instances that are over and that the state has forgotten. Only the read models know them.
    pub forgotten: bool,
    /// Behind this row: [`Page::next`] of the page before.
    pub after: Option<String>,
    /// At most so many rows; [`PAGE`] if none.
    pub limit: Option<usize>,
}

/// Narrows `events`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Of records behind this sequence.
    pub after: u64,
    /// Behind this address: [`Page::next`] of the page before. Wins over `after`.
    pub page: Option<String>,
    /// Up to and including this record.
    pub until: Option<u64>,
    /// That concern this entity.
    pub about: Option<Entity>,
    /// About this tenant's workloads.
    pub tenant: Option<Name>,
    /// Of any of these kinds.
    pub kinds: Vec<String>,
    /// Recorded at or after.
    pub since: Option<Timestamp>,
    /// The last ones instead of the first ones; still shown oldest first, and without a next page.
    pub newest: bool,
    /// At most so many rows; [`PAGE`] if none.
    pub limit: Option<usize>,
}

/// Rows, and where they stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// To be given as `after` (events: `page`) for the rows behind these; none on the last page.
    pub next: Option<String>,
    /// The ledger's place that the rows are of.
    pub anchor: Anchor,
}

/// A list and what narrows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
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
    /// `switches`.
    Switches,
}

impl List {
    /// Its name in URLs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            List::Nodes => "nodes",
            List::Devices => "devices",
            List::Services => "services",
            List::Instances => "instances",
            List::Queue => "queue",
            List::Switches => "switches",
        }
    }

    /// The states its rows can be in; those that a later release brings are taken already.
    pub fn states(self) -> &'static [&'static str] {
        match self {
            List::Nodes => &[
                "joining", "ready", "suspect", "lost", "cordoned", "draining", "drained", "left",
            ],
            List::Devices => &["free", "held", "draining", "dirty", "quarantined", "lost"],
            List::Services => &[
                "ready", "updating", "halted", "starting", "pending", "degraded", "failing", "idle", "stopping",
                "stopped", "deleting", "deleted",
            ],
            List::Instances => &[
                "pending",
                "placed",
                "starting",
                "ready",
                "standby",
                "draining",
                "stopped",
                "failed",
                "lost",
                "preempted",
            ],
            List::Queue => &[],
            List::Switches => &["open", "replaced", "recovered", "not_needed"],
        }
    }
}

/// The list cannot be narrowed so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The list has nothing that this filter looks at.
    #[error("`{list}` cannot be narrowed by `{filter}`")]
    NotApplicable {
        /// The list.
        list: &'static str,
        /// The filter.
        filter: &'static str,
    },
    /// No row of the list is ever in this state.
    #[error("`{word}` is no state of `{list}`; its states are {}", known.join(", "))]
    UnknownState {
        /// The list.
        list: &'static str,
        /// As asked.
        word: String,
        /// What there is.
        known: &'static [&'static str],
    },
    /// No supply kind has this name.
    #[error("`{0}` is no supply kind; they are {known}", known = Supply::ALL.map(Supply::name).join(", "))]
    UnknownSupply(String),
}

impl FilterError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            FilterError::NotApplicable { .. } => "filter_not_applicable",
            FilterError::UnknownState { .. } | FilterError::UnknownSupply(_) => "unknown_word",
        }
    }

    /// What to do about it.
    pub fn next(&self) -> &'static str {
        match self {
            FilterError::NotApplicable { .. } => "leave the filter out",
            FilterError::UnknownState { .. } | FilterError::UnknownSupply(_) => "use one of these words",
        }
    }
}

/// Supply kinds by their words.
pub fn supplies(words: &[String]) -> Result<Vec<Supply>, FilterError> {
    let kind = |word: &String| Supply::ALL.into_iter().find(|kind| kind.name() == word);
    let kinds = words
        .iter()
        .map(|word| kind(word).ok_or_else(|| FilterError::UnknownSupply(shortened(word))));
    kinds.collect()
}

/// What was asked, short enough to be repeated.
fn shortened(word: &str) -> String {
    word.chars().take(60).collect()
}

impl Filter {
    /// Whether `list` can honour everything that is set.
    pub fn check(&self, list: List) -> Result<(), FilterError> {
        use List::{Devices, Instances, Nodes, Queue, Services, Switches};
        let set: [(&'static str, bool, &[List]); 7] = [
            (
                "state",
                !self.state.is_empty(),
                &[Nodes, Devices, Services, Instances, Switches],
            ),
            ("supply", !self.supply.is_empty(), &[Nodes, Devices, Instances]),
            ("provider", !self.provider.is_empty(), &[Nodes, Devices, Instances]),
            ("tenant", self.tenant.is_some(), &[Services, Instances, Queue, Switches]),
            (
                "since",
                self.since.is_some(),
                &[Nodes, Services, Instances, Queue, Switches],
            ),
            ("service", self.service.is_some(), &[Instances, Switches]),
            ("node", self.node.is_some(), &[Devices, Instances, Switches]),
        ];
        match set.iter().find(|(_, set, lists)| *set && !lists.contains(&list)) {
            Some((filter, ..)) => Err(FilterError::NotApplicable {
                list: list.name(),
                filter,
            }),
            None => self.check_states(list),
        }
    }

    /// A state that no row can be in is a slip, and an empty list would hide it.
    fn check_states(&self, list: List) -> Result<(), FilterError> {
        let known = list.states();
        match self.state.iter().find(|word| !known.contains(&word.as_str())) {
            Some(word) => Err(FilterError::UnknownState {
                list: list.name(),
                word: shortened(word),
                known,
            }),
            None => Ok(()),
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.unwrap_or(PAGE).min(PAGE)
    }
}

impl EventFilter {
    pub(crate) fn limit(&self) -> usize {
        self.limit.unwrap_or(PAGE).min(PAGE)
    }
}
