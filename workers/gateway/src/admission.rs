//! Who gets a slot of which instance, and who waits.
//!
//! A slot is a right to have one request in flight on one instance; [`Slot`] holds it and gives it back when dropped,
//! straight to the request that has waited longest. Which instance's slot it is, is up to [`choice`]. Places in the
//! queue are ordered by the request's arrival, so a request that comes back after a broken try is served before those
//! that arrived after it.
//!
//! Invariants: in-flight counters change only under the lock and only through `Slot`, so they are never negative and
//! zero at rest; nobody overtakes a waiting request; a waiter that goes away frees its place at once. Rejected: a
//! semaphore per instance, because a waiter would have to choose its instance before one is free.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tidemill_protocol::gateway::ServiceRoute;
use tokio::sync::oneshot;

use crate::attempt::RetryPolicy;
use crate::choice;
use crate::config::Limits;
use crate::health::Condition;
use crate::instance::Instance;
use crate::outlook::Outlook;
use crate::traffic::Traffic;
use crate::watch::Reactions;

/// A service with its queue, instances and counters; lives as long as routes name it.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) tenant: Box<str>,
    pub(crate) name: Box<str>,
    /// What a path begins with that names it, without and with the tenant, as values of a header field.
    prefixes: [Option<HeaderValue>; 2],
    pub(crate) traffic: Traffic,
    pub(crate) reactions: Reactions,
    arrivals: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    standing: Standing,
    retry: RetryPolicy,
    /// Slots per instance.
    concurrency: u32,
    /// Time to a new instance's full weight.
    warm_up: Duration,
    /// Requests that may wait.
    queue_length: usize,
    /// Longest wait of one.
    patience: Duration,
    outlook: Outlook,
    /// In rotation.
    instances: Vec<Arc<Instance>>,
    /// Draining: known, but given no new slot.
    draining: Vec<Arc<Instance>>,
    /// Dropped from the routes with requests still in flight.
    leaving: Vec<Arc<Instance>>,
    /// In rotation by the routes, but with no endpoint this gateway can reach.
    tunnelled: usize,
    waiters: BTreeMap<u64, oneshot::Sender<Slot>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Open,
    Stopped,
    Gone,
}

/// Place of a request in the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

/// Answer to [`Service::acquire`].
#[derive(Debug)]
pub(crate) enum Admission {
    /// An instance has room.
    Granted(Slot),
    /// None has; wait.
    Queued(Waiter),
    /// None has, and too many wait already.
    Full,
    /// None has, and requests of this service do not wait.
    Unwilling,
    /// The owner stopped the service.
    Stopped,
    /// The service was deleted.
    Gone,
}

/// What keeps requests waiting, for the answer to one that waited in vain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shortage {
    pub(crate) in_rotation: usize,
    pub(crate) set_aside: usize,
    pub(crate) draining: usize,
    pub(crate) tunnelled: usize,
}

