//! What every handler and connection of a door has in hand.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tidemill_bus::commands::{Answer, SubmitError};
use tidemill_domain::command::Envelope;
use tidemill_domain::id::CommandId;
use tidemill_domain::state::State;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_protocol::Stamp;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::auth::TokenSource;
use crate::clock::Clock;
use crate::config::{DoorConfig, DoorDeps};
use crate::connect::Registry;
use crate::metrics::Metrics;
use crate::observer::Observer;
use crate::telemetry::Telemetry;

/// See the module.
pub(crate) struct Shared {
    pub(crate) config: DoorConfig,
    pub(crate) deps: DoorDeps,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) observer: Arc<Observer>,
    /// What nodes said of themselves last.
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) registry: Registry,
    pub(crate) tokens: TokenSource,
    pub(crate) requests: Arc<Semaphore>,
    pub(crate) streams: Arc<Semaphore>,
    /// URL of the gateway that connected last.
    gateway_url: RwLock<Option<String>>,
    /// Ends that were counted from a command's arrival, so that its retry asks for the same.
    ends: Mutex<VecDeque<(CommandId, Timestamp)>>,
    /// The door ends: streams and connections close.
    pub(crate) closing: CancellationToken,
}

/// Ends remembered for retries.
const ENDS_KEPT: usize = 256;

/// Pauses between tries of a command.
const SUBMIT_PAUSE_MIN: Duration = Duration::from_millis(20);
const SUBMIT_PAUSE_MAX: Duration = Duration::from_millis(500);

impl Shared {
    pub(crate) fn new(config: DoorConfig, deps: DoorDeps) -> Arc<Self> {
        let clock = Clock::start();
        let metrics = Arc::new(Metrics::default());
        Arc::new(Self {
            observer: Arc::new(Observer::new(&config.name, clock, Arc::clone(&metrics))),
            requests: Arc::new(Semaphore::new(config.limits.requests)),
            streams: Arc::new(Semaphore::new(config.limits.streams)),
            telemetry: Arc::default(),
            registry: Registry::default(),
            tokens: TokenSource::random(),
            gateway_url: RwLock::new(None),
            ends: Mutex::default(),
            closing: CancellationToken::new(),
            config,
            deps,
            clock,
            metrics,
        })
    }

    /// Where services are reached.
    pub(crate) fn gateway_url(&self) -> Option<String> {
        let seen = || self.gateway_url.read().unwrap_or_else(PoisonError::into_inner).clone();
        self.config.gateway_url.clone().or_else(seen)
    }

    pub(crate) fn saw_gateway(&self, url: &str) {
        *self.gateway_url.write().unwrap_or_else(PoisonError::into_inner) = Some(url.to_owned());
    }

    /// The end of something that begins at `from` (now if none) and lasts for `span`; the same for a command's retry.
    pub(crate) fn until(&self, command: CommandId, from: Option<Timestamp>, span: Span) -> Timestamp {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, end)) = ends.iter().find(|(known, _)| *known == command) {
            return *end;
        }
        let end = from.unwrap_or_else(|| self.clock.now()) + span;
        if ends.len() == ENDS_KEPT {
            ends.pop_front();
        }
        ends.push_back((command, end));
        end
    }

    /// Asks once and counts it.
    pub(crate) async fn submit_once(&self, envelope: Envelope) -> Result<Answer, SubmitError> {
        let name = envelope.command.name();
        let began = Instant::now();
        let result = self.deps.commands.submit(envelope).await;
        let outcome = match &result {
            Ok(_) => "ok",
            Err(error) => error.code(),
        };
        self.metrics.command(name, outcome, began.elapsed());
        result
    }

    /// Asks under one id until there is an answer or `patience` is over: a standby takes over within seconds, and
    /// asking again is asking once. An overload is told at once, since waiting here would only hide it.
    pub(crate) async fn submit(&self, envelope: Envelope, patience: Duration) -> Result<Answer, SubmitError> {
        let end = tokio::time::Instant::now() + patience;
        let mut pause = SUBMIT_PAUSE_MIN;
        loop {
            let error = match tokio::time::timeout_at(end, self.submit_once(envelope.clone())).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error @ (SubmitError::NoLeader { .. } | SubmitError::Unknown { .. }))) => error,
                Ok(Err(error)) => return Err(error),
                Err(_) => {
                    let reason = format!("no answer within {} ms", patience.as_millis());
                    return Err(SubmitError::Unknown { reason });
                }
            };
            let jittered = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
            if tokio::time::Instant::now() + jittered >= end {
                return Err(error);
            }
            tokio::time::sleep(jittered).await;
            pause = (pause * 2).min(SUBMIT_PAUSE_MAX);
        }
    }
}

/// Where `state` stands.
pub(crate) fn stamp(state: &State) -> Stamp {
    Stamp {
        cell: state.cell.name.clone(),
        ledger: state.cell.ledger.to_string(),
        epoch: state.cell.epoch,
        sequence: state.sequence,
    }
}
