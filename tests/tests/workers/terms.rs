//! One holder a role, and what a worker says of itself.

use tidemill_domain::command::Command;
use tidemill_domain::events::Event;
use tidemill_domain::state::instance::InstanceState;
use tidemill_kit::WorkerState;
use tidemill_scheduler::Scheduler;
use tidemill_tests::make::{apply, join, spec};

use crate::scheduling::events;
use crate::world::{PATIENCE, World, count, holding};

#[tokio::test]
async fn the_second_waits_and_says_for_whom() {
    let world = World::new().await;
    let (mut first, _a) = world.spawn(Scheduler::default(), "first");
    holding(&mut first).await;
    assert_eq!(first.status.borrow().state, WorkerState::Holding);
    let (mut second, _b) = world.spawn(Scheduler::default(), "second");
    let waits = second
        .status
        .wait_for(|s| s.state == WorkerState::Waiting { holder: "first".into() });
    tokio::time::timeout(PATIENCE, waits).await.unwrap().unwrap();
    assert_eq!(second.status.borrow().steps, 0);
}

#[tokio::test]
async fn a_restarted_holder_goes_on_at_once_and_asks_nothing_twice() {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 8))).await;
    world.given(apply("hello", spec(4, 8))).await;
    for round in 0..5 {
        let (mut scheduler, token) = world.scheduler();
        holding(&mut scheduler).await;
        if round == 4 {
            world
                .until("four are ready", |s| count(s, "hello", InstanceState::Ready) == 4)
                .await;
        }
        token.cancel();
        scheduler.ended().await;
    }
    let requested: usize = events(&world)
        .iter()
        .map(|e| match e {
            Event::InstancesRequested(e) => e.instances.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(requested, 4);
    let terms = events(&world)
        .iter()
        .filter(|e| matches!(e, Event::WorkerTermGranted(_)))
        .count();
    assert_eq!(terms, 1, "the same holder keeps its term");
}

#[tokio::test]
async fn a_worker_ends_when_told() {
    let world = World::new().await;
    let (mut scheduler, token) = world.scheduler();
    holding(&mut scheduler).await;
    let status = scheduler.status.clone();
    token.cancel();
    scheduler.ended().await;
    assert_eq!(status.borrow().state, WorkerState::Stopped);
}
