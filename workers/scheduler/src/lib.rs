//! The scheduler: brings the instances there are to the instances that are wanted, and gives them devices.
//!
//! Each step runs two pure policies over the state: [`replicas::reconcile`] for every service that changed since it was
//! last found in order, and one [`placement::round`] over everything that waits. Both are level-triggered, so there is
//! no queue of work to lose: what a crash left undone is simply still wanted.
//!
//! Invariants: what goes on record about waiting is news (a first wait, more that wait) at once, and everything else
//! about it at growing intervals, so that a full pool does not fill the ledger; a service that is losing instances in
//! this step gets none placed in it, since the two would be decided on different pictures of it.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_domain::commit::Address;
use tidemill_domain::id::ServiceId;
use tidemill_domain::policy::placement::{self, Decision};
use tidemill_domain::policy::replicas::{self, ReplicaAction};
use tidemill_domain::state::node::Node;
use tidemill_domain::state::service::{Lifecycle, Service};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_kit::{Step, StepInput, Wish, Worker};

/// First interval between two records about a service whose wait has not become longer.
const FIRST_INTERVAL: Span = Span::from_secs(2);
/// Longest such interval.
const LONGEST_INTERVAL: Span = Span::from_secs(60);

/// The scheduler's core.
#[derive(Debug, Default)]
pub struct Scheduler {
    /// Services found in order: as of which change, and until when if nothing changes.
    in_order: BTreeMap<ServiceId, (Address, Option<Timestamp>)>,
    /// Services that wait: when that was last put on record, and how long to leave it at that.
    deferred: BTreeMap<ServiceId, (Span, Span)>,
}

impl Worker for Scheduler {
    const ROLE: &'static str = "scheduler";

    fn step(&mut self, input: StepInput<'_>) -> Step {
        let mut step = Step::default();
        let losing = self.reconcile(&input, &mut step);
        self.place(&input, &losing, &mut step);
        step
    }
}

impl Scheduler {
    /// Wishes for replicas. Answers the services that lose some.
    fn reconcile(&mut self, input: &StepInput<'_>, step: &mut Step) -> BTreeSet<ServiceId> {
        let state = input.state;
        let mut losing = BTreeSet::new();
        self.in_order.retain(|id, _| state.services.contains_key(id));
        for service in state.services.values() {
            if let Some((as_of, wake)) = self.in_order.get(&service.id)
                && *as_of == service.changed
                && wake.is_none_or(|at| input.now < at)
            {
                step.wake_at(*wake);
                continue;
            }
            let found = replicas::reconcile(state, service.id, input.now);
            step.wake_at(found.next_wake);
            // The end of a deletion also hangs on instances that have ended: they do not change their service.
            if found.actions.is_empty() && service.lifecycle != Lifecycle::Deleting {
                self.in_order.insert(service.id, (service.changed, found.next_wake));
            } else {
                self.in_order.remove(&service.id);
            }
            for action in found.actions {
                if matches!(action, ReplicaAction::Drain { .. }) {
                    losing.insert(service.id);
                }
                step.wishes.push(Wish::about_service(service, action.into_command()));
            }
        }
        losing
    }

    fn place(&mut self, input: &StepInput<'_>, losing: &BTreeSet<ServiceId>, step: &mut Step) {
        let decisions = placement::round(input.state, input.now);
        if decisions.iter().any(|d| matches!(d, Decision::Defer { .. })) {
            let steady = input.state.nodes.values().filter_map(Node::steady_at);
            step.wake_at(steady.filter(|at| input.now < *at).min());
        }
        let waits: BTreeSet<ServiceId> = decisions
            .iter()
            .filter(|d| matches!(d, Decision::Defer { .. }))
            .map(Decision::service)
            .collect();
        self.deferred.retain(|id, _| waits.contains(id));
        for decision in decisions {
            let Some(service) = input.state.services.get(&decision.service()) else {
                continue;
            };
            if losing.contains(&service.id) || !self.worth_asking(input, service, &decision, step) {
                continue;
            }
            step.wishes.push(Wish::about_service(service, decision.into_command()));
        }
    }

    /// Whether a decision goes on record now. Placements do; a wait does when it is news, or when its time has come.
    fn worth_asking(&mut self, input: &StepInput<'_>, service: &Service, decision: &Decision, step: &mut Step) -> bool {
        let Decision::Defer {
            waiting, explanation, ..
        } = decision
        else {
            return true;
        };
        if service.pending.as_ref() == Some(explanation) && service.waiting == *waiting {
            return false;
        }
        // What this worker has not told of yet is news, and so is that more wait.
        let told = self.deferred.get(&service.id).copied();
        let Some((since, interval)) = told.filter(|_| *waiting <= service.waiting) else {
            self.deferred.insert(service.id, (input.mono, FIRST_INTERVAL));
            return true;
        };
        let due = Span::from_micros(since.micros() + interval.micros());
        if input.mono < due {
            step.wake_mono(Some(due));
            return false;
        }
        let next = Span::from_micros(interval.micros() * 2).min(LONGEST_INTERVAL);
        self.deferred.insert(service.id, (input.mono, next));
        true
    }
}
