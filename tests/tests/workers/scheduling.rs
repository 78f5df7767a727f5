//! Replicas come, go and roll over.

use std::time::Instant;

use tidemill_bus::fold::decode_commits;
use tidemill_bus::record::Record;
use tidemill_domain::command::Command;
use tidemill_domain::commit::Commit;
use tidemill_domain::events::Event;
use tidemill_domain::id::InstanceId;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::time::Span;
use tidemill_tests::make::{apply, failed, join, spec};

use crate::world::{World, count, live, service};

fn scale(world: &World, replicas: u32) -> Command {
    Command::ScaleService {
        service: world.service("hello"),
        replicas,
        from: None,
        until: None,
    }
}

#[tokio::test]
async fn a_replica_that_ends_is_replaced() {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 4))).await;
    let (_scheduler, _token) = world.scheduler();
    world.given(apply("hello", spec(2, 4))).await;
    world
        .until("two are ready", |s| count(s, "hello", InstanceState::Ready) == 2)
        .await;
    let victim = world.in_state("hello", InstanceState::Ready)[0];
    world.report(victim, failed()).await;
    world
        .until("two are ready again", |s| {
            count(s, "hello", InstanceState::Ready) == 2 && s.instances[&victim].state == InstanceState::Failed
        })
        .await;
}

#[tokio::test]
async fn a_crash_loop_is_slowed_down_and_visible() {
    let world = World::new().await;
    world.let_start(false);
    world.given(Command::JoinNode(join("n1", 4))).await;
    let (_scheduler, _token) = world.scheduler();
    world.given(apply("hello", spec(1, 4))).await;
    for round in 1..=6u32 {
        world
            .until("one is placed", |s| count(s, "hello", InstanceState::Placed) == 1)
            .await;
        let id = world.in_state("hello", InstanceState::Placed)[0];
        world.report(id, failed()).await;
        let (failures, wait) = world.view.read(|s| {
            let service = &s.services[&service(s, "hello").unwrap()];
            (service.failures, service.retry_at.unwrap().since(s.recorded_at))
        });
        assert_eq!(failures, round);
        // 1 s, doubling.
        assert!(wait.millis() <= 1000 << (round - 1), "{wait}");
        let before = world.view.read(|s| s.events);
        if round > 2 {
            // Nothing is asked for meanwhile. Half a second of real time is far below the back-off.
            // tidy: waits for nothing to happen, which nothing announces
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            assert_eq!(world.view.read(|s| s.events), before);
        }
        world.skip(wait).await;
    }
}

#[tokio::test]
async fn scaled_from_2_to_6_to_3_while_4_start_the_starting_ones_go() {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 8))).await;
    let (_scheduler, _s) = world.scheduler();
    let (_failover, _f) = world.failover();
    world.given(apply("hello", spec(2, 8))).await;
    world
        .until("two are ready", |s| count(s, "hello", InstanceState::Ready) == 2)
        .await;
    let serving = world.in_state("hello", InstanceState::Ready);
    world.let_start(false);
    world.given(scale(&world, 6)).await;
    world
        .until("four start", |s| count(s, "hello", InstanceState::Placed) == 4)
        .await;
    world.given(scale(&world, 3)).await;
    world.until("three are left", |s| live(s, "hello").len() == 3).await;
    assert_eq!(world.in_state("hello", InstanceState::Ready), serving);
    assert_eq!(world.in_state("hello", InstanceState::Placed).len(), 1);
}

