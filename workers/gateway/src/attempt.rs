//! One try of a request: a connection, the request over it, the beginning of the answer or how it ended without.
//!
//! Which endings allow another try is decided here by what can have reached the instance ([`Ending::sent`]) and what
//! the request allows ([`Parts::resendable`]); whether there is one is up to [`crate::forward`].

use std::pin::pin;
use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;

use crate::admission::Slot;
use crate::conn::{Conn, SendFailure};
use crate::dial::ConnectError;
use crate::headers;
use crate::health::{Condition, answered};
use crate::upload::{Fault, Upload};

/// When a request that has already been sent may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum RetryPolicy {
    /// Only what no instance can have seen.
    Never,
    /// Safe or idempotent methods, and requests with an `Idempotency-Key`.
    #[default]
    Idempotent,
    /// All.
    Any,
}

impl RetryPolicy {
    /// An unknown word of a newer door is read as the default.
    pub(crate) fn parse(word: &str) -> Self {
        match word {
            "never" => Self::Never,
            "any" => Self::Any,
            _ => Self::Idempotent,
        }
    }
}

/// How a try ended without an answer.
#[derive(Debug)]
pub(crate) enum Ending {
    /// No connection.
    Unreachable(ConnectError),
    /// A connection that had been used before closed before any of the request was written.
    Unsent,
    /// A new connection did, or the instance refused the request unseen.
    Refused,
    /// A connection that had been used before closed after the request was written.
    Stale(hyper::Error),
    /// A new connection broke after the request was written.
    Broke(hyper::Error),
    /// The instance was dropped from the routes or found unreachable.
    Moved { sent: bool },
    /// The client broke off its body, or its body broke a rule.
    Client(Fault),
}

impl Ending {
    pub(crate) fn sent(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Unsent | Self::Refused => false,
            Self::Moved { sent } => *sent,
            Self::Stale(_) | Self::Broke(_) | Self::Client(_) => true,
        }
    }
}

/// What each try of a request needs.
pub(crate) struct Parts {
    pub(crate) method: Method,
    pub(crate) target: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) upload: Upload,
    pub(crate) policy: RetryPolicy,
    /// To be sent by HTTP/2.
    pub(crate) shared: bool,
    /// What the client wants to change to.
    pub(crate) upgrade: Option<HeaderValue>,
}

impl Parts {
    pub(crate) fn resendable(&self, sent: bool) -> bool {
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

    pub(crate) fn why_final(&self) -> &'static str {
        if !self.upload.is_replayable() {
            "its body was too large to keep"
        } else if !self.policy_allows() {
            "it may have been carried out, and neither its method nor an Idempotency-Key says that twice is harmless"
        } else {
            "too many tries broke"
        }
    }
}

/// The beginning of an instance's answer.
pub(crate) struct Answer {
    pub(crate) response: Response<Incoming>,
    pub(crate) conn: Conn,
    pub(crate) keep_alive: bool,
}

/// Sends the request to the slot's instance and waits for the beginning of the answer.
pub(crate) async fn attempt(
    slot: &Slot,
    parts: &Parts,
    tries: u32,
    fresh: bool,
    may_move: bool,
) -> Result<Answer, Ending> {
    let instance = slot.instance();
    let may_repeat = parts.resendable(true);
    let mut disturbed = pin!(instance.disturbed.notified());
    disturbed.as_mut().enable();
    if instance.is_dropped() {
        return Err(Ending::Moved { sent: false });
    }
    let connecting = async {
        match parts.shared {
            true => instance.mux.get().await.map(Conn::Shared),
            false => instance.pool.get(may_repeat, fresh).await.map(Conn::Own),
        }
    };
    let mut conn = tokio::select! {
        biased;
        conn = connecting => conn.map_err(Ending::Unreachable)?,
        () = disturbed.as_mut() => return Err(Ending::Moved { sent: false }),
    };

    let mut request = Request::new(parts.upload.next_try());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = parts.target.clone();
    *request.headers_mut() = parts.headers.clone();
    if parts.shared {
        *request.version_mut() = Version::HTTP_2;
        if parts.target.authority().is_some() {
            request.headers_mut().remove(http::header::HOST);
        }
    }
    instance.counters.sent.fetch_add(1, Ordering::Relaxed);

    let awaiting = instance.vigil.begin();
    let reused_after = conn.reused_after();
    let answer = {
        let mut sending = pin!(conn.send(request));
        loop {
            tokio::select! {
                biased;
                answer = sending.as_mut() => break answer,
                () = disturbed.as_mut() => {
                    let elsewhere = instance.is_dropped()
                        || (may_move
                            && instance.health.condition() >= Condition::Silent
                            && slot.service().has_other(instance));
                    // Asked anew: the body may have outgrown its record meanwhile.
                    if elsewhere && parts.resendable(true) {
                        return Err(Ending::Moved { sent: true });
                    }
                    disturbed.set(instance.disturbed.notified());
                    disturbed.as_mut().enable();
                }
            }
        }
    };
    let mut response = match answer {
        Ok(response) => response,
        Err(failure) => {
            if let Some(fault) = parts.upload.fault() {
                return Err(Ending::Client(fault));
            }
            return Err(match (failure, reused_after) {
                (SendFailure::Unsent, Some(_)) => Ending::Unsent,
                (SendFailure::Unsent, None) => Ending::Refused,
                (SendFailure::Sent(error), Some(unused)) => {
                    if let Conn::Own(_) = conn {
                        instance.pool.went_stale(unused);
                    }
                    Ending::Stale(error)
                }
                (SendFailure::Sent(error), None) => Ending::Broke(error),
            });
        }
    };
    awaiting.answered(&slot.service().reactions);
    if response.status().is_server_error() {
        instance.counters.errors.fetch_add(1, Ordering::Relaxed);
    } else {
        instance.counters.ok.fetch_add(1, Ordering::Relaxed);
    }
    answered(slot.service(), instance);
    let version = response.version();
    let keep_alive = headers::prepare_response(response.headers_mut(), version, &instance.header, tries);
    if let (StatusCode::SWITCHING_PROTOCOLS, Some(protocol)) = (response.status(), &parts.upgrade) {
        headers::set_upgrade(response.headers_mut(), protocol.clone());
    }
    *response.version_mut() = Version::HTTP_11;
    Ok(Answer {
        response,
        conn,
        keep_alive,
    })
}
