//! Which waiting instance gets which devices.
//!
//! Mathematically a round is this: services with waiting instances are taken in order (critical before standard, then
//! the one that has waited longest, then the lower id); each of its instances, oldest first, goes to the node with the
//! highest score among those that can take it, scored anew after every placement. What runs is the same with less work:
//! a service's candidates are looked up once, kept in one heap per failure domain, and after a placement only the node
//! that took it is scored again; a request shape that found nothing finds nothing for the rest of the round, since a
//! round only takes. An instance that fits nowhere holds up nobody behind it.
//!
//! Invariants: every device of the pool is counted once, as fitting or under the first filter that rules it out; no
//! device is promised beyond its thousandths within a round (`decide` checks again against what is true by then); an
//! instance gets all its devices, on one node, or none; whoever still waits has a dominant reason and a next step.
//! Solving placement globally was rejected: it explains badly, and a round of a hundredth of the cost can run again in
//! a moment.

mod explain;
mod filter;
mod pool;
mod score;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::command::{CHUNK, Command};
use crate::events::instance::Placement;
use crate::events::placement::{Candidate, Explanation};
use crate::events::service::{Class, DeviceRequest, PlacementRules, ServiceSpec, Spread};
use crate::id::{InstanceId, NodeId, ServiceId};
use crate::state::State;
use crate::state::instance::{Instance, InstanceState};
use crate::state::service::{Lifecycle, Service};
use crate::time::Timestamp;

pub use filter::FILTERS;

use filter::Survey;
use pool::Pool;
use score::{DOMAIN, Offer};

/// Most candidates that an explanation lists.
const CANDIDATES: usize = 5;

/// What a round decided for one service.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Instances go onto devices.
    Place {
        /// Of which service.
        service: ServiceId,
        /// Who gets what, at most [`CHUNK`].
        placements: Vec<Placement>,
        /// Why there.
        explanation: Explanation,
    },
    /// Instances wait.
    Defer {
        /// Of which service.
        service: ServiceId,
        /// How many.
        waiting: u32,
        /// Why.
        explanation: Explanation,
    },
}

impl Decision {
    /// The service it is about.
    pub fn service(&self) -> ServiceId {
        match self {
            Decision::Place { service, .. } | Decision::Defer { service, .. } => *service,
        }
    }

    /// The command that asks for it.
    pub fn into_command(self) -> Command {
        match self {
            Decision::Place {
                service,
                placements,
                explanation,
            } => Command::PlaceInstances {
                service,
                placements,
                explanation,
            },
            Decision::Defer {
                service,
                waiting,
                explanation,
            } => Command::DeferPlacement {
                service,
                waiting,
                explanation,
            },
        }
    }
}

/// Instances of one service that wait, oldest first.
struct Group<'a> {
    service: &'a Service,
    spec: &'a ServiceSpec,
    instances: Vec<InstanceId>,
    since: Timestamp,
    /// They are to stand by: elsewhere than what they are to stand in for.
    standby: bool,
}

/// One round over everything that waits.
pub fn round(state: &State, now: Timestamp) -> Vec<Decision> {
    let groups = waiting_groups(state);
    if groups.is_empty() {
        return Vec::new();
    }
    let mut pool = Pool::of(state, now);
    let mut hopeless: Vec<(&DeviceRequest, &PlacementRules, Explanation)> = Vec::new();
    let mut decisions = Vec::new();
    let mut told = BTreeSet::new();
    for group in groups {
        let shape = (&group.spec.devices, &group.spec.placement);
        let known = hopeless.iter().find(|(d, p, _)| (*d, *p) == shape);
        let rest = match known {
            Some((_, _, explanation)) => Some((group.instances.len(), explanation.clone())),
            None => place_group(state, &mut pool, &group, &mut decisions),
        };
        let Some((waiting, mut explanation)) = rest else {
            continue;
        };
        if known.is_none() {
            hopeless.push((shape.0, shape.1, explanation.clone()));
        }
        // A service says one thing of what waits: replicas come before standbys.
        if !told.insert(group.service.id) {
            continue;
        }
        explain::add_rollout_hint(&mut explanation, rolls_over(state, group.service));
        decisions.push(Decision::Defer {
            service: group.service.id,
            waiting: waiting as u32,
            explanation,
        });
    }
    decisions
}

/// What a round would say about one more instance of a declaration now: for `apply --dry-run` and `explain`.
pub fn outlook(state: &State, spec: &ServiceSpec, now: Timestamp) -> Explanation {
    let pool = Pool::of(state, now);
    let survey = filter::survey(&pool, spec);
    if survey.fitting == 0 {
        return explain::deferred(&pool, spec, &survey);
    }
    let replicas = Replicas::default();
    let best = offers(&pool, spec, spec.placement.spread, &survey, &replicas);
    explain::placed(&pool, &survey, best.candidates(&pool, &replicas))
}

