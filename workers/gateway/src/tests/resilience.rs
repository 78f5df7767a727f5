//! What clients perceive when instances die, close, reset and leave the routes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::support::*;
use crate::Limits;
use crate::health::Condition;

/// `clients` keep-alive clients that each send `each` requests; statuses of all answers.
async fn hammer(gw: &Served, clients: usize, each: usize, method: Method) -> JoinSet<Vec<u16>> {
    let mut all = JoinSet::new();
    for _ in 0..clients {
        let (address, method) = (gw.address, method.clone());
        all.spawn(async move {
            let mut conn = ClientConn::open(address).await;
            let mut statuses = Vec::new();
            for _ in 0..each {
                let mut ask = request(method.clone(), "/svc/");
                *ask.body_mut() = Full::new(Bytes::from_static(b"0123456789"));
                statuses.push(conn.send(ask).await.unwrap().status.as_u16());
            }
            statuses
        });
    }
    all
}

#[tokio::test]
async fn a_killed_instance_costs_no_retriable_request() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::from_millis(2)).await;
    let b = Echo::start("b", Duration::from_millis(2)).await;
    gw.route(route(&[("inst-a", a.address), ("inst-b", b.address)]));
    let all = hammer(&gw, 32, 60, Method::PUT).await;
    until("both are busy", || a.requests() > 100 && b.requests() > 100).await;
    a.kill();
    let statuses: Vec<u16> = all.join_all().await.concat();
    assert_eq!(statuses.len(), 32 * 60);
    assert!(statuses.iter().all(|s| *s == 200), "{statuses:?}");
    let second = gw.total();
    assert!(second.retries > 0, "the kill hit nothing");
    assert_eq!((second.failed, second.cut_streams), (0, 0));
    gw.at_rest().await;
}

#[tokio::test]
async fn a_post_fails_only_when_it_may_have_been_carried_out() {
    let gw = gateway(Limits::default()).await;
    // Reads the request and breaks, every time.
    let breaking = raw(|_, mut stream| async move {
        let _ = read_head(&mut stream).await;
    })
    .await;
    gw.route(route(&[("inst-x", breaking)]));
    let post = || {
        let mut ask = request(Method::POST, "/svc/");
        *ask.body_mut() = Full::new(Bytes::from_static(b"pay"));
        ask
    };
    let failed = send(gw.address, post()).await.unwrap();
    assert_eq!(
        (failed.status.as_u16(), failed.code().as_str()),
        (502, "instance_broke")
    );
    assert_eq!(failed.header("x-tidemill-attempts"), "1");
    assert!(failed.body.contains("Idempotency-Key"));

    // The same to an instance that does not even accept: nothing was sent, so it goes elsewhere.
    let b = Echo::start("b", Duration::ZERO).await;
    let dead = closed_port().await;
    gw.route(route(&[("inst-x", dead), ("inst-b", b.address)]));
    for _ in 0..20 {
        let reply = send(gw.address, post()).await.unwrap();
        assert_eq!(
            (reply.status.as_u16(), reply.header("x-tidemill-instance")),
            (200, "inst-b")
        );
    }

    // With a key, or where the route allows it, a broken one is sent again too.
    gw.route(route(&[("inst-x2", breaking), ("inst-b", b.address)]));
    for _ in 0..20 {
        let mut keyed = post();
        keyed.headers_mut().insert("idempotency-key", "k".parse().unwrap());
        assert_eq!(send(gw.address, keyed).await.unwrap().status, 200);
    }
    let mut any = route(&[("inst-x3", breaking), ("inst-b", b.address)]);
    any.retry = "any".into();
    gw.route(any);
    for _ in 0..20 {
        assert_eq!(send(gw.address, post()).await.unwrap().status, 200);
    }
    gw.at_rest().await;
}

#[tokio::test]
async fn a_get_is_not_resent_where_the_route_forbids_it() {
    let gw = gateway(Limits::default()).await;
    let breaking = raw(|_, mut stream| async move {
        let _ = read_head(&mut stream).await;
    })
    .await;
    let mut never = route(&[("inst-x", breaking)]);
    never.retry = "never".into();
    gw.route(never);
    assert_eq!(gw.get("/svc/").await.code(), "instance_broke");
    // Where it may, tries that break are bounded.
    gw.route(route(&[("inst-y", breaking)]));
    let failed = gw.get("/svc/").await;
    assert_eq!(failed.code(), "instance_broke");
    assert_eq!(failed.header("x-tidemill-attempts"), "6");
    gw.at_rest().await;
}

