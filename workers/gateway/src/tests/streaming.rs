//! Bodies in both directions: as they come, with backpressure, cut where they were cut.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};

use super::support::*;
use crate::Limits;

const CHUNKED: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test]
async fn chunks_arrive_as_they_are_written() {
    let gw = gateway(Limits::default()).await;
    let next = Arc::new(Notify::new());
    let go = Arc::clone(&next);
    let streaming = raw(move |_, mut stream| {
        let go = Arc::clone(&go);
        async move {
            read_head(&mut stream).await.unwrap();
            stream.write_all(CHUNKED).await.unwrap();
            for _ in 0..3 {
                stream.write_all(b"3\r\nabc\r\n").await.unwrap();
                go.notified().await;
            }
            stream.write_all(b"0\r\n\r\n").await.unwrap();
            go.notified().await;
        }
    })
    .await;
    gw.route(route(&[("inst-a", streaming)]));
    let mut conn = ClientConn::open(gw.address).await;
    let mut body = conn.begin(request(Method::GET, "/svc/")).await.unwrap().into_body();
    let service = gw.service();
    for _ in 0..3 {
        let frame = body.frame().await.unwrap().unwrap();
        assert_eq!(frame.data_ref().unwrap(), "abc");
        assert_eq!(service.instances()[0].in_flight(), 1, "held until its end");
        // The drain of an instance does not disturb a stream.
        let mut draining = route(&[("inst-a", streaming)]);
        draining.instances[0].draining = true;
        gw.route(draining);
        next.notify_one();
    }
    assert!(body.frame().await.is_none());
    gw.at_rest().await;
}

#[tokio::test]
async fn a_stream_cut_by_its_instance_is_cut_for_the_client() {
    let gw = gateway(Limits::default()).await;
    for cut in [
        &b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"[..],
        &b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"[..],
    ] {
        let cutting = raw(move |_, mut stream| async move {
            read_head(&mut stream).await;
            let _ = stream.write_all(cut).await;
        })
        .await;
        gw.route(route(&[(&format!("inst-{}", cut.len()), cutting)]));
        let broken = send(gw.address, request(Method::GET, "/svc/")).await;
        assert!(broken.is_err(), "half an answer passed for a whole one: {broken:?}");
        gw.at_rest().await;
        let second = gw.total();
        assert_eq!((second.ok, second.cut_streams), (1, 1));
    }
}

#[tokio::test]
async fn an_answer_that_breaks_right_after_its_head_has_begun() {
    let gw = gateway(Limits::default()).await;
    let breaking = raw(|_, mut stream| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(CHUNKED).await;
    })
    .await;
    gw.route(route(&[("inst-a", breaking)]));
    for _ in 0..20 {
        let mut conn = ClientConn::open(gw.address).await;
        let begun = conn
            .begin(request(Method::GET, "/svc/"))
            .await
            .expect("the head was lost");
        assert_eq!(begun.status(), 200);
        assert!(begun.into_body().collect().await.is_err(), "it was cut");
        gw.at_rest().await;
    }
    assert_eq!(gw.total().cut_streams, 20);
}

#[tokio::test]
async fn a_slow_client_slows_the_instance() {
    let gw = gateway(Limits::default()).await;
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let chatty = raw(move |_, mut stream| {
        let count = Arc::clone(&count);
        async move {
            read_head(&mut stream).await;
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 268435456\r\n\r\n";
            stream.write_all(head).await.unwrap();
            let chunk = vec![0; 65_536];
            for _ in 0..4096 {
                if stream.write_all(&chunk).await.is_err() {
                    return;
                }
                count.fetch_add(chunk.len(), Ordering::Relaxed);
            }
        }
    })
    .await;
    gw.route(route(&[("inst-a", chatty)]));
    let mut conn = ClientConn::open(gw.address).await;
    let mut body = conn.begin(request(Method::GET, "/svc/")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    let mut before = 0;
    until("the instance is held back", || {
        let now = written.load(Ordering::Relaxed);
        let still = now == before && now > 0;
        before = now;
        still
    })
    .await;
    assert!(before < 64 * 1024 * 1024, "{before} bytes taken in for nobody");
    let rest = body.collect().await.unwrap().to_bytes();
    assert!(rest.len() > 200_000_000);
    gw.at_rest().await;
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_along() {
    let gw = gateway(Limits::default()).await;
    let (left, mut gone) = mpsc::channel(8);
    let patient = raw(move |_, mut stream| {
        let left = left.clone();
        async move {
            let head = read_head(&mut stream).await.unwrap();
            if head.contains("/stream") {
                stream.write_all(CHUNKED).await.unwrap();
                stream.write_all(b"3\r\nabc\r\n").await.unwrap();
            }
            let mut sink = Vec::new();
            let _ = stream.read_to_end(&mut sink).await;
            left.send(()).await.unwrap();
        }
    })
    .await;
    gw.route(route(&[("inst-a", patient)]));
    let service = gw.service();
    for (path, cancelled) in [("/svc/unanswered", 1), ("/svc/stream", 0)] {
        let mut stream = TcpStream::connect(gw.address).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        until("in flight", || service.instances()[0].in_flight() == 1).await;
        if cancelled == 0 {
            let mut begun = [0; 64];
            assert!(stream.read(&mut begun).await.unwrap() > 0);
        }
        drop(stream);
        let heard = tokio::time::timeout(Duration::from_secs(5), gone.recv()).await;
        assert!(heard.is_ok(), "{path}: the instance was not told");
        gw.at_rest().await;
        assert_eq!(gw.total().cancelled, cancelled);
    }
}

/// A request whose body is fed through a channel.
async fn upload(
    gw: &Served,
    method: Method,
) -> (
    mpsc::Sender<Bytes>,
    tokio::task::JoinHandle<hyper::Result<http::Response<hyper::body::Incoming>>>,
) {
    let (feed, chunks) = mpsc::channel::<Bytes>(1);
    let chunks = futures::stream::unfold(chunks, |mut chunks| async {
        let chunk = chunks.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(chunk)), chunks))
    });
    let stream = TcpStream::connect(gw.address).await.unwrap();
    let (mut sender, conn) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(conn);
    let ask = Request::builder()
        .method(method)
        .uri("/svc/up")
        .header("host", "h")
        .body(StreamBody::new(chunks.boxed()))
        .unwrap();
    let answer = tokio::spawn(async move { sender.send_request(ask).await });
    (feed, answer)
}

