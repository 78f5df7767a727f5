//! The leader's side: answering requests, beating, and hearing others beat.

use std::sync::Arc;
use std::time::Duration;

use async_nats::client::Request;
use async_nats::{Client, RequestErrorKind, Subscriber};
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::NatsTransport;
use super::wire::{Ask, encode_reply};
use crate::backoff::Backoff;
use crate::commands::{Answer, SubmitError};
use crate::sequencer::CandidateStatus;

/// How often a leader says that it leads.
pub(crate) const BEAT: Duration = Duration::from_millis(500);

/// How long the answer to a ping may take.
const PING: Duration = Duration::from_millis(500);

/// Requests at work at the leader at once; beyond it the answer is `overloaded` at once.
const AT_WORK: usize = 2048;

/// What a leader says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beat {
    pub(crate) leader: String,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    /// It is about to end: a standby need not wait for silence.
    #[serde(default)]
    pub(crate) leaving: bool,
}

/// Whether someone leads, as a ping tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It answered.
    Leads,
    /// Nobody listens where a leader would.
    Nobody,
    /// No word: it may hang, or the network may.
    Silent,
}

/// What leaders say, as it comes.
pub(crate) struct Beats {
    transport: NatsTransport,
    subscriber: Option<Subscriber>,
    backoff: Backoff,
}

impl Beats {
    pub(crate) fn new(transport: &NatsTransport) -> Self {
        Self {
            transport: transport.clone(),
            subscriber: None,
            backoff: Backoff::new(),
        }
    }

    /// The next beat. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Beat {
        loop {
            let subscriber = match &mut self.subscriber {
                Some(subscriber) => subscriber,
                None => {
                    let client = self.transport.nats.client();
                    match client.subscribe(self.transport.leader_subject()).await {
                        Ok(subscriber) => self.subscriber.insert(subscriber),
                        Err(error) => {
                            tracing::warn!(code = "nats_subscribe", %error, "cannot listen for the leader");
                            self.backoff.pause().await;
                            continue;
                        }
                    }
                }
            };
            match subscriber.next().await {
                Some(message) => {
                    if let Ok(beat) = serde_json::from_slice(&message.payload) {
                        self.backoff.reset();
                        return beat;
                    }
                }
                None => {
                    self.subscriber = None;
                    self.backoff.pause().await;
                }
            }
        }
    }
}

impl NatsTransport {
    /// Asks whether someone leads.
    pub(crate) async fn presence(&self) -> Presence {
        if !self.nats.is_connected() {
            return Presence::Silent;
        }
        let request = Request::new().timeout(Some(PING));
        match self.nats.client().send_request(self.ping_subject(), request).await {
            Ok(_) => Presence::Leads,
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Presence::Nobody,
            Err(_) => Presence::Silent,
        }
    }
}

