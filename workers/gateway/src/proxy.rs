//! What all connections of a gateway share, and where each request enters.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use tidemill_protocol::gateway::{Routes, Suspicion};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Limits;
use crate::download::ProxyBody;
use crate::forward::Forward;
use crate::refusal::Refusal;
use crate::report::Reporter;
use crate::roster::Busy;
use crate::table::{Routed, Router};
use crate::upload::ReplayBudget;

/// Suspicions not yet sent; more than these say nothing new.
const SUSPICIONS: usize = 256;
/// Answers 200 while the process serves. `-` cannot name a service.
const LIVE_PATH: &str = "/-/livez";
/// Answers 200 once there are routes, 503 before.
const READY_PATH: &str = "/-/readyz";

/// The proxy: routes, limits, and what is to be reported.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) router: Router,
    pub(crate) limits: Limits,
    pub(crate) replay: Arc<ReplayBudget>,
    pub(crate) suspicions: mpsc::Sender<Suspicion>,
    /// Whatever serves a client: connections, and what they changed to.
    pub(crate) tasks: TaskTracker,
    /// Ends all of them at once.
    pub(crate) cut: CancellationToken,
    reporter: Mutex<Reporter>,
}

impl Proxy {
    pub(crate) fn new(limits: Limits) -> (Self, mpsc::Receiver<Suspicion>) {
        let (suspicions, receiver) = mpsc::channel(SUSPICIONS);
        let proxy = Self {
            router: Router::default(),
            replay: Arc::new(ReplayBudget::new(limits.replay_bytes, limits.replay_total_bytes)),
            limits,
            suspicions,
            tasks: TaskTracker::new(),
            cut: CancellationToken::new(),
            reporter: Mutex::default(),
        };
        (proxy, receiver)
    }

    /// Puts routes to use; see [`Router::apply`].
    pub(crate) fn apply(&self, routes: &Routes) -> Routed {
        let (routed, retired) = self.router.apply(routes, &self.limits);
        if !retired.is_empty() {
            self.with_reporter(|reporter| reporter.retire(retired));
        }
        routed
    }

    /// Closes the second for all services, and unused connections that are too old.
    pub(crate) fn tick(&self, now: Instant) {
        let table = self.router.current();
        for service in table.services() {
            for instance in service.instances() {
                instance.pool.expire();
                instance.mux.expire();
            }
        }
        self.with_reporter(|reporter| reporter.close_second(table.services(), now));
    }

    pub(crate) fn with_reporter<T>(&self, f: impl FnOnce(&mut Reporter) -> T) -> T {
        f(&mut self.reporter.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes one request in: to be forwarded, or answered at once.
    #[expect(
        clippy::result_large_err,
        reason = "the other variant is larger still, and each is moved once"
    )]
    pub(crate) fn accept(&self, busy: &Busy, request: Request<Incoming>) -> Result<Forward, Response<ProxyBody>> {
        let headers = request.headers();
        let refuse = |refusal: Refusal| {
            if !request.body().is_end_stream() {
                busy.answers_early();
            }
            refusal.into_response(headers, 0)
        };
        if request.method() == Method::CONNECT {
            return Err(refuse(Refusal::MethodNotSupported));
        }
        // Over HTTP/1.1 the library has seen to it.
        if request.version() == Version::HTTP_2 && self.is_too_large(headers) {
            let (bytes, fields) = (self.limits.max_header_bytes, self.limits.max_headers);
            return Err(refuse(Refusal::HeadTooLarge { bytes, fields }));
        }
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        if target > self.limits.max_target_bytes {
            let limit = self.limits.max_target_bytes;
            return Err(refuse(Refusal::TargetTooLong { limit }));
        }
        if request.body().size_hint().lower() > self.limits.max_body_bytes {
            let limit = self.limits.max_body_bytes;
            return Err(refuse(Refusal::BodyTooLarge { limit }));
        }
        let host = match headers.get(HOST) {
            Some(host) => host.to_str().ok(),
            None => request.uri().authority().map(|authority| authority.as_str()),
        };
        let path = request.uri().path();
        let table = self.router.current();
        let Some((service, prefix_len)) = table.resolve(host, path) else {
            return Err(self.own(path).unwrap_or_else(|| {
                let path = path.chars().take(200).collect();
                refuse(Refusal::NoSuchService { path })
            }));
        };
        Forward::new(self, service, busy, prefix_len, request)
    }

    fn is_too_large(&self, headers: &HeaderMap) -> bool {
        let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        headers.len() > self.limits.max_headers || bytes.sum::<usize>() > self.limits.max_header_bytes
    }

    /// The gateway's own pages.
    fn own(&self, path: &str) -> Option<Response<ProxyBody>> {
        let status = match path {
            LIVE_PATH => StatusCode::OK,
            READY_PATH if self.router.stamp().is_some() => StatusCode::OK,
            READY_PATH => StatusCode::SERVICE_UNAVAILABLE,
            _ => return None,
        };
        let text = if status == StatusCode::OK {
            "ok\n"
        } else {
            "no routes yet: no door was heard and none are on disk\n"
        };
        let body = Full::new(Bytes::from_static(text.as_bytes()));
        let mut response = Response::new(ProxyBody::Whole(body));
        *response.status_mut() = status;
        Some(response)
    }
}
