//! The same product as separate processes on NATS, and a leader that is killed under a stream of commands.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidemill_tests::nats::NatsServer;
use tidemill_tests::product::{Process, end_instances, eventually, get, run};

pub struct Cluster {
    pub nats: NatsServer,
    dir: TempDir,
    pub servers: Vec<(Process, String)>,
}

impl Cluster {
    async fn start() -> Self {
        Self::on(NatsServer::start().await)
    }

    /// Two servers on this nats-server.
    pub fn on(nats: NatsServer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Self {
            nats,
            dir,
            servers: vec![],
        };
        for name in ["s1", "s2"] {
            cluster.add_server(name);
        }
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn add_server(&mut self, name: &str) {
        let (data, url, monitor) = (self.text(name), self.nats.url(), self.nats.monitor_url());
        let endpoints = Path::new(&data).join("endpoints.json");
        let _ = std::fs::remove_file(&endpoints);
        let args = [
            "server",
            "--data",
            &data,
            "--nats",
            &url,
            "--nats-monitor",
            &monitor,
            "--listen",
            "127.0.0.1:0",
        ];
        let mut process = Process::start(&self.path("log"), &args);
        let api = eventually("the server's endpoints", || {
            assert!(process.runs(), "{}", process.log());
            let text = std::fs::read_to_string(&endpoints).ok()?;
            let value: serde_json::Value = serde_json::from_str(&text).ok()?;
            Some(value["api"].as_str()?.to_owned())
        });
        self.servers.push((process, api));
    }

    fn apis(&self) -> String {
        self.servers
            .iter()
            .map(|(_, api)| api.clone())
            .collect::<Vec<_>>()
            .join(",")
    }

    /// The server that leads, by its place.
    pub fn leader(&self) -> usize {
        eventually("a leader", || {
            self.servers.iter().position(|(_, api)| {
                let (status, body) = get(&format!("{api}/readyz?verbose"));
                status == 200 && body.contains("leader") && !body.contains("\"role\":\"standby\"")
            })
        })
    }

    fn token(&self, role: &str) -> String {
        let made = run(&self.apis(), &["token", "create", "--role", role], "").ok();
        let path = self.path(&format!("{role}.token"));
        std::fs::write(&path, made.stdout.trim()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Cluster {
    /// Instances outlive their agents by design; here they must not, however the test ended.
    fn drop(&mut self) {
        end_instances(self.dir.path());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_processes_serves() {
    let cluster = Cluster::start().await;
    cluster.leader();
    let log = cluster.path("log");
    let (url, apis) = (cluster.nats.url(), cluster.apis());
    let (w, g, a) = (cluster.text("w"), cluster.text("g"), cluster.text("a"));
    let _workers = Process::start(&log, &["worker", "all", "--nats", &url, "--data", &w]);
    let gateway_port = tidemill_tests::nats::free_port();
    let listen = format!("127.0.0.1:{gateway_port}");
    let (gateway_token, node_token) = (cluster.token("gateway"), cluster.token("node"));
    let gateway_args = [
        "gateway",
        "--server",
        &apis,
        "--listen",
        &listen,
        "--data",
        &g,
        "--token-file",
        &gateway_token,
    ];
    let _gateway = Process::start(&log, &gateway_args);
    let agent_args = [
        "agent",
        "--server",
        &apis,
        "--token-file",
        &node_token,
        "--data",
        &a,
        "--name",
        "n1",
        "--supply",
        "idc",
        "--provider",
        "own",
        "--region",
        "east",
        "--zone",
        "a",
        "--address",
        "127.0.0.1",
        "--devices",
        "cpu*2",
    ];
    let _agent = Process::start(&log, &agent_args);
    let hello = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/hello.yaml");
    let applied = run(&apis, &["apply", "-f", hello, "--wait", "60s"], "");
    assert_eq!(
        applied.code,
        0,
        "{}\n{}",
        applied.stderr,
        std::fs::read_to_string(&log).unwrap_or_default()
    );
    eventually("an answer through the gateway", || {
        (get(&format!("http://{listen}/hello/")).0 == 200).then_some(())
    });
    run(&apis, &["delete", "service/hello", "--yes"], "").ok();
    eventually("the service to be gone", || {
        (run(&apis, &["services", "-o", "json"], "").ok().json() == serde_json::json!([])).then_some(())
    });
    let verify = run(&apis, &["verify", "--nats", &url, "-o", "json"], "").ok().json();
    let report = verify.as_array().map_or(&verify, |rows| &rows[0]);
    assert_eq!(report["ok"], true, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_loses_and_doubles_no_command() {
    let mut cluster = Cluster::start().await;
    let leader = cluster.leader();
    let apis = cluster.apis();
    let rounds = 30;
    let apply = |n: usize| {
        let text =
            format!("kind: service\nname: s{n}\nrun: {{command: [sleep, infinity]}}\nscale: {{min: 0, max: 1}}\n");
        run(&apis, &["apply", "-f", "-"], &text)
    };
    let mut slowest = Duration::ZERO;
    for n in 0..rounds {
        if n == rounds / 2 {
            cluster.servers[leader].0.kill();
        }
        let began = Instant::now();
        let ran = apply(n);
        assert_eq!(ran.code, 0, "command {n}: {}", ran.stderr);
        slowest = slowest.max(began.elapsed());
    }
    println!("{rounds} commands, leader killed in the middle: slowest answer {slowest:?}");
    let standby = cluster.servers[1 - leader].1.clone();
    let events = run(&standby, &["events", "-o", "jsonl"], "").ok().stdout;
    let names: Vec<String> = events
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|event| event["kind"] == "ServiceApplied")
        .filter_map(|event| event["data"]["name"].as_str().map(str::to_owned))
        .collect();
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert_eq!((names.len(), distinct.len()), (rounds, rounds), "each once");
    let verify = run(&standby, &["verify", "--nats", &cluster.nats.url(), "-o", "json"], "")
        .ok()
        .json();
    let report = verify.as_array().map_or(&verify, |rows| &rows[0]);
    assert_eq!(report["ok"], true, "{report}");
}
