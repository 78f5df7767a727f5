//! Waiting for capacity: bounds, deadlines, order, and being woken.

use std::time::{Duration, Instant};

use http::Method;
use tokio::task::JoinSet;

use super::support::*;
use crate::Limits;

#[tokio::test]
async fn a_thousand_wait_until_an_instance_appears() {
    let gw = gateway(Limits::default()).await;
    gw.route(route(&[]));
    let mut waiting = JoinSet::new();
    for _ in 0..1000 {
        let address = gw.address;
        waiting.spawn(async move { send(address, request(Method::GET, "/svc/")).await });
    }
    let service = gw.service();
    until("1,000 wait", || service.queued() == 1000).await;
    let a = Echo::start("a", Duration::ZERO).await;
    let mut svc = route(&[("inst-a", a.address)]);
    svc.concurrency = Some(8);
    gw.route(svc);
    while let Some(reply) = waiting.join_next().await {
        assert_eq!(reply.unwrap().unwrap().status, 200);
    }
    assert_eq!(a.requests(), 1000);
    gw.at_rest().await;
    let second = gw.total();
    assert_eq!((second.arrived, second.ok), (1000, 1000));
    assert!(second.longest_gap_ms > 0);
}

#[tokio::test]
async fn of_a_thousand_at_zero_none_fails_before_its_deadline() {
    let limits = Limits {
        queue_deadline: Duration::from_secs(3),
        ..Limits::default()
    };
    let gw = gateway(limits).await;
    gw.route(route(&[]));
    let service = gw.service();
    let before = resident_kib();
    let mut waiting = JoinSet::new();
    for _ in 0..1000 {
        let address = gw.address;
        waiting.spawn(async move {
            let began = Instant::now();
            let reply = send(address, request(Method::GET, "/svc/")).await.unwrap();
            (began.elapsed(), reply)
        });
    }
    until("1,000 wait", || service.queued() == 1000).await;
    // Of clients and gateway together, since both are in this process.
    let each = resident_kib().saturating_sub(before) / 1000;
    println!("{each} KiB a waiting request, its client included");
    assert!(each < 128, "{each} KiB a waiting request");
    while let Some(reply) = waiting.join_next().await {
        let (took, reply) = reply.unwrap();
        assert!(took >= Duration::from_secs(3), "{took:?}: {}", reply.body);
        assert_eq!((reply.status.as_u16(), reply.code().as_str()), (503, "no_capacity"));
        let told: u64 = reply.header("retry-after").parse().unwrap();
        assert!((3..=60).contains(&told), "as long again as it has lasted, not {told} s");
    }
    gw.at_rest().await;
    assert_eq!(gw.total().refused, 1000);
}

#[tokio::test]
async fn a_service_has_a_queue_of_its_own() {
    let gw = gateway(Limits::default()).await;
    let ask = || send(gw.address, request(Method::GET, "/svc/"));
    let mut svc = route(&[]);
    (svc.queue, svc.queue_timeout_ms) = (Some(1), Some(300));
    gw.route(svc.clone());
    let service = gw.service();
    let waiting = tokio::spawn(ask());
    until("one waits", || service.queued() == 1).await;
    assert_eq!(ask().await.unwrap().code(), "queue_full");
    let late = waiting.await.unwrap().unwrap();
    assert_eq!((late.status.as_u16(), late.code().as_str()), (503, "no_capacity"));

    svc.queue = Some(0);
    gw.route(svc.clone());
    let told = ask().await.unwrap();
    assert_eq!((told.status.as_u16(), told.code().as_str()), (503, "no_capacity"));
    assert!(told.body.contains("route.queue: 0"), "{}", told.body);
    assert_ne!(told.header("retry-after"), "");
    let a = Echo::start("a", Duration::ZERO).await;
    svc.instances = route(&[("inst-a", a.address)]).instances;
    gw.route(svc.clone());
    assert_eq!(ask().await.unwrap().status, 200, "a free slot needs no queue");

    // Without a word of its own it has the gateway's.
    (svc.queue, svc.queue_timeout_ms, svc.instances) = (None, None, Vec::new());
    gw.route(svc);
    let waiting = JoinSet::from_iter((0..3).map(|_| ask()));
    until("three wait", || service.queued() == 3).await;
    drop(waiting);
    gw.at_rest().await;
}

