//! One request from its arrival to the beginning of its answer.
//!
//! *Resendable* = nothing of the answer was passed on, and: no byte of the request can have reached an instance, or its
//! body can still be replayed and the route's policy allows it (`idempotent`: safe or idempotent method, or an
//! `Idempotency-Key`; `any`: all; `never`: none). Only the beginning of an answer ends this state, so the decision needs
//! no buffering of answers.
//!
//! Invariants: each arrived request is settled exactly once, by an answer, a refusal or the client leaving; tries that
//! broke are bounded by a count, tries that reached nobody by the time a request may wait, and both by
//! [`MAX_TRIES`]. Rejected: retrying an instance's 503, because an application means what it says.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::Incoming;

use crate::admission::{Admission, RetryPolicy, Service, Slot, Ticket};
use crate::download::{Download, Hold, ProxyBody};
use crate::headers;
use crate::health::{Condition, answered, put_aside};
use crate::pool::{Conn, ConnectError};
use crate::proxy::Proxy;
use crate::refusal::Refusal;
use crate::traffic::Outcome;
use crate::upload::Upload;

/// Tries of one request, of whatever ending.
const MAX_TRIES: u32 = 50;
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

/// How a try ended without an answer.
#[derive(Debug)]
enum Ending {
    /// No connection.
    Unreachable(ConnectError),
    /// A connection closed before the request was written.
    Unsent,
    /// A connection that had been used before closed after the request was written.
    Stale(hyper::Error),
    /// A new connection broke after the request was written.
    Broke(hyper::Error),
    /// The instance was dropped from the routes or found unreachable.
    Moved { sent: bool },
    /// The client broke off its body.
    ClientBrokeOff,
}

impl Ending {
    fn sent(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unsent => false,
            Self::Moved { sent } => *sent,
            Self::Stale(_) | Self::Broke(_) | Self::ClientBrokeOff => true,
        }
    }
}

/// Settles a request's outcome once; dropped unsettled means that the client left.
struct Pending {
    service: Arc<Service>,
    arrived: Instant,
    settled: bool,
}

impl Pending {
    fn settle(&mut self, outcome: Outcome) {
        if !std::mem::replace(&mut self.settled, true) {
            let now = Instant::now();
            self.service.traffic.ended(outcome, self.arrived, now);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.settle(Outcome::Cancelled);
    }
}

/// What each try of a request needs.
struct Parts {
    method: Method,
    target: Uri,
    headers: HeaderMap,
    upload: Upload,
    policy: RetryPolicy,
}

impl Parts {
    fn resendable(&self, sent: bool) -> bool {
        if !self.upload.is_replayable() {
            return false;
        }
        !sent || self.policy_allows()
    }

    fn policy_allows(&self) -> bool {
        match self.policy {
            RetryPolicy::Never => false,
            RetryPolicy::Any => true,
            RetryPolicy::Idempotent => {
                self.method.is_idempotent() || self.headers.contains_key(headers::IDEMPOTENCY_KEY)
            }
        }
    }

    fn why_final(&self) -> &'static str {
        if !self.upload.is_replayable() {
            "its body was too large to keep"
        } else if !self.policy_allows() {
            "it may have been carried out, and neither its method nor an Idempotency-Key says that twice is harmless"
        } else {
            "too many tries broke"
        }
    }
}