#[tokio::test]
async fn closing_unused_connections_is_never_seen() {
    // Says nothing of it in its answers, and closes after each.
    for linger in [0, 1, 5] {
        let gw = gateway(Limits::default()).await;
        let closing = raw(move |_, mut stream| async move {
            if answer_one(&mut stream).await {
                // tidy: waits for its time to close: that moment is what is tested
                tokio::time::sleep(Duration::from_millis(linger)).await;
            }
        })
        .await;
        gw.route(route(&[("inst-a", closing)]));
        let mut conn = ClientConn::open(gw.address).await;
        for n in 0..150_u64 {
            // GETs go out at all distances to the close, and the race is hidden by a retry.
            // tidy: waits for its turn: the distance to the close is what is tested
            tokio::time::sleep(Duration::from_micros(n % 10 * 200)).await;
            let reply = conn.send(request(Method::GET, "/svc/")).await.unwrap();
            assert_eq!(reply.status, 200);
        }
        // POSTs have no retry: once the gateway knows this instance, they get new connections.
        for n in 0..150_u64 {
            // tidy: waits for its turn: the distance to the close is what is tested
            tokio::time::sleep(Duration::from_micros(n % 10 * 200)).await;
            let reply = conn.send(request(Method::POST, "/svc/")).await.unwrap();
            assert_eq!(reply.status, 200, "linger {linger}: {}", reply.body);
        }
        gw.at_rest().await;
    }
}

#[tokio::test]
async fn connections_are_reused() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));
    let mut conn = ClientConn::open(gw.address).await;
    for method in [Method::GET, Method::POST, Method::HEAD] {
        for _ in 0..50 {
            conn.send(request(method.clone(), "/svc/")).await.unwrap();
        }
    }
    assert_eq!(a.seen.connections.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn ten_thousand_requests_with_resets_leave_no_count_behind() {
    let gw = gateway(Limits::default()).await;
    let resets = Arc::new(AtomicUsize::new(0));
    let mut addresses = Vec::new();
    for _ in 0..3 {
        let resets = Arc::clone(&resets);
        let address = raw(move |_, mut stream| {
            let resets = Arc::clone(&resets);
            async move {
                while read_head(&mut stream).await.is_some() {
                    let mut body = [0; 10];
                    if stream.read_exact(&mut body).await.is_err() {
                        return;
                    }
                    let cut = match fastrand::u32(..100) {
                        // Before the answer, and within it.
                        0..20 => &b""[..],
                        20..30 => &HELLO[..HELLO.len() - 2],
                        _ => {
                            if stream.write_all(HELLO).await.is_err() {
                                return;
                            }
                            continue;
                        }
                    };
                    let _ = stream.write_all(cut).await;
                    resets.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        })
        .await;
        addresses.push(address);
    }
    let named = |shift: usize| -> Vec<(&str, std::net::SocketAddr)> {
        let names = ["inst-a", "inst-b", "inst-c"];
        (0..2)
            .map(|n| (names[(n + shift) % 3], addresses[(n + shift) % 3]))
            .collect()
    };
    gw.route(route(&named(0)));
    let service = gw.service();
    let mut every: Vec<_> = service.instances();
    let mut all = JoinSet::new();
    for client in 0..50 {
        let address = gw.address;
        all.spawn(async move {
            let mut conn = ClientConn::open(address).await;
            for n in 0..200 {
                let method = [Method::PUT, Method::POST][(client + n) % 2].clone();
                let mut ask = request(method, "/svc/");
                *ask.body_mut() = Full::new(Bytes::from_static(b"0123456789"));
                if conn.send(ask).await.is_err() {
                    conn = ClientConn::open(address).await;
                }
            }
        });
    }
    // Instances come and go meanwhile.
    let churn = async {
        for shift in 1.. {
            // tidy: waits for its next turn: the pace of change is what is tested
            tokio::time::sleep(Duration::from_millis(50)).await;
            gw.route(route(&named(shift)));
            every.extend(service.instances());
        }
    };
    tokio::select! { _ = all.join_all() => {}, () = churn => {} }
    gw.at_rest().await;
    assert!(every.iter().all(|i| i.in_flight() == 0), "a slot was lost");
    let total = gw.total();
    assert_eq!(total.arrived, 10_000);
    let ended = total.ok + total.application_errors + total.failed + total.refused + total.cancelled;
    assert_eq!(ended, 10_000, "{total:?}");
    assert!(resets.load(Ordering::Relaxed) > 2_000);
    assert!(total.cut_streams > 0);
}

#[tokio::test]
async fn an_instance_set_aside_comes_back_by_probe() {
    let gw = gateway(Limits::default()).await;
    let address = closed_port().await;
    gw.route(route(&[("inst-a", address)]));
    let service = gw.service();
    let waiting = tokio::spawn(send(gw.address, request(Method::POST, "/svc/")));
    let instance = Arc::clone(&service.instances()[0]);
    until("set aside", || instance.health.condition() == Condition::Unreachable).await;
    until("the request waits", || service.queued() == 1).await;
    let a = Echo::on(TcpListener::bind(address).await.unwrap(), "a", Duration::ZERO);
    assert_eq!(waiting.await.unwrap().unwrap().status, 200);
    assert_eq!(instance.health.condition(), Condition::Good);
    assert_eq!(a.requests(), 1);
}

#[tokio::test]
async fn a_dropped_instance_loses_its_unanswered_requests_to_others() {
    let gw = gateway(Limits::default()).await;
    // Takes requests and never answers, like a host without power.
    let silent = raw(|_, mut stream| async move {
        let mut sink = Vec::new();
        let _ = stream.read_to_end(&mut sink).await;
    })
    .await;
    gw.route(route(&[("inst-s", silent)]));
    let service = gw.service();
    let mut get = tokio::spawn(send(gw.address, request(Method::GET, "/svc/")));
    let post = tokio::spawn(send(gw.address, request(Method::POST, "/svc/")));
    until("both are sent", || service.instances()[0].in_flight() == 2).await;
    let b = Echo::start("b", Duration::ZERO).await;

    // Draining: what runs there may end there.
    let mut draining = route(&[("inst-s", silent), ("inst-b", b.address)]);
    draining.instances[0].draining = true;
    gw.route(draining);
    let early = tokio::time::timeout(Duration::from_millis(100), &mut get).await;
    assert!(early.is_err(), "moved although only draining");
    for _ in 0..5 {
        assert_eq!(gw.get("/svc/").await.header("x-tidemill-instance"), "inst-b");
    }

    gw.route(route(&[("inst-b", b.address)]));
    let reply = get.await.unwrap().unwrap();
    assert_eq!(reply.header("x-tidemill-instance"), "inst-b");
    assert_eq!(reply.header("x-tidemill-attempts"), "2");
    assert!(!post.is_finished(), "a POST may have been carried out");
    post.abort();
    gw.at_rest().await;
}

#[tokio::test]
async fn a_draining_instance_keeps_no_connection_open() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::from_millis(50)).await;
    let b = Echo::start("b", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));
    let all = hammer(&gw, 8, 3, Method::GET).await;
    until("requests run", || a.requests() > 4).await;
    let mut draining = route(&[("inst-a", a.address), ("inst-b", b.address)]);
    draining.instances[0].draining = true;
    gw.route(draining);
    let statuses: Vec<u16> = all.join_all().await.concat();
    assert!(statuses.iter().all(|s| *s == 200), "{statuses:?}");
    until("its connections are closed", || {
        a.seen.open.load(Ordering::Relaxed) == 0
    })
    .await;
    gw.at_rest().await;
}

