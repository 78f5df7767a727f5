//! A real agent process and a real Docker engine, driven by a door made for the test. Skipped where no engine answers.

#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
mod door;
mod engine;

use bollard::Docker;
use door::{Door, Rig, alive, until};
use engine::{IMAGE, clear, containers, output};
use tidemill_protocol::agent::{DesiredInstance, FactBody};

/// A rig, its engine, and instance names that no other rig uses.
struct Bench {
    rig: Rig,
    docker: Docker,
}

impl Bench {
    async fn new() -> Option<Self> {
        let docker = engine::engine().await?;
        let rig = Rig::new().await;
        Some(Self { rig, docker })
    }

    fn name(&self, short: &str) -> String {
        format!(
            "inst-{}{short}",
            self.rig.node.trim_start_matches("node-").to_lowercase()
        )
    }

    fn wish(&self, short: &str, command: &[&str]) -> DesiredInstance {
        let mut wish = self.rig.wish(&self.name(short), &[]);
        wish.run.runtime = "docker".into();
        wish.run.image = Some(IMAGE.into());
        wish.run.ready_http = Some("/health".into());
        if !command.is_empty() {
            wish.run.command = std::iter::once("/program")
                .chain(command.iter().copied())
                .map(str::to_owned)
                .collect();
        }
        wish
    }

    async fn left(&self) -> usize {
        containers(&self.docker, &self.rig.node).await.len()
    }

    async fn end(self) {
        clear(&self.docker, &self.rig.node).await;
    }
}

async fn started_and_ready(door: &mut Door, wish: &DesiredInstance) -> (u32, u16) {
    let FactBody::Started { pid, port, .. } = door.fact(&wish.instance).await else {
        panic!("started first");
    };
    let FactBody::Ready { endpoint, .. } = door.fact(&wish.instance).await else {
        panic!("ready next");
    };
    assert_eq!(endpoint, Some(format!("127.0.0.1:{port}")));
    (pid, port)
}

