//! The link to a door: routes come down, and word of what is in use and what clients perceived goes up.
//!
//! Invariants: `Applied` is sent only after the routes serve; nothing here can stop serving, whatever a door says or
//! however long none answers; what could not be sent is kept within bounds ([`crate::report`]) and goes with a later
//! beat. Samples that were handed to a connection which then broke are lost: an acknowledged channel would buy exact
//! counts for a second of which the door's silence is already on record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidemill_client::{Connection, Link, LinkConfig, LinkEvent};
use tidemill_protocol::gateway::{
    DoorToGateway, GatewayBeat, GatewayHello, GatewayMessage, Routes, Suspicion, TrafficSample,
};
use tidemill_protocol::{GATEWAY_PATH, PROTOCOL_VERSION};
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::config::GatewayConfig;
use crate::proxy::Proxy;
use crate::table::Routed;

const SECOND: Duration = Duration::from_secs(1);
/// Fastest beat a door can ask for.
const BEAT_MIN: Duration = Duration::from_millis(50);
/// Samples and instances within them in one message: about 2 MiB, a quarter of the largest message.
const MESSAGE_WEIGHT: usize = 16_384;

type Door = Connection<GatewayMessage>;

/// Runs until `shutdown`; closes a second each second, with or without a door.
pub(crate) struct Control {
    proxy: Arc<Proxy>,
    hello: GatewayHello,
    latest: watch::Sender<Option<Arc<Routes>>>,
    /// A connection on which the door has not welcomed us yet; nothing but the hello may go over it.
    greeting: Option<Door>,
    /// The connection, once its door has welcomed us.
    door: Option<Door>,
    beats: u64,
    unsent: Vec<(Instant, TrafficSample)>,
}

impl Control {
    pub(crate) fn new(
        proxy: Arc<Proxy>,
        config: &GatewayConfig,
        url: String,
        latest: watch::Sender<Option<Arc<Routes>>>,
    ) -> Self {
        Self {
            proxy,
            hello: GatewayHello {
                protocol: PROTOCOL_VERSION,
                name: config.name.clone(),
                gateway_id: format!("{:032x}", fastrand::u128(..)),
                url,
            },
            latest,
            greeting: None,
            door: None,
            beats: 0,
            unsent: Vec::new(),
        }
    }

    pub(crate) async fn run(
        mut self,
        config: &GatewayConfig,
        mut suspicions: mpsc::Receiver<Suspicion>,
        shutdown: CancellationToken,
    ) {
        let mut link = (!config.servers.is_empty()).then(|| {
            let servers = config.servers.clone();
            Link::open(LinkConfig::new(servers, GATEWAY_PATH, config.token.clone()))
        });
        let mut seconds = every(SECOND);
        let mut beats = every(SECOND);
        // The first tick of an interval is at once, and no second has passed yet.
        seconds.tick().await;
        loop {
            let event = async {
                match &mut link {
                    Some(link) => link.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                _ = seconds.tick() => self.proxy.tick(Instant::now()),
                _ = beats.tick() => self.beat(),
                Some(suspicion) = suspicions.recv() => {
                    if let Some(door) = &self.door {
                        // A door too slow to take it sees the counts in the next beat.
                        let _ = door.try_send(GatewayMessage::Suspicion(suspicion));
                    }
                }
                event = event => match event {
                    Some(LinkEvent::Connected(door)) => {
                        let hello = GatewayMessage::Hello(self.hello.clone());
                        self.door = None;
                        self.greeting = door.try_send(hello).is_ok().then_some(door);
                    }
                    Some(LinkEvent::Message(message)) => {
                        if let Some(pause) = self.message(message) {
                            beats = every(pause);
                        }
                    }
                    Some(LinkEvent::Disconnected { .. }) => self.disconnected(),
                    None => link = None,
                },
            }
        }
        self.proxy.tick(Instant::now());
        self.beat();
        if let Some(link) = link {
            link.close().await;
        }
    }

    /// Acts on a door's message; gives the pause between beats when a door sets it.
    fn message(&mut self, message: DoorToGateway) -> Option<Duration> {
        match message {
            DoorToGateway::Welcome(welcome) => {
                if let Some(door) = self.greeting.take() {
                    self.door = Some(door);
                }
                return Some(Duration::from_millis(welcome.beat_ms).max(BEAT_MIN));
            }
            DoorToGateway::Routes(routes) => self.routes(routes),
            DoorToGateway::Refused(problem) => {
                tracing::error!(
                    code = problem.code,
                    next = problem.next,
                    "the door refused this gateway: {}; serving the last routes",
                    problem.detail
                );
                self.disconnected();
            }
            DoorToGateway::Unknown => tracing::debug!("message of a newer door skipped"),
        }
        None
    }

    fn disconnected(&mut self) {
        self.door = None;
        self.greeting = None;
    }

    fn routes(&mut self, routes: Routes) {
        match self.proxy.apply(&routes) {
            Routed::InUse => {
                if let Some(door) = &self.door {
                    // A full queue is no loss: the stamp in use is in every beat as well.
                    let _ = door.try_send(GatewayMessage::Applied(routes.stamp.clone()));
                }
                self.latest.send_if_modified(|latest| {
                    let news = latest.as_ref().is_none_or(|l| l.stamp != routes.stamp);
                    if news {
                        *latest = Some(Arc::new(routes));
                    }
                    news
                });
            }
            Routed::Older => {
                tracing::debug!(sequence = routes.stamp.sequence, "older routes ignored");
            }
            Routed::OtherLedger => tracing::error!(
                code = "ledger_changed",
                cell = routes.stamp.cell,
                ledger = routes.stamp.ledger,
                "routes of another ledger ignored, serving goes on as before; if the ledger was replaced on purpose, \
                 stop this gateway, delete routes.json in its data directory and start it"
            ),
        }
    }

    fn beat(&mut self) {
        let Some(door) = self.door.clone() else {
            return;
        };
        if self.unsent.is_empty() {
            self.unsent = self.proxy.with_reporter(|reporter| reporter.take());
        }
        loop {
            let mut weight = 0;
            let now = self
                .unsent
                .iter()
                .take_while(|(_, sample)| {
                    let fits = weight < MESSAGE_WEIGHT;
                    weight += 1 + sample.instances.len();
                    fits
                })
                .count();
            let sent_at = Instant::now();
            let samples = self.unsent[..now].iter().map(|(closed, sample)| {
                let age = sent_at.saturating_duration_since(*closed);
                TrafficSample {
                    age_ms: age.as_millis() as u64,
                    ..sample.clone()
                }
            });
            let beat = GatewayBeat {
                number: self.beats + 1,
                applied: self.proxy.router.stamp(),
                samples: samples.collect(),
            };
            if door.try_send(GatewayMessage::Beat(beat)).is_err() {
                return;
            }
            self.beats += 1;
            self.unsent.drain(..now);
            if self.unsent.is_empty() {
                return;
            }
        }
    }
}

/// After a stall one tick is enough.
fn every(pause: Duration) -> Interval {
    let mut interval = tokio::time::interval(pause);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
