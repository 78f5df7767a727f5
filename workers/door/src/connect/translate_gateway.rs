//! Between the gateways' protocol and the domain.

use std::str::FromStr;

use tidemill_domain::events::evidence::{InstanceTraffic, LATENCY_BOUNDS, RequestCounts};
use tidemill_domain::events::service::Retry;
use tidemill_domain::id::InstanceId;
use tidemill_domain::policy::work;
use tidemill_domain::state::State;
use tidemill_domain::time::Span;
use tidemill_domain::unit::Name;
use tidemill_kit::observation::{Applied, GatewayBeat, TrafficSample};
use tidemill_protocol::Stamp;
use tidemill_protocol::gateway::{self as wire, GatewayHello, RouteInstance, Routes, ServiceRoute};

use crate::problem::Refusal;
use crate::shared::stamp;

/// Longest name of a gateway.
const MAX_NAME: usize = 128;
/// Longest URL of a gateway.
const MAX_URL: usize = 255;
/// Nothing counted in a minute is more.
const MAX_COUNT: u64 = 1_000_000_000;
/// Samples older than this are of no use to anyone.
const MAX_SPAN_MS: u64 = 24 * 3_600_000;
/// Samples and instances within them in one observation: about 200 KiB.
const WEIGHT: usize = 1024;

/// Checks a greeting.
pub(super) fn hello(hello: &GatewayHello) -> Result<(), Refusal> {
    let refuse = |detail: String| {
        Err(Refusal::new(
            422,
            "invalid",
            detail,
            "correct the gateway's flags and start it again",
        ))
    };
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if hello.name.is_empty() || hello.name.len() > MAX_NAME || !hello.name.bytes().all(good) {
        return refuse(format!(
            "name: it has 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`"
        ));
    }
    if hello.url.len() > MAX_URL || !hello.url.starts_with("http") || !hello.url.bytes().all(|b| b.is_ascii_graphic()) {
        return refuse("url: it is the http:// URL under which clients reach the gateway".to_owned());
    }
    Ok(())
}

/// All routes of a state. Instances without an address of their own are reached by tunnel and are not routed yet.
pub(super) fn routes(state: &State) -> Routes {
    let services = work::routes(state).map(|route| {
        let spec = route.service.spec();
        let instances = route.backends.iter().filter_map(|backend| {
            let endpoint = backend.instance.endpoint.clone()?;
            Some(RouteInstance {
                instance: backend.instance.id.to_string(),
                node: backend.instance.node?.to_string(),
                endpoint: Some(endpoint),
                draining: backend.draining,
            })
        });
        ServiceRoute {
            tenant: route.service.tenant.to_string(),
            name: route.service.name.to_string(),
            host: spec.route.host.clone(),
            retry: match spec.route.retry {
                Retry::Never => "never",
                Retry::Idempotent => "idempotent",
                Retry::Any => "any",
            }
            .to_owned(),
            concurrency: spec.scale.concurrency,
            queue: spec.route.queue,
            queue_timeout_ms: spec.route.queue_timeout.map(|timeout| timeout.millis().max(1)),
            stopped: route.stopped,
            instances: instances.collect(),
        }
    });
    Routes {
        stamp: stamp(state),
        services: services.collect(),
    }
}

/// The position a gateway has applied, if it is of this ledger.
pub(super) fn applied(state: &State, applied: &Stamp) -> Option<Applied> {
    applied.same_ledger(&stamp(state)).then_some(Applied {
        epoch: applied.epoch,
        sequence: applied.sequence,
    })
}

/// A beat as observations, in pieces that each fit a block. Samples of services that are gone are left out.
pub(super) fn beats(state: &State, gateway: &str, beat: &wire::GatewayBeat) -> Vec<GatewayBeat> {
    let piece = || GatewayBeat {
        gateway: gateway.to_owned(),
        applied: beat.applied.as_ref().and_then(|stamp| applied(state, stamp)),
        samples: Vec::new(),
    };
    let mut beats = vec![piece()];
    let mut weight = 0;
    for sample in beat.samples.iter().filter_map(|sample| self::sample(state, sample)) {
        let own = 1 + sample.instances.len();
        if weight > 0 && weight + own > WEIGHT {
            beats.push(piece());
            weight = 0;
        }
        weight += own;
        if let Some(last) = beats.last_mut() {
            last.samples.push(sample);
        }
    }
    beats
}

fn sample(state: &State, sample: &wire::TrafficSample) -> Option<TrafficSample> {
    let tenant = Name::from_str(&sample.tenant).ok()?;
    let name = Name::from_str(&sample.service).ok()?;
    let service = state.service_named(&tenant, &name)?.id;
    let count = |count: u64| count.min(MAX_COUNT);
    let instance = |traffic: &wire::InstanceTraffic| {
        Some(InstanceTraffic {
            instance: InstanceId::from_str(&traffic.instance).ok()?,
            sent: count(traffic.sent),
            ok: count(traffic.ok),
            errors: count(traffic.errors),
            broken: count(traffic.broken),
        })
    };
    Some(TrafficSample {
        service,
        age: Span::from_millis(sample.age_ms.min(MAX_SPAN_MS)),
        seconds: sample.seconds.clamp(1, 86_400),
        requests: RequestCounts {
            arrived: count(sample.arrived),
            ok: count(sample.ok),
            application_errors: count(sample.application_errors),
            failed: count(sample.failed),
            refused: count(sample.refused),
            cancelled: count(sample.cancelled),
            cut_streams: count(sample.cut_streams),
            retries: count(sample.retries),
        },
        queued: count(sample.queued),
        in_flight: count(sample.in_flight),
        longest_gap: Span::from_millis(sample.longest_gap_ms.min(MAX_SPAN_MS)),
        latency: sample
            .latency
            .iter()
            .take(LATENCY_BOUNDS.len() + 1)
            .map(|n| count(*n))
            .collect(),
        instances: sample.instances.iter().take(WEIGHT).filter_map(instance).collect(),
    })
}
