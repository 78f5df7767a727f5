//! Nodes go silent, leave and come back.

use tidemill_domain::command::Command;
use tidemill_domain::commit::Cause;
use tidemill_domain::events::Event;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::node::NodeState;
use tidemill_kit::observation::Body;
use tidemill_tests::make::{apply, join, spec};

use crate::scheduling::records;
use crate::world::{World, caught_up, count, holding, live};

/// Two nodes, two ready replicas one on each, and both workers.
async fn two_nodes() -> (World, Vec<Box<dyn std::any::Any>>, tidemill_kit::WorkerHandle) {
    let world = World::new().await;
    for n in ["n1", "n2"] {
        world.given(Command::JoinNode(join(n, 2))).await;
    }
    let (scheduler, s) = world.scheduler();
    let (mut failover, f) = world.failover();
    holding(&mut failover).await;
    world.given(apply("hello", spec(2, 4))).await;
    world
        .until("two are ready", |s| count(s, "hello", InstanceState::Ready) == 2)
        .await;
    (world, vec![Box::new(scheduler), Box::new(s), Box::new(f)], failover)
}

#[tokio::test]
async fn a_silent_node_is_suspected_lost_and_its_replica_replaced_and_comes_back_clean() {
    let (world, _keep, _failover) = two_nodes().await;
    let (gone, here) = (world.node("n1"), world.node("n2"));
    world.beats(5, &[gone, here], |_| vec![]).await;
    world.kill(gone);
    world.beats(4, &[here], |_| vec![]).await;
    world
        .until("it is suspected", |s| s.nodes[&gone].state == NodeState::Suspect)
        .await;
    world.beats(10, &[here], |_| vec![]).await;
    world
        .until("it is lost and its replica is replaced", |s| {
            s.nodes[&gone].state == NodeState::Lost
                && count(s, "hello", InstanceState::Ready) == 2
                && live(s, "hello").iter().all(|i| i.node == Some(here))
        })
        .await;
    // It was only cut off: its agent beats again, and what it still ran is stopped before its device is free again.
    world.beats(2, &[gone, here], |_| vec![]).await;
    world
        .until("it is ready with a dirty device", |s| {
            s.nodes[&gone].state == NodeState::Ready && s.devices.values().any(|d| d.state_name() == "dirty")
        })
        .await;
    world.revive(gone);
    world
        .until("its device is free", |s| {
            let mut devices = s.devices.values().filter(|d| d.node == gone);
            devices.all(|d| d.state_name() == "free")
        })
        .await;
    world.view.read(|s| tidemill_domain::invariants::check_all(s).unwrap());
}

#[tokio::test]
async fn a_silent_door_costs_nobody_anything() {
    let (world, _keep, mut failover) = two_nodes().await;
    let nodes = [world.node("n1"), world.node("n2")];
    world.beats(5, &nodes, |_| vec![]).await;
    caught_up(&mut failover, &world.observations).await;
    let before = world.view.read(|s| s.events);
    // The control plane is away for an hour, comes back, and the nodes take their time.
    world.door_away(3600);
    world.beats(12, &[], |_| vec![]).await;
    world.beats(60, &nodes, |_| vec![]).await;
    caught_up(&mut failover, &world.observations).await;
    assert_eq!(world.view.read(|s| s.events), before, "nothing went on record");
}

#[tokio::test]
async fn a_goodbye_is_acted_on_at_once_and_cites_its_observation() {
    let (world, _keep, _failover) = two_nodes().await;
    let (leaves, here) = (world.node("n1"), world.node("n2"));
    world.beats(3, &[leaves, here], |_| vec![]).await;
    world.kill(leaves);
    let goodbye = |_| {
        vec![Body::NodeGoodbye {
            node: leaves,
            leaving: true,
            reason: "sold".into(),
        }]
    };
    world.beats(1, &[here], goodbye).await;
    world
        .until("it has left and its replica is replaced", |s| {
            s.nodes[&leaves].state == NodeState::Left && count(s, "hello", InstanceState::Ready) == 2
        })
        .await;
    let mut commits = records(&world).into_iter().flatten();
    let left = commits.find(|c| c.events.iter().any(|e| matches!(e, Event::NodeLeft(_))));
    let cause = left.map(|c| c.header.cause);
    assert_eq!(cause, Some(Cause::Observations { first: 4, last: 4 }));
}