/// Forwards a request to `service`; `prefix` is the part of the path that named it.
pub(crate) async fn forward(
    proxy: &Proxy,
    service: Arc<Service>,
    peer: IpAddr,
    prefix_len: usize,
    request: Request<Incoming>,
) -> Response<ProxyBody> {
    let arrived = Instant::now();
    let (ticket, policy) = service.arrive(arrived);
    let mut pending = Pending {
        service: Arc::clone(&service),
        arrived,
        settled: false,
    };
    let (head, body) = request.into_parts();
    let prefix = &head.uri.path()[..prefix_len];
    let mut headers = head.headers;
    headers::prepare_request(&mut headers, peer, prefix, &service.name);
    let target = match target(&head.uri, prefix_len) {
        Ok(target) => target,
        Err(refusal) => {
            pending.settle(Outcome::Refused);
            return refusal.into_response(&headers, 0);
        }
    };
    let parts = Parts {
        method: head.method,
        target,
        headers,
        upload: Upload::new(body, &proxy.replay),
        policy,
    };

    let mut waited = Duration::ZERO;
    let mut tries = 0;
    let mut broken = 0;
    let mut fresh = false;
    loop {
        let slot = match wait_for_slot(proxy, &service, ticket, &mut waited).await {
            Ok(slot) => slot,
            Err(refusal) => {
                pending.settle(Outcome::Refused);
                return refusal.into_response(&parts.headers, tries);
            }
        };
        tries += 1;
        if tries > 1 {
            service.traffic.retried();
        }
        let ending = match attempt(&slot, &parts, tries, fresh).await {
            Ok(Answer {
                response,
                conn,
                keep_alive,
            }) => {
                pending.settle(if response.status().is_server_error() {
                    Outcome::ApplicationError
                } else {
                    Outcome::Ok
                });
                let hold = Hold {
                    conn,
                    slot,
                    upload: parts.upload,
                    keep_alive,
                    suspicions: proxy.suspicions.clone(),
                };
                return response.map(|body| ProxyBody::Stream(Download::new(body, hold)));
            }
            Err(ending) => ending,
        };
        let instance = Arc::clone(slot.instance());
        instance.counters.broken.fetch_add(1, Ordering::Relaxed);
        let aside = |condition, reason: String| {
            put_aside(&service, &instance, condition, &reason, &proxy.suspicions);
        };
        let reason = match &ending {
            Ending::ClientBrokeOff => {
                pending.settle(Outcome::Cancelled);
                return Refusal::ClientBrokeOff.into_response(&parts.headers, tries);
            }
            Ending::Unreachable(error) => {
                aside(Condition::Unreachable, error.to_string());
                error.to_string()
            }
            Ending::Broke(error) => {
                broken += 1;
                aside(Condition::Breaking, format!("broke before it answered: {error}"));
                error.to_string()
            }
            // Most likely the keep-alive race and no fault of the instance; a new connection will tell.
            Ending::Stale(error) => {
                fresh = true;
                error.to_string()
            }
            Ending::Unsent => {
                fresh = true;
                "connection closed".to_owned()
            }
            Ending::Moved { .. } => "it left the routes or became unreachable".to_owned(),
        };
        drop(slot);
        let exhausted = broken >= proxy.limits.max_broken_tries || tries >= MAX_TRIES;
        if exhausted || !parts.resendable(ending.sent()) {
            pending.settle(Outcome::Failed);
            let refusal = Refusal::Broken {
                service: service.name.to_string(),
                instance: instance.id.to_string(),
                reason,
                why_final: parts.why_final(),
            };
            return refusal.into_response(&parts.headers, tries);
        }
        // The first break costs no pause: most likely one instance died and the others are well.
        if broken > 1 {
            let pause = BACKOFF_MIN.saturating_mul(1 << (broken - 2).min(8)).min(BACKOFF_MAX);
            let pause = pause.mul_f64(0.5 + fastrand::f64());
            tokio::time::sleep(pause).await;
            waited += pause;
        }
    }
}

/// The request target without the prefix that named the service. A bare `/NAME` means `/NAME/`.
fn target(uri: &Uri, prefix_len: usize) -> Result<Uri, Refusal> {
    let path_and_query = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = &path_and_query[prefix_len.min(path_and_query.len())..];
    let parsed = if prefix_len == 0 {
        // Without scheme and authority, whatever form the client used.
        uri.path_and_query()
            .cloned()
            .map_or_else(|| Ok(PathAndQuery::from_static("/")), Ok)
    } else if rest.is_empty() {
        Ok(PathAndQuery::from_static("/"))
    } else if rest.starts_with('/') {
        rest.parse()
    } else {
        format!("/{rest}").parse()
    };
    parsed.map(Uri::from).map_err(|error| Refusal::BadRequest {
        reason: format!("the path cannot be passed on: {error}"),
    })
}

