//! HTTP/2: clients that speak it, gRPC instances that need it, and what is kept on the way.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, Method, Request, Response, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::support::*;
use crate::Limits;

async fn connect(gw: &Served) -> (SendRequest<Full<Bytes>>, tokio::task::JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(gw.address).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, conn) = handshake.await.unwrap();
    (sender, tokio::spawn(conn))
}

fn ask(method: Method, path: &str) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("http://gateway.test{path}"))
        .body(Full::default())
        .unwrap()
}

#[tokio::test]
async fn a_head_too_large_is_told_so_and_the_connection_lives_on() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));
    let (mut sender, _conn) = connect(&gw).await;
    let one_field = vec![("x-large".to_owned(), "z".repeat(100_000))];
    let many_fields = (0..100).map(|n| (format!("x-{n}"), "y".repeat(1000))).collect();
    for fields in [one_field, many_fields] {
        let mut large = ask(Method::GET, "/svc/");
        for (name, value) in fields {
            let name: http::HeaderName = name.parse().unwrap();
            large.headers_mut().insert(name, value.parse().unwrap());
        }
        sender.ready().await.unwrap();
        let told = sender.send_request(large).await.unwrap();
        assert_eq!(told.status(), 431);
        sender.ready().await.unwrap();
        let next = sender.send_request(ask(Method::GET, "/svc/")).await.unwrap();
        assert_eq!(next.status(), 200, "the connection is of use");
    }
    assert_eq!(a.requests(), 2);
}

#[tokio::test]
async fn many_requests_share_a_clients_connection() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::from_millis(20)).await;
    gw.route(route(&[("inst-a", a.address)]));
    let (sender, _conn) = connect(&gw).await;
    let mut all = JoinSet::new();
    for n in 0..100 {
        let mut sender = sender.clone();
        all.spawn(async move {
            sender.ready().await.unwrap();
            let reply = sender
                .send_request(ask(Method::PUT, &format!("/svc/{n}")))
                .await
                .unwrap();
            assert_eq!(reply.version(), Version::HTTP_2);
            assert_eq!(reply.headers()["x-tidemill-instance"], "inst-a");
            let body = reply.into_body().collect().await.unwrap().to_bytes();
            assert!(
                body.starts_with(format!("a PUT /{n} 0 gateway.test 127.0.0.1 /svc").as_bytes()),
                "{body:?}"
            );
        });
    }
    while let Some(done) = all.join_next().await {
        done.unwrap();
    }
    // The gateway's own words come by the same way.
    let mut sender = sender;
    let none = sender.send_request(ask(Method::GET, "/none/")).await.unwrap();
    assert_eq!(none.status(), 404);
    gw.at_rest().await;
    assert_eq!(gw.total().ok, 100);
}

#[tokio::test]
async fn a_cancelled_stream_reaches_the_instance_and_frees_its_slot() {
    let gw = gateway(Limits::default()).await;
    let (left, mut gone) = mpsc::channel(8);
    let patient = raw(move |_, mut stream| {
        let left = left.clone();
        async move {
            read_head(&mut stream).await.unwrap();
            let mut sink = Vec::new();
            let _ = stream.read_to_end(&mut sink).await;
            left.send(()).await.unwrap();
        }
    })
    .await;
    gw.route(route(&[("inst-a", patient)]));
    let service = gw.service();
    let (mut sender, _conn) = connect(&gw).await;
    let asking = tokio::spawn(async move {
        let _ = sender.send_request(ask(Method::GET, "/svc/")).await;
        sender
    });
    until("in flight", || service.instances()[0].in_flight() == 1).await;
    asking.abort();
    let heard = tokio::time::timeout(Duration::from_secs(5), gone.recv()).await;
    assert!(heard.is_ok(), "the instance was not told");
    gw.at_rest().await;
    assert_eq!(gw.total().cancelled, 1);
}

#[tokio::test]
async fn shutdown_says_goodbye_and_lets_streams_end() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::from_millis(300)).await;
    gw.route(route(&[("inst-a", a.address)]));
    let (mut sender, conn) = connect(&gw).await;
    let mut second = sender.clone();
    let running = tokio::spawn(async move { sender.send_request(ask(Method::GET, "/svc/")).await });
    until("in flight", || a.requests() == 1).await;
    gw.shutdown.cancel();
    assert_eq!(running.await.unwrap().unwrap().status(), 200);
    conn.await.unwrap().unwrap();
    assert!(second.ready().await.is_err(), "the connection is over");
    gw.task.await.unwrap();
}

/// A gRPC-like instance: HTTP/2 only, body echoed, trailers at the end.
async fn grpc(connections: Arc<AtomicUsize>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let connections = Arc::clone(&connections);
            tokio::spawn(async move {
                let service = service_fn(|request: Request<Incoming>| {
                    connections.fetch_add(usize::from(request.uri().path() == "/first"), Ordering::Relaxed);
                    async move {
                        assert_eq!(request.version(), Version::HTTP_2);
                        assert_eq!(request.headers()["te"], "trailers");
                        assert!(!request.headers().contains_key("host"));
                        assert_eq!(request.uri().authority().unwrap().as_str(), "gateway.test");
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", "0".parse().unwrap());
                        let echoed = request.into_body().into_data_stream().map(|data| data.map(Frame::data));
                        let end = stream::iter([Ok(Frame::trailers(trailers))]);
                        let mut response = Response::new(StreamBody::new(echoed.chain(end)));
                        let kind = "application/grpc".parse().unwrap();
                        response.headers_mut().insert("content-type", kind);
                        Ok::<_, Infallible>(response)
                    }
                });
                let conn = server::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
                let _ = conn.await;
            });
        }
    });
    address
}

