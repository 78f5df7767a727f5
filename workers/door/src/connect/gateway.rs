//! A gateway's connection, from greeting to end.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::response::Response;
use bytes::Bytes;
use tidemill_domain::id::InstanceId;
use tidemill_kit::observation::{self, BEAT, Body};
use tidemill_protocol::gateway::{DoorToGateway, GatewayHello, GatewayMessage, GatewayWelcome};
use tidemill_protocol::{MAX_MESSAGE_BYTES, Problem, Stamp};
use tokio::sync::watch;

use super::agent::{no_websocket, unwelcome};
use super::registry::Signals;
use super::socket::{self, Heard, Reader};
use super::{rotation, translate_agent, translate_gateway};
use crate::gate::{Caller, Peer};
use crate::metrics::Counted;
use crate::problem::Refusal;
use crate::shared::Shared;

pub(crate) async fn connect(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<Peer>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let upgrade = upgrade.map_err(|error| no_websocket(&error.body_text()))?;
    let task = shared.registry.task();
    Ok(upgrade
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .on_upgrade(move |socket| async move {
            talk(shared, caller, socket).await;
            // They count for as long as the connection lasts.
            drop((task, peer));
        }))
}

async fn talk(shared: Arc<Shared>, caller: Caller, socket: WebSocket) {
    let limits = &shared.config.limits;
    let (mut reader, outgoing, writer) =
        socket::split::<DoorToGateway>(socket, limits.silent_after, limits.write_timeout);
    let greeted = tokio::select! {
        () = shared.closing.cancelled() => return,
        greeted = greet(&shared, &mut reader) => greeted,
    };
    // Routes that stand already are news to this gateway.
    let mut routes = shared.registry.routes.subscribe();
    routes.mark_changed();
    let hello = match greeted {
        Ok(Some(hello)) => hello,
        Ok(None) => return,
        Err(Refusal(problem)) => {
            tracing::info!(code = problem.code, %problem, "a gateway was refused");
            let writing = tokio::spawn(writer.run(routes));
            outgoing.send(DoorToGateway::Refused(*problem)).await;
            drop(outgoing);
            let _ = writing.await;
            return;
        }
    };
    let _counted = Counted::in_(&shared.metrics.gateways);
    shared.saw_gateway(&hello.url);
    let connection = shared.registry.number();
    let signals = Signals::new(caller.principal.credential());
    shared.registry.enter_gateway(&hello.name, connection, signals.clone());
    tracing::info!(gateway = hello.name, url = hello.url, "a gateway connected");
    // The welcome is queued before the writer runs, so it goes before any routes.
    outgoing
        .send(DoorToGateway::Welcome(GatewayWelcome { beat_ms: BEAT.millis() }))
        .await;
    let mut writing = tokio::spawn(writer.run(routes));
    let (applied, applying) = watch::channel(0);
    let reporting = tokio::spawn(rotation::report(Arc::clone(&shared), hello.name.clone(), applying));
    let session = Session {
        shared: &shared,
        hello,
        applied,
    };
    loop {
        tokio::select! {
            biased;
            () = shared.closing.cancelled() => break,
            () = signals.unwelcome.cancelled() => {
                let problem = unwelcome(&shared, signals.credential);
                tracing::info!(gateway = session.hello.name, code = problem.code, "a gateway's connection was ended");
                outgoing.send(DoorToGateway::Refused(problem)).await;
                break;
            }
            () = signals.superseded.cancelled() => {
                outgoing.send(DoorToGateway::Refused(session.superseded())).await;
                break;
            }
            _ = &mut writing => break,
            heard = reader.next() => match heard {
                Heard::Text(text) => session.hear(&text),
                Heard::Ended { on_purpose, reason } => {
                    tracing::info!(gateway = session.hello.name, reason, "a gateway's connection ended");
                    if on_purpose {
                        let gateway = session.hello.name.clone();
                        shared.observer.heard(&Body::GatewayGone { gateway, reason });
                    }
                    break;
                }
            },
        }
    }
    shared.registry.leave_gateway(&session.hello.name, connection);
    reporting.abort();
    drop(outgoing);
    if !writing.is_finished() {
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut writing).await;
        writing.abort();
    }
}

async fn greet(shared: &Shared, reader: &mut Reader) -> Result<Option<GatewayHello>, Refusal> {
    let pick = |message| match message {
        GatewayMessage::Hello(hello) => Some(hello),
        _ => None,
    };
    let Some(hello) = reader.greeting(shared.config.limits.hello_timeout, pick).await? else {
        return Ok(None);
    };
    translate_gateway::hello(&hello)?;
    Ok(Some(hello))
}

struct Session<'a> {
    shared: &'a Shared,
    hello: GatewayHello,
    /// Last record whose routes it follows.
    applied: watch::Sender<u64>,
}

impl Session<'_> {
    fn superseded(&self) -> Problem {
        Problem::new(
            409,
            "superseded",
            format!("another connection speaks for gateway `{}` now", self.hello.name),
            "if two gateways run under one name, give one of them another",
        )
    }

    fn hear(&self, text: &Bytes) {
        match serde_json::from_slice(text) {
            Ok(GatewayMessage::Beat(beat)) => {
                let name = &self.hello.name;
                let beats = self
                    .shared
                    .deps
                    .view
                    .read(|state| translate_gateway::beats(state, name, &beat));
                for beat in beats {
                    self.shared.observer.heard(&Body::GatewayBeat(beat));
                }
                if let Some(stamp) = &beat.applied {
                    self.applies(stamp);
                }
            }
            Ok(GatewayMessage::Applied(stamp)) => {
                let applied = self
                    .shared
                    .deps
                    .view
                    .read(|state| translate_gateway::applied(state, &stamp));
                self.shared.observer.heard(&Body::GatewayBeat(observation::GatewayBeat {
                    gateway: self.hello.name.clone(),
                    applied,
                    samples: Vec::new(),
                }));
                self.applies(&stamp);
            }
            Ok(GatewayMessage::Suspicion(suspicion)) => {
                if let Ok(instance) = InstanceId::from_str(&suspicion.instance) {
                    self.shared.observer.heard(&Body::Suspicion {
                        gateway: self.hello.name.clone(),
                        instance,
                        reason: translate_agent::shorten(&suspicion.reason),
                    });
                }
            }
            Ok(GatewayMessage::Hello(_) | GatewayMessage::Unknown) => {
                tracing::debug!(gateway = self.hello.name, "a message was skipped");
            }
            Err(error) => {
                self.shared
                    .metrics
                    .malformed
                    .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tracing::debug!(gateway = self.hello.name, %error, "a message that does not parse was skipped");
            }
        }
    }

    fn applies(&self, stamp: &Stamp) {
        let applied = self
            .shared
            .deps
            .view
            .read(|state| translate_gateway::applied(state, stamp));
        if let Some(applied) = applied {
            self.applied.send_replace(applied.sequence);
        }
    }
}
