//! Drained instances wait for the gateways.

use tidemill_domain::command::Command;
use tidemill_domain::id::InstanceId;
use tidemill_domain::state::State;
use tidemill_domain::state::instance::InstanceState;
use tidemill_kit::observation::{Applied, Body, GatewayBeat};
use tidemill_tests::make::{apply, join, spec};

use crate::scheduling::records;
use crate::world::{World, caught_up, count, holding, live};

fn beat(gateway: &str, sequence: u64) -> Body {
    Body::GatewayBeat(GatewayBeat {
        gateway: gateway.into(),
        applied: Some(Applied { epoch: 1, sequence }),
        samples: vec![],
    })
}

fn draining(state: &State) -> Vec<InstanceId> {
    let live = live(state, "hello").into_iter();
    live.filter(|i| matches!(i.state, InstanceState::Draining(_)))
        .map(|i| i.id)
        .collect()
}

/// Two ready replicas, failover has watched for a minute with gateways `g1` and `g2`, then one replica is drained.
async fn drained(
    gateways: &[&str],
) -> (
    World,
    Vec<Box<dyn std::any::Any>>,
    tidemill_kit::WorkerHandle,
    InstanceId,
) {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 4))).await;
    let (scheduler, s) = world.scheduler();
    let (mut failover, f) = world.failover();
    holding(&mut failover).await;
    world.given(apply("hello", spec(2, 4))).await;
    world
        .until("two are ready", |s| count(s, "hello", InstanceState::Ready) == 2)
        .await;
    let at = world.view.progress().borrow().sequence;
    let node = world.node("n1");
    world
        .beats(60, &[node], |_| gateways.iter().map(|g| beat(g, at)).collect())
        .await;
    caught_up(&mut failover, &world.observations).await;
    world
        .given(Command::ScaleService {
            service: world.service("hello"),
            replicas: 1,
            from: None,
            until: None,
        })
        .await;
    world
        .until("one leaves", |s| {
            live(s, "hello").len() == 1 || live(s, "hello").iter().any(|i| i.state.leaving())
        })
        .await;
    let id = world.view.read(|s| {
        let instances = s.instances.values();
        instances
            .filter(|i| i.state != InstanceState::Ready)
            .map(|i| i.id)
            .next()
            .unwrap()
    });
    (world, vec![Box::new(scheduler), Box::new(s), Box::new(f)], failover, id)
}

#[tokio::test]
async fn it_is_released_when_every_gateway_has_newer_routes() {
    let (world, _keep, mut failover, id) = drained(&["g1", "g2"]).await;
    let node = world.node("n1");
    let at = world.view.read(|s| s.instances[&id].changed.sequence);
    world
        .beats(5, &[node], |_| vec![beat("g1", at), beat("g2", at - 1)])
        .await;
    caught_up(&mut failover, &world.observations).await;
    assert_eq!(world.view.read(draining), [id], "one gateway still sends to it");
    world.beats(1, &[node], |_| vec![beat("g1", at), beat("g2", at)]).await;
    world
        .until("it has stopped", |s| s.instances[&id].state == InstanceState::Stopped)
        .await;
}

#[tokio::test]
async fn a_gateway_that_is_gone_holds_nobody_up_beyond_its_lease() {
    let (world, _keep, mut failover, id) = drained(&["g1", "g2"]).await;
    let node = world.node("n1");
    let at = world.view.read(|s| s.instances[&id].changed.sequence);
    world.beats(12, &[node], |_| vec![beat("g1", at)]).await;
    caught_up(&mut failover, &world.observations).await;
    assert_eq!(world.view.read(draining), [id], "the other's lease runs");
    world.beats(5, &[node], |_| vec![beat("g1", at)]).await;
    world
        .until("it has stopped", |s| s.instances[&id].state == InstanceState::Stopped)
        .await;
}

#[tokio::test]
async fn without_gateways_it_is_released_at_once() {
    let (world, _keep, _failover, id) = drained(&[]).await;
    world
        .until("it has stopped", |s| s.instances[&id].state == InstanceState::Stopped)
        .await;
}

#[tokio::test]
async fn a_stop_stands_in_the_trace_of_the_request_that_caused_it() {
    let (world, _keep, _failover, id) = drained(&[]).await;
    world
        .until("it has stopped", |s| s.instances[&id].state == InstanceState::Stopped)
        .await;
    let commits: Vec<_> = records(&world).into_iter().flatten().collect();
    let trace = |kind: &str| {
        let commit = commits.iter().find(|c| c.events.iter().any(|e| e.name() == kind));
        commit.unwrap().header.trace.unwrap().trace_id
    };
    let scaled = trace("ServiceScaleOverridden");
    assert_ne!(scaled, trace("ServiceApplied"));
    assert_eq!(trace("InstancesDrainRequested"), scaled);
    assert_eq!(trace("InstancesStopRequested"), scaled);
    assert_eq!(trace("InstancesRequested"), trace("ServiceApplied"));
}

#[tokio::test]
async fn instances_in_rotation_are_noted_though_no_door_did() {
    let (world, _keep, _failover, _) = drained(&["g1"]).await;
    let node = world.node("n1");
    let at = world.view.progress().borrow().sequence + 100;
    // Two seconds of the ledger's time are left to the doors; the worker looks again by itself.
    world.beats(2, &[node], |_| vec![beat("g1", at)]).await;
    world
        .until("the one that stays is in rotation", |s| {
            live(s, "hello").iter().any(|i| i.timings.in_rotation.is_some())
        })
        .await;
}
