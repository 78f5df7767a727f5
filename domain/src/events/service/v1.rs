//! Bodies of services as releases before `run.image`, `run.fetch`, limits and standbys wrote them.
//!
//! Read only: each turns into today's body with what its keys meant when they did not exist.

use std::collections::BTreeMap;

use postcard_schema::Schema;
use serde::{Deserialize, Serialize};

use super::{Class, DeviceRequest, HostLimits, OnIsolation, PlacementRules, Retry};
use crate::id::ServiceId;
use crate::time::Span;
use crate::unit::Name;

/// Version 1 of [`super::ServiceApplied`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceApplied {
    /// Its id.
    pub service: ServiceId,
    /// Whose.
    pub tenant: Name,
    /// Unique in the tenant.
    pub name: Name,
    /// Count of changes to what instances are made from.
    pub generation: u64,
    /// The whole declaration.
    pub spec: ServiceSpec,
}

/// Version 1 of [`super::ServiceRolledBack`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceRolledBack {
    /// Which.
    pub service: ServiceId,
    /// The generation left.
    pub from: u64,
    /// The generation that is the present one again.
    pub to: u64,
    /// The whole declaration that holds now.
    pub spec: ServiceSpec,
}

/// Version 1 of [`super::ServiceSpec`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct ServiceSpec {
    /// Priority class.
    pub class: Class,
    /// What runs.
    pub run: Run,
    /// What it runs on.
    pub devices: DeviceRequest,
    /// How many.
    pub scale: Scale,
    /// Where.
    pub placement: PlacementRules,
    /// How requests reach it.
    pub route: Route,
}

/// Version 1 of [`super::Run`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Run {
    /// Runtime.
    pub runtime: Runtime,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment.
    pub env: BTreeMap<String, String>,
    /// HTTP path of the readiness check.
    pub ready_http: Option<String>,
    /// Longest time to become ready.
    pub ready_timeout: Span,
    /// Between SIGTERM and SIGKILL.
    pub stop_grace: Span,
}

/// Version 1 of [`super::Runtime`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub enum Runtime {
    /// As a process of the node.
    Process,
}

/// Version 1 of [`super::Scale`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Scale {
    /// Never fewer.
    pub min: u32,
    /// Never more.
    pub max: u32,
    /// Requests a replica takes at a time; no limit if none.
    pub concurrency: Option<u32>,
}

/// Version 1 of [`super::Route`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
pub struct Route {
    /// `Host` under which it is reached besides its path.
    pub host: Option<String>,
    /// Which requests may be sent twice.
    pub retry: Retry,
}

impl From<ServiceApplied> for super::ServiceApplied {
    fn from(old: ServiceApplied) -> Self {
        Self {
            service: old.service,
            tenant: old.tenant,
            name: old.name,
            generation: old.generation,
            spec: old.spec.into(),
        }
    }
}

impl From<ServiceRolledBack> for super::ServiceRolledBack {
    fn from(old: ServiceRolledBack) -> Self {
        Self {
            service: old.service,
            from: old.from,
            to: old.to,
            spec: old.spec.into(),
        }
    }
}

impl From<ServiceSpec> for super::ServiceSpec {
    fn from(old: ServiceSpec) -> Self {
        let Runtime::Process = old.run.runtime;
        Self {
            class: old.class,
            run: super::Run {
                runtime: super::Runtime::Process,
                command: old.run.command,
                image: None,
                env: old.run.env,
                fetch: vec![],
                limits: HostLimits::default(),
                ready_http: old.run.ready_http,
                ready_timeout: old.run.ready_timeout,
                ready_hold: Span::ZERO,
                stop_grace: old.run.stop_grace,
            },
            devices: old.devices,
            scale: super::Scale {
                min: old.scale.min,
                max: old.scale.max,
                concurrency: old.scale.concurrency,
                standby: 0,
                singleton: false,
            },
            placement: old.placement,
            route: super::Route {
                host: old.route.host,
                retry: old.route.retry,
                queue: None,
                queue_timeout: None,
            },
            on_isolation: OnIsolation::Stop,
        }
    }
}
