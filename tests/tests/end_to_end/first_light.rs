//! What the README promises a newcomer.

use std::path::Path;

use tidemill_tests::product::{Up, get, run};

const HELLO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/hello.yaml");

#[test]
fn the_newcomers_commands_do_what_the_readme_says() {
    let up = Up::start("cpu*2");
    let applied = up.run(&["apply", "-f", HELLO, "--wait", "60s"]).ok();
    assert!(
        !applied.stderr.is_empty() || !applied.stdout.is_empty(),
        "it says what changed"
    );

    let hello = format!("{}/hello/", up.gateway.trim_end_matches('/'));
    let (status, body) = get(&hello);
    assert_eq!(status, 200, "{body}");

    let load = up
        .run(&["load", &hello, "--rps", "50", "--duration", "3s", "-o", "json"])
        .ok()
        .json();
    let report = load.as_array().map_or(&load, |rows| &rows[0]);
    assert_eq!(report["failed"], 0, "{report}");
    assert!(report["sent"].as_u64().unwrap() >= 140, "{report}");

    let service = up.service("hello").unwrap();
    assert_eq!(
        (service["ready"].as_u64(), service["desired"].as_u64()),
        (Some(2), Some(2)),
        "{service}"
    );
    assert_eq!(service["url"], hello.as_str());
    let instances = up.list("instances");
    assert_eq!(instances.len(), 2);
    for instance in &instances {
        assert_eq!(instance["state"], "ready", "{instance}");
        assert!(!instance["reason"].as_str().unwrap().is_empty());
        for step in ["decide", "place", "fetch", "start", "load", "ready"] {
            assert!(instance["timings_ms"][step].is_u64(), "{step} of {instance}");
        }
    }

    let events = up.run(&["events", "--about", "hello", "-o", "jsonl"]).ok();
    for kind in [
        "ServiceApplied",
        "InstancesRequested",
        "InstancesPlaced",
        "InstanceReady",
        "InstancesInRotation",
    ] {
        assert!(events.stdout.contains(kind), "{kind} in {}", events.stdout);
    }
    let verify = up
        .run(&["verify", "-o", "json", "--data", up.data().to_str().unwrap()])
        .ok()
        .json();
    let report = verify.as_array().map_or(&verify, |rows| &rows[0]);
    assert_eq!(report["ok"], true, "{report}");
    assert!(report["seals_checked"].as_u64().unwrap() >= 1, "{report}");

    for list in ["nodes", "devices", "services", "instances", "queue", "pool", "events"] {
        for format in ["table", "json", "jsonl", "csv"] {
            up.run(&[list, "-o", format]).ok();
        }
    }
    for id in ["hello", "local", instances[0]["id"].as_str().unwrap()] {
        let explained = up.run(&["explain", id]).ok();
        assert!(!explained.stdout.trim().is_empty());
        up.run(&["status", id]).ok();
    }
    up.run(&["doctor"]);
    assert_eq!(get(&format!("{}/livez", up.api)).0, 200);
    assert_eq!(get(&format!("{}/readyz?verbose", up.api)).0, 200);
    assert_eq!(get(&format!("{}/openapi.json", up.api)).0, 200);
    assert!(get(&format!("{}/metrics", up.api)).1.contains("tidemill_"));
}

#[test]
fn the_past_is_as_it_was_and_a_slice_can_be_taken_away() {
    let up = Up::start("cpu*2");
    up.run(&["apply", "-f", HELLO, "--wait", "60s"]).ok();
    let events: Vec<serde_json::Value> = serde_json::from_value(up.run(&["events", "-o", "json"]).ok().json()).unwrap();
    let before = events.iter().find(|e| e["kind"] == "ServiceApplied").unwrap()["seq"]
        .as_u64()
        .unwrap()
        - 1;
    let then = up.run(&["services", "-o", "json", "--seq", &before.to_string()]).ok();
    assert_eq!(
        then.json(),
        serde_json::json!([]),
        "before it was applied there was no service"
    );
    let last = events.last().unwrap()["seq"].as_u64().unwrap().to_string();
    let data = up.data();
    let data = data.to_str().unwrap();
    for list in ["nodes", "instances", "pool"] {
        let online = up.run(&[list, "-o", "json", "--seq", &last]).ok();
        let offline = up.run(&[list, "-o", "json", "--seq", &last, "--data", data]).ok();
        assert_eq!(online.json(), offline.json(), "{list} with and without the server");
    }
    let file = up.data().join("slice.tidemill");
    let file = file.to_str().unwrap();
    up.run(&["export", "--from", "1", "--to", &last, file, "--data", data])
        .ok();
    assert!(Path::new(file).exists());
    let verify = run("http://127.0.0.1:1", &["verify", "--file", file, "-o", "json"], "")
        .ok()
        .json();
    let report = verify.as_array().map_or(&verify, |rows| &rows[0]);
    assert_eq!(report["ok"], true, "{report}");
    let elsewhere = run(
        "http://127.0.0.1:1",
        &["instances", "-o", "json", "--file", file, "--seq", &last],
        "",
    )
    .ok();
    let here = up.run(&["instances", "-o", "json", "--seq", &last]).ok();
    assert_eq!(elsewhere.json(), here.json());
}

#[test]
fn scaling_up_and_down_under_load_fails_no_request() {
    let up = Up::start("cpu*2");
    up.run(&["apply", "-f", HELLO, "--wait", "60s"]).ok();
    let hello = format!("{}/hello/", up.gateway.trim_end_matches('/'));
    let report = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            up.run(&["load", &hello, "--rps", "60", "--duration", "12s", "-o", "json"])
                .ok()
                .json()
        });
        for replicas in ["4", "2", "4", "1"] {
            up.run(&["scale", "hello", replicas]).ok();
            let wanted: u64 = replicas.parse().unwrap();
            tidemill_tests::product::eventually("the replicas wanted", || {
                (up.service("hello")?["ready"] == wanted).then_some(())
            });
        }
        load.join().unwrap()
    });
    let report = report.as_array().map_or(&report, |rows| &rows[0]);
    assert_eq!(report["failed"], 0, "{report}");
    up.run(&["scale", "hello", "--auto"]).ok();
    tidemill_tests::product::eventually("the declared count", || {
        (up.service("hello")?["ready"] == 2).then_some(())
    });
}
