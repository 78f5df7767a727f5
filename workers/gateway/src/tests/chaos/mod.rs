//! Replicas as processes that are killed, stopped, scaled and worse, under a steady mixed load.
//!
//! What must hold: no request that may be repeated fails; one that may not fails only with the replica that had it, and
//! says so; nothing of that kind is carried out twice; nothing is left in flight. How long answers took to begin, those
//! that needed several tries and those of replicas that nothing was done to, is printed and not judged, since the machine
//! decides. `TIDEMILL_LONG=1` runs it for five minutes instead of 25 s.

mod clients;
mod hole;
mod replica;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidemill_protocol::gateway::RouteInstance;
use tokio::task::JoinSet;

use super::support::*;
use crate::Limits;
use clients::{Answered, Clients};
use hole::Hole;
use replica::Replica;

/// Requests a second.
const RATE: u32 = 300;
/// Requests at a time: beyond it a slow machine gets fewer a second rather than out of files.
const AT_ONCE: usize = 200;
const FEW: usize = 2;
const MANY: usize = 6;

/// The platform's side: which replicas there are, and what the routes say.
struct Pool<'a> {
    gw: &'a Served,
    notes: PathBuf,
    ready: Vec<Replica>,
    draining: Vec<Replica>,
    next: usize,
    /// Replicas that broke connections or died, by what was done to them.
    to_blame: HashMap<String, &'static str>,
    /// Those and the ones that only dawdled or closed unused connections.
    harmed: HashSet<String>,
    done: HashMap<&'static str, usize>,
    hole: Option<Hole>,
}

impl Pool<'_> {
    fn route(&self) {
        let entry = |replica: &Replica, draining| RouteInstance {
            instance: replica.id.clone(),
            node: "node-1".into(),
            endpoint: Some(replica.address.to_string()),
            draining,
        };
        let mut all = route(&[]);
        all.instances.extend(self.ready.iter().map(|r| entry(r, false)));
        all.instances.extend(self.draining.iter().map(|r| entry(r, true)));
        self.gw.route(all);
    }

    /// Brings the number of replicas to `wanted`; those that leave are drained, and gone at a later call.
    async fn scale(&mut self, wanted: usize) {
        let busy = self.gw.service().all_in_flight();
        let at_rest = |r: &mut Replica| !busy.iter().any(|i| *i.id == *r.id);
        // Out of the routes first: a gateway that still probed one would find it gone.
        let gone: Vec<_> = self.draining.extract_if(.., at_rest).collect();
        while self.ready.len() < wanted {
            let id = format!("inst-{}", self.next);
            self.next += 1;
            let notes = self.notes.clone();
            let start = move || Replica::start(id, "127.0.0.1", &[], &notes);
            self.ready.push(tokio::task::spawn_blocking(start).await.unwrap());
        }
        self.draining.extend(self.ready.drain(wanted..));
        self.route();
        drop(gone);
    }

    /// What is done to a replica may break connections.
    fn blame(&mut self, at: usize, what: &'static str) {
        self.note(at, what);
        self.to_blame.insert(self.ready[at].id.clone(), what);
    }

    fn note(&mut self, at: usize, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
        self.harmed.insert(self.ready[at].id.clone());
    }

    /// Does something to one replica; for the rest of a moment the routes still name it.
    async fn harm(&mut self, what: usize) {
        let at = fastrand::usize(..self.ready.len());
        let moment = Duration::from_millis(700);
        match what {
            0 => {
                self.blame(at, "killed");
                self.ready[at].kill();
                // tidy: waits for the time that a failure takes to be noticed
                tokio::time::sleep(moment).await;
                self.ready.remove(at);
            }
            1 => {
                self.blame(at, "stopped");
                self.ready[at].signal("-STOP");
                // tidy: waits for the time in which it is stopped: that is what is tested
                tokio::time::sleep(Duration::from_millis(3500)).await;
                if fastrand::bool() {
                    self.ready[at].signal("-CONT");
                } else {
                    self.ready[at].kill();
                    // tidy: waits for the time that a failure takes to be noticed
                    tokio::time::sleep(moment).await;
                    self.ready.remove(at);
                }
            }
            2 => {
                self.blame(at, "resetting");
                self.ready[at].control("reset").await;
            }
            3 => {
                self.note(at, "slow");
                self.ready[at].control("slow").await;
            }
            4 => {
                self.note(at, "closing");
                self.ready[at].control("close").await;
            }
            5 => {
                self.note(at, "refusing");
                self.ready[at].control("refuse").await;
            }
            _ => self.swallow().await,
        }
        // tidy: waits for what was done to have its time
        tokio::time::sleep(moment).await;
    }

    /// A replica whose host vanishes from the network, with all that was under way.
    async fn swallow(&mut self) {
        let Some(hole) = &self.hole else { return };
        let id = format!("inst-{}", self.next);
        self.next += 1;
        let notes = self.notes.clone();
        let (ip, through) = (hole.ip.clone(), hole.through());
        let start = move || {
            let through: Vec<&str> = through.iter().map(String::as_str).collect();
            Replica::start(id, &ip, &through, &notes)
        };
        let replica = tokio::task::spawn_blocking(start).await.unwrap();
        self.ready.push(replica);
        self.route();
        // tidy: waits for it to have work
        tokio::time::sleep(Duration::from_secs(1)).await;
        hole.open();
        let at = self.ready.len() - 1;
        self.blame(at, "swallowed");
        // tidy: waits for the time in which it is away: that is what is tested
        tokio::time::sleep(Duration::from_secs(4)).await;
        let gone = self.ready.remove(at);
        self.route();
        // tidy: waits for the time after which what is open to it is given up
        tokio::time::sleep(Duration::from_secs(2)).await;
        drop(gone);
        if let Some(hole) = &self.hole {
            hole.close();
        }
    }
}

