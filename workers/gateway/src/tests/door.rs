//! The link to a door: routes put to use and acknowledged, samples and suspicions sent, outages survived.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http::Method;
use tidemill_protocol::gateway::{DoorToGateway, GatewayMessage, GatewayWelcome, Routes, TrafficSample};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::support::*;
use crate::Limits;

struct Door {
    listener: TcpListener,
}

struct Session(WebSocketStream<TcpStream>);

impl Door {
    async fn session(&self) -> Session {
        let (stream, _) = self.listener.accept().await.unwrap();
        let mut session = Session(tokio_tungstenite::accept_async(stream).await.unwrap());
        let hello = session.next().await;
        assert!(
            matches!(&hello, GatewayMessage::Hello(h) if h.name == "gw"),
            "{hello:?}"
        );
        let welcome = GatewayWelcome { beat_ms: 100 };
        session.send(DoorToGateway::Welcome(welcome)).await;
        session
    }
}

impl Session {
    async fn send(&mut self, message: DoorToGateway) {
        let text = serde_json::to_string(&message).unwrap();
        self.0.send(Message::text(text)).await.unwrap();
    }

    async fn next(&mut self) -> GatewayMessage {
        loop {
            let next = tokio::time::timeout(Duration::from_secs(10), self.0.next());
            match next.await.unwrap().unwrap().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                _ => continue,
            }
        }
    }

    async fn applied(&mut self) -> u64 {
        loop {
            if let GatewayMessage::Applied(stamp) = self.next().await {
                return stamp.sequence;
            }
        }
    }

    /// Samples of beats until `enough`.
    async fn samples(&mut self, enough: impl Fn(&[TrafficSample]) -> bool) -> Vec<TrafficSample> {
        let mut samples = Vec::new();
        while !enough(&samples) {
            if let GatewayMessage::Beat(beat) = self.next().await {
                samples.extend(beat.samples);
            }
        }
        samples
    }
}

fn routes(sequence: u64, services: Vec<tidemill_protocol::gateway::ServiceRoute>) -> DoorToGateway {
    DoorToGateway::Routes(Routes {
        stamp: stamp(sequence),
        services,
    })
}

#[tokio::test]
async fn routes_come_down_and_word_goes_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let door = Door { listener };
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&dir, Limits::default());
    config.servers = vec![url.parse().unwrap()];
    let gw = gateway_with(config, dir).await;
    let a = Echo::start("a", Duration::ZERO).await;
    let dead = closed_port().await;

    let mut session = door.session().await;
    session.send(routes(5, vec![route(&[("inst-a", a.address)])])).await;
    assert_eq!(session.applied().await, 5);
    assert_eq!(gw.get("/svc/").await.status, 200, "in use when acknowledged");
    session.send(routes(4, vec![])).await;
    session.send(routes(5, vec![route(&[("inst-a", a.address)])])).await;
    assert_eq!(session.applied().await, 5, "the re-read, not the older one");
    assert_eq!(gw.get("/svc/error").await.status, 500);
    let ok = |samples: &[TrafficSample]| samples.iter().map(|s| s.ok + s.application_errors).sum::<u64>();
    let samples = session.samples(|s| ok(s) == 2).await;
    let by_instance: u64 = samples.iter().flat_map(|s| &s.instances).map(|i| i.sent).sum();
    assert_eq!(by_instance, 2);
    assert!(
        samples
            .iter()
            .all(|s| s.seconds == 1 && s.age_ms < 1500 && !s.is_perceived())
    );
    assert_eq!(samples.iter().flat_map(|s| &s.latency).sum::<u64>(), 2);

    session
        .send(routes(6, vec![route(&[("inst-x", dead), ("inst-a", a.address)])]))
        .await;
    assert_eq!(session.applied().await, 6);
    for _ in 0..20 {
        assert_eq!(gw.get("/svc/").await.status, 200);
    }
    loop {
        if let GatewayMessage::Suspicion(suspicion) = session.next().await {
            assert_eq!(suspicion.instance, "inst-x");
            assert!(suspicion.reason.contains("refused"), "{}", suspicion.reason);
            break;
        }
    }
    session.samples(|s| ok(s) >= 20).await;

    // The door goes away: serving goes on, and what was seen meanwhile comes with the next connection.
    drop(session);
    for _ in 0..10 {
        assert_eq!(gw.get("/svc/").await.status, 200);
    }
    let mut session = door.session().await;
    let samples = session.samples(|s| ok(s) >= 10).await;
    assert_eq!(ok(&samples), 10);
    // Another ledger's routes do not undo what runs.
    let mut foreign = stamp(99);
    foreign.ledger = "other".into();
    let foreign = Routes {
        stamp: foreign,
        services: vec![],
    };
    session.send(DoorToGateway::Routes(foreign)).await;
    session.send(routes(7, vec![route(&[("inst-a", a.address)])])).await;
    assert_eq!(session.applied().await, 7);
    let reply = send(gw.address, request(Method::GET, "/svc/")).await.unwrap();
    assert_eq!(reply.status, 200);

    // On disk are the last ones used.
    gw.shutdown.cancel();
    gw.task.await.unwrap();
    let stored = crate::store::load(&crate::store::path(gw.dir.path())).unwrap();
    assert_eq!(stored.stamp, stamp(7));
}
