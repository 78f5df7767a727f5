//! One request from its arrival to the beginning of its answer.
//!
//! *Resendable* = nothing of the answer was passed on, and: no byte of the request can have reached an instance, or its
//! body can still be replayed and the route's policy allows it (`idempotent`: safe or idempotent method, or an
//! `Idempotency-Key`; `any`: all; `never`: none). Only the beginning of an answer ends this state, so the decision needs
//! no buffering of answers.
//!
//! An instance that is found not to answer is disturbed: what it was sent and may be repeated goes elsewhere if there is
//! an elsewhere, at most [`MAX_MOVES`] times, so that a request which merely takes long comes to rest somewhere.
//!
//! Invariants: each arrived request is settled exactly once, by an answer, a refusal or the client leaving; tries that
//! broke are bounded by a count, tries that reached nobody by the time a request may wait, and both by
//! [`MAX_TRIES`]. Rejected: retrying an instance's 503, because an application means what it says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use crate::admission::{Admission, Service, Slot, Ticket};
use crate::attempt::{Answer, Ending, Parts, attempt};
use crate::download::{Download, Hold, ProxyBody};
use crate::headers;
use crate::health::{Condition, put_aside};
use crate::proxy::Proxy;
use crate::refusal::Refusal;
use crate::roster::Busy;
use crate::traffic::Outcome;
use crate::tunnel;
use crate::upload::{Fault, Upload};

/// Tries of one request, of whatever ending.
const MAX_TRIES: u32 = 50;
/// Times that a request leaves an instance which only seems not to answer.
const MAX_MOVES: u32 = 3;
const BACKOFF_MIN: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_millis(500);

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

/// A request that has a service and awaits its answer.
pub(crate) struct Forward {
    pending: Pending,
    ticket: Ticket,
    parts: Parts,
    /// The client's side of a change of protocol.
    client: Option<OnUpgrade>,
}