#[tokio::test]
async fn grpc_goes_through_with_its_trailers_in_both_directions_at_once() {
    let gw = gateway(Limits::default()).await;
    let seen = Arc::new(AtomicUsize::new(0));
    gw.route(route(&[("inst-a", grpc(Arc::clone(&seen)).await)]));
    let stream = TcpStream::connect(gw.address).await.unwrap();
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, conn) = handshake.await.unwrap();
    tokio::spawn(conn);
    let (feed, chunks) = mpsc::channel::<Bytes>(1);
    let chunks = stream::unfold(chunks, |mut chunks| async {
        let chunk = chunks.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(chunk)), chunks))
    });
    let ask = Request::post("http://gateway.test/svc/first")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(StreamBody::new(chunks.boxed()))
        .unwrap();
    let mut body = sender.send_request(ask).await.unwrap().into_body();
    for word in ["one", "two", "three"] {
        feed.send(Bytes::from_static(word.as_bytes())).await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().data_ref().unwrap(), word);
    }
    drop(feed);
    let end = body.frame().await.unwrap().unwrap();
    assert_eq!(end.trailers_ref().unwrap()["grpc-status"], "0");
    assert!(body.frame().await.is_none());
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    gw.at_rest().await;
}

#[tokio::test]
async fn a_request_refused_unseen_goes_elsewhere_whatever_it_is() {
    let gw = gateway(Limits::default()).await;
    // Greets, and answers the first request with a GOAWAY that covers no stream, as a server that just began to drain.
    let leaving = raw(|_, mut stream| async move {
        let _ = stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await;
        let mut heard = vec![0; 4096];
        let mut all = Vec::new();
        // HEADERS are frame type 1.
        while !all
            .windows(5)
            .any(|w: &[u8]| w[0] == 1 && w[2..4] == [0, 0] && w[1] & 0x4 != 0)
        {
            match stream.read(&mut heard).await {
                Ok(n) if n > 0 => all.extend_from_slice(&heard[..n]),
                _ => return,
            }
        }
        let _ = stream
            .write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
            .await;
        let _ = stream.read(&mut heard).await;
    })
    .await;
    let seen = Arc::new(AtomicUsize::new(0));
    let well = grpc(Arc::clone(&seen)).await;
    gw.route(route(&[("inst-x", leaving), ("inst-a", well)]));
    let (sender, _conn) = connect(&gw).await;
    for _ in 0..20 {
        let mut ask = ask(Method::POST, "/svc/first");
        ask.headers_mut()
            .insert("content-type", "application/grpc+proto".parse().unwrap());
        ask.headers_mut().insert("te", "trailers".parse().unwrap());
        let reply = sender.clone().send_request(ask).await.unwrap();
        assert_eq!(reply.headers()["x-tidemill-instance"], "inst-a");
    }
    assert_eq!(seen.load(Ordering::Relaxed), 20);
    gw.at_rest().await;
}

#[tokio::test]
async fn trailers_of_http_1_are_kept_where_they_are_welcome() {
    let gw = gateway(Limits::default()).await;
    let trailing = raw(|_, mut stream| async move {
        let head = read_head(&mut stream).await.unwrap();
        assert!(head.contains("te: trailers"), "{head}");
        let answer =
            b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 7\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        let _ = stream.read(&mut [0; 64]).await;
    })
    .await;
    gw.route(route(&[("inst-a", trailing)]));
    let mut ask1 = request(Method::GET, "/svc/");
    ask1.headers_mut().insert("te", "trailers".parse().unwrap());
    let mut conn = ClientConn::open(gw.address).await;
    let body = conn.begin(ask1).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["x-sum"], "7");
    let (mut sender, _conn) = connect(&gw).await;
    let mut ask2 = ask(Method::GET, "/svc/");
    ask2.headers_mut().insert("te", "trailers".parse().unwrap());
    let body = sender
        .send_request(ask2)
        .await
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap();
    assert_eq!(body.trailers().unwrap()["x-sum"], "7");
    gw.at_rest().await;
}

#[tokio::test]
async fn a_client_that_reads_slowly_holds_up_its_own_stream_alone() {
    let gw = gateway(Limits::default()).await;
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let chatty = raw(move |_, mut stream| {
        let count = Arc::clone(&count);
        async move {
            let head = read_head(&mut stream).await.unwrap();
            if head.contains("/short") {
                stream.write_all(HELLO).await.unwrap();
                return;
            }
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 268435456\r\n\r\n";
            stream.write_all(head).await.unwrap();
            let chunk = vec![0; 65_536];
            while stream.write_all(&chunk).await.is_ok() {
                count.fetch_add(chunk.len(), Ordering::Relaxed);
            }
        }
    })
    .await;
    gw.route(route(&[("inst-a", chatty)]));
    let (sender, _conn) = connect(&gw).await;
    let long = sender
        .clone()
        .send_request(ask(Method::GET, "/svc/long"))
        .await
        .unwrap();
    let mut before = 0;
    until("the instance is held back", || {
        let now = written.load(Ordering::Relaxed);
        let still = now == before && now > 0;
        before = now;
        still
    })
    .await;
    assert!(before < 64 * 1024 * 1024, "{before} bytes taken in for nobody");
    for _ in 0..20 {
        let short = sender
            .clone()
            .send_request(ask(Method::GET, "/svc/short"))
            .await
            .unwrap();
        assert_eq!(short.into_body().collect().await.unwrap().to_bytes(), "hello");
    }
    drop(long);
    gw.at_rest().await;
}
