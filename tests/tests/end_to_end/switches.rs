//! Nodes and instances come and go under load: drained, killed, stopped in their tracks, reclaimed. No request fails,
//! and each move of work is on record from its cause to what customers noticed of it.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tidemill_tests::product::{Agent, Up, eventually, get};

const HELLO: &str = "kind: service\nname: hello\nrun:\n  command: [tidemill, example-service, --port, $PORT, --request-time, 5ms]\n  \
                     ready: {http: /health, timeout: 20s}\n  stop: {grace: 2s}\ndevices: {count: 1}\n\
                     scale: {min: 4, max: 8, standby: 1}\nplacement: {spread: provider}\n";

struct Pool {
    up: Up,
    agents: Vec<Agent>,
}

impl Pool {
    /// Five nodes of a provider each, and four replicas of `hello` behind the gateway with one that stands by.
    fn start() -> Self {
        let up = Up::start_with("", &["--no-node".to_owned()]);
        let token = up.run(&["token", "create", "--role", "node"]).ok().stdout;
        let file = up.data().join("node.token");
        std::fs::write(&file, token.trim()).unwrap();
        let agent = |n: usize| Agent::start(&up, &file, &format!("n{n}"), &format!("p{n}"), "sim:A100-80G*4");
        let agents: Vec<Agent> = (1..=5).map(agent).collect();
        eventually("five nodes", || {
            let ready = |row: &&Value| row["state"] == "ready";
            (up.list("nodes").iter().filter(ready).count() == 5).then_some(())
        });
        up.apply(HELLO).ok();
        eventually("the route", || {
            (get(&format!("{}/hello/", up.gateway)).0 == 200).then_some(())
        });
        let pool = Self { up, agents };
        eventually("four replicas and a standby", || {
            (pool.ready().len() == 4 && pool.standing_by() == 1).then_some(())
        });
        pool
    }

    fn standing_by(&self) -> usize {
        let rows = self.up.list("instances");
        rows.iter().filter(|row| row["state"] == "standby").count()
    }

    /// Ready instances with the names of their nodes.
    fn ready(&self) -> Vec<(String, String, i32)> {
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let rows = self.up.list("instances");
        let ready = rows.iter().filter(|row| row["state"] == "ready");
        ready
            .map(|row| {
                (
                    text(row, "id"),
                    text(row, "node_name"),
                    row["pid"].as_i64().unwrap_or(0) as i32,
                )
            })
            .collect()
    }

    /// The agent of a node on which something serves.
    fn serving(&self) -> &Agent {
        let (_, node, _) = self.ready().swap_remove(0);
        self.agents.iter().find(|agent| agent.name == node).unwrap()
    }

    fn node_state(&self, name: &str) -> String {
        let nodes = self.up.list("nodes");
        let row = nodes.iter().find(|row| row["name"] == name).unwrap();
        row["state"].as_str().unwrap().to_owned()
    }

    /// Waits until each switch is closed, four replicas serve and one stands by; the switches away from `node`, newest last.
    fn settled(&self, node: &str, cause: &str) -> Vec<Value> {
        let switches = eventually(&format!("the switches away from {node} ({cause})"), || {
            let all = self.up.list("switches");
            let done = all.iter().all(|row| row["state"] != "open");
            let ours = |row: &Value| row["from_node_name"] == node && row["cause"] == cause;
            let ours: Vec<Value> = all.into_iter().filter(ours).collect();
            let whole = self.ready().len() == 4 && self.standing_by() == 1;
            (done && !ours.is_empty() && whole).then_some(ours)
        });
        for switch in &switches {
            assert_eq!(switch["state"], "replaced", "{switch}");
            assert_eq!(switch["failed_requests"], 0, "{switch}");
            // An answer that had begun dies with its process, and only where nobody could know before.
            let cut = switch["cut_streams"].as_u64().unwrap();
            assert_eq!(switch["perceived"], cut > 0, "{switch}");
            assert!(cut == 0 || switch["planned"] == false, "{switch}");
            assert!(switch["covered_seconds"].as_u64().unwrap() > 0, "{switch}");
            assert!(
                switch["replace_ms"].is_u64() && switch["to_node"].is_string(),
                "{switch}"
            );
        }
        switches
    }
}

