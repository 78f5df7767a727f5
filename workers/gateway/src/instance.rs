//! One instance behind a route, as this gateway sees it.
//!
//! Identity is (instance id, endpoint): a snapshot that names both again finds the same counters, connections and
//! health. An instance that no longer appears is *dropped*: what was in flight on it holds it alive until it ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use http::HeaderValue;
use tidemill_protocol::gateway::{InstanceTraffic, RouteInstance};
use tokio::sync::Notify;

use crate::config::Limits;
use crate::health::Health;
use crate::pool::Pool;

/// An instance this gateway can connect to.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) id: Box<str>,
    /// `id` as the value of `x-tidemill-instance`.
    pub(crate) header: HeaderValue,
    /// `HOST:PORT`.
    pub(crate) endpoint: Box<str>,
    pub(crate) pool: Pool,
    pub(crate) health: Health,
    /// Tells running tries to look again: dropped from the routes, or found unreachable.
    pub(crate) disturbed: Notify,
    pub(crate) counters: Counters,
    /// Changed only under its service's admission lock.
    in_flight: AtomicU32,
    dropped: AtomicBool,
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
    /// `None` if the instance has no endpoint to connect to, or an id that cannot stand in a header.
    pub(crate) fn new(route: &RouteInstance, limits: &Limits) -> Option<Self> {
        let endpoint = route.endpoint.as_deref()?;
        let address: Option<SocketAddr> = endpoint.parse().ok();
        Some(Self {
            id: route.instance.as_str().into(),
            header: HeaderValue::from_str(&route.instance).ok()?,
            endpoint: endpoint.into(),
            pool: Pool::new(endpoint, address, limits),
            health: Health::default(),
            disturbed: Notify::new(),
            counters: Counters::default(),
            in_flight: AtomicU32::new(0),
            dropped: AtomicBool::new(false),
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

    /// No route names it any more. Its idle connections close and its tries look again.
    pub(crate) fn drop_from_routes(&self) {
        self.dropped.store(true, Ordering::Release);
        self.pool.clear();
        self.disturbed.notify_waiters();
    }

    /// Whether routes stopped naming it.
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
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