#[tokio::test]
async fn a_new_instance_is_warmed_and_does_not_starve() {
    let gw = gateway(Limits {
        slow_start: Duration::from_secs(3600),
        ..Limits::default()
    })
    .await;
    let (a, b) = (
        Echo::start("a", Duration::ZERO).await,
        Echo::start("b", Duration::ZERO).await,
    );
    gw.route(route(&[("inst-a", a.address)]));
    gw.service().instances()[0].warm_fully();
    gw.route(route(&[("inst-a", a.address), ("inst-b", b.address)]));
    let mut conn = ClientConn::open(gw.address).await;
    for _ in 0..1000 {
        assert_eq!(conn.send(request(Method::GET, "/svc/")).await.unwrap().status, 200);
    }
    // A tenth of an equal share: 50 of 1,000.
    let cold = b.requests();
    assert!((10..150).contains(&cold), "{cold} of 1,000");
}

#[tokio::test]
async fn several_gateways_share_the_instances() {
    let a = Echo::start("a", Duration::from_millis(1)).await;
    let b = Echo::start("b", Duration::from_millis(1)).await;
    let mut gateways = Vec::new();
    for _ in 0..3 {
        let gw = gateway(Limits::default()).await;
        let mut svc = route(&[("inst-a", a.address), ("inst-b", b.address)]);
        svc.concurrency = Some(4);
        gw.route(svc);
        gateways.push(gw);
    }
    let mut all = Vec::new();
    for gw in &gateways {
        all.push(hammer(gw, 16, 40, Method::PUT).await);
    }
    until("both are busy", || a.requests() > 100 && b.requests() > 100).await;
    a.kill();
    for clients in all {
        let statuses: Vec<u16> = clients.join_all().await.concat();
        assert!(statuses.iter().all(|s| *s == 200), "{statuses:?}");
    }
    for gw in &gateways {
        gw.at_rest().await;
    }
}