#[tokio::test]
async fn a_change_rolls_over_without_going_below_what_is_wanted() {
    let world = World::new().await;
    for n in 0..3 {
        world.given(Command::JoinNode(join(&format!("n{n}"), 2))).await;
    }
    let (_scheduler, _s) = world.scheduler();
    world.given(apply("hello", spec(4, 8))).await;
    world
        .until("four are ready", |s| count(s, "hello", InstanceState::Ready) == 4)
        .await;
    let from = world.view.progress().borrow().sequence;
    let mut changed = spec(4, 8);
    changed.run.command.push("--new".into());
    // Nobody watches gateways here, so drained ones are released by the test.
    let (_failover, _f) = world.failover();
    world.given(apply("hello", changed)).await;
    let release = async {
        loop {
            let draining: Vec<InstanceId> = world.view.read(|s| {
                let live = live(s, "hello").into_iter();
                live.filter(|i| matches!(i.state, InstanceState::Draining(_)))
                    .map(|i| i.id)
                    .collect()
            });
            if !draining.is_empty() {
                world.given(Command::ReleaseInstances { instances: draining }).await;
            }
            // tidy: waits for its next turn: the pace is the test's own
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let done = world.until("all are of the new generation", |s| {
        let live = live(s, "hello");
        live.len() == 4
            && live
                .iter()
                .all(|i| i.generation == 2 && i.state == InstanceState::Ready)
    });
    tokio::select! {
        () = release => {}
        () = done => {}
    }
    // Every state on the way had four that were ready.
    let mut state = tidemill_domain::state::State::default();
    for (sequence, commits) in (1..).zip(records(&world)) {
        state.apply_record(sequence, &commits, &mut Vec::new()).unwrap();
        if sequence > from {
            assert!(count(&state, "hello", InstanceState::Ready) >= 4, "at {sequence}");
        }
    }
}

#[tokio::test]
async fn a_hundred_at_once_into_room_for_ten_are_ten() {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 10))).await;
    let (_scheduler, _token) = world.scheduler();
    let asks = (0..100).map(|n| world.submit(apply(&format!("s{n}"), spec(1, 1))));
    for answer in futures::future::join_all(asks).await {
        answer.unwrap();
    }
    world
        .until("ten are ready and ninety know why they wait", |s| {
            let ready = s.instances.values().filter(|i| i.state == InstanceState::Ready).count();
            let told = s.services.values().filter(|s| s.pending.is_some()).count();
            ready == 10 && told == 90
        })
        .await;
    world.view.read(|s| {
        tidemill_domain::invariants::check_all(s).unwrap();
        let waiting = s.services.values().find_map(|s| s.pending.as_ref()).unwrap();
        assert_eq!(waiting.dominant, "no device is free: 10 of 10 are held");
    });
}

#[tokio::test]
async fn waiting_does_not_fill_the_ledger() {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 1))).await;
    let (_scheduler, _token) = world.scheduler();
    world.given(apply("hello", spec(2, 2))).await;
    world
        .until("one waits and says why", |s| {
            service(s, "hello").is_some_and(|id| s.services[&id].pending.is_some())
        })
        .await;
    // The pool changes again and again, and nothing comes of it for the one that waits.
    for n in 0..50 {
        let mut joins = join(&format!("pc{n}"), 1);
        joins.supply = tidemill_domain::events::node::Supply::Pc;
        world.given(Command::JoinNode(joins)).await;
    }
    let deferrals = events(&world)
        .iter()
        .filter(|e| matches!(e, Event::PlacementDeferred(_)))
        .count();
    assert!(deferrals <= 2, "{deferrals}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_instances_are_placed_in_under_two_seconds() {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 1000))).await;
    let (mut scheduler, _token) = world.scheduler();
    crate::world::holding(&mut scheduler).await;
    world.given(apply("hello", spec(0, 1000))).await;
    let begun = Instant::now();
    world.given(scale(&world, 1000)).await;
    world
        .until("all are placed", |s| {
            live(s, "hello").iter().filter(|i| i.node.is_some()).count() == 1000
        })
        .await;
    let placed = begun.elapsed();
    world
        .until("all are ready", |s| count(s, "hello", InstanceState::Ready) == 1000)
        .await;
    println!("placed after {placed:?}, ready after {:?}", begun.elapsed());
    assert!(placed.as_secs_f64() < 2.0, "{placed:?}");
}

#[tokio::test]
async fn an_override_ends_by_itself() {
    let world = World::new().await;
    world.given(Command::JoinNode(join("n1", 8))).await;
    let (_scheduler, _s) = world.scheduler();
    world.given(apply("hello", spec(1, 8))).await;
    world
        .until("one is ready", |s| count(s, "hello", InstanceState::Ready) == 1)
        .await;
    let until = world.view.read(|s| s.recorded_at) + Span::from_secs(1);
    world
        .given(Command::ScaleService {
            service: world.service("hello"),
            replicas: 3,
            from: None,
            until: Some(until),
        })
        .await;
    world
        .until("three are ready", |s| count(s, "hello", InstanceState::Ready) == 3)
        .await;
    world
        .until("it is over, by the worker's own alarm", |s| {
            let service = &s.services[&service(s, "hello").unwrap()];
            service.desired == 1 && service.scale_override.is_none()
        })
        .await;
}

/// The commits of each record.
pub fn records(world: &World) -> Vec<Vec<Commit>> {
    let decode = |body| decode_commits(&Record::decode(body).unwrap()).unwrap();
    world.ledger.records().iter().map(decode).collect()
}

pub fn events(world: &World) -> Vec<Event> {
    let commits = records(world).into_iter().flatten();
    commits.flat_map(|commit| commit.events).collect()
}
