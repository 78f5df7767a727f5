//! One holder a role, and what a worker says of itself.

use tidemill_domain::command::Command;
use tidemill_domain::events::Event;
use tidemill_domain::id::ServiceId;
use tidemill_domain::state::instance::InstanceState;
use tidemill_kit::{Step, StepInput, Wish, Worker, WorkerState};
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

/// Wishes for something that is true already, again and again.
struct Nag;

impl Worker for Nag {
    const ROLE: &'static str = "nag";

    fn step(&mut self, _input: StepInput<'_>) -> Step {
        let nobody = ServiceId::from_bits(1);
        let command = Command::SettleService { service: nobody };
        Step {
            wishes: vec![Wish::about(nobody.to_string(), command, (0, 0))],
            ..Step::default()
        }
    }
}

#[tokio::test]
async fn what_was_in_vain_is_asked_again_though_nothing_happens_and_not_all_the_time() {
    let world = World::new().await;
    let (mut nag, _token) = world.spawn(Nag, "test");
    holding(&mut nag).await;
    let begun = std::time::Instant::now();
    let steps = nag.status.wait_for(|s| s.steps >= 5);
    tokio::time::timeout(PATIENCE, steps).await.unwrap().unwrap();
    // 100 ms, doubling: three waits are in there for sure.
    assert!(begun.elapsed().as_millis() >= 300, "{:?}", begun.elapsed());
    assert_eq!(nag.status.borrow().commands, 0);
}

#[tokio::test]
#[ignore = "waits for a lease of 15 s"]
async fn a_standby_takes_over_when_the_lease_is_over() {
    let world = World::new().await;
    let (mut first, token) = world.spawn(Scheduler::default(), "first");
    holding(&mut first).await;
    let (mut second, _b) = world.spawn(Scheduler::default(), "second");
    token.cancel();
    first.ended().await;
    let holds = second.status.wait_for(|s| s.term == Some(2));
    tokio::time::timeout(std::time::Duration::from_secs(25), holds)
        .await
        .unwrap()
        .unwrap();
    world.given(Command::JoinNode(join("n1", 1))).await;
    world.given(apply("hello", spec(1, 1))).await;
    world
        .until("one is ready", |s| count(s, "hello", InstanceState::Ready) == 1)
        .await;
}