async fn wait_for_slot(
    proxy: &Proxy,
    service: &Arc<Service>,
    ticket: Ticket,
    waited: &mut Duration,
) -> Result<Slot, Refusal> {
    loop {
        let mut waiter = match service.acquire(ticket) {
            Admission::Granted(slot) => return Ok(slot),
            Admission::Queued(waiter) => waiter,
            Admission::Full => return Err(Refusal::queue_full(service)),
            Admission::Stopped => return Err(Refusal::stopped(service)),
            Admission::Gone => return Err(Refusal::gone(service)),
        };
        let left = proxy.limits.queue_deadline.saturating_sub(*waited);
        let began = Instant::now();
        let slot = tokio::time::timeout(left, waiter.slot()).await;
        *waited += began.elapsed();
        match slot {
            Ok(Some(slot)) => return Ok(slot),
            // The queue was dissolved: the next turn says why.
            Ok(None) => {}
            Err(_) => return Err(Refusal::no_capacity(service, *waited)),
        }
    }
}

/// The beginning of an instance's answer.
struct Answer {
    response: Response<Incoming>,
    conn: Conn,
    keep_alive: bool,
}

async fn attempt(slot: &Slot, parts: &Parts, tries: u32, fresh: bool) -> Result<Answer, Ending> {
    let instance = slot.instance();
    let may_repeat = parts.resendable(true);
    let mut disturbed = pin!(instance.disturbed.notified());
    disturbed.as_mut().enable();
    if instance.is_dropped() {
        return Err(Ending::Moved { sent: false });
    }
    let mut conn = tokio::select! {
        biased;
        conn = instance.pool.get(may_repeat, fresh) => conn.map_err(Ending::Unreachable)?,
        () = disturbed.as_mut() => return Err(Ending::Moved { sent: false }),
    };
    disturbed.set(instance.disturbed.notified());
    disturbed.as_mut().enable();

    let mut request = Request::new(parts.upload.next_try());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.target.clone();
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = parts.headers.clone();
    instance.counters.sent.fetch_add(1, Ordering::Relaxed);

    let sending = conn.sender.try_send_request(request);
    let mut sending = pin!(sending);
    let answer = loop {
        tokio::select! {
            biased;
            answer = sending.as_mut() => break answer,
            () = disturbed.as_mut() => {
                let elsewhere = instance.is_dropped()
                    || (instance.health.condition() == Condition::Unreachable
                        && slot.service().has_other(instance));
                // Asked anew: the body may have outgrown its record meanwhile.
                if elsewhere && parts.resendable(true) {
                    return Err(Ending::Moved { sent: true });
                }
                disturbed.set(instance.disturbed.notified());
                disturbed.as_mut().enable();
            }
        }
    };
    let mut response = match answer {
        Ok(response) => response,
        Err(mut failure) => {
            if failure.take_message().is_some() {
                return Err(Ending::Unsent);
            }
            if parts.upload.is_failed() {
                return Err(Ending::ClientBrokeOff);
            }
            let error = failure.into_error();
            return Err(match conn.reused_after {
                Some(unused) => {
                    instance.pool.went_stale(unused);
                    Ending::Stale(error)
                }
                None => Ending::Broke(error),
            });
        }
    };
    if response.status().is_server_error() {
        instance.counters.errors.fetch_add(1, Ordering::Relaxed);
    } else {
        instance.counters.ok.fetch_add(1, Ordering::Relaxed);
    }
    answered(slot.service(), instance);
    let version = response.version();
    let keep_alive = headers::prepare_response(response.headers_mut(), version, &instance.header, tries);
    *response.version_mut() = Version::HTTP_11;
    Ok(Answer {
        response,
        conn,
        keep_alive,
    })
}