/// Groups in the order in which they are served. Instances of older declarations and of services that are not to be
/// served wait for their end, not for a place.
fn waiting_groups(state: &State) -> Vec<Group<'_>> {
    let mut groups = Vec::new();
    for service in state.services.values().filter(|s| s.lifecycle == Lifecycle::Active) {
        let live = service.live.iter().filter_map(|id| state.instances.get(id));
        let mut waiting: Vec<&Instance> = live
            .filter(|i| i.state == InstanceState::Pending && i.generation == service.made_generation())
            .collect();
        waiting.sort_by_key(|i| (i.requested_at, i.id));
        let (standbys, replicas): (Vec<&Instance>, Vec<&Instance>) = waiting.into_iter().partition(|i| i.standby);
        for (standby, waiting) in [(false, replicas), (true, standbys)] {
            if let Some(oldest) = waiting.first() {
                groups.push(Group {
                    service,
                    spec: service.made_spec(),
                    since: oldest.requested_at,
                    instances: waiting.into_iter().map(|i| i.id).collect(),
                    standby,
                });
            }
        }
    }
    let class = |spec: &ServiceSpec| match spec.class {
        Class::Critical => 0,
        Class::Standard => 1,
    };
    groups.sort_by_key(|g| (g.standby, class(g.spec), g.since, g.service.id));
    groups
}

/// Replicas of a service by where they are: what spreading looks at.
#[derive(Default)]
struct Replicas {
    by_domain: BTreeMap<String, u32>,
    by_node: BTreeMap<NodeId, u32>,
    /// Nodes that an instance was asked to leave.
    left: BTreeSet<NodeId>,
}

impl Replicas {
    fn of(state: &State, group: &Group<'_>) -> Self {
        let mut replicas = Self::default();
        let live = group.service.live.iter().filter_map(|id| state.instances.get(id));
        // Older generations are about to go: spreading away from them would leave the new one lopsided.
        let staying = live.filter(|i| i.generation == group.service.made_generation() && !i.state.leaving());
        for instance in staying {
            let Some(node) = instance.node.and_then(|id| state.nodes.get(&id)) else {
                continue;
            };
            replicas.add(domain(group.spread(), &node.provider, &node.region), node.id);
            if instance.moving.is_some() {
                replicas.left.insert(node.id);
            }
        }
        replicas
    }

    fn add(&mut self, domain: &str, node: NodeId) {
        match self.by_domain.get_mut(domain) {
            Some(count) => *count += 1,
            None => {
                self.by_domain.insert(domain.to_owned(), 1);
            }
        }
        *self.by_node.entry(node).or_default() += 1;
    }

    fn in_domain(&self, domain: &str) -> u32 {
        self.by_domain.get(domain).copied().unwrap_or(0)
    }

    /// What the service has on a node.
    fn here(&self, spread: Spread, node: NodeId) -> score::Here {
        score::Here {
            spread,
            replicas: self.by_node.get(&node).copied().unwrap_or(0),
            left: self.left.contains(&node),
        }
    }
}

impl Group<'_> {
    /// What its instances are kept apart by: a standby is worth most where its replicas are not.
    fn spread(&self) -> Spread {
        match (self.standby, self.spec.placement.spread) {
            (true, Spread::Node | Spread::None) => Spread::Provider,
            (_, declared) => declared,
        }
    }
}

/// The failure domain of a node above the node itself; empty where none is declared.
fn domain<'a>(spread: Spread, provider: &'a str, region: &'a str) -> &'a str {
    match spread {
        Spread::Provider => provider,
        Spread::Region => region,
        Spread::Node | Spread::None => "",
    }
}

/// A node's standing in its domain's heap: higher points first, then the lower id.
type Standing = (i32, Reverse<NodeId>, usize);

/// The candidates of one group.
struct Offers<'a> {
    /// By position in [`Offers::suitable`].
    offers: Vec<Option<Offer>>,
    /// Node's position in the pool and its devices that suit.
    suitable: &'a [(usize, Vec<usize>)],
    heaps: BTreeMap<String, BinaryHeap<Standing>>,
}

