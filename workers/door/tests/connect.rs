//! Agents and gateways against a door with a real sequencer behind it.
#![allow(clippy::unwrap_used)]

#[path = "connect/joining.rs"]
mod joining;
mod support;

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use support::{Cell, service, soon};
use tidemill_bus::commands::SubmitError;
use tidemill_client::Call;
use tidemill_domain::command::Command;
use tidemill_domain::events::instance::{Hold, Placement};
use tidemill_domain::events::placement::Explanation;
use tidemill_domain::id::{DeviceId, InstanceId, NodeId, ServiceId};
use tidemill_domain::rejection::Rejection;
use tidemill_domain::state::State;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::node::NodeState;
use tidemill_domain::unit::Milli;
use tidemill_kit::observation::Body;
use tidemill_protocol::agent::*;
use tidemill_protocol::gateway::{self, DoorToGateway, GatewayHello, GatewayMessage, Routes};
use tidemill_protocol::{AGENT_PATH, GATEWAY_PATH, PROTOCOL_VERSION};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async};

struct Peer(WebSocketStream<TcpStream>);

impl Peer {
    async fn connect(cell: &Cell, path: &str, token: Option<&str>) -> Result<Self, u16> {
        let host = cell.url.trim_start_matches("http://");
        let mut request = format!("ws://{host}{path}").into_client_request().unwrap();
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.headers_mut().insert("authorization", value);
        }
        let stream = TcpStream::connect(host).await.unwrap();
        match client_async(request, stream).await {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn send(&mut self, message: &impl Serialize) {
        let text = serde_json::to_string(message).unwrap();
        self.0.send(Message::text(text)).await.unwrap();
    }

    /// The next message; none at the end.
    async fn next<M: DeserializeOwned>(&mut self) -> Option<M> {
        loop {
            match soon(self.0.next()).await? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// The connection ends, after what was on its way.
    async fn ends(&mut self) {
        for _ in 0..20 {
            if self.next::<Value>().await.is_none() {
                return;
            }
        }
        panic!("it goes on");
    }

    /// Skips messages until one is wanted.
    async fn until<M: DeserializeOwned, T>(&mut self, wanted: impl Fn(M) -> Option<T>) -> T {
        loop {
            let message = self.next().await.expect("the connection is open");
            if let Some(found) = wanted(message) {
                return found;
            }
        }
    }
}

fn hello(name: &str) -> Hello {
    Hello {
        protocol: PROTOCOL_VERSION,
        version: "1".into(),
        name: name.into(),
        supply: "idc".into(),
        provider: "own".into(),
        region: "east".into(),
        zone: "a".into(),
        address: Some("127.0.0.1".into()),
        boot_id: "boot".into(),
        machine_id: format!("machine-{name}"),
        agent_id: "agent-1".into(),
        devices: vec![DeviceInfo {
            uuid: format!("CPU-{name}"),
            kind: "cpu".into(),
            model: "cpu".into(),
            memory_bytes: 1 << 30,
            speed_milli: 1000,
            simulated: false,
        }],
        instances: vec![],
        applied: None,
        runtimes: vec![],
        limitations: vec![],
        inspection: None,
    }
}

/// An agent that is welcome, and its node.
async fn agent(cell: &Cell, hello: Hello) -> (Peer, NodeId) {
    let mut peer = Peer::connect(cell, AGENT_PATH, None).await.unwrap();
    peer.send(&AgentMessage::Hello(hello)).await;
    let welcome = peer
        .until(|message| match message {
            DoorMessage::Welcome(welcome) => Some(welcome),
            DoorMessage::Refused(problem) => panic!("{problem}"),
            _ => None,
        })
        .await;
    assert!(welcome.stamp.sequence > 0 && welcome.stamp.cell == "test");
    (peer, welcome.node.parse().unwrap())
}

/// Places one instance of a new service on the node.
async fn place(cell: &Cell, node: NodeId, node_name: &str) -> InstanceId {
    place_of(cell, node, node_name, &service("default", "web")).await
}

async fn place_of(cell: &Cell, node: NodeId, node_name: &str, text: &str) -> InstanceId {
    let declared = tidemill_door::workload::parse(text).unwrap().services;
    cell.submit(Command::ApplyServices { services: declared }).await;
    let service = cell.view.read(|s| s.services.values().next().unwrap().id);
    cell.submit(Command::RequestInstances {
        service,
        generation: 1,
        count: 1,
    })
    .await;
    let instance = cell.view.read(|s| *s.services[&service].live.iter().next().unwrap());
    cell.submit(placed(service, instance, node, node_name)).await;
    instance
}

fn placed(service: ServiceId, instance: InstanceId, node: NodeId, node_name: &str) -> Command {
    let explanation = Explanation {
        devices: 1,
        fitting: 1,
        filtered: vec![],
        candidates: vec![],
        dominant: "free".into(),
        next_step: String::new(),
    };
    Command::PlaceInstances {
        service,
        placements: vec![Placement {
            instance,
            node,
            holds: vec![Hold {
                device: DeviceId::of_uuid(&format!("CPU-{node_name}")),
                share: Milli::WHOLE,
            }],
        }],
        explanation,
    }
}

fn started(id: u64, instance: InstanceId) -> Fact {
    Fact {
        id,
        age_ms: 5,
        instance: instance.to_string(),
        body: FactBody::Started {
            pid: 42,
            port: 8000,
            fetch_ms: 0,
            start_ms: 3,
        },
    }
}

fn ready(id: u64, instance: InstanceId, endpoint: &str) -> Fact {
    Fact {
        id,
        age_ms: 1,
        instance: instance.to_string(),
        body: FactBody::Ready {
            endpoint: Some(endpoint.into()),
            load_ms: 7,
        },
    }
}

fn through(message: DoorMessage) -> Option<u64> {
    match message {
        DoorMessage::FactsAck { through } => Some(through),
        _ => None,
    }
}

fn non_empty(message: DoorMessage) -> Option<Desired> {
    match message {
        DoorMessage::Desired(desired) if !desired.instances.is_empty() => Some(desired),
        _ => None,
    }
}

#[tokio::test]
async fn an_agents_life() {
    let cell = Cell::start().await;
    let (mut peer, node) = agent(&cell, hello("n1")).await;
    let empty = peer.next::<DoorMessage>().await.unwrap();
    assert!(
        matches!(&empty, DoorMessage::Desired(d) if d.instances.is_empty()),
        "{empty:?}"
    );
    let instance = place(&cell, node, "n1").await;
    let desired = peer.until(non_empty).await;
    let wanted = &desired.instances[0];
    assert_eq!(
        (wanted.instance.as_str(), &wanted.want),
        (instance.to_string().as_str(), &Want::Run)
    );
    assert_eq!(
        (wanted.run.command[0].as_str(), wanted.devices[0].uuid.as_str()),
        ("serve", "CPU-n1")
    );
    peer.send(&AgentMessage::Beat(Beat::default())).await;
    let facts = vec![started(1, instance), ready(2, instance, "127.0.0.1:8000")];
    peer.send(&AgentMessage::Facts(Facts { facts })).await;
    assert_eq!(peer.until(through).await, 2);
    let (state, endpoint) = cell
        .until(|s| {
            s.instances
                .get(&instance)
                .filter(|i| i.state == InstanceState::Ready)
                .map(|i| (i.state, i.endpoint.clone()))
        })
        .await;
    assert_eq!(
        (state, endpoint.as_deref()),
        (InstanceState::Ready, Some("127.0.0.1:8000"))
    );
    peer.send(&AgentMessage::Goodbye(Goodbye {
        reason: "restart".into(),
        leaving: false,
    }))
    .await;
    drop(peer);
    let heard = cell
        .heard(|b| b.iter().any(|b| matches!(b, Body::NodeDisconnected { .. })))
        .await;
    let kinds: Vec<&str> = heard
        .iter()
        .map(|body| match body {
            Body::NodeConnected { node: n, .. } if *n == node => "connected",
            Body::NodeBeat { node: n, .. } if *n == node => "beat",
            Body::NodeGoodbye {
                node: n,
                leaving: false,
                ..
            } if *n == node => "goodbye",
            Body::NodeDisconnected { node: n, .. } if *n == node => "disconnected",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["connected", "beat", "goodbye", "disconnected"]);
    let actors: Vec<Value> = cell.api(None).get_json("/v1/events").await.unwrap();
    let fact = actors.iter().find(|e| e["kind"] == "InstanceReady").unwrap();
    assert_eq!(fact["actor"], node.to_string(), "facts are their node's");
}

#[tokio::test]
async fn facts_are_acknowledged_when_the_ledger_has_them_and_not_before() {
    let cell = Cell::start().await;
    let (mut peer, node) = agent(&cell, hello("n1")).await;
    let instance = place(&cell, node, "n1").await;
    let before = cell.commands.asked.lock().await.len();
    *cell.commands.faults.lock().await = vec![
        (SubmitError::NoLeader { reason: "a".into() }, false),
        (SubmitError::Unknown { reason: "b".into() }, true),
    ];
    peer.send(&AgentMessage::Facts(Facts {
        facts: vec![started(7, instance)],
    }))
    .await;
    assert_eq!(peer.until(through).await, 7);
    let asked = cell.commands.asked.lock().await.clone();
    let asked = &asked[before..];
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|e| e.id == asked[0].id), "one batch is one command");
    assert_eq!(asked[1], asked[2], "after an unknown outcome nothing of it may change");
    // The same batch, older by now, from another connection: the id is the same, the facts are known.
    let (mut again, _) = agent(&cell, hello("n1")).await;
    let mut older = started(7, instance);
    older.age_ms = 60_000;
    again.send(&AgentMessage::Facts(Facts { facts: vec![older] })).await;
    assert_eq!(again.until(through).await, 7);
    let events: Vec<Value> = cell.api(None).get_json("/v1/events").await.unwrap();
    assert_eq!(events.iter().filter(|e| e["kind"] == "InstanceStarted").count(), 1);
    // Refused for good: acknowledged too, or the outbox would never empty.
    let rejected = SubmitError::Rejected {
        rejection: Rejection::NotFound {
            what: "node".into(),
            id: "x".into(),
        },
        sequence: 1,
    };
    *cell.commands.faults.lock().await = vec![(rejected, false)];
    again
        .send(&AgentMessage::Facts(Facts {
            facts: vec![ready(8, instance, "127.0.0.1:8000")],
        }))
        .await;
    assert_eq!(again.until(through).await, 8);
}

#[tokio::test]
async fn a_node_speaks_for_itself_only() {
    let cell = Cell::start().await;
    let (mut first, node) = agent(&cell, hello("n1")).await;
    let (mut second, _) = agent(&cell, hello("n2")).await;
    let instance = place(&cell, node, "n1").await;
    second
        .send(&AgentMessage::Facts(Facts {
            facts: vec![started(1, instance), ready(2, instance, "127.0.0.1:1")],
        }))
        .await;
    assert_eq!(second.until(through).await, 2);
    assert_eq!(cell.view.read(|s| s.instances[&instance].state), InstanceState::Placed);
    // An endpoint that is not its own is not routed to.
    first
        .send(&AgentMessage::Facts(Facts {
            facts: vec![started(1, instance), ready(2, instance, "169.254.169.254:80")],
        }))
        .await;
    first.until(through).await;
    let endpoint = cell
        .until(|s| {
            s.instances
                .get(&instance)
                .filter(|i| i.ready_at.is_some())
                .map(|i| i.endpoint.clone())
        })
        .await;
    assert_eq!(endpoint, None);
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_heard_all_the_same_and_then_let_go() {
    let cell = Cell::with(|config| {
        config.limits.write_timeout = Duration::from_millis(300);
        config.limits.resend = Duration::from_millis(2);
    })
    .await;
    let (mut slow, node) = agent(&cell, hello("slow")).await;
    let argument = "x".repeat(30_000);
    let large = format!("kind: service\nname: web\nrun: {{command: [serve, {argument}]}}\n");
    place_of(&cell, node, "slow", &large).await;
    slow.until(non_empty).await;
    // Nothing is read from here on. Beats are heard while snapshots, of which one waits, find no room.
    for number in 0..50 {
        let beat = Beat {
            number,
            ..Beat::default()
        };
        slow.send(&AgentMessage::Beat(beat)).await;
    }
    let heard = cell
        .heard(|b| b.iter().any(|b| matches!(b, Body::NodeDisconnected { .. })))
        .await;
    assert_eq!(heard.iter().filter(|b| matches!(b, Body::NodeBeat { .. })).count(), 50);
    let reason = heard.iter().find_map(|b| match b {
        Body::NodeDisconnected { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    assert!(reason.unwrap().contains("took no message"), "{reason:?}");
}

#[tokio::test]
async fn a_door_that_ends_says_that_it_stops_and_nothing_of_its_nodes() {
    let mut cell = Cell::start().await;
    let (mut peer, _) = agent(&cell, hello("n1")).await;
    cell.heard(|b| !b.is_empty()).await;
    cell.stop_door().await;
    while peer.next::<DoorMessage>().await.is_some() {}
    let heard = cell.heard(|b| b.contains(&Body::DoorStopping)).await;
    assert!(
        !heard.iter().any(|b| matches!(b, Body::NodeDisconnected { .. })),
        "{heard:?}"
    );
    assert_eq!(heard.last(), Some(&Body::DoorStopping));
}

async fn gateway(cell: &Cell, name: &str) -> Peer {
    let mut peer = Peer::connect(cell, GATEWAY_PATH, None).await.unwrap();
    peer.send(&GatewayMessage::Hello(GatewayHello {
        protocol: PROTOCOL_VERSION,
        name: name.into(),
        gateway_id: "g".into(),
        url: "http://127.0.0.1:7080".into(),
    }))
    .await;
    assert!(matches!(peer.next().await, Some(DoorToGateway::Welcome(_))));
    peer
}

async fn routes(peer: &mut Peer, wanted: impl Fn(&Routes) -> bool) -> Routes {
    peer.until(|message| match message {
        DoorToGateway::Routes(routes) if wanted(&routes) => Some(routes),
        _ => None,
    })
    .await
}

#[tokio::test]
async fn a_gateway_follows_routes_and_says_so() {
    let cell = Cell::start().await;
    let mut peer = gateway(&cell, "gw").await;
    routes(&mut peer, |r| r.services.is_empty()).await;
    let (mut agent, node) = agent(&cell, hello("n1")).await;
    let instance = place(&cell, node, "n1").await;
    let waiting = routes(&mut peer, |r| r.services.len() == 1).await;
    assert!(
        waiting.services[0].instances.is_empty(),
        "requests can wait for a service that is not ready yet"
    );
    agent
        .send(&AgentMessage::Facts(Facts {
            facts: vec![started(1, instance), ready(2, instance, "127.0.0.1:8000")],
        }))
        .await;
    let served = routes(&mut peer, |r| r.services.iter().any(|s| !s.instances.is_empty())).await;
    let route = &served.services[0].instances[0];
    assert_eq!(
        (route.endpoint.as_deref(), route.draining),
        (Some("127.0.0.1:8000"), false)
    );
    assert!(cell.view.read(|s| s.instances[&instance].timings.in_rotation.is_none()));
    peer.send(&GatewayMessage::Applied(served.stamp.clone())).await;
    cell.until(|s| s.instances[&instance].timings.in_rotation).await;
    let samples = vec![
        gateway::TrafficSample {
            tenant: "default".into(),
            service: "web".into(),
            age_ms: 10,
            arrived: 4,
            ok: 4,
            latency: vec![1, 3],
            instances: vec![gateway::InstanceTraffic {
                instance: instance.to_string(),
                sent: 4,
                ok: 4,
                ..gateway::InstanceTraffic::default()
            }],
            ..gateway::TrafficSample::default()
        },
        gateway::TrafficSample {
            tenant: "default".into(),
            service: "gone".into(),
            ..gateway::TrafficSample::default()
        },
    ];
    peer.send(&GatewayMessage::Beat(gateway::GatewayBeat {
        number: 1,
        applied: Some(served.stamp.clone()),
        samples,
    }))
    .await;
    peer.0
        .close(Some(tokio_tungstenite::tungstenite::protocol::CloseFrame {
            code: tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode::Normal,
            reason: "".into(),
        }))
        .await
        .unwrap();
    let heard = cell
        .heard(|b| b.iter().any(|b| matches!(b, Body::GatewayGone { .. })))
        .await;
    let beat = heard.iter().find_map(|b| match b {
        Body::GatewayBeat(beat) if !beat.samples.is_empty() => Some(beat),
        _ => None,
    });
    let beat = beat.unwrap();
    assert_eq!(
        (beat.gateway.as_str(), beat.samples.len()),
        ("gw", 1),
        "a service that is gone has no samples"
    );
    assert_eq!((beat.samples[0].requests.ok, beat.samples[0].seconds), (4, 1));
    assert_eq!(beat.applied.unwrap().sequence, served.stamp.sequence);
    let rows: Vec<Value> = cell.api(None).get_json("/v1/services").await.unwrap();
    assert_eq!(rows.len(), 1);
}

#[tokio::test]
async fn output_comes_through_the_agents_connection() {
    let cell = Cell::start().await;
    let (mut peer, node) = agent(&cell, hello("n1")).await;
    let instance = place(&cell, node, "n1").await;
    let api = cell.api(None);
    let path = format!("/v1/logs/{}", &instance.to_string()[..9]);
    let mut reading = tokio::spawn({
        let (api, path) = (api.clone(), path.clone());
        async move { api.send(&Call::get(&path)).await }
    });
    let wanted = |message| match message {
        DoorMessage::LogsWanted(wanted) => Some(wanted),
        _ => None,
    };
    let question = peer.until(wanted).await;
    assert_eq!(
        (question.instance.as_str(), question.follow, question.after),
        (instance.to_string().as_str(), false, None)
    );
    let part = |request: &str, offset: u64, data: &str, end: bool| {
        AgentMessage::Logs(LogPart {
            request: request.into(),
            offset,
            next: offset + data.len() as u64,
            data: data.into(),
            end,
            problem: None,
        })
    };
    peer.send(&part(&question.request, 0, "one\n", false)).await;
    peer.send(&part(&question.request, 4, "two\n", true)).await;
    let answer = soon(&mut reading).await.unwrap().unwrap();
    assert_eq!(&answer.body[..], b"one\ntwo\n");

    // Followed, and given up by its reader: the agent is told.
    let mut stream = {
        let api = api.clone();
        let path = format!("{path}?follow=true");
        tokio::spawn(async move { api.get_stream(&path).await })
    };
    let question = peer.until(wanted).await;
    assert!(question.follow);
    peer.send(&part(&question.request, 0, "one\n", false)).await;
    let mut stream = soon(&mut stream).await.unwrap().unwrap();
    assert_eq!(soon(stream.next_line()).await.unwrap().as_deref(), Some("one"));
    drop(stream);
    // The door sees the reader gone at the latest when it writes to it.
    let told = async {
        let mut offset = 4;
        loop {
            peer.send(&part(&question.request, offset, "more\n", false)).await;
            offset += 5;
            let next = tokio::time::timeout(Duration::from_millis(20), peer.next::<DoorMessage>()).await;
            if let Ok(Some(DoorMessage::LogsDone { request })) = next {
                return request;
            }
        }
    };
    assert_eq!(soon(told).await, question.request);

    drop(peer);
    cell.heard(|b| b.iter().any(|b| matches!(b, Body::NodeDisconnected { .. })))
        .await;
    let gone = api.send(&Call::get(&path)).await.unwrap_err();
    assert_eq!(gone.code(), "node_not_connected");
}

#[tokio::test]
async fn a_revoked_token_ends_its_connections_and_lets_none_back_in() {
    let cell = Cell::with(|config| config.limits.resend = Duration::from_millis(200)).await;
    let (node_token, node_text) = cell.token(json!({"role": "node"})).await;
    let (gateway_token, gateway_text) = cell.token(json!({"role": "gateway"})).await;
    let (_, other_text) = cell.token(json!({"role": "node"})).await;
    let enrol = async |name: &str, token: Option<&str>| {
        let mut peer = Peer::connect(&cell, AGENT_PATH, token).await.unwrap();
        peer.send(&AgentMessage::Hello(hello(name))).await;
        let welcomed = |message| matches!(message, DoorMessage::Welcome(_)).then_some(());
        peer.until(welcomed).await;
        peer
    };
    let mut agent = enrol("n1", Some(&node_text)).await;
    let mut other = enrol("n2", Some(&other_text)).await;
    let mut local = enrol("n3", None).await;
    let mut gateway = Peer::connect(&cell, GATEWAY_PATH, Some(&gateway_text)).await.unwrap();
    gateway
        .send(&GatewayMessage::Hello(GatewayHello {
            protocol: PROTOCOL_VERSION,
            name: "gw".into(),
            gateway_id: "start-1".into(),
            url: "http://127.0.0.1:1".into(),
        }))
        .await;
    let welcomed = |message| matches!(message, DoorToGateway::Welcome(_)).then_some(());
    gateway.until(welcomed).await;
    for id in [&node_token, &gateway_token] {
        let path = format!("/v1/tokens/{id}/revoke");
        let _: Value = cell
            .api(None)
            .post_json(&path, &json!({}), &support::key())
            .await
            .unwrap();
    }
    let refused = |message| match message {
        DoorMessage::Refused(problem) => Some(problem),
        _ => None,
    };
    let problem = agent.until(refused).await;
    assert_eq!((problem.status, problem.code.as_str()), (401, "token_revoked"));
    agent.ends().await;
    let refused = |message| match message {
        DoorToGateway::Refused(problem) => Some(problem),
        _ => None,
    };
    assert_eq!(gateway.until(refused).await.code, "token_revoked");
    gateway.ends().await;
    // What they say afterwards is said to nobody; what ended is evidence.
    let node = cell.view.read(|s| s.node_named("n1").unwrap().id);
    cell.heard(|heard| {
        let ended = |body: &Body| matches!(body, Body::NodeDisconnected { node: n, reason, .. } if *n == node && reason.contains("revoked"));
        heard.iter().any(ended)
    })
    .await;
    for (path, text) in [(AGENT_PATH, &node_text), (GATEWAY_PATH, &gateway_text)] {
        assert_eq!(Peer::connect(&cell, path, Some(text)).await.err(), Some(401));
    }
    // The others go on.
    for peer in [&mut other, &mut local] {
        peer.until(|message| matches!(message, DoorMessage::Desired(_)).then_some(()))
            .await;
    }
}

#[tokio::test]
async fn a_token_that_runs_out_ends_its_connections_too() {
    let cell = Cell::start().await;
    let (_, text) = cell.token(json!({"role": "node", "ttl_ms": 4_000})).await;
    let mut agent = Peer::connect(&cell, AGENT_PATH, Some(&text)).await.unwrap();
    agent.send(&AgentMessage::Hello(hello("n1"))).await;
    let problem = agent
        .until(|message| match message {
            DoorMessage::Refused(problem) => Some(problem),
            _ => None,
        })
        .await;
    assert_eq!(problem.code, "token_expired");
}

#[tokio::test]
async fn output_is_asked_for_by_the_services_name_where_that_is_clear() {
    let cell = Cell::start().await;
    let (peer, node) = agent(&cell, hello("n1")).await;
    let two = format!("{}scale: {{min: 2, max: 2}}\n", service("default", "web"));
    let first = place_of(&cell, node, "n1", &two).await;
    drop(peer);
    cell.heard(|b| b.iter().any(|b| matches!(b, Body::NodeDisconnected { .. })))
        .await;
    let api = cell.api(None);
    let ask = async |id: &str| api.send(&Call::get(&format!("/v1/logs/{id}"))).await.unwrap_err();
    // Found, and its agent is gone: it is the instance that was meant.
    for id in ["web", "default%2Fweb", "service%2Fweb", "service%2Fdefault%2Fweb"] {
        assert_eq!(ask(id).await.code(), "node_not_connected", "{id}");
    }
    for id in ["we", "other%2Fweb", "pod%2Fdefault%2Fweb", "web%2F"] {
        assert_eq!(ask(id).await.code(), "not_found", "{id}");
    }
    let (service, second) = (cell.view.read(|s| s.instances[&first].service), hello("n2"));
    let (_peer, node) = agent(&cell, second).await;
    cell.submit(Command::RequestInstances {
        service,
        generation: 1,
        count: 1,
    })
    .await;
    // One that waits has no output, so the other is still the only one.
    assert_eq!(ask("web").await.code(), "node_not_connected");
    let waits = cell.view.read(|s| {
        let waits = s.services[&service].live.iter().find(|id| **id != first);
        *waits.unwrap()
    });
    cell.submit(placed(service, waits, node, "n2")).await;
    let several = ask("web").await;
    assert_eq!(several.code(), "ambiguous");
    for id in [first, waits] {
        assert!(several.to_string().contains(&id.to_string()), "{several}");
    }
}