#[tokio::test]
async fn a_full_queue_refuses_with_retry_after() {
    let limits = Limits {
        queue_length: 2,
        ..Limits::default()
    };
    let gw = gateway(limits).await;
    gw.route(route(&[]));
    let service = gw.service();
    let mut waiting = JoinSet::new();
    for _ in 0..2 {
        let address = gw.address;
        waiting.spawn(async move { send(address, request(Method::GET, "/svc/")).await });
    }
    until("two wait", || service.queued() == 2).await;
    let full = gw.get("/svc/").await;
    assert_eq!((full.status.as_u16(), full.code().as_str()), (429, "queue_full"));
    assert_eq!(full.header("retry-after"), "1");

    // Waiting clients that leave free their places.
    waiting.shutdown().await;
    until("none wait", || service.queued() == 0).await;
    gw.at_rest().await;
    let second = gw.total();
    assert_eq!((second.refused, second.cancelled), (1, 2));
}

#[tokio::test]
async fn the_deadline_answers_with_the_reason() {
    let limits = Limits {
        queue_deadline: Duration::from_millis(200),
        ..Limits::default()
    };
    let gw = gateway(limits).await;
    gw.route(route(&[]));
    let late = gw.get("/svc/").await;
    assert_eq!((late.status.as_u16(), late.code().as_str()), (503, "no_capacity"));
    assert!(late.body.contains("none is ready"), "{}", late.body);

    let mut tunnelled = route(&[("inst-t", "127.0.0.1:1".parse().unwrap())]);
    tunnelled.instances[0].endpoint = None;
    gw.route(tunnelled);
    let late = gw.get("/svc/").await;
    assert!(late.body.contains("tunnel"), "{}", late.body);

    gw.route(route(&[("inst-x", closed_port().await)]));
    let late = gw.get("/svc/").await;
    assert_eq!(late.code(), "no_capacity");
    assert!(late.body.contains("do not answer"), "{}", late.body);
    gw.at_rest().await;
}

#[tokio::test]
async fn stopping_the_service_answers_those_who_wait_at_once() {
    let gw = gateway(Limits::default()).await;
    gw.route(route(&[]));
    let service = gw.service();
    let address = gw.address;
    let waiting = tokio::spawn(send(address, request(Method::GET, "/svc/")));
    until("one waits", || service.queued() == 1).await;
    let mut stopped = route(&[]);
    stopped.stopped = true;
    gw.route(stopped);
    assert_eq!(waiting.await.unwrap().unwrap().code(), "service_stopped");

    gw.route(route(&[]));
    let waiting = tokio::spawn(send(address, request(Method::GET, "/svc/")));
    until("one waits", || service.queued() == 1).await;
    gw.routes(vec![]);
    let gone = waiting.await.unwrap().unwrap();
    assert_eq!((gone.status.as_u16(), gone.code().as_str()), (404, "no_such_service"));
}

#[tokio::test]
async fn the_concurrency_limit_holds_and_order_is_kept() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::from_millis(5)).await;
    let mut svc = route(&[("inst-a", a.address)]);
    svc.concurrency = Some(1);
    gw.route(svc);
    let service = gw.service();
    let done = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut all = JoinSet::new();
    for n in 0..20_usize {
        let (address, finished) = (gw.address, std::sync::Arc::clone(&done));
        all.spawn(async move {
            let reply = send(address, request(Method::GET, "/svc/")).await.unwrap();
            assert_eq!(reply.status, 200);
            finished.lock().unwrap().push(n);
        });
        // One after the other, so that arrival is in this order.
        until("admitted", || {
            let arrived = done.lock().unwrap().len() + service.traffic.waiting() as usize;
            assert!(service.instances()[0].in_flight() <= 1);
            arrived > n
        })
        .await;
    }
    all.join_all().await;
    let order = done.lock().unwrap().clone();
    let overtaken = order.windows(2).filter(|w| w[0] > w[1]).count();
    // Client tasks may finish a little out of order; the queue may not.
    assert!(overtaken <= 2, "{order:?}");
    gw.at_rest().await;
}
