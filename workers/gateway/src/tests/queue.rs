//! Waiting for capacity: bounds, deadlines, order, and being woken.

use std::time::Duration;

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
