//! Which agent may speak for a node, and which of two.

use super::*;

#[tokio::test]
async fn a_newer_connection_takes_the_older_ones_place() {
    let cell = Cell::start().await;
    let (mut older, node) = agent(&cell, hello("n1")).await;
    let (mut newer, again) = agent(&cell, hello("n1")).await;
    assert_eq!(node, again);
    let code = older
        .until(|message| match message {
            DoorMessage::Refused(problem) => Some(problem.code),
            _ => None,
        })
        .await;
    assert_eq!(code, "superseded");
    assert!(older.next::<DoorMessage>().await.is_none());
    // The newer one is served on.
    place(&cell, node, "n1").await;
    newer.until(non_empty).await;
    let heard = cell
        .heard(|b| b.iter().any(|b| matches!(b, Body::NodeDisconnected { .. })))
        .await;
    let numbers: Vec<u64> = heard
        .iter()
        .filter_map(|b| match b {
            Body::NodeConnected { connection, .. } | Body::NodeDisconnected { connection, .. } => Some(*connection),
            _ => None,
        })
        .collect();
    assert_eq!(numbers.len(), 3);
    assert_eq!(numbers[0], numbers[2], "it is the older one that ended");
}

#[tokio::test]
async fn who_may_enrol() {
    let cell = Cell::start().await;
    let (_, node) = cell.token(json!({"role": "node", "supply": "cafe"})).await;
    let (_, tenant) = cell.token(json!({"role": "tenant", "tenant": "acme"})).await;
    let (_, gateway) = cell.token(json!({"role": "gateway"})).await;
    assert_eq!(Peer::connect(&cell, AGENT_PATH, Some(&tenant)).await.err(), Some(403));
    assert_eq!(Peer::connect(&cell, AGENT_PATH, Some(&gateway)).await.err(), Some(403));
    assert_eq!(Peer::connect(&cell, GATEWAY_PATH, Some(&node)).await.err(), Some(403));
    assert_eq!(Peer::connect(&cell, AGENT_PATH, Some("tm_x")).await.err(), Some(401));
    let greet = async |change: &dyn Fn(&mut Hello), token: Option<&str>| -> String {
        let mut peer = Peer::connect(&cell, AGENT_PATH, token).await.unwrap();
        let mut hello = hello("n1");
        change(&mut hello);
        peer.send(&AgentMessage::Hello(hello)).await;
        match peer.next().await.unwrap() {
            DoorMessage::Refused(problem) => problem.code,
            DoorMessage::Welcome(_) => "welcome".to_owned(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        greet(&|_| {}, Some(&node)).await,
        "not_allowed",
        "of another supply kind"
    );
    assert_eq!(greet(&|h| h.supply = "cafe".into(), Some(&node)).await, "welcome");
    let bad: [&dyn Fn(&mut Hello); 8] = [
        &|h| h.supply = "moon".into(),
        &|h| h.name = "Not A Name".into(),
        &|h| h.region = String::new(),
        &|h| h.devices[0].kind = "tpu".into(),
        &|h| h.devices[0].memory_bytes = u64::MAX,
        &|h| h.devices[0].speed_milli = 0,
        &|h| h.devices.push(h.devices[0].clone()),
        &|h| h.boot_id = "x".repeat(1000),
    ];
    for (number, change) in bad.iter().enumerate() {
        assert_eq!(greet(*change, None).await, "invalid", "case {number}");
    }
    // The name is taken by a machine that lives.
    assert_eq!(greet(&|h| h.machine_id = "other".into(), None).await, "node_name_taken");
    // Not a greeting at all.
    let mut peer = Peer::connect(&cell, AGENT_PATH, None).await.unwrap();
    peer.send(&AgentMessage::Beat(Beat::default())).await;
    assert!(matches!(peer.next().await, Some(DoorMessage::Refused(p)) if p.code == "hello_expected"));
}

#[tokio::test]
async fn a_join_is_decided_anew_on_each_connection() {
    let cell = Cell::start().await;
    let (peer, node) = agent(&cell, hello("n1")).await;
    drop(peer);
    let silent = tidemill_domain::time::Span::from_secs(20);
    cell.submit(Command::SuspectNode {
        node,
        silent,
        closed: false,
        reason: "silent".into(),
    })
    .await;
    cell.submit(Command::LoseNode {
        node,
        silent,
        reason: "silent".into(),
    })
    .await;
    let (_peer, again) = agent(&cell, hello("n1")).await;
    assert_eq!(again, node);
    cell.until(|s| (s.nodes[&node].state == NodeState::Ready).then_some(()))
        .await;
}

#[tokio::test]
async fn of_two_agents_of_one_name_the_one_that_beats_stays() {
    let cell = Cell::start().await;
    let (mut first, node) = agent(&cell, hello("n1")).await;
    let copy = || Hello {
        agent_id: "a copy".into(),
        ..hello("n1")
    };
    let beat = |number| {
        AgentMessage::Beat(Beat {
            number,
            ..Beat::default()
        })
    };
    let mut second = Peer::connect(&cell, AGENT_PATH, None).await.unwrap();
    second.send(&AgentMessage::Hello(copy())).await;
    // It beats until the copy has its answer, as an agent does each second.
    let refused = loop {
        first.send(&beat(1)).await;
        let wait = tokio::time::timeout(Duration::from_millis(100), second.next::<DoorMessage>());
        if let Ok(answer) = wait.await {
            break answer;
        }
    };
    let Some(DoorMessage::Refused(problem)) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(problem.code, "node_cloned");
    assert!(problem.next.contains("--name"), "{}", problem.next);
    let agent_id = |s: &State| s.nodes[&node].agent_id.clone();
    assert_eq!(
        cell.view.read(agent_id),
        hello("n1").agent_id,
        "the first was not disturbed"
    );

    // Silent, as behind a cut network: the other one takes its place.
    let (third, again) = agent(&cell, copy()).await;
    assert_eq!(again, node);
    // Ended, as by `kill -9`: the next one is in at once.
    drop(third);
    let (_fourth, again) = agent(&cell, hello("n1")).await;
    assert_eq!(again, node);
}