impl Forward {
    /// Makes the client's request that to an instance of `service`; the first `prefix_len` bytes of its path named it.
    /// It counts as arrived from here on.
    #[expect(
        clippy::result_large_err,
        reason = "the other variant is larger still, and each is moved once"
    )]
    pub(crate) fn new(
        proxy: &Proxy,
        service: &Arc<Service>,
        busy: &Busy,
        prefix_len: usize,
        mut request: Request<Incoming>,
    ) -> Result<Self, Response<ProxyBody>> {
        let arrived = Instant::now();
        let (ticket, policy) = service.arrive(arrived);
        let mut pending = Pending {
            service: Arc::clone(service),
            arrived,
            settled: false,
        };
        let upgrade = match request.version() {
            Version::HTTP_11 => headers::wanted_upgrade(request.headers()),
            _ => None,
        };
        let client = upgrade.as_ref().map(|_| hyper::upgrade::on(&mut request));
        let (head, body) = request.into_parts();
        let mut headers = head.headers;
        let arrival = headers::Arrival {
            peer: busy.peer(),
            secure: busy.secure(),
            prefix: service.prefix(&head.uri.path()[..prefix_len]),
            authority: head.uri.authority().map(|a| a.as_str()),
            fallback_host: &service.name,
        };
        headers::prepare_request(&mut headers, arrival);
        if let Some(protocol) = &upgrade {
            headers::set_upgrade(&mut headers, protocol.clone());
        }
        let target = match target(&head.uri, prefix_len) {
            Ok(target) => target,
            Err(refusal) => {
                pending.settle(Outcome::Refused);
                return Err(refusal.into_response(&headers, 0));
            }
        };
        let shared = headers::is_grpc(&headers);
        let parts = Parts {
            method: head.method,
            target: if shared { absolute(target, &headers) } else { target },
            headers,
            upload: Upload::new(body, &proxy.replay, &proxy.limits, shared),
            policy,
            shared,
            upgrade,
        };
        Ok(Self {
            pending,
            ticket,
            parts,
            client,
        })
    }

    /// Tries until there is an answer.
    pub(crate) async fn run(self, proxy: &Proxy, busy: &Busy) -> Response<ProxyBody> {
        let Self {
            mut pending,
            ticket,
            parts,
            client,
        } = self;
        let service = Arc::clone(&pending.service);
        let mut waited = Duration::ZERO;
        let mut tries = 0;
        let mut broken = 0;
        let mut moves = 0;
        let mut fresh = false;
        loop {
            let slot = match wait_for_slot(&service, ticket, &mut waited).await {
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
            let ending = match attempt(&slot, &parts, tries, fresh, moves < MAX_MOVES).await {
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
                    parts.upload.answer_begins();
                    if !parts.upload.is_ended() {
                        busy.answers_early();
                    }
                    let hold = Hold {
                        conn,
                        slot,
                        upload: parts.upload,
                        keep_alive,
                        suspicions: proxy.suspicions.clone(),
                    };
                    return match (response.status(), client) {
                        (StatusCode::SWITCHING_PROTOCOLS, Some(client)) => switch(proxy, busy, client, response, hold),
                        _ => response.map(|body| ProxyBody::Stream(Download::new(body, hold))),
                    };
                }
                Err(ending) => ending,
            };
            let instance = Arc::clone(slot.instance());
            instance.counters.broken.fetch_add(1, Ordering::Relaxed);
            let aside = |condition, reason: String| {
                put_aside(&service, &instance, condition, &reason, &proxy.suspicions);
            };
            let reason = match &ending {
                Ending::Client(fault) => {
                    pending.settle(match fault {
                        Fault::BrokenOff => Outcome::Cancelled,
                        Fault::TooSlow | Fault::TooLarge => Outcome::Refused,
                    });
                    busy.answers_early();
                    return Refusal::body(*fault, &proxy.limits).into_response(&parts.headers, tries);
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
                Ending::Refused => {
                    broken += 1;
                    aside(
                        Condition::Breaking,
                        "closed a new connection before a request was sent".to_owned(),
                    );
                    "connection closed at once".to_owned()
                }
                Ending::Moved { .. } => {
                    moves += u32::from(!instance.is_dropped());
                    "it left the routes or does not answer".to_owned()
                }
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

/// The target as HTTP/2 wants it, with scheme and authority.
fn absolute(target: Uri, headers: &HeaderMap) -> Uri {
    let host = headers.get(http::header::HOST).and_then(|host| host.to_str().ok());
    let mut parts = target.clone().into_parts();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    parts.authority = host.and_then(|host| host.parse().ok());
    // An odd Host stays in its field; the instance is to judge it.
    Uri::from_parts(parts).unwrap_or(target)
}

/// Lets both sides of a changed connection talk until one ends; the client's answer is the instance's.
fn switch(
    proxy: &Proxy,
    busy: &Busy,
    client: OnUpgrade,
    mut response: Response<Incoming>,
    hold: Hold,
) -> Response<ProxyBody> {
    let instance = hyper::upgrade::on(&mut response);
    let cut = proxy.cut.clone();
    let busy = busy.another();
    proxy.tasks.spawn(async move {
        tokio::select! {
            () = tunnel::run(client, instance, hold) => {}
            () = cut.cancelled() => {}
        }
        drop(busy);
    });
    response.map(|_| ProxyBody::empty())
}

async fn wait_for_slot(service: &Arc<Service>, ticket: Ticket, waited: &mut Duration) -> Result<Slot, Refusal> {
    loop {
        let mut waiter = match service.acquire(ticket) {
            Admission::Granted(slot) => return Ok(slot),
            Admission::Queued(waiter) => waiter,
            Admission::Unwilling => return Err(Refusal::no_capacity(service, *waited, false)),
            Admission::Full => return Err(Refusal::queue_full(service)),
            Admission::Stopped => return Err(Refusal::stopped(service)),
            Admission::Gone => return Err(Refusal::gone(service)),
        };
        let left = waiter.patience.saturating_sub(*waited);
        let began = Instant::now();
        let slot = tokio::time::timeout(left, waiter.slot()).await;
        *waited += began.elapsed();
        match slot {
            Ok(Some(slot)) => return Ok(slot),
            // The queue was dissolved: the next turn says why.
            Ok(None) => {}
            Err(_) => return Err(Refusal::no_capacity(service, *waited, true)),
        }
    }
}