impl Service {
    pub(crate) fn new(tenant: &str, name: &str, limits: &Limits) -> Self {
        Self {
            tenant: tenant.into(),
            name: name.into(),
            prefixes: [format!("/{name}"), format!("/~{tenant}/{name}")]
                .map(|prefix| HeaderValue::try_from(prefix).ok()),
            traffic: Traffic::default(),
            reactions: Reactions::default(),
            arrivals: AtomicU64::new(0),
            state: Mutex::new(State {
                standing: Standing::Open,
                retry: RetryPolicy::default(),
                concurrency: u32::MAX,
                warm_up: limits.slow_start,
                queue_length: limits.queue_length,
                patience: limits.queue_deadline,
                outlook: Outlook::default(),
                instances: Vec::new(),
                draining: Vec::new(),
                leaving: Vec::new(),
                tunnelled: 0,
                waiters: BTreeMap::new(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The beginning of a path that named the service, as the value of a header field. `None`: the host named it.
    pub(crate) fn prefix(&self, prefix: &str) -> Option<HeaderValue> {
        let mut known = self.prefixes.iter().flatten();
        known.find(|known| *known == prefix).cloned()
    }

    /// A place in the order of arrival, and the retry policy at this moment.
    pub(crate) fn arrive(&self, now: Instant) -> (Ticket, RetryPolicy) {
        self.traffic.arrived(now);
        let ticket = Ticket(self.arrivals.fetch_add(1, Ordering::Relaxed));
        (ticket, self.lock().retry)
    }

    /// A slot now, or a place in the queue.
    pub(crate) fn acquire(self: &Arc<Self>, ticket: Ticket) -> Admission {
        let mut state = self.lock();
        match state.standing {
            Standing::Open => {}
            Standing::Stopped => return Admission::Stopped,
            Standing::Gone => return Admission::Gone,
        }
        // A request that was here before those who wait may go first; all others line up.
        let first = state
            .waiters
            .first_key_value()
            .is_none_or(|(waiting, _)| ticket.0 < *waiting);
        if first && let Some(instance) = state.pick() {
            return Admission::Granted(Slot::take(self, &instance));
        }
        if state.instances.is_empty() {
            state.outlook.none_there(Instant::now());
        }
        if state.queue_length == 0 {
            return Admission::Unwilling;
        }
        if state.waiters.len() >= state.queue_length {
            return Admission::Full;
        }
        let (sender, slot) = oneshot::channel();
        state.waiters.insert(ticket.0, sender);
        Admission::Queued(Waiter {
            service: Arc::clone(self),
            ticket,
            patience: state.patience,
            slot,
        })
    }

    /// Gives free slots to those who wait, and lets what hangs on an instance that does not answer look for another.
    /// Called when health changes; slots and routes do it themselves.
    pub(crate) fn wake(self: &Arc<Self>) {
        let mut state = self.lock();
        self.dispatch(&mut state);
        state.disturb_hanging();
    }

    fn release(self: &Arc<Self>, instance: &Instance) {
        let mut state = self.lock();
        instance.give_back();
        self.dispatch(&mut state);
    }

    fn dispatch(self: &Arc<Self>, state: &mut State) {
        while !state.waiters.is_empty() {
            let Some(instance) = state.pick() else { return };
            let Some((_, waiter)) = state.waiters.pop_first() else {
                return;
            };
            // The waiter may have gone this instant: take the slot back without its guard, which would lock again.
            match waiter.send(Slot::take(self, &instance)) {
                Ok(()) => state.outlook.granted(Instant::now()),
                Err(slot) => slot.undo(),
            }
        }
    }

    /// Puts a route to use. Returns once no new slot can go to an instance it does not name.
    pub(crate) fn update(self: &Arc<Self>, route: &ServiceRoute, limits: &Limits) {
        let mut dropped = Vec::new();
        {
            let mut state = self.lock();
            let mut known: Vec<Arc<Instance>> = state.instances.drain(..).collect();
            known.append(&mut state.draining);
            state.tunnelled = 0;
            for wanted in &route.instances {
                let same =
                    |i: &Arc<Instance>| *i.id == *wanted.instance && wanted.endpoint.as_deref() == Some(&*i.endpoint);
                let instance = match known.iter().position(same) {
                    Some(at) => known.swap_remove(at),
                    None => match Instance::new(wanted, limits) {
                        Some(new) => Arc::new(new),
                        None => {
                            state.tunnelled += usize::from(!wanted.draining);
                            continue;
                        }
                    },
                };
                instance.set_draining(wanted.draining);
                if wanted.draining {
                    state.draining.push(instance);
                } else {
                    state.instances.push(instance);
                }
            }
            dropped.append(&mut known);
            state.leaving.extend(dropped.iter().cloned());
            state.retry = RetryPolicy::parse(&route.retry);
            if !state.instances.is_empty() {
                state.outlook.one_there(Instant::now());
            }
            state.queue_length = route.queue.map_or(limits.queue_length, |queue| queue as usize);
            state.patience = route
                .queue_timeout_ms
                .map_or(limits.queue_deadline, Duration::from_millis);
            // A limit of 0 would make a ready instance unusable for ever.
            state.concurrency = route.concurrency.unwrap_or(u32::MAX).max(1);
            state.standing = if route.stopped {
                Standing::Stopped
            } else {
                Standing::Open
            };
            if route.stopped {
                state.waiters.clear();
            }
            self.dispatch(&mut state);
            state.disturb_hanging();
        }
        for instance in dropped {
            instance.drop_from_routes();
        }
    }

    /// No route names the service any more.
    pub(crate) fn retire(&self) {
        let dropped: Vec<_> = {
            let mut state = self.lock();
            state.standing = Standing::Gone;
            state.waiters.clear();
            let mut all: Vec<_> = state.instances.drain(..).collect();
            all.append(&mut state.draining);
            all
        };
        for instance in dropped {
            instance.drop_from_routes();
        }
    }

    /// Whether an instance other than `than` could take requests.
    pub(crate) fn has_other(&self, than: &Instance) -> bool {
        self.lock()
            .instances
            .iter()
            .any(|i| i.id != than.id && i.health.condition() == Condition::Good)
    }

    /// Seconds after which a request that found no room had better come back.
    pub(crate) fn retry_after(&self) -> u64 {
        let state = self.lock();
        state.outlook.retry_after(state.waiters.len(), Instant::now())
    }

    /// Requests in the queue.
    pub(crate) fn queued(&self) -> usize {
        self.lock().waiters.len()
    }

    /// All instances the routes name, draining ones included.
    pub(crate) fn instances(&self) -> Vec<Arc<Instance>> {
        let state = self.lock();
        let all = state.instances.iter().chain(&state.draining);
        all.cloned().collect()
    }

    /// Instances with requests in flight, dropped ones included.
    pub(crate) fn all_in_flight(&self) -> Vec<Arc<Instance>> {
        let mut state = self.lock();
        state.leaving.retain(|i| i.in_flight() > 0);
        let all = state.instances.iter().chain(&state.draining).chain(&state.leaving);
        all.filter(|i| i.in_flight() > 0).cloned().collect()
    }

    /// Why there is no slot to be had.
    pub(crate) fn shortage(&self) -> Shortage {
        let state = self.lock();
        Shortage {
            in_rotation: state.instances.len(),
            set_aside: state
                .instances
                .iter()
                .filter(|i| i.health.condition() != Condition::Good)
                .count(),
            draining: state.draining.len(),
            tunnelled: state.tunnelled,
        }
    }
}

impl State {
    fn disturb_hanging(&self) {
        for instance in self.instances.iter().chain(&self.draining) {
            if instance.health.condition() >= Condition::Silent {
                instance.disturbed.notify_waiters();
            }
        }
    }

    fn pick(&self) -> Option<Arc<Instance>> {
        choice::pick(&self.instances, self.concurrency, self.warm_up)
    }
}

/// The right to have one request in flight on one instance.
#[derive(Debug)]
pub(crate) struct Slot {
    service: Arc<Service>,
    instance: Arc<Instance>,
    armed: bool,
}

impl Slot {
    /// The caller holds the admission lock.
    fn take(service: &Arc<Service>, instance: &Arc<Instance>) -> Self {
        instance.take();
        Self {
            service: Arc::clone(service),
            instance: Arc::clone(instance),
            armed: true,
        }
    }

    /// Undoes [`Slot::take`] under the same lock.
    fn undo(mut self) {
        self.armed = false;
        self.instance.give_back();
    }

    pub(crate) fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.armed {
            self.service.release(&self.instance);
        }
    }
}

/// A place in the queue; leaving it (drop) frees the place.
#[derive(Debug)]
pub(crate) struct Waiter {
    service: Arc<Service>,
    ticket: Ticket,
    /// How long it may wait in all.
    pub(crate) patience: Duration,
    slot: oneshot::Receiver<Slot>,
}

impl Waiter {
    /// Waits for a slot. `None`: the queue was dissolved; ask [`Service::acquire`] why.
    pub(crate) async fn slot(&mut self) -> Option<Slot> {
        (&mut self.slot).await.ok()
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // A slot granted this instant is dropped with the receiver, after the lock is free again.
        self.service.lock().waiters.remove(&self.ticket.0);
    }
}