#[test]
fn work_moves_for_every_cause_and_customers_notice_nothing() {
    let mut pool = Pool::start();
    // One token: the answer is there as soon as it begins.
    let hello = format!("{}/hello/?tokens=1", pool.up.gateway);
    let report = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let api = &pool.up.api;
            let args = ["load", &hello, "--rps", "60", "--duration", "45s", "-o", "json"];
            tidemill_tests::product::run(api, &args, "").ok().json()
        });

        let drained = pool.serving().name.clone();
        let args = ["drain", &drained, "--reason", "new disk", "--wait", "30s"];
        pool.up.run(&args).ok();
        assert_eq!(pool.node_state(&drained), "drained");
        let switches = pool.settled(&drained, "drain");
        assert!(switches.iter().all(|row| row["planned"] == true), "{switches:?}");

        let (instance, node, pid) = pool.ready().swap_remove(0);
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let switches = pool.settled(&node, "instance_failed");
        assert!(
            switches.iter().any(|row| row["instance"] == instance.as_str()),
            "{switches:?}"
        );

        pool.up.run(&["uncordon", &drained]).ok();
        assert_eq!(pool.node_state(&drained), "ready");

        // Stopped in its tracks, connections and all: found by silence alone.
        let hung = pool.serving();
        hung.signal_all(Signal::SIGSTOP);
        let switches = pool.settled(&hung.name, "node_silent");
        assert!(switches.iter().all(|row| row["detect_ms"].is_u64()), "{switches:?}");
        hung.signal_all(Signal::SIGCONT);
        eventually("its return", || (pool.node_state(&hung.name) == "ready").then_some(()));
        eventually("four replicas again", || (pool.ready().len() == 4).then_some(()));

        let killed = pool.serving();
        killed.signal_all(Signal::SIGKILL);
        pool.settled(&killed.name, "connection_closed");

        let reclaimed = pool.serving().name.clone();
        let args = [
            "drain",
            &reclaimed,
            "--reason",
            "taken back",
            "--reclaim",
            "--deadline",
            "10s",
        ];
        pool.up.run(&args).ok();
        pool.settled(&reclaimed, "reclaim");

        let (instance, node, _) = pool.ready().swap_remove(0);
        pool.up.run(&["move", &instance, "--reason", "noisy neighbour"]).ok();
        pool.settled(&node, "move");

        // The owner of a machine takes it back, on the machine itself; its agent ends by itself.
        let left = pool.serving().name.clone();
        let data = pool.serving().data();
        let args = ["agent", "leave", "--reason", "closing time", "-o", "json", "--data"];
        let args = [&args[..], &[data.to_str().unwrap()]].concat();
        let said = pool.up.run(&args).ok();
        assert_eq!(said.json()["state"], "left", "{}", said.stdout);
        assert!(said.stderr.contains("replaced elsewhere"), "{}", said.stderr);
        assert_eq!(pool.node_state(&left), "left");
        pool.settled(&left, "owner_leave");
        let agent = pool.agents.iter_mut().find(|agent| agent.name == left).unwrap();
        assert_eq!(agent.process.wait(), Some(0), "{}", agent.process.log());
        let again = pool.up.run(&args);
        assert_eq!(again.code, 1);
        assert!(again.stderr.contains("agent_not_running"), "{}", again.stderr);
        load.join().unwrap()
    });
    let report = report.as_array().map_or(&report, |rows| &rows[0]);
    assert_eq!(report["failed"], 0, "{report}");
    println!("load: {report}");
    for row in pool.up.list("switches") {
        println!(
            "{} {} → {}: detect {} replace {} gap {}",
            row["cause"],
            row["from_node_name"],
            row["to_node_name"],
            row["detect_ms"],
            row["replace_ms"],
            row["longest_gap_ms"]
        );
    }
    let switch = pool.up.list("switches").swap_remove(0);
    let id = switch["id"].as_str().unwrap();
    let explained = pool.up.run(&["explain", id]).ok().stdout;
    assert!(
        explained.contains("drain") && explained.contains("in rotation"),
        "{explained}"
    );
    let told = pool.up.run(&["events", "--about", id, "-o", "jsonl"]).ok().stdout;
    for kind in ["SwitchOpened", "SwitchReplacementChosen", "SwitchClosed"] {
        assert!(told.contains(kind), "{kind} in {told}");
    }
    let verify = pool
        .up
        .run(&["verify", "-o", "json", "--data", pool.up.data().to_str().unwrap()]);
    let verify = verify.ok().json();
    let verify = verify.as_array().map_or(&verify, |rows| &rows[0]);
    assert_eq!(verify["ok"], true, "{verify}");
    pool.agents.clear();
}
