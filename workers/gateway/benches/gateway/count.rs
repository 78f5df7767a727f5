//! Instructions that the gateway spends on a request. Unlike time they do not depend on what else the machine does, so a
//! change of a hundredth shows.
//!
//! The gateway runs on one thread under valgrind, twice: the difference between many requests and few is what requests
//! cost, without start and end.

use std::path::Path;
use std::process::{Command, Stdio};

use super::*;

/// Connections in turn busy.
const BUSY: u64 = 8;
const FEW: u64 = 50;
const MANY: u64 = 550;

/// Counts and does nothing else.
pub(super) async fn alone() {
    let backend = Server::start("backend", &[]);
    let dir = std::env::var("COUNT").unwrap();
    print(Path::new(&dir), &backend.list()).await;
}

/// Counts, and says what came of it.
pub(super) async fn print(dir: &Path, backends: &str) {
    match instructions(dir, backends).await {
        Some(count) => println!("gateway: {count:.0} instructions a request, those of the system not counted"),
        None => println!("valgrind is not installed: no instructions counted"),
    }
}

/// `None` without valgrind.
async fn instructions(dir: &Path, backends: &str) -> Option<f64> {
    let there = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    there.ok().filter(|status| status.success())?;
    let few = run(&dir.join("few"), backends, FEW).await;
    let many = run(&dir.join("many"), backends, MANY).await;
    Some((many - few) as f64 / (BUSY * (MANY - FEW)) as f64)
}

/// Instructions of a gateway's whole life in which each connection brings `each` requests.
async fn run(out: &Path, backends: &str, each: u64) -> u64 {
    let child = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().unwrap())
        .env(ROLE, "counted")
        .env(BACKENDS, backends)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Server::of(child.unwrap());
    let address = server.addresses[0];
    let mut all = JoinSet::new();
    for _ in 0..BUSY {
        all.spawn(async move {
            let mut conn = Conn::open(address).await;
            for _ in 0..each {
                conn.ask().await;
            }
        });
    }
    all.join_all().await;
    drop(server.child.stdin.take());
    server.child.wait().unwrap();
    let counted = std::fs::read_to_string(out).unwrap();
    let total = counted
        .lines()
        .find_map(|line| line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")));
    total.unwrap().trim().parse().unwrap()
}
