//! A real agent process, real shims and real commands, driven by a door made for the test.

#![allow(clippy::unwrap_used)]

mod door;

use std::time::{Duration, Instant};

use door::{Rig, alive, pid_of, until};
use tidemill_protocol::agent::FactBody;

#[tokio::test]
async fn a_service_starts_gets_ready_and_stops() {
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    assert_eq!(door.hello.name, "n1");
    assert_eq!(door.hello.devices.len(), 4);
    let mut wish = rig.wish("inst-web", &["tidemill", "example-service", "$PORT"]);
    wish.run.ready_http = Some("/health".into());
    door.desire([&wish]).await;
    let FactBody::Started { pid, port, .. } = door.fact("inst-web").await else {
        panic!("started first");
    };
    let FactBody::Ready { endpoint, .. } = door.fact("inst-web").await else {
        panic!("ready next");
    };
    assert_eq!(endpoint, Some(format!("127.0.0.1:{port}")));
    let beat = door.beat().await;
    assert_eq!(beat.running, 1);
    assert!(beat.memory_total_bytes.unwrap() > 0);
    door.stop(&mut wish).await;
    assert_eq!(door.fact("inst-web").await, FactBody::Stopped { killed: false });
    assert!(!alive(pid));
    let notice = rig.read("instances/inst-web/notice.json");
    assert!(notice.contains(r#""kind":"stop""#), "{notice}");
    assert!(notice.contains("as the test asks"), "{notice}");
    // Once the ledger knows and does not list it, it is forgotten but for its output.
    door.desire([]).await;
    until("it is put away", || rig.exists("ended/inst-web/log.0")).await;
}

#[tokio::test]
async fn what_ignores_sigterm_is_killed_after_its_grace() {
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    let script = "trap '' TERM; echo up; while :; do sleep 60; done";
    let mut wish = rig.wish("inst-deaf", &["sh", "-c", script]);
    wish.run.stop_grace_ms = 300;
    door.desire([&wish]).await;
    assert!(matches!(door.fact("inst-deaf").await, FactBody::Started { .. }));
    assert!(matches!(door.fact("inst-deaf").await, FactBody::Ready { .. }));
    let began = Instant::now();
    door.stop(&mut wish).await;
    assert_eq!(door.fact("inst-deaf").await, FactBody::Stopped { killed: true });
    assert!(began.elapsed() >= Duration::from_millis(300));
}

#[tokio::test]
async fn nothing_is_left_of_what_daemonised_itself() {
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    // Two generations away, in a session of its own, deaf to SIGTERM and with another environment.
    let daemon = "setsid sh -c \"trap '' TERM; env -i sh -c 'trap \\\"\\\" TERM; while :; do sleep 1; done' & echo \\$! > pid; wait\" &";
    let script = format!("{daemon} while :; do sleep 60; done");
    let mut wish = rig.wish("inst-daemon", &["sh", "-c", &script]);
    wish.run.stop_grace_ms = 200;
    door.desire([&wish]).await;
    let file = "instances/inst-daemon/work/pid";
    until("the daemon runs", || !rig.read(file).trim().is_empty()).await;
    let daemon = rig.read(file).trim().parse().unwrap();
    assert!(alive(daemon));
    door.stop(&mut wish).await;
    door.fact_that("inst-daemon", |fact| *fact == FactBody::Stopped { killed: true })
        .await;
    assert!(!alive(daemon));
}

#[tokio::test]
async fn a_fork_storm_is_ended_too() {
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    // Each generation starts the next and leaves; nobody is there long enough to be named.
    let script = "f() { (setsid sleep 0.02; f) & }; f; f; f; while :; do sleep 60; done";
    let mut wish = rig.wish("inst-storm", &["bash", "-c", script]);
    wish.run.stop_grace_ms = 100;
    door.desire([&wish]).await;
    door.fact_that("inst-storm", |fact| matches!(fact, FactBody::Ready { .. }))
        .await;
    door.stop(&mut wish).await;
    door.fact_that("inst-storm", |fact| matches!(fact, FactBody::Stopped { .. }))
        .await;
    assert_eq!(rig.marked("inst-storm"), 0);
}

#[tokio::test]
async fn a_killed_agent_finds_its_instances_again() {
    let mut rig = Rig::new().await;
    let mut door = rig.connect().await;
    let stays = rig.wish("inst-stays", &["sh", "-c", "while :; do sleep 60; done"]);
    let ends = rig.wish(
        "inst-ends",
        &[
            "sh",
            "-c",
            "while [ ! -e go ]; do sleep 0.05; done; echo sorry >&2; exit 3",
        ],
    );
    door.desire([&stays, &ends]).await;
    let pid = pid_of(&door.fact("inst-stays").await);
    let ending = pid_of(&door.fact("inst-ends").await);
    door.fact("inst-ends").await;
    door.fact("inst-stays").await;
    rig.kill_agent().await;
    drop(door);
    assert!(alive(pid) && alive(ending));
    std::fs::write(rig.path("instances/inst-ends/work/go"), "").unwrap();
    until("it ends while no agent is there", || !alive(ending)).await;

    rig.start_agent();
    let mut door = rig.connect().await;
    let stays_status = door.status("inst-stays");
    assert_eq!(stays_status.state, "ready");
    assert!(door.hello.applied.is_some());
    door.desire([&stays, &ends]).await;
    // Facts whose acknowledgement the killed agent did not take in come again, before the new one.
    let FactBody::Exited { code, reason, .. } = door
        .fact_that("inst-ends", |fact| matches!(fact, FactBody::Exited { .. }))
        .await
    else {
        unreachable!()
    };
    assert_eq!(code, Some(3));
    assert!(reason.ends_with("sorry"), "{reason}");
    assert!(alive(pid));
    assert_eq!(rig.marked("inst-stays"), 2, "the shell and its sleep, once");
    assert_eq!(rig.marked("inst-ends"), 0, "a name lives once");
    let mut stays = stays;
    door.stop(&mut stays).await;
    door.fact_that("inst-stays", |fact| matches!(fact, FactBody::Stopped { .. }))
        .await;
    assert!(!alive(pid));
}

#[tokio::test]
async fn a_killed_shim_takes_its_instance_with_it() {
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    let wish = rig.wish("inst-orphan", &["sh", "-c", "(setsid sleep 60 &) ; sleep 60"]);
    door.desire([&wish]).await;
    let pid = pid_of(&door.fact("inst-orphan").await);
    door.fact("inst-orphan").await;
    let shim = rig.parent(pid);
    rig.kill(shim);
    let FactBody::Exited { reason, .. } = door.fact("inst-orphan").await else {
        panic!("the end of a shim is the end of its instance");
    };
    assert_eq!(reason, "its shim was killed");
    assert_eq!(rig.marked("inst-orphan"), 0);
}

#[tokio::test]
async fn failures_to_start_are_told_apart() {
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    let mut never = rig.wish("inst-never", &["sleep", "60"]);
    never.run.ready_http = Some("/health".into());
    never.run.ready_timeout_ms = 300;
    let mut wasm = rig.wish("inst-wasm", &["x"]);
    wasm.run.runtime = "wasm".into();
    let mut early = rig.wish("inst-early", &["sh", "-c", "echo no such model >&2; exit 7"]);
    early.run.ready_http = Some("/health".into());
    let wishes = [
        rig.wish("inst-missing", &["no-such-command-here"]),
        rig.wish("inst-plain", &["/etc/passwd"]),
        early,
        never,
        wasm,
    ];
    door.desire(&wishes).await;
    let mut failed = async |instance: &str| {
        let fact = door
            .fact_that(instance, |fact| matches!(fact, FactBody::StartFailed { .. }))
            .await;
        let FactBody::StartFailed { code, reason } = fact else {
            unreachable!()
        };
        (code, reason)
    };
    assert_eq!(failed("inst-missing").await.0, "command_not_found");
    assert_eq!(failed("inst-plain").await.0, "command_not_executable");
    let (code, reason) = failed("inst-early").await;
    assert_eq!(code, "exited_before_ready");
    assert_eq!(reason, "exited with code 7: no such model");
    let (code, reason) = failed("inst-never").await;
    assert_eq!(code, "not_ready_in_time");
    assert!(reason.contains("300 ms"), "{reason}");
    assert_eq!(failed("inst-wasm").await.0, "runtime_unknown");
}

#[tokio::test]
async fn an_unlisted_instance_is_stopped_but_not_by_a_stale_or_foreign_snapshot() {
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    let wish = rig.wish("inst-a", &["sleep", "60"]);
    door.desire([&wish]).await;
    let pid = pid_of(&door.fact("inst-a").await);
    door.fact("inst-a").await;
    // Older, and of another ledger: each would stop it if it were followed.
    let now = door.stamp.clone();
    door.stamp.sequence = 0;
    door.desire([]).await;
    door.stamp = now.clone();
    door.stamp.ledger = "another".into();
    door.stamp.sequence += 1000;
    door.desire([]).await;
    drop(door);
    let mut door = rig.connect().await;
    door.stamp = now.clone();
    door.stamp.ledger = "another".into();
    door.desire([]).await;
    // A beat later it has been handled, and nothing happened.
    door.beat().await;
    door.beat().await;
    assert!(alive(pid));
    door.stamp = now;
    door.desire([]).await;
    door.fact_that("inst-a", |fact| matches!(fact, FactBody::Stopped { .. }))
        .await;
    assert!(!alive(pid));
}

#[tokio::test]
async fn facts_wait_for_their_acknowledgement() {
    let mut rig = Rig::new().await;
    let mut door = rig.connect().await;
    door.acknowledge = false;
    let wish = rig.wish("inst-a", &["sh", "-c", "exit 0"]);
    door.desire([&wish]).await;
    let first = door.facts().await;
    drop(door);
    let mut door = rig.connect().await;
    door.acknowledge = false;
    let again = door.facts().await;
    assert_eq!(first[0].id, again[0].id, "sent again, under the same id");
    assert_eq!(door.status("inst-a").state, "gone");
    rig.kill_agent().await;
    drop(door);
    rig.start_agent();
    let mut door = rig.connect().await;
    let last = door
        .fact_that("inst-a", |fact| matches!(fact, FactBody::StartFailed { .. }))
        .await;
    assert!(matches!(last, FactBody::StartFailed { code, .. } if code == "exited_before_ready"));
    until("the ledger has all", || rig.outbox_len() == 0).await;
}

#[tokio::test]
async fn a_clean_end_says_goodbye_and_leaves_instances_running() {
    let mut rig = Rig::new().await;
    let mut door = rig.connect().await;
    let wish = rig.wish("inst-a", &["sleep", "60"]);
    door.desire([&wish]).await;
    let pid = pid_of(&door.fact("inst-a").await);
    rig.terminate_agent();
    let goodbye = door.goodbye().await;
    assert!(!goodbye.leaving);
    rig.agent_ended().await;
    assert!(alive(pid));
}

#[tokio::test]
async fn output_reaches_the_door() {
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    let script = "echo out; echo err >&2; while [ ! -e go ]; do sleep 0.05; done; echo later; exec sleep 60";
    let wish = rig.wish("inst-a", &["sh", "-c", script]);
    door.desire([&wish]).await;
    door.fact_that("inst-a", |fact| matches!(fact, FactBody::Ready { .. }))
        .await;
    let (text, next) = door.logs("inst-a", None, "later").await;
    assert!(text.contains("out\n") && text.contains("err\n"), "{text}");
    std::fs::write(rig.path("instances/inst-a/work/go"), "").unwrap();
    let (text, _) = door.logs("inst-a", Some(next), "later").await;
    assert_eq!(text, "later\n");
    let problem = door.no_logs("inst-unknown").await;
    assert_eq!(problem.code, "no_log");
}

#[tokio::test]
async fn two_hundred_at_once() {
    // More of them for measurements: `INSTANCES=1000 cargo test -p tidemill-agent two_hundred -- --nocapture`.
    let number = std::env::var("INSTANCES").map_or(200, |number| number.parse().unwrap());
    let rig = Rig::new().await;
    let mut door = rig.connect().await;
    let wishes: Vec<_> = (0..number)
        .map(|n| {
            let mut wish = rig.wish(&format!("inst-{n}"), &["sleep", "600"]);
            wish.devices.clear();
            wish
        })
        .collect();
    let began = Instant::now();
    door.desire(&wishes).await;
    door.count(number, |fact| matches!(fact, FactBody::Started { .. }))
        .await;
    let started = began.elapsed();
    door.count(number, |fact| matches!(fact, FactBody::Ready { .. })).await;
    let ready = began.elapsed();
    let shim = rig.parent(door.any_pid());
    let private = door::private_kib(shim);
    let stopping = Instant::now();
    door.desire([]).await;
    door.count(number, |fact| matches!(fact, FactBody::Stopped { .. }))
        .await;
    println!(
        "{number} instances: all started after {} ms, ready after {} ms, stopped within {} ms; a shim holds {private} KiB",
        started.as_millis(),
        ready.as_millis(),
        stopping.elapsed().as_millis()
    );
    assert!(private < 2048, "a shim holds {private} KiB of its own");
    assert!(door.facts_batched(), "facts travel in batches");
}