/// Does all a leader does towards other processes, until `ended`. Cancels `deposed` when a later epoch is heard.
///
/// `submit` puts a command before the sequencer of this process.
pub(crate) async fn lead<F>(
    transport: NatsTransport,
    mut status: watch::Receiver<CandidateStatus>,
    me: (String, u64),
    submit: impl Fn(tidemill_domain::command::Envelope, [u8; 16]) -> F + Send + Sync + 'static,
    deposed: CancellationToken,
    ended: CancellationToken,
) where
    F: Future<Output = Result<Answer, SubmitError>> + Send + 'static,
{
    let (name, epoch) = me;
    let submit = Arc::new(submit);
    let client = transport.nats.client().clone();
    let at_work = Arc::new(Semaphore::new(AT_WORK));
    let mut backoff = Backoff::new();
    let mut beats = Beats::new(&transport);
    let mut beat = tokio::time::interval(BEAT);
    beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    while !ended.is_cancelled() {
        let subscribed = async {
            let commands = client.subscribe(transport.commands_subject()).await?;
            let pings = client.subscribe(transport.ping_subject()).await?;
            Ok::<_, async_nats::SubscribeError>((commands, pings))
        };
        let (mut commands, mut pings) = match subscribed.await {
            Ok(both) => both,
            Err(error) => {
                tracing::warn!(code = "nats_subscribe", %error, "cannot take commands from other processes");
                backoff.pause().await;
                continue;
            }
        };
        backoff.reset();
        loop {
            let said = |status: &CandidateStatus| Beat {
                leader: name.clone(),
                epoch,
                sequence: status.sequence,
                leaving: false,
            };
            tokio::select! {
                biased;
                () = ended.cancelled() => {
                    // What the server sends before it forgets us is answered too: an asker without a word would wait.
                    let _ = (commands.drain().await, pings.drain().await);
                    while let Ok(Some(message)) = tokio::time::timeout(PING, commands.next()).await {
                        if let Some(reply) = message.reply {
                            let reason = "this process no longer leads".to_owned();
                            let gone = encode_reply(Err(SubmitError::NoLeader { reason }));
                            let _ = client.publish(reply, gone.into()).await;
                        }
                    }
                    return;
                }
                _ = beat.tick() => {
                    let beat = said(&status.borrow_and_update());
                    publish(&client, &transport, &beat).await;
                }
                heard = beats.next() => {
                    if heard.epoch > epoch {
                        tracing::warn!(code = "deposed", leader = heard.leader, epoch = heard.epoch, "a later epoch was heard");
                        deposed.cancel();
                    }
                }
                ping = pings.next() => {
                    let Some(ping) = ping else { break };
                    if let Some(reply) = ping.reply {
                        let beat = said(&status.borrow());
                        let _ = client.publish(reply, encode_beat(&beat).into()).await;
                    }
                }
                message = commands.next() => {
                    let Some(message) = message else { break };
                    let Some(reply) = message.reply else { continue };
                    let client = client.clone();
                    let Ok(permit) = Arc::clone(&at_work).try_acquire_owned() else {
                        let overloaded = encode_reply(Err(SubmitError::Overloaded { waiting: AT_WORK }));
                        let _ = client.publish(reply, overloaded.into()).await;
                        continue;
                    };
                    let submit = Arc::clone(&submit);
                    tokio::spawn(async move {
                        let result = match serde_json::from_slice::<Ask>(&message.payload) {
                            Ok(ask) => {
                                let body_hash = ask.body_hash();
                                submit(ask.envelope, body_hash).await
                            }
                            Err(error) => Err(not_understood(&error)),
                        };
                        // If this does not arrive, the asker asks again under the same id.
                        let _ = client.publish(reply, encode_reply(result).into()).await;
                        drop(permit);
                    });
                }
            }
        }
    }
}

fn not_understood(error: &serde_json::Error) -> SubmitError {
    SubmitError::Rejected {
        rejection: tidemill_domain::rejection::Rejection::Invalid {
            key: "command".to_owned(),
            reason: format!("the leader does not understand it: {error}"),
        },
        sequence: 0,
    }
}

/// Says that the leader of `epoch` is about to end.
pub(crate) async fn announce_leaving(transport: &NatsTransport, leader: &str, epoch: u64, sequence: u64) {
    let beat = Beat {
        leader: leader.to_owned(),
        epoch,
        sequence,
        leaving: true,
    };
    let client = transport.nats.client();
    publish(client, transport, &beat).await;
    // Else the word might die with the process.
    let _ = tokio::time::timeout(PING, client.flush()).await;
}

async fn publish(client: &Client, transport: &NatsTransport, beat: &Beat) {
    // While disconnected the client would keep them all and send them at once later.
    if transport.nats.is_connected() {
        let _ = client
            .publish(transport.leader_subject(), encode_beat(beat).into())
            .await;
    }
}

fn encode_beat(beat: &Beat) -> Vec<u8> {
    serde_json::to_vec(beat).expect("a beat is plain data")
}
