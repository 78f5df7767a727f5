//! The routes in use: which service a request is for.
//!
//! A table is immutable and shared; a new snapshot makes a new table that takes over the services it still names, with
//! their queues and counters. A service is found by `Host` first (such a host owns its whole path), then by the first
//! segment of the path.
//!
//! Invariants: a snapshot is put to use only if its stamp covers the one in use; one of another ledger is refused, since
//! a ledger that went backwards must not undo what runs. When [`Routed::InUse`] is returned no request can get a new
//! slot of an instance that the snapshot does not name as in rotation.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tidemill_protocol::Stamp;
use tidemill_protocol::gateway::Routes;

use crate::admission::Service;
use crate::config::Limits;

/// The tenant whose services need no `~TENANT` in the path.
const DEFAULT_TENANT: &str = "default";

/// Services by path and by host.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    stamp: Option<Stamp>,
    /// Tenant, then name.
    tenants: HashMap<Box<str>, HashMap<Box<str>, Arc<Service>>>,
    hosts: HashMap<Box<str>, Arc<Service>>,
}

impl RouteTable {
    /// The service for a request, and how many bytes of the path named it.
    pub(crate) fn resolve(&self, host: Option<&str>, path: &str) -> Option<(&Arc<Service>, usize)> {
        if let Some(service) = host.and_then(|host| self.by_host(host)) {
            return Some((service, 0));
        }
        let rest = path.strip_prefix('/')?;
        let (first, after) = rest.split_once('/').unwrap_or((rest, ""));
        match first.strip_prefix('~') {
            Some(tenant) => {
                let name = after.split('/').next()?;
                let service = self.tenants.get(tenant)?.get(name)?;
                Some((service, 1 + first.len() + 1 + name.len()))
            }
            None => {
                let service = self.tenants.get(DEFAULT_TENANT)?.get(first)?;
                Some((service, 1 + first.len()))
            }
        }
    }

    fn by_host(&self, host: &str) -> Option<&Arc<Service>> {
        if self.hosts.is_empty() {
            return None;
        }
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => host,
        };
        match self.hosts.get(name) {
            None if name.bytes().any(|b| b.is_ascii_uppercase()) => self.hosts.get(name.to_ascii_lowercase().as_str()),
            found => found,
        }
    }

    /// All services.
    pub(crate) fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.tenants.values().flat_map(HashMap::values)
    }

    fn get(&self, tenant: &str, name: &str) -> Option<&Arc<Service>> {
        self.tenants.get(tenant)?.get(name)
    }
}

/// What became of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Routed {
    /// It, or the same one before, is in use.
    InUse,
    /// Older than the one in use: ignored.
    Older,
    /// Of another ledger than the one in use: ignored.
    OtherLedger,
}

/// The table in use, replaced as a whole.
#[derive(Debug, Default)]
pub(crate) struct Router {
    current: RwLock<Arc<RouteTable>>,
}

