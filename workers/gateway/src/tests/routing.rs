//! Which service a request reaches and what the instance and the client see of the way.

use std::time::Duration;

use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::*;
use crate::Limits;

#[tokio::test]
async fn the_prefix_is_stripped_and_the_way_is_told() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::ZERO).await;
    let mut svc = route(&[("inst-a", a.address)]);
    svc.host = Some("chat.example.com".into());
    let mut acme = route(&[("inst-a", a.address)]);
    acme.tenant = "acme".into();
    gw.routes(vec![svc, acme]);
    for (path, host, want) in [
        ("/svc/x/y?q=1", "h:1", "a GET /x/y?q=1 0 h:1 127.0.0.1 /svc"),
        ("/svc", "h", "a GET / 0 h 127.0.0.1 /svc"),
        ("/svc?q=1", "h", "a GET /?q=1 0 h 127.0.0.1 /svc"),
        ("/svc//x", "h", "a GET //x 0 h 127.0.0.1 /svc"),
        ("/~acme/svc/x", "h", "a GET /x 0 h 127.0.0.1 /~acme/svc"),
        (
            "/svc/x",
            "Chat.example.com:80",
            "a GET /svc/x 0 Chat.example.com:80 127.0.0.1 -",
        ),
        ("/", "chat.example.com", "a GET / 0 chat.example.com 127.0.0.1 -"),
    ] {
        let mut ask = request(Method::GET, path);
        ask.headers_mut().insert("host", host.parse().unwrap());
        let reply = send(gw.address, ask).await.unwrap();
        assert_eq!(reply.body, want, "{path}");
        assert_eq!(reply.header("x-tidemill-instance"), "inst-a");
        assert_eq!(reply.header("x-tidemill-attempts"), "1");
    }
    gw.at_rest().await;
}

#[tokio::test]
async fn what_the_gateway_refuses_itself() {
    let gw = gateway(Limits::default()).await;
    assert_eq!(gw.get("/-/livez").await.status, 200);
    assert_eq!(gw.get("/-/readyz").await.status, 503);
    let a = Echo::start("a", Duration::ZERO).await;
    let mut stopped = route(&[]);
    stopped.name = "off".into();
    stopped.stopped = true;
    gw.routes(vec![route(&[("inst-a", a.address)]), stopped]);
    assert_eq!(gw.get("/-/readyz").await.status, 200);

    let unknown = gw.get("/nothing/here").await;
    assert_eq!(
        (unknown.status.as_u16(), unknown.code().as_str()),
        (404, "no_such_service")
    );
    let stopped = gw.get("/off/").await;
    assert_eq!(
        (stopped.status.as_u16(), stopped.code().as_str()),
        (503, "service_stopped")
    );

    // An application's own errors pass through, and count as its own.
    assert_eq!(gw.get("/svc/error").await.status, 500);
    assert_eq!(gw.get("/svc/teapot").await.status, 418);
    let second = gw.total();
    assert_eq!(
        (second.arrived, second.ok, second.application_errors, second.refused),
        (3, 1, 1, 1)
    );
}

#[tokio::test]
async fn oversized_and_broken_heads_are_refused() {
    let gw = gateway(Limits::default()).await;
    for head in [
        format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "y".repeat(100_000)),
        format!("GET / HTTP/1.1\r\nhost: h\r\n{}\r\n", "a: b\r\n".repeat(500)),
        "NOT HTTP\r\n\r\n".to_owned(),
    ] {
        let mut stream = TcpStream::connect(gw.address).await.unwrap();
        let _ = stream.write_all(head.as_bytes()).await;
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer));
        assert!(ended.await.is_ok(), "still open: {}", &head[..40.min(head.len())]);
        let answer = String::from_utf8_lossy(&answer);
        // Bytes unread when the server closes may turn its answer into a reset.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    assert_eq!(gw.get("/-/livez").await.status, 200);
}

#[tokio::test]
async fn a_slow_head_is_cut_off() {
    let limits = Limits {
        header_timeout: Duration::from_millis(100),
        ..Limits::default()
    };
    let gw = gateway(limits).await;
    let mut stream = TcpStream::connect(gw.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "still open");
    assert!(
        answer.starts_with(b"HTTP/1.1 408 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test]
async fn routes_on_disk_serve_without_a_door() {
    let dir = tempfile::tempdir().unwrap();
    let a = Echo::start("a", Duration::ZERO).await;
    let routes = tidemill_protocol::gateway::Routes {
        stamp: stamp(7),
        services: vec![route(&[("inst-a", a.address)])],
    };
    crate::store::save(&crate::store::path(dir.path()), &routes).unwrap();
    let gw = gateway_with(config(&dir, Limits::default()), dir).await;
    assert_eq!(gw.get("/svc/").await.status, 200);

    // A damaged file is no reason not to start.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(crate::store::path(dir.path()), b"{").unwrap();
    let gw = gateway_with(config(&dir, Limits::default()), dir).await;
    assert_eq!(gw.get("/svc/").await.code(), "no_such_service");
}

#[tokio::test]
async fn a_taken_port_and_a_bad_directory_are_named() {
    let gw = gateway(Limits::default()).await;
    let dir = tempfile::tempdir().unwrap();
    let mut taken = config(&dir, Limits::default());
    taken.listen = gw.address;
    let error = crate::Gateway::bind(taken).await.unwrap_err();
    assert_eq!(error.code(), "listen_failed");
    let mut bad = config(&dir, Limits::default());
    std::fs::write(dir.path().join("file"), b"").unwrap();
    bad.data_dir = dir.path().join("file").join("below");
    assert_eq!(crate::Gateway::bind(bad).await.unwrap_err().code(), "data_dir_failed");
}
