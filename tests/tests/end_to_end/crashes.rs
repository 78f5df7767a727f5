//! `kill -9`, of a replica and of everything.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidemill_tests::product::{Up, eventually};

const HELLO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/hello.yaml");

#[test]
fn a_killed_replica_fails_no_retriable_request_and_is_replaced() {
    let up = Up::start("cpu*2");
    up.run(&["apply", "-f", HELLO, "--wait", "60s"]).ok();
    let hello = format!("{}/hello/", up.gateway.trim_end_matches('/'));
    let before = up.ready_pids();
    let report = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            up.run(&["load", &hello, "--rps", "80", "--duration", "8s", "-o", "json"])
                .ok()
                .json()
        });
        // The load has begun once the gateway has requests in flight or answered: the second kill is well inside it.
        for _ in 0..2 {
            let pids = eventually("two ready replicas", || Some(up.ready_pids()).filter(|p| p.len() == 2));
            kill(Pid::from_raw(pids[0].1), Signal::SIGKILL).unwrap();
            eventually("the killed one to be gone", || {
                (!up.ready_pids().iter().any(|(id, _)| *id == pids[0].0)).then_some(())
            });
        }
        load.join().unwrap()
    });
    let report = report.as_array().map_or(&report, |rows| &rows[0]);
    assert_eq!(report["failed"], 0, "{report}");
    let after = eventually("two ready replicas again", || {
        Some(up.ready_pids()).filter(|p| p.len() == 2)
    });
    assert_ne!(before, after);
}

#[test]
fn after_kill_nine_of_everything_the_same_processes_run_and_none_twice() {
    let mut up = Up::start("cpu*2");
    up.run(&["apply", "-f", HELLO, "--wait", "60s"]).ok();
    let before = up.ready_pids();
    assert_eq!(before.len(), 2);
    for round in 0..2 {
        up.process.kill();
        for (_, pid) in &before {
            kill(Pid::from_raw(*pid), None).unwrap_or_else(|e| panic!("round {round}: {pid} is gone: {e}"));
        }
        up.restart();
        let after = eventually("both replicas, re-adopted", || {
            Some(up.ready_pids()).filter(|p| p.len() == 2)
        });
        assert_eq!(before, after, "round {round}");
        let (status, _) = tidemill_tests::product::get(&format!("{}/hello/", up.gateway.trim_end_matches('/')));
        assert_eq!(status, 200);
    }
    let verify = up
        .run(&["verify", "-o", "json", "--data", up.data().to_str().unwrap()])
        .ok()
        .json();
    let report = verify.as_array().map_or(&verify, |rows| &rows[0]);
    assert_eq!(report["ok"], true, "{report}");
    let events = up.run(&["events", "-o", "jsonl"]).ok().stdout;
    assert!(
        !events.contains("InstanceFailed") && !events.contains("NodeLost"),
        "{events}"
    );
}