impl Router {
    /// The table in use now.
    pub(crate) fn current(&self) -> Arc<RouteTable> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Stamp of the routes in use.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.current().stamp.clone()
    }

    /// Puts a snapshot to use. Called from one task only. Returns the services it no longer names besides.
    pub(crate) fn apply(&self, routes: &Routes, limits: &Limits) -> (Routed, Vec<Arc<Service>>) {
        let before = self.current();
        match &before.stamp {
            Some(stamp) if !routes.stamp.same_ledger(stamp) => {
                return (Routed::OtherLedger, Vec::new());
            }
            Some(stamp) if routes.stamp == *stamp => return (Routed::InUse, Vec::new()),
            Some(stamp) if !routes.stamp.covers(stamp) => return (Routed::Older, Vec::new()),
            _ => {}
        }
        let mut table = RouteTable {
            stamp: Some(routes.stamp.clone()),
            ..RouteTable::default()
        };
        for route in &routes.services {
            let service = match before.get(&route.tenant, &route.name) {
                Some(known) => Arc::clone(known),
                None => Arc::new(Service::new(&route.tenant, &route.name, limits)),
            };
            service.update(route, limits);
            if let Some(host) = &route.host {
                let host = host.to_ascii_lowercase().into_boxed_str();
                table.hosts.insert(host, Arc::clone(&service));
            }
            table
                .tenants
                .entry(route.tenant.as_str().into())
                .or_default()
                .insert(route.name.as_str().into(), service);
        }
        let retired: Vec<_> = before
            .services()
            .filter(|s| table.get(&s.tenant, &s.name).is_none())
            .cloned()
            .collect();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        // Only after nobody can find them any more.
        for service in &retired {
            service.retire();
        }
        (Routed::InUse, retired)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tidemill_protocol::gateway::{RouteInstance, ServiceRoute};

    fn stamp(ledger: &str, epoch: u64, sequence: u64) -> Stamp {
        Stamp {
            cell: "c".into(),
            ledger: ledger.into(),
            epoch,
            sequence,
        }
    }

    fn route(tenant: &str, name: &str, host: Option<&str>) -> ServiceRoute {
        ServiceRoute {
            tenant: tenant.into(),
            name: name.into(),
            host: host.map(Into::into),
            retry: "idempotent".into(),
            concurrency: None,
            queue: None,
            queue_timeout_ms: None,
            stopped: false,
            instances: vec![RouteInstance {
                instance: format!("inst-{name}"),
                node: "node-1".into(),
                endpoint: Some("127.0.0.1:1".into()),
                draining: false,
            }],
        }
    }

    fn routes(stamp: Stamp, services: Vec<ServiceRoute>) -> Routes {
        Routes { stamp, services }
    }

    #[test]
    fn path_tenant_and_host_find_the_service() {
        let router = Router::default();
        let services = vec![
            route("default", "hello", None),
            route("acme", "chat", Some("Chat.example.com")),
        ];
        router.apply(&routes(stamp("l", 1, 5), services), &Limits::default());
        let table = router.current();
        let found = |host: Option<&str>, path: &str| {
            table
                .resolve(host, path)
                .map(|(s, n)| (s.name.to_string(), path[n..].to_owned()))
        };
        let some = |name: &str, rest: &str| Some((name.to_owned(), rest.to_owned()));
        assert_eq!(found(None, "/hello/a/b"), some("hello", "/a/b"));
        assert_eq!(found(None, "/hello"), some("hello", ""));
        assert_eq!(found(None, "/~acme/chat/x"), some("chat", "/x"));
        assert_eq!(found(None, "/~acme/chat"), some("chat", ""));
        assert_eq!(found(None, "/chat/x"), None, "not of the default tenant");
        assert_eq!(found(None, "/~acme"), None);
        assert_eq!(found(None, "/"), None);
        assert_eq!(found(None, "*"), None);
        assert_eq!(found(Some("CHAT.example.com:7080"), "/hello/"), some("chat", "/hello/"));
        assert_eq!(found(Some("[::1]"), "/hello/"), some("hello", "/"));
    }

    #[test]
    fn older_and_foreign_stamps_change_nothing() {
        let router = Router::default();
        let limits = Limits::default();
        let hello = || vec![route("default", "hello", None)];
        let apply = |s: Stamp, services| router.apply(&routes(s, services), &limits).0;
        assert_eq!(apply(stamp("l", 2, 9), hello()), Routed::InUse);
        let before = Arc::clone(router.current().resolve(None, "/hello").unwrap().0);
        assert_eq!(apply(stamp("l", 2, 9), vec![]), Routed::InUse, "a re-read");
        assert_eq!(apply(stamp("l", 2, 8), vec![]), Routed::Older);
        assert_eq!(apply(stamp("l", 1, 99), vec![]), Routed::Older);
        assert_eq!(apply(stamp("other", 9, 99), vec![]), Routed::OtherLedger);
        assert!(router.current().resolve(None, "/hello").is_some());
        assert_eq!(apply(stamp("l", 3, 10), hello()), Routed::InUse);
        let after = Arc::clone(router.current().resolve(None, "/hello").unwrap().0);
        assert!(Arc::ptr_eq(&before, &after), "counters and queue live on");
        assert_eq!(apply(stamp("l", 3, 11), vec![]), Routed::InUse);
        assert!(router.current().resolve(None, "/hello").is_none());
    }
}
