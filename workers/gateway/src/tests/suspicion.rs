//! Instances that take requests and answer nothing, and slow ones that must not be taken for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::support::*;
use crate::Limits;
use crate::health::Condition;

/// Answers each connection by a thread of its own, until `frozen`: then like a stopped process.
struct Freezing {
    address: std::net::SocketAddr,
    frozen: Arc<AtomicBool>,
    thawed: Arc<Notify>,
}

async fn freezing(pause: Duration) -> Freezing {
    let (frozen, thawed) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
    let state = (Arc::clone(&frozen), Arc::clone(&thawed));
    let address = raw(move |_, mut stream| {
        let (frozen, thawed) = (Arc::clone(&state.0), Arc::clone(&state.1));
        async move {
            while let Some(head) = read_head(&mut stream).await {
                if head.starts_with("GET") {
                    // tidy: waits for its time to answer: slowness is what is tested
                    tokio::time::sleep(pause).await;
                }
                while frozen.load(Ordering::Relaxed) {
                    thawed.notified().await;
                }
                if stream.write_all(HELLO).await.is_err() {
                    return;
                }
            }
        }
    })
    .await;
    Freezing {
        address,
        frozen,
        thawed,
    }
}

#[tokio::test]
async fn what_hangs_on_a_stopped_instance_is_answered_by_another() {
    let gw = gateway(Limits::default()).await;
    let a = freezing(Duration::ZERO).await;
    let b = Echo::start("b", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address), ("inst-b", b.address)]));
    for _ in 0..40 {
        assert_eq!(gw.get("/svc/").await.status, 200);
    }
    a.frozen.store(true, Ordering::Relaxed);
    let mut all = JoinSet::new();
    for _ in 0..20 {
        all.spawn(send(gw.address, request(Method::GET, "/svc/")));
    }
    let mut moved = 0;
    while let Some(reply) = all.join_next().await {
        let reply = reply.unwrap().unwrap();
        assert_eq!(reply.header("x-tidemill-instance"), "inst-b");
        moved += usize::from(reply.header("x-tidemill-attempts") == "2");
    }
    assert!(moved > 0, "none was on the stopped one");
    let service = gw.service();
    let stopped = service.instances().into_iter().find(|i| &*i.id == "inst-a").unwrap();
    assert_eq!(stopped.health.condition(), Condition::Silent);
    // A request that must not be repeated is not, and gets its answer when the instance goes on.
    a.frozen.store(false, Ordering::Relaxed);
    a.thawed.notify_waiters();
    until("back in use", || stopped.health.condition() == Condition::Good).await;
    gw.at_rest().await;
}

#[tokio::test]
async fn a_slow_instance_is_not_taken_for_a_stopped_one() {
    let gw = gateway(Limits::default()).await;
    // One connection at a time: while it works it answers nobody.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Notify::new());
    let (told, go) = (Arc::clone(&asked), Arc::new(Notify::new()));
    let goes = Arc::clone(&go);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            if read_head(&mut stream).await.is_some_and(|head| head.starts_with("GET")) {
                told.notify_one();
                goes.notified().await;
            }
            let _ = stream.write_all(HELLO).await;
        }
    });
    let b = Echo::start("b", Duration::ZERO).await;
    gw.route(route(&[("inst-a", address)]));
    let service = gw.service();
    let single = service.instances().remove(0);
    let slow = tokio::spawn(send(gw.address, request(Method::GET, "/svc/")));
    asked.notified().await;
    gw.route(route(&[("inst-a", address), ("inst-b", b.address)]));
    // Long enough for checks to have failed.
    until("a check has failed", || single.vigil.checks_failed() > 0).await;
    assert_eq!(single.health.condition(), Condition::Good);
    go.notify_one();
    let reply = slow.await.unwrap().unwrap();
    assert_eq!(reply.header("x-tidemill-instance"), "inst-a");
    assert_eq!(reply.header("x-tidemill-attempts"), "1");
    assert!(!single.vigil.overlaps());
    gw.at_rest().await;
}

#[tokio::test]
async fn a_fresh_instance_that_hangs_is_judged_by_what_its_siblings_do() {
    let gw = gateway(Limits::default()).await;
    let a = freezing(Duration::from_secs(3)).await;
    gw.route(route(&[("inst-a", a.address)]));
    let service = gw.service();
    let known = service.instances().remove(0);
    let slow = tokio::spawn(send(gw.address, request(Method::GET, "/svc/")));
    until("seen to answer two things at once", || known.vigil.overlaps()).await;
    assert_eq!(slow.await.unwrap().unwrap().status, 200);
    // Of another one nothing is known yet when it hangs with its first request.
    let b = freezing(Duration::ZERO).await;
    b.frozen.store(true, Ordering::Relaxed);
    gw.route(route(&[("inst-b", b.address)]));
    let moved = tokio::spawn(send(gw.address, request(Method::GET, "/svc/")));
    let fresh = service.instances().into_iter().find(|i| &*i.id == "inst-b").unwrap();
    until("in flight", || fresh.in_flight() == 1).await;
    let c = Echo::start("c", Duration::ZERO).await;
    gw.route(route(&[("inst-b", b.address), ("inst-c", c.address)]));
    assert_eq!(moved.await.unwrap().unwrap().header("x-tidemill-instance"), "inst-c");
    assert_eq!(fresh.health.condition(), Condition::Silent);
    assert!(!fresh.vigil.overlaps());
    // It answers again: a guess that was wrong is taken back.
    b.frozen.store(false, Ordering::Relaxed);
    b.thawed.notify_waiters();
    until("back in use", || fresh.health.condition() == Condition::Good).await;
    gw.at_rest().await;
}

#[tokio::test]
async fn an_instance_that_answers_while_it_works_is_known_for_it() {
    let gw = gateway(Limits::default()).await;
    let a = freezing(Duration::from_secs(3)).await;
    gw.route(route(&[("inst-a", a.address)]));
    let service = gw.service();
    let instance = service.instances().remove(0);
    let slow = tokio::spawn(send(gw.address, request(Method::GET, "/svc/")));
    until("seen to answer two things at once", || instance.vigil.overlaps()).await;
    assert_eq!(slow.await.unwrap().unwrap().status, 200);
    // So that, once it is stopped, its own silence is enough.
    a.frozen.store(true, Ordering::Relaxed);
    let moved = tokio::spawn(send(gw.address, request(Method::GET, "/svc/")));
    until("in flight", || instance.in_flight() == 1).await;
    let b = Echo::start("b", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address), ("inst-b", b.address)]));
    assert_eq!(moved.await.unwrap().unwrap().header("x-tidemill-instance"), "inst-b");
    gw.at_rest().await;
}
