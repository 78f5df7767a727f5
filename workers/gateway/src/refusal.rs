//! Answers the gateway gives itself: `application/problem+json` with a stable code.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use tidemill_protocol::Problem;

use crate::admission::{Service, Shortage};
use crate::config::Limits;
use crate::download::ProxyBody;
use crate::headers::{ATTEMPTS, TRACEPARENT};
use crate::upload::Fault;

/// Why the gateway answers instead of an instance.
#[derive(Debug)]
pub(crate) enum Refusal {
    NoSuchService {
        path: String,
    },
    ServiceStopped {
        service: String,
    },
    ServiceGone {
        service: String,
    },
    QueueFull {
        service: String,
        queued: usize,
        retry_after: u64,
    },
    NoCapacity {
        service: String,
        /// `None`: its requests do not wait.
        waited: Option<Duration>,
        shortage: Shortage,
        retry_after: u64,
    },
    Broken {
        service: String,
        instance: String,
        reason: String,
        why_final: &'static str,
    },
    ClientBrokeOff,
    BodyTooSlow {
        bytes: u64,
        time: Duration,
    },
    BodyTooLarge {
        limit: u64,
    },
    HeadTooLarge {
        bytes: usize,
        fields: usize,
    },
    TargetTooLong {
        limit: usize,
    },
    BadRequest {
        reason: String,
    },
    MethodNotSupported,
}

impl Refusal {
    /// `waits`: requests of the service may wait.
    pub(crate) fn no_capacity(service: &Service, waited: Duration, waits: bool) -> Self {
        Self::NoCapacity {
            service: label(service),
            waited: waits.then_some(waited),
            shortage: service.shortage(),
            retry_after: service.retry_after(),
        }
    }

    pub(crate) fn stopped(service: &Service) -> Self {
        Self::ServiceStopped {
            service: label(service),
        }
    }

    pub(crate) fn gone(service: &Service) -> Self {
        Self::ServiceGone {
            service: label(service),
        }
    }

    pub(crate) fn queue_full(service: &Service) -> Self {
        Self::QueueFull {
            service: label(service),
            queued: service.queued(),
            retry_after: service.retry_after(),
        }
    }

    /// What the client did wrong with its body.
    pub(crate) fn body(fault: Fault, limits: &Limits) -> Self {
        match fault {
            Fault::BrokenOff => Self::ClientBrokeOff,
            Fault::TooSlow => Self::BodyTooSlow {
                bytes: limits.body_pace_bytes,
                time: limits.body_pace,
            },
            Fault::TooLarge => Self::BodyTooLarge {
                limit: limits.max_body_bytes,
            },
        }
    }

    /// Whether trying again a little later can help, and when.
    fn retry_after(&self) -> Option<u64> {
        match self {
            Self::QueueFull { retry_after, .. } | Self::NoCapacity { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    fn problem(&self) -> Problem {
        match self {
            Self::NoSuchService { path } => Problem::new(
                404,
                "no_such_service",
                format!("no service answers under {path} or under this Host"),
                "list the services and their URLs with: tidemill services",
            ),
            Self::ServiceStopped { service } => Problem::new(
                503,
                "service_stopped",
                format!("service {service} was stopped by its owner"),
                format!("start it with: tidemill start service/{service}"),
            ),
            Self::ServiceGone { service } => Problem::new(
                404,
                "no_such_service",
                format!("service {service} was deleted while the request waited"),
                "list the services with: tidemill services",
            ),
            Self::QueueFull { service, queued, .. } => Problem::new(
                429,
                "queue_full",
                format!("{queued} requests already wait for service {service}"),
                "try again after Retry-After; more replicas or a higher target concurrency shorten the queue",
            ),
            Self::NoCapacity {
                service,
                waited,
                shortage,
                ..
            } => Problem::new(
                503,
                "no_capacity",
                match waited {
                    Some(waited) => format!(
                        "no instance of service {service} had room within {} ms: {}",
                        waited.as_millis(),
                        describe(shortage)
                    ),
                    None => format!(
                        "no instance of service {service} has room, and its requests do not wait (route.queue: 0): {}",
                        describe(shortage)
                    ),
                },
                format!("see why with: tidemill explain {service}"),
            ),
            Self::Broken {
                service,
                instance,
                reason,
                why_final,
            } => Problem::new(
                502,
                "instance_broke",
                format!(
                    "instance {instance} of service {service} broke before it answered ({reason}), and the request was not sent again: {why_final}"
                ),
                "send an Idempotency-Key, or set route.retry: any, if a repeated request does no harm",
            ),
            Self::ClientBrokeOff => Problem::new(
                400,
                "client_broke_off",
                "the request's body ended before its end",
                "send the whole body",
            ),
            Self::BodyTooSlow { bytes, time } => Problem::new(
                408,
                "body_too_slow",
                format!(
                    "less than {bytes} bytes of the request's body came within {} s",
                    time.as_secs_f32()
                ),
                "send the body without pauses",
            ),
            Self::BodyTooLarge { limit } => Problem::new(
                413,
                "body_too_large",
                format!("the request's body is larger than {limit} bytes"),
                "send less at a time; the operator may raise the gateway's --max-body",
            ),
            Self::HeadTooLarge { bytes, fields } => Problem::new(
                431,
                "head_too_large",
                format!("the request has more than {fields} header fields, or more than {bytes} bytes of them"),
                "send fewer or shorter header fields; cookies are the usual cause",
            ),
            Self::TargetTooLong { limit } => Problem::new(
                414,
                "target_too_long",
                format!("the request's target is longer than {limit} bytes"),
                "send long parameters in a body",
            ),
            Self::BadRequest { reason } => Problem::new(400, "bad_request", reason.clone(), "correct the request line"),
            Self::MethodNotSupported => Problem::new(
                405,
                "method_not_supported",
                "the gateway is no forward proxy: CONNECT is refused",
                "send requests to /NAME/…",
            ),
        }
    }

    /// The answer. `request` gives the trace; `tries` is 0 if no instance was asked.
    pub(crate) fn into_response(self, request: &HeaderMap, tries: u32) -> Response<ProxyBody> {
        let mut problem = self.problem();
        problem.trace_id = trace_id(request);
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = Response::new(ProxyBody::Whole(Full::new(Bytes::from(body))));
        *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(ATTEMPTS, HeaderValue::from(tries));
        if let Some(seconds) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// `NAME`, or `TENANT/NAME` outside the default tenant.
fn label(service: &Service) -> String {
    if &*service.tenant == "default" {
        service.name.to_string()
    } else {
        format!("{}/{}", service.tenant, service.name)
    }
}

fn describe(s: &Shortage) -> String {
    if s.in_rotation > 0 && s.set_aside == s.in_rotation {
        return format!("all {} in rotation do not answer", s.in_rotation);
    }
    if s.in_rotation > 0 {
        let busy = s.in_rotation - s.set_aside;
        return format!("{busy} are busy, {} do not answer", s.set_aside);
    }
    if s.tunnelled > 0 {
        return format!(
            "{} are reachable by tunnel only, which is not supported yet",
            s.tunnelled
        );
    }
    if s.draining > 0 {
        return format!("{} are draining and none is ready", s.draining);
    }
    "none is ready".to_owned()
}

/// The trace the client gave (W3C trace context), or a new one so that the answer can be found in the log.
fn trace_id(request: &HeaderMap) -> String {
    request
        .get(TRACEPARENT)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.split('-').nth(1))
        .filter(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()))
        .map_or_else(|| format!("{:032x}", fastrand::u128(1..)), |id| id.to_owned())
}
