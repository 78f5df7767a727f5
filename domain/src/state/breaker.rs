//! The breaker: whether many nodes seem to be gone at once.
//!
//! Losing a third of a pool's nodes of several providers within half a minute is far more often a broken network in front of
//! the control plane than the death of all of them. Starting all their work anew would then overload what is left, and end
//! with two of everything. So the breaker trips in the very commit that doubts the node which is one too many, and while
//! it is tripped nothing is started in place of what runs on doubted nodes, nor are those given up. Gateways and standbys
//! need no word from here and go on, and a service of which nothing else is left gets one replica. Rejected: a timer in
//! place of an operator's judgement, which would only be a slower storm.
//!
//! Invariants: it trips on doubts after the last confirmation or reset only, so what an operator has judged is not asked
//! again; a pool of fewer than [`LEAST_NODES`] doubted nodes, or of one provider, never trips it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::commit::Address;
use crate::id::NodeId;
use crate::time::{Span, Timestamp};

use super::instance::{Displaced, Instance};
use super::node::{Node, NodeState};
use super::service::Service;
use super::{Entity, EventMeta, State, Touched};

/// Fewer doubted nodes than this are moved away from without asking.
pub const LEAST_NODES: usize = 5;
/// Of this many nodes one, doubted, is many.
pub const SHARE: usize = 3;
/// Doubted nodes of fewer providers than this are the provider's trouble.
pub const LEAST_PROVIDERS: usize = 2;
/// Doubts within this time are one loss.
pub const WITHIN: Span = Span::from_secs(30);

/// The breaker of a cell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// When it tripped, while it is.
    pub tripped_at: Option<Timestamp>,
    /// Doubts before this were judged by an operator, or are over.
    pub judged_at: Timestamp,
    /// Last change.
    pub changed: Address,
}

/// Many nodes that are doubted at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MassLoss {
    /// Which, in order of their ids.
    pub nodes: Vec<NodeId>,
    /// Nodes there were before.
    pub of: usize,
    /// Providers of the doubted ones.
    pub providers: usize,
}

impl State {
    /// Whether work on doubted nodes is held where it is.
    pub fn breaker_tripped(&self) -> bool {
        self.cell.breaker.tripped_at.is_some()
    }

    /// Nodes that are doubted now, for whatever reason.
    pub fn doubted_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(|n| n.state == NodeState::Suspect)
    }

    /// Replicas on doubted nodes that the tripped breaker keeps from being replaced: all of them, except that a service
    /// with no other replica gets one.
    pub fn held_by_breaker(&self, service: &Service) -> usize {
        if !self.breaker_tripped() {
            return 0;
        }
        let (doubted, certain): (Vec<&Instance>, Vec<&Instance>) = service
            .live
            .iter()
            .filter_map(|id| self.instances.get(id))
            .filter(|i| !i.state.leaving() && !i.standby)
            .partition(|i| self.displaced(i) == Some(Displaced::Doubted));
        let spared = usize::from(certain.is_empty());
        doubted.len().min((service.desired as usize).saturating_sub(spared))
    }

    /// The nodes that are doubted now and were not before the last judgement, if they are too many to be moved away from
    /// unasked; `one_more` is about to be doubted at `now`.
    pub fn mass_loss(&self, one_more: Option<(NodeId, Timestamp)>) -> Option<MassLoss> {
        let breaker = &self.cell.breaker;
        let since = match (breaker.tripped_at, one_more) {
            // Once tripped it is about all that are still doubted, however slowly they come back.
            (Some(tripped), _) => (tripped - WITHIN).max(breaker.judged_at),
            (None, Some((_, now))) => (now - WITHIN).max(breaker.judged_at),
            (None, None) => breaker.judged_at,
        };
        let doubted = |node: &Node| {
            node.state == NodeState::Suspect && node.doubts.back().is_some_and(|at| *at >= since)
                || one_more.is_some_and(|(id, _)| id == node.id)
        };
        let lost: Vec<&Node> = self.nodes.values().filter(|n| doubted(n)).collect();
        let steady = self
            .nodes
            .values()
            .filter(|n| n.state == NodeState::Ready && !doubted(n));
        let of = lost.len() + steady.count();
        let providers: BTreeSet<&str> = lost.iter().map(|n| n.provider.as_str()).collect();
        let many = lost.len() >= LEAST_NODES && lost.len() * SHARE >= of && providers.len() >= LEAST_PROVIDERS;
        many.then(|| MassLoss {
            nodes: lost.iter().map(|n| n.id).collect(),
            of,
            providers: providers.len(),
        })
    }

    pub(super) fn trip_breaker(&mut self, meta: &EventMeta, touched: &mut Touched) {
        self.cell.breaker.tripped_at = Some(meta.recorded_at);
        self.cell.breaker.changed = meta.address;
        self.breaker_changed(meta, touched);
    }

    pub(super) fn close_breaker(&mut self, meta: &EventMeta, touched: &mut Touched) {
        self.cell.breaker = Breaker {
            tripped_at: None,
            // What is doubted in this very commit was judged too.
            judged_at: meta.recorded_at + Span::from_micros(1),
            changed: meta.address,
        };
        self.breaker_changed(meta, touched);
    }

    /// What is to be done for services on doubted nodes is another thing now.
    fn breaker_changed(&mut self, meta: &EventMeta, touched: &mut Touched) {
        touched.push(Entity::Cell);
        let doubted: Vec<NodeId> = self.doubted_nodes().map(|n| n.id).collect();
        for node in doubted {
            self.services_notice(node, meta, touched);
        }
    }
}