async fn failure(door: &mut Door, wish: &DesiredInstance) -> (String, String) {
    let fact = door
        .fact_that(&wish.instance, |fact| matches!(fact, FactBody::StartFailed { .. }))
        .await;
    match fact {
        FactBody::StartFailed { code, reason } => (code, reason),
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn a_container_starts_gets_ready_and_stops() {
    let Some(bench) = Bench::new().await else { return };
    let mut door = bench.rig.connect().await;
    assert_eq!(door.hello.runtimes, ["process", "docker"]);
    let mut own = bench.wish("own", &[]);
    own.run.limits.memory_bytes = Some(64 << 20);
    own.run.limits.cpu_milli = Some(500);
    own.run.limits.processes = Some(20);
    let told = bench.wish("told", &["print", "TIDEMILL_WORKLOAD"]);
    door.desire([&own, &told]).await;
    let (pid, _) = started_and_ready(&mut door, &own).await;
    started_and_ready(&mut door, &told).await;
    assert!(alive(pid));
    let found = containers(&bench.docker, &bench.rig.node).await;
    let labels: Vec<_> = found.iter().filter_map(|c| c.labels.clone()).collect();
    assert!(
        labels
            .iter()
            .any(|l| l["tidemill.instance"] == own.instance && l["tidemill.service"] == "default/test")
    );
    let made = bench
        .docker
        .inspect_container(&format!("tidemill-{}", own.instance), None)
        .await
        .unwrap();
    let host = made.host_config.unwrap();
    assert_eq!(
        (host.memory, host.nano_cpus, host.pids_limit),
        (Some(64 << 20), Some(500_000_000), Some(20))
    );
    assert_eq!(host.init, Some(true));
    let (text, _) = door.logs(&told.instance, None, "default/test").await;
    assert!(text.contains("TIDEMILL_WORKLOAD=default/test"), "{text}");
    // Under an init process a program without a handler of its own ends by SIGTERM.
    let (mut own, mut told) = (own, told);
    door.stop(&mut own).await;
    let stopped = |fact: &FactBody| *fact == FactBody::Stopped { killed: false };
    door.fact_that(&own.instance, stopped).await;
    assert!(!alive(pid));
    let notice = bench.rig.read(&format!("instances/{}/told/notice.json", own.instance));
    assert!(notice.contains("as the test asks"), "{notice}");
    door.stop(&mut told).await;
    door.fact_that(&told.instance, stopped).await;
    assert_eq!(bench.left().await, 0);
    door.desire([]).await;
    until("it is put away", || {
        bench.rig.exists(&format!("ended/{}/log.0", own.instance))
    })
    .await;
    bench.end().await;
}

#[tokio::test]
async fn what_fails_is_told_apart_and_removed() {
    let Some(bench) = Bench::new().await else { return };
    let mut door = bench.rig.connect().await;
    let early = bench.wish("early", &["fail", "7"]);
    let mut hungry = bench.wish("hungry", &["eat"]);
    hungry.run.limits.memory_bytes = Some(16 << 20);
    let mut missing = bench.wish("missing", &[]);
    missing.run.image = Some("127.0.0.1:1/no/such-image".into());
    let mut absent = bench.wish("absent", &[]);
    absent.run.command = vec!["/no-such-command".into()];
    door.desire([&early, &hungry, &missing, &absent]).await;
    assert_eq!(
        failure(&mut door, &early).await,
        ("exited_before_ready".into(), "exited with code 7: no such model".into())
    );
    let (code, reason) = failure(&mut door, &hungry).await;
    assert_eq!(code, "exited_before_ready");
    assert!(
        // An engine that missed the kernel's word of it has it said as likely.
        reason.contains("want of memory") && reason.contains("may have 16 MiB"),
        "{reason}"
    );
    let (code, reason) = failure(&mut door, &missing).await;
    assert!(
        matches!(&*code, "image_pull_failed" | "image_not_found"),
        "{code}: {reason}"
    );
    assert!(
        reason.contains("127.0.0.1:1/no/such-image:latest is not on the node"),
        "{reason}"
    );
    let log = output(&bench.rig.path(&format!("instances/{}", missing.instance)));
    assert!(
        log.contains("tidemill: pulling 127.0.0.1:1/no/such-image:latest"),
        "{log}"
    );
    let (code, reason) = failure(&mut door, &absent).await;
    assert_eq!(code, "command_not_found", "{reason}");
    assert_eq!(bench.left().await, 0);
    bench.end().await;
}

#[tokio::test]
async fn what_ignores_sigterm_is_killed_after_its_grace_and_a_crash_after_ready_is_an_exit() {
    let Some(bench) = Bench::new().await else { return };
    let mut door = bench.rig.connect().await;
    let mut wish = bench.wish("crash", &[]);
    wish.run.stop_grace_ms = 0;
    let other = bench.wish("other", &[]);
    door.desire([&wish, &other]).await;
    started_and_ready(&mut door, &wish).await;
    let (pid, _) = started_and_ready(&mut door, &other).await;
    // The pid is that of the container's init; its child is the program.
    bench.rig.kill(pid);
    let FactBody::Exited { code, .. } = door.fact(&other.instance).await else {
        panic!("an exit");
    };
    assert_eq!(code, Some(137));
    door.stop(&mut wish).await;
    door.fact_that(&wish.instance, |fact| matches!(fact, FactBody::Stopped { .. }))
        .await;
    assert_eq!(bench.left().await, 0);
    bench.end().await;
}

#[tokio::test]
async fn a_killed_agent_finds_its_containers_again() {
    let Some(mut bench) = Bench::new().await else { return };
    let mut door = bench.rig.connect().await;
    let stays = bench.wish("stays", &["count"]);
    let ends = bench.wish("ends", &[]);
    door.desire([&stays, &ends]).await;
    let (pid, _) = started_and_ready(&mut door, &stays).await;
    let (ending, _) = started_and_ready(&mut door, &ends).await;
    bench.rig.kill_agent().await;
    drop(door);
    bench.rig.kill(ending);
    until("it ends while no agent is there", || !alive(ending)).await;
    bench.rig.start_agent();
    let mut door = bench.rig.connect().await;
    assert_eq!(door.status(&stays.instance).state, "ready");
    door.desire([&stays, &ends]).await;
    let ended = |fact: &FactBody| matches!(fact, FactBody::Exited { .. });
    door.fact_that(&ends.instance, ended).await;
    assert!(alive(pid), "the same container");
    assert_eq!(bench.left().await, 1);
    // Output goes on without a gap or a line twice.
    let home = bench.rig.path(&format!("instances/{}", stays.instance));
    let lines = || {
        let text = output(&home);
        text.lines()
            .filter_map(|line| line.strip_prefix("line ")?.parse::<usize>().ok())
            .collect::<Vec<_>>()
    };
    let before = lines().len();
    until("more output comes", || lines().len() > before + 100).await;
    let mut stays = stays;
    door.stop(&mut stays).await;
    door.fact_that(&stays.instance, |fact| matches!(fact, FactBody::Stopped { .. }))
        .await;
    let lines = lines();
    assert_eq!(lines, (0..lines.len()).collect::<Vec<_>>());
    assert_eq!(bench.left().await, 0);
    bench.end().await;
}

#[tokio::test]
async fn what_nobody_wants_any_more_is_removed() {
    let Some(mut bench) = Bench::new().await else { return };
    let mut door = bench.rig.connect().await;
    let orphan = bench.wish("orphan", &[]);
    let unlisted = bench.wish("unlisted", &[]);
    door.desire([&orphan, &unlisted]).await;
    started_and_ready(&mut door, &orphan).await;
    started_and_ready(&mut door, &unlisted).await;
    bench.rig.kill_agent().await;
    // Its directory is lost, and with it all that the agent knew.
    std::fs::remove_dir_all(bench.rig.path(&format!("instances/{}", orphan.instance))).unwrap();
    bench.rig.start_agent();
    let mut door = bench.rig.connect().await;
    door.desire([]).await;
    door.fact_that(&unlisted.instance, |fact| matches!(fact, FactBody::Stopped { .. }))
        .await;
    while bench.left().await > 0 {
        door.beat().await;
    }
    bench.end().await;
}

#[tokio::test]
async fn without_an_engine_docker_is_not_offered() {
    let mut rig = Rig::idle().await;
    rig.env
        .push(("DOCKER_HOST".into(), "unix:///nowhere/docker.sock".into()));
    rig.start_agent();
    let mut door = rig.connect().await;
    assert_eq!(door.hello.runtimes, ["process"]);
    // Placed there by an older server all the same: it fails and says why.
    let mut wish = rig.wish("inst-a", &[]);
    wish.run.runtime = "docker".into();
    wish.run.image = Some(IMAGE.into());
    door.desire([&wish]).await;
    let (code, reason) = failure(&mut door, &wish).await;
    assert_eq!(code, "engine_unreachable");
    assert!(reason.contains("/nowhere/docker.sock"), "{reason}");
}

/// Rounds of starts, stops and kills of the agent at moments that nobody chose, from a seed that is printed.
#[tokio::test]
async fn fifty_rounds_of_starts_stops_and_kills_leave_nothing() {
    let Some(mut bench) = Bench::new().await else { return };
    let seed: u64 = std::env::var("SEED").map_or_else(|_| std::process::id().into(), |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = seed;
    let mut next = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut door = bench.rig.connect().await;
    for round in 0..50 {
        let mut wish = bench.wish(&format!("r{round}"), &[]);
        wish.devices.clear();
        wish.run.stop_grace_ms = 200;
        door.desire([&wish]).await;
        if next(2) == 0 {
            door.fact_that(&wish.instance, |fact| matches!(fact, FactBody::Started { .. }))
                .await;
        }
        if next(2) == 0 {
            door.stop(&mut wish).await;
        }
        if next(2) == 0 {
            // tidy: waits for a moment that falls anywhere between a wish and a running container
            tokio::time::sleep(std::time::Duration::from_millis(next(400))).await;
            bench.rig.kill_agent().await;
            drop(door);
            bench.rig.start_agent();
            door = bench.rig.connect().await;
        }
        door.stop(&mut wish).await;
        door.fact_that(&wish.instance, |fact| {
            matches!(
                fact,
                FactBody::Stopped { .. } | FactBody::StartFailed { .. } | FactBody::Exited { .. }
            )
        })
        .await;
    }
    door.desire([]).await;
    while bench.left().await > 0 {
        door.beat().await;
    }
    bench.end().await;
}
