//! A changed service replaces its replicas, stops where they do not get ready, and goes back, and no request fails.

use tidemill_tests::product::{Up, eventually, get};

/// `hello` in a version of its own.
fn version(command: &str) -> String {
    format!(
        "kind: service\nname: hello\nrun:\n  command: {command}\n  ready: {{http: /health, timeout: 20s}}\n  stop: {{grace: 5s}}\n\
         devices: {{count: 1, kind: [cpu]}}\nscale: {{min: 2, max: 4}}\n"
    )
}

fn example(delay: &str) -> String {
    version(&format!(
        "[tidemill, example-service, --port, $PORT, --request-time, {delay}]"
    ))
}

#[test]
fn a_rollout_its_halt_and_the_way_back_fail_no_request() {
    let up = Up::start("cpu*3");
    up.apply(&example("5ms")).ok();
    eventually("two replicas", || (up.service("hello")?["ready"] == 2).then_some(()));
    let hello = format!("{}/hello/", up.gateway.trim_end_matches('/'));
    eventually("the route", || (get(&hello).0 == 200).then_some(()));
    let generation = |wanted: u64, state: &str| {
        eventually(&format!("generation {wanted}, {state}"), || {
            let row = up.service("hello")?;
            (row["generation"] == wanted && row["state"] == state && row["ready"] == 2).then_some(row)
        })
    };
    let report = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            up.run(&["load", &hello, "--rps", "40", "--duration", "25s", "-o", "json"])
                .ok()
                .json()
        });
        up.apply(&example("6ms")).ok();
        generation(2, "ready");
        // Its command ends at once: it never gets ready.
        let refused = up.apply(&version("[/bin/false]"));
        assert_eq!(refused.code, 3, "{}", refused.stderr);
        assert!(refused.stderr.contains("halted"), "{}", refused.stderr);
        let halted = generation(3, "halted");
        assert_eq!(halted["rollout"]["from"], 2, "{halted}");
        assert_eq!(halted["rollback_to"], 2, "{halted}");
        let explained = up.run(&["explain", "hello"]).ok();
        assert!(
            explained.stdout.contains("halted") && explained.stdout.contains("tidemill rollback service/hello"),
            "{}",
            explained.stdout
        );
        up.run(&["rollback", "service/hello", "--wait", "30s"]).ok();
        generation(2, "ready");
        load.join().unwrap()
    });
    let report = report.as_array().map_or(&report, |rows| &rows[0]);
    assert_eq!(report["failed"], 0, "{report}");
    let events = up.run(&["events", "--about", "hello", "-o", "jsonl"]).ok().stdout;
    for kind in ["ServiceRolledOut", "ServiceRolloutHalted", "ServiceRolledBack"] {
        assert!(events.contains(kind), "{kind} in {events}");
    }
}