#[tokio::test]
async fn an_upload_is_passed_on_as_it_comes() {
    let gw = gateway(Limits::default()).await;
    let (got, mut heard) = mpsc::channel(64);
    let listening = raw(move |_, mut stream| {
        let got = got.clone();
        async move {
            read_head(&mut stream).await.unwrap();
            let mut buffer = [0; 64];
            let mut all = Vec::new();
            while !all.ends_with(b"0\r\n\r\n") {
                let n = stream.read(&mut buffer).await.unwrap();
                all.extend_from_slice(&buffer[..n]);
                got.send(n).await.unwrap();
            }
            stream.write_all(HELLO).await.unwrap();
        }
    })
    .await;
    gw.route(route(&[("inst-a", listening)]));
    let (feed, answer) = upload(&gw, Method::POST).await;
    for _ in 0..3 {
        feed.send(Bytes::from_static(b"abc")).await.unwrap();
        assert!(heard.recv().await.unwrap() > 0, "held back until the end");
    }
    drop(feed);
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    gw.at_rest().await;
}

#[tokio::test]
async fn a_broken_upload_is_replayed_and_goes_on() {
    for (chunk, replayed) in [(1_000, true), (600_000, false)] {
        let gw = gateway(Limits::default()).await;
        // The first connection takes two chunks and breaks; the second answers the length.
        let seen = Arc::new(Notify::new());
        let told = Arc::clone(&seen);
        let breaking = raw(move |n, mut stream| {
            let told = Arc::clone(&told);
            async move {
                read_head(&mut stream).await.unwrap();
                if n == 0 {
                    let mut two = vec![0; 2 * chunk];
                    stream.read_exact(&mut two).await.unwrap();
                    told.notify_one();
                    return;
                }
                let mut all = Vec::new();
                let mut buffer = vec![0; 65_536];
                while !all.ends_with(b"0\r\n\r\n") {
                    let n = stream.read(&mut buffer).await.unwrap();
                    all.extend_from_slice(&buffer[..n]);
                }
                let bytes = all.iter().filter(|b| **b == b'x').count().to_string();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{bytes}", bytes.len());
                stream.write_all(head.as_bytes()).await.unwrap();
            }
        })
        .await;
        gw.route(route(&[("inst-a", breaking)]));
        let (feed, answer) = upload(&gw, Method::PUT).await;
        let bytes = Bytes::from(vec![b'x'; chunk]);
        feed.send(bytes.clone()).await.unwrap();
        feed.send(bytes.clone()).await.unwrap();
        seen.notified().await;
        // After the break the client goes on as if nothing had happened.
        let _ = feed.send(bytes).await;
        drop(feed);
        let reply = answer.await.unwrap();
        if replayed {
            let body = reply.unwrap().into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, (3 * chunk).to_string());
        } else {
            assert_eq!(reply.unwrap().status(), 502, "over 1 MiB is not kept");
        }
        gw.at_rest().await;
    }
}

#[tokio::test]
async fn shutdown_lets_streams_end_and_refuses_new_connections() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::from_millis(300)).await;
    gw.route(route(&[("inst-a", a.address)]));
    let running = tokio::spawn(send(gw.address, request(Method::GET, "/svc/")));
    until("in flight", || a.requests() == 1).await;
    gw.shutdown.cancel();
    assert_eq!(running.await.unwrap().unwrap().status, 200);
    gw.task.await.unwrap();
    assert!(TcpStream::connect(gw.address).await.is_err());
}
