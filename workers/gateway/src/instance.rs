//! One instance behind a route, as this gateway sees it.
//!
//! Identity is (instance id, endpoint): a snapshot that names both again finds the same counters, connections and
//! health. An instance that no longer appears is *dropped*: what was in flight on it holds it alive until it ends.
//!
//! A new instance is *warmed*: over the first seconds it is chosen less often than its load allows, until its caches are
//! filled. An instance set aside and back is warmed again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tidemill_protocol::gateway::{InstanceTraffic, RouteInstance};
use tokio::sync::Notify;

use crate::config::Limits;
use crate::dial::dialer;
use crate::health::Health;
use crate::line::Line;
use crate::mux::Mux;
use crate::pool::Pool;
use crate::watch::Vigil;

/// Share of its full weight that an instance begins with.
const COLD: f64 = 0.1;
/// No warming goes on.
const WARM: u64 = u64::MAX;

/// An instance this gateway can connect to.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) id: Box<str>,
    /// `id` as the value of `x-tidemill-instance`.
    pub(crate) header: HeaderValue,
    /// `HOST:PORT`.
    pub(crate) endpoint: Box<str>,
    pub(crate) line: Arc<Line>,
    pub(crate) pool: Pool,
    pub(crate) mux: Mux,
    pub(crate) health: Health,
    pub(crate) vigil: Vigil,
    /// Tells running tries to look again: dropped from the routes, found not to answer, or another one came up.
    pub(crate) disturbed: Notify,
    pub(crate) counters: Counters,
    /// Changed only under its service's admission lock.
    in_flight: AtomicU32,
    dropped: AtomicBool,
    draining: AtomicBool,
    born: Instant,
    /// Milliseconds after `born` from which it is warmed; [`WARM`] once that is over.
    warmed_from_ms: AtomicU64,
}

/// Counts of the current second.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sent: AtomicU64,
    pub(crate) ok: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) broken: AtomicU64,
}

impl Instance {
    /// `None` if this gateway has no way to reach it, or its id cannot stand in a header.
    pub(crate) fn new(route: &RouteInstance, limits: &Limits) -> Option<Self> {
        let line = Arc::new(Line::new(dialer(route)?, limits.connect_timeout));
        Some(Self {
            id: route.instance.as_str().into(),
            header: HeaderValue::from_str(&route.instance).ok()?,
            endpoint: route.endpoint.as_deref().unwrap_or_default().into(),
            pool: Pool::new(&line, limits),
            mux: Mux::new(&line),
            line,
            health: Health::default(),
            vigil: Vigil::default(),
            disturbed: Notify::new(),
            counters: Counters::default(),
            in_flight: AtomicU32::new(0),
            dropped: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            born: Instant::now(),
            warmed_from_ms: AtomicU64::new(0),
        })
    }

    /// Slots held now.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Takes a slot; the caller holds the admission lock.
    pub(crate) fn take(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a slot back; the caller holds the admission lock and the guard that took it.
    pub(crate) fn give_back(&self) {
        let before = self.in_flight.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "a slot was given back twice");
    }

    /// Share of its full weight, after `warm_up` the whole.
    pub(crate) fn warmth(&self, warm_up: Duration) -> f64 {
        let from = self.warmed_from_ms.load(Ordering::Relaxed);
        if from == WARM {
            return 1.0;
        }
        let warm = self.born.elapsed().saturating_sub(Duration::from_millis(from));
        if warm >= warm_up {
            self.warmed_from_ms.store(WARM, Ordering::Relaxed);
            return 1.0;
        }
        COLD.max(warm.as_secs_f64() / warm_up.as_secs_f64())
    }

    /// Ends its warming.
    #[cfg(test)]
    pub(crate) fn warm_fully(&self) {
        self.warmed_from_ms.store(WARM, Ordering::Relaxed);
    }

    /// It was set aside and is back.
    pub(crate) fn warm_again(&self) {
        let age = self.born.elapsed().as_millis() as u64;
        self.warmed_from_ms.store(age, Ordering::Relaxed);
    }

    /// The routes say whether it takes new requests. One that does not is left with no unused connection.
    pub(crate) fn set_draining(&self, draining: bool) {
        self.draining.store(draining, Ordering::Release);
        if draining {
            self.close_unused();
        }
    }

    /// No route names it any more. Its idle connections close and its tries look again.
    pub(crate) fn drop_from_routes(&self) {
        self.dropped.store(true, Ordering::Release);
        self.close_unused();
        self.disturbed.notify_waiters();
    }

    /// Whether routes stopped naming it.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Whether it is given no more requests, by the routes.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_dropped() || self.draining.load(Ordering::Acquire)
    }

    /// Closes all connections that carry no request.
    pub(crate) fn close_unused(&self) {
        self.pool.clear();
        self.mux.clear();
    }

    /// Closes the second: counts since the last call.
    pub(crate) fn close_second(&self) -> InstanceTraffic {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        InstanceTraffic {
            instance: self.id.to_string(),
            sent: take(&self.counters.sent),
            ok: take(&self.counters.ok),
            errors: take(&self.counters.errors),
            broken: take(&self.counters.broken),
            in_flight: u64::from(self.in_flight()),
        }
    }
}