fn offers<'a>(
    pool: &Pool<'_>,
    spec: &ServiceSpec,
    spread: Spread,
    survey: &'a Survey,
    replicas: &Replicas,
) -> Offers<'a> {
    let mut out = Offers {
        offers: Vec::with_capacity(survey.suitable.len()),
        suitable: &survey.suitable,
        heaps: BTreeMap::new(),
    };
    let mut by_domain: BTreeMap<&str, Vec<Standing>> = BTreeMap::new();
    for (slot, (at, devices)) in survey.suitable.iter().enumerate() {
        let entry = &pool.nodes[*at];
        let here = replicas.here(spread, entry.node.id);
        let offer = score::offer(entry, devices, spec, pool.largest, here);
        if let Some(offer) = &offer {
            let standing = (offer.points.total(), Reverse(entry.node.id), slot);
            let domain = domain(spread, &entry.node.provider, &entry.node.region);
            by_domain.entry(domain).or_default().push(standing);
        }
        out.offers.push(offer);
    }
    out.heaps = by_domain.into_iter().map(|(d, s)| (d.to_owned(), s.into())).collect();
    out
}

impl Offers<'_> {
    /// The best node over all domains; its entry leaves its heap.
    fn pop_best(&mut self, replicas: &Replicas) -> Option<(usize, String)> {
        let standing = |(domain, heap): (&String, &BinaryHeap<Standing>)| {
            let (points, node, _) = *heap.peek()?;
            let penalty = penalty(domain, replicas);
            Some((points - penalty, node, domain.clone()))
        };
        let (_, _, domain) = self.heaps.iter().filter_map(standing).max()?;
        let (_, _, slot) = self.heaps.get_mut(&domain)?.pop()?;
        Some((slot, domain))
    }

    /// The best few as they stand, for the explanation.
    fn candidates(&self, pool: &Pool<'_>, replicas: &Replicas) -> Vec<Candidate> {
        let mut all: Vec<(i32, Reverse<NodeId>, usize, i32)> = Vec::new();
        for (domain, heap) in &self.heaps {
            let penalty = penalty(domain, replicas);
            all.extend(
                heap.iter()
                    .map(|(points, node, slot)| (points - penalty, *node, *slot, penalty)),
            );
        }
        all.sort_by_key(|entry| Reverse((entry.0, entry.1)));
        all.into_iter()
            .take(CANDIDATES)
            .filter_map(|(score, _, slot, penalty)| {
                let mut points = self.offers[slot].as_ref()?.points;
                points.spread -= penalty;
                Some(Candidate {
                    node: pool.nodes[self.suitable[slot].0].node.id,
                    score,
                    parts: points.parts(),
                })
            })
            .collect()
    }
}

/// Points off for the replicas in a declared domain; the domain without a name is none.
fn penalty(domain: &str, replicas: &Replicas) -> i32 {
    if domain.is_empty() {
        0
    } else {
        DOMAIN * replicas.in_domain(domain) as i32
    }
}

/// Places what fits. Answers how many of the group still wait and why, if any do.
fn place_group(
    state: &State,
    pool: &mut Pool<'_>,
    group: &Group<'_>,
    decisions: &mut Vec<Decision>,
) -> Option<(usize, Explanation)> {
    let survey = filter::survey(pool, group.spec);
    if survey.fitting == 0 {
        return Some((group.instances.len(), explain::deferred(pool, group.spec, &survey)));
    }
    let mut replicas = Replicas::of(state, group);
    let spread = group.spread();
    let mut offers = offers(pool, group.spec, spread, &survey, &replicas);
    let explanation = explain::placed(pool, &survey, offers.candidates(pool, &replicas));
    let mut placements = Vec::with_capacity(group.instances.len());
    for instance in &group.instances {
        let Some((slot, domain)) = offers.pop_best(&replicas) else {
            break;
        };
        let (at, devices) = &survey.suitable[slot];
        let entry = &mut pool.nodes[*at];
        let Some(offer) = offers.offers[slot].take() else {
            break;
        };
        let node = entry.node.id;
        placements.push(Placement {
            instance: *instance,
            node,
            holds: entry.take(&offer.chosen, group.spec.devices.share),
        });
        replicas.add(&domain, node);
        let next = score::offer(entry, devices, group.spec, pool.largest, replicas.here(spread, node));
        if let Some(next) = &next
            && let Some(heap) = offers.heaps.get_mut(&domain)
        {
            heap.push((next.points.total(), Reverse(node), slot));
        }
        offers.offers[slot] = next;
    }
    let left = group.instances.len() - placements.len();
    while !placements.is_empty() {
        let rest = placements.split_off(placements.len().min(CHUNK));
        decisions.push(Decision::Place {
            service: group.service.id,
            placements,
            explanation: explanation.clone(),
        });
        placements = rest;
    }
    (left > 0).then(|| {
        let after = filter::survey(pool, group.spec);
        (left, explain::deferred(pool, group.spec, &after))
    })
}

/// Whether replicas of an older generation still serve: then a new one needs room beside them.
fn rolls_over(state: &State, service: &Service) -> bool {
    let live = service.live.iter().filter_map(|id| state.instances.get(id));
    live.filter(|i| !i.state.leaving())
        .any(|i| i.generation != service.made_generation())
}
