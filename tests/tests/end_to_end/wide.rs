//! From one instance to many: how long each stage takes. Prints, and asserts only that all become ready.

use std::time::Instant;

use tidemill_tests::product::{Up, eventually};

#[test]
fn a_service_scales_wide() {
    let replicas: u64 = if std::env::var_os("TIDEMILL_LONG").is_some() {
        1_000
    } else {
        100
    };
    let up = Up::start(&format!("sim:A100-80G*{replicas}"));
    let text = format!(
        "kind: service\nname: wide\nrun: {{command: [sleep, infinity], stop: {{grace: 1s}}}}\n\
         devices: {{model: [A100-80G]}}\nscale: {{min: 1, max: {replicas}}}\n"
    );
    up.apply(&text).ok();
    let began = Instant::now();
    up.run(&["scale", "wide", &replicas.to_string()]).ok();
    let placed = eventually("all placed", || {
        let instances = up.list("instances");
        let placed = instances.iter().filter(|i| i["node"].is_string()).count() as u64;
        (placed >= replicas).then(|| began.elapsed())
    });
    let ready = eventually("all ready", || {
        (up.service("wide")?["ready"] == replicas).then(|| began.elapsed())
    });
    let instances = up.list("instances");
    for step in ["decide", "place", "start", "load", "ready"] {
        let mut times: Vec<u64> = instances
            .iter()
            .filter_map(|i| i["timings_ms"][step].as_u64())
            .collect();
        times.sort_unstable();
        let last = times.last().copied().unwrap_or(0);
        println!(
            "{step}: median {} ms, slowest {last} ms",
            times.get(times.len() / 2).copied().unwrap_or(0)
        );
    }
    println!("{replicas} replicas: all placed after {placed:?}, all ready after {ready:?}");
    up.run(&["delete", "service/wide", "--yes"]).ok();
    eventually("nothing left", || up.service("wide").is_none().then_some(()));
    assert!(up.list("devices").iter().all(|d| d["state"] == "free"));
}