fn p99<'a>(answers: impl Iterator<Item = &'a Answered>) -> Duration {
    let mut all: Vec<_> = answers.map(|a| a.after).collect();
    all.sort();
    all.get(all.len() * 99 / 100).copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_may_be_repeated_fails_whatever_replicas_do() {
    let long = std::env::var("TIDEMILL_LONG").is_ok_and(|long| long == "1");
    let lasting = Duration::from_secs(if long { 300 } else { 25 });
    let quiet = Duration::from_secs(if long { 20 } else { 4 });
    let scaling = Duration::from_secs(if long { 10 } else { 5 });
    let gw = gateway(Limits {
        vanished_after: Duration::from_secs(3),
        ..Limits::default()
    })
    .await;
    let mut pool = Pool {
        notes: gw.dir.path().join("notes"),
        gw: &gw,
        ready: Vec::new(),
        draining: Vec::new(),
        next: 0,
        to_blame: HashMap::new(),
        harmed: HashSet::new(),
        done: HashMap::new(),
        hole: Hole::dig(),
    };
    pool.route();
    pool.scale(FEW).await;
    let clients = Clients::new(gw.address);
    let began = Instant::now();

    let load = async {
        let mut asking = JoinSet::new();
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
        for number in 0.. {
            ticks.tick().await;
            if began.elapsed() > quiet + lasting {
                break;
            }
            while asking.try_join_next().is_some() {}
            if asking.len() < AT_ONCE {
                asking.spawn(std::sync::Arc::clone(&clients).one(number));
            }
        }
        asking.join_all().await;
    };
    let chaos = async {
        // tidy: waits for the time in which nothing is done, as a measure for what follows
        tokio::time::sleep(quiet).await;
        clients.quiet.store(false, Ordering::Relaxed);
        let (mut wanted, mut scaled) = (MANY, Instant::now());
        pool.scale(wanted).await;
        for what in (0..7).cycle() {
            if began.elapsed() + Duration::from_secs(2) > quiet + lasting {
                break;
            }
            pool.harm(what).await;
            if scaled.elapsed() > scaling {
                wanted = if wanted == FEW { MANY } else { FEW };
                scaled = Instant::now();
            }
            pool.scale(wanted).await;
        }
        for replica in &pool.ready {
            replica.signal("-CONT");
        }
        pool
    };
    let ((), pool) = tokio::join!(load, chaos);
    gw.at_rest().await;

    let seen = std::mem::take(&mut *clients.seen.lock().unwrap());
    let affected: Vec<_> = seen.answers.iter().filter(|a| a.tries > 1).collect();
    let slowest = affected.iter().max_by_key(|a| a.after);
    let slowest = slowest.map(|a| {
        format!(
            "a {} after {:.2} s and {} tries",
            a.kind,
            a.after.as_secs_f64(),
            a.tries
        )
    });
    let others = |quiet| {
        let spared = |a: &&Answered| a.tries == 1 && a.quiet == quiet && (quiet || !pool.harmed.contains(&a.instance));
        p99(seen.answers.iter().filter(spared))
    };
    println!(
        "{} answered, {} lost with their replica, {} took more than one try (p99 {:.2} s, slowest {slowest:?}); p99 of \
         others {:?}, before all this {:?}; done: {:?}",
        seen.answers.len(),
        seen.lost.len(),
        affected.len(),
        p99(affected.iter().copied()).as_secs_f64(),
        others(false),
        others(true),
        pool.done
    );
    assert!(
        seen.failed.is_empty(),
        "{} failed: {:#?}",
        seen.failed.len(),
        &seen.failed[..seen.failed.len().min(5)]
    );
    for (instance, what) in &seen.lost {
        assert!(
            pool.to_blame.contains_key(instance),
            "{instance} is not to blame: {what}"
        );
    }
    let notes = std::fs::read_to_string(&pool.notes).unwrap();
    let mut carried_out = HashSet::new();
    for id in notes.lines().filter(|id| seen.once.contains(*id)) {
        assert!(carried_out.insert(id), "request {id} was carried out twice");
    }
    assert!(carried_out.len() > 100 && !affected.is_empty(), "too little happened");
    assert!(seen.answers.len() > 1000);
    let total = gw.total();
    assert_eq!(
        total.arrived,
        total.ok + total.application_errors + total.failed + total.refused + total.cancelled
    );
}
