//! What a client may not do, and what an instance may: answer before it has heard all.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http_body_util::Full;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::*;
use crate::Limits;
use crate::health::Condition;

/// Sends raw bytes, goes on with `more` until it is told off, and returns all that was answered.
async fn talk(gw: &Served, head: &str, more: &[u8], times: usize) -> String {
    let stream = TcpStream::connect(gw.address).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    writing.write_all(head.as_bytes()).await.unwrap();
    let more = more.to_vec();
    let talking = tokio::spawn(async move {
        for _ in 0..times {
            if writing.write_all(&more).await.is_err() {
                break;
            }
        }
        writing
    });
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), reading.read_to_end(&mut answer)).await;
    drop(talking.await.unwrap());
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_arrives_and_is_no_fault() {
    let gw = gateway(Limits::default()).await;
    // Refuses by the head alone and closes with most of the body unread, which resets the connection.
    let curt = raw(|_, mut stream| async move {
        if read_head(&mut stream).await.is_some() {
            let answer = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 9\r\nconnection: close\r\n\r\ntoo large";
            let _ = stream.write_all(answer).await;
        }
    })
    .await;
    gw.route(route(&[("inst-a", curt)]));
    let service = gw.service();
    let instance = service.instances().remove(0);
    for method in ["POST", "PUT"] {
        for _ in 0..10 {
            let head = format!("{method} /svc/ HTTP/1.1\r\nhost: h\r\ncontent-length: 33554432\r\n\r\n");
            let answer = talk(&gw, &head, &[b'x'; 65_536], 512).await;
            assert!(answer.starts_with("HTTP/1.1 413 "), "lost: {answer}");
            assert!(
                answer.contains("x-tidemill-attempts: 1") && answer.ends_with("too large"),
                "{answer}"
            );
        }
    }
    assert_eq!(instance.health.condition(), Condition::Good, "an answer is no fault");
    gw.at_rest().await;
    let total = gw.total();
    assert_eq!((total.ok, total.failed, total.cut_streams), (20, 0, 0));
}

#[tokio::test]
async fn a_body_too_large_is_refused_as_soon_as_that_is_known() {
    let gw = gateway(Limits {
        max_body_bytes: 100_000,
        ..Limits::default()
    })
    .await;
    let a = Echo::start("a", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));
    let mut ask = request(Method::POST, "/svc/");
    *ask.body_mut() = Full::new(Bytes::from(vec![0; 100_000]));
    assert_eq!(send(gw.address, ask).await.unwrap().status, 200);
    let head = "POST /svc/ HTTP/1.1\r\nhost: h\r\ncontent-length: 100001\r\n\r\n";
    let told = talk(&gw, head, &[0; 1000], 101).await;
    assert!(
        told.starts_with("HTTP/1.1 413 ") && told.contains("body_too_large"),
        "{told}"
    );
    let head = "POST /svc/ HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("2710\r\n{}\r\n", "x".repeat(10_000));
    let told = talk(&gw, head, chunk.as_bytes(), 20).await;
    assert!(
        told.starts_with("HTTP/1.1 413 ") && told.contains("body_too_large"),
        "{told}"
    );
    gw.at_rest().await;
}

#[tokio::test]
async fn a_client_that_dawdles_over_its_body_loses_its_slot() {
    let gw = gateway(Limits {
        body_pace: Duration::from_millis(200),
        ..Limits::default()
    })
    .await;
    let a = Echo::start("a", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));
    let head = "POST /svc/ HTTP/1.1\r\nhost: h\r\ncontent-length: 1000000\r\n\r\nbut";
    let told = talk(&gw, head, b"", 0).await;
    assert!(
        told.starts_with("HTTP/1.1 408 ") && told.contains("body_too_slow"),
        "{told}"
    );
    gw.at_rest().await;
    assert_eq!(gw.total().refused, 1);
}

#[tokio::test]
async fn long_targets_and_heads_have_a_clear_status() {
    let gw = gateway(Limits {
        max_target_bytes: 1000,
        max_headers: 32,
        ..Limits::default()
    })
    .await;
    let a = Echo::start("a", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));
    let long = gw.get(&format!("/svc/?{}", "q".repeat(1000))).await;
    assert_eq!((long.status.as_u16(), long.code().as_str()), (414, "target_too_long"));
    let fields = (0..40).map(|n| format!("x-{n}: 1\r\n")).collect::<String>();
    let told = talk(&gw, &format!("GET /svc/ HTTP/1.1\r\n{fields}\r\n"), b"", 0).await;
    assert!(told.starts_with("HTTP/1.1 431 "), "{told}");
    let field = format!("x: {}\r\n", "y".repeat(100_000));
    let told = talk(&gw, &format!("GET /svc/ HTTP/1.1\r\n{field}"), b"z", 100).await;
    assert!(told.starts_with("HTTP/1.1 431 "), "{told}");
    assert_eq!(a.requests(), 0);
}

#[tokio::test]
async fn one_address_has_so_many_connections() {
    let gw = gateway(Limits {
        connections_per_loopback: 3,
        ..Limits::default()
    })
    .await;
    let a = Echo::start("a", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut conn = ClientConn::open(gw.address).await;
        assert_eq!(conn.send(request(Method::GET, "/svc/")).await.unwrap().status, 200);
        held.push(conn);
    }
    let mut more = TcpStream::connect(gw.address).await.unwrap();
    let mut told = String::new();
    more.read_to_string(&mut told).await.unwrap();
    assert!(told.starts_with("HTTP/1.1 429 "), "{told}");
    held.pop();
    for _ in 0..1000 {
        let reply = ClientConn::open(gw.address)
            .await
            .send(request(Method::GET, "/svc/"))
            .await;
        if reply.is_ok_and(|reply| reply.status == 200) {
            return;
        }
        // tidy: waits for the closed connection to be noticed, bounded
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("a freed place was not given again");
}

#[tokio::test]
async fn idle_connections_end_and_busy_ones_do_not() {
    let gw = gateway(Limits {
        client_idle_timeout: Duration::from_millis(100),
        header_timeout: Duration::from_millis(200),
        ..Limits::default()
    })
    .await;
    let slow = Echo::start("a", Duration::from_millis(1500)).await;
    gw.route(route(&[("inst-a", slow.address)]));
    let mut conn = ClientConn::open(gw.address).await;
    assert_eq!(conn.send(request(Method::GET, "/svc/")).await.unwrap().status, 200);
    for _ in 0..2000 {
        if conn.is_closed() {
            return;
        }
        // tidy: waits for the gateway to close, bounded
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("an idle connection stayed");
}
