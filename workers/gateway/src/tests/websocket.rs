//! WebSocket: bytes both ways after the upgrade, through drains, to whichever end comes first.

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http::Method;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::support::*;
use crate::Limits;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// An instance that sends every message back; `broken` breaks the connection, as a crash would.
async fn echoing() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else {
                    return;
                };
                while let Some(Ok(message)) = socket.next().await {
                    if message.is_text() && message.to_text().unwrap() == "broken" {
                        let socket = socket2::SockRef::from(socket.get_ref());
                        socket.set_linger(Some(Duration::ZERO)).unwrap();
                        return;
                    }
                    if !message.is_close() && socket.send(message).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

async fn open(gw: &Served) -> Socket {
    let url = format!("ws://{}/svc/chat", gw.address);
    let (socket, answer) = tokio_tungstenite::connect_async(url).await.unwrap();
    assert_eq!(answer.headers()["x-tidemill-instance"], "inst-a");
    socket
}

async fn echo(socket: &mut Socket, text: &str) {
    socket.send(Message::text(text)).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap().to_text().unwrap(), text);
}

#[tokio::test]
async fn messages_go_both_ways_and_a_drain_leaves_them_alone() {
    let gw = gateway(Limits::default()).await;
    let address = echoing().await;
    gw.route(route(&[("inst-a", address)]));
    let service = gw.service();
    let instance = service.instances().remove(0);
    let mut socket = open(&gw).await;
    echo(&mut socket, "hello").await;
    let large = "x".repeat(3 * 1024 * 1024);
    echo(&mut socket, &large).await;
    assert_eq!(instance.in_flight(), 1, "held as long as it lasts");
    let mut draining = route(&[("inst-a", address)]);
    draining.instances[0].draining = true;
    gw.route(draining);
    echo(&mut socket, "still there").await;
    socket.close(None).await.unwrap();
    while let Some(Ok(_)) = socket.next().await {}
    until("the slot is free", || instance.in_flight() == 0).await;
    let second = gw.total();
    assert_eq!((second.arrived, second.ok, second.cut_streams), (1, 1, 0));
}

#[tokio::test]
async fn either_end_that_breaks_ends_the_other() {
    let gw = gateway(Limits::default()).await;
    gw.route(route(&[("inst-a", echoing().await)]));
    let mut socket = open(&gw).await;
    echo(&mut socket, "hello").await;
    socket.send(Message::text("broken")).await.unwrap();
    assert!(
        matches!(socket.next().await, None | Some(Err(_))),
        "a crash is no goodbye"
    );
    gw.at_rest().await;
    assert_eq!(gw.total().cut_streams, 1);

    let mut socket = open(&gw).await;
    echo(&mut socket, "hello").await;
    drop(socket);
    gw.at_rest().await;
    assert_eq!(gw.total().cut_streams, 0, "the client left by itself");
}

#[tokio::test]
async fn a_refused_upgrade_is_an_ordinary_answer() {
    let gw = gateway(Limits::default()).await;
    let a = Echo::start("a", Duration::ZERO).await;
    gw.route(route(&[("inst-a", a.address)]));
    let url = format!("ws://{}/svc/teapot", gw.address);
    let refused = tokio_tungstenite::connect_async(url).await;
    let Err(tungstenite::Error::Http(answer)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(answer.status(), 418);
    // An upgrade to h2c may be ignored.
    let mut ask = request(Method::GET, "/svc/");
    ask.headers_mut().insert("connection", "upgrade".parse().unwrap());
    ask.headers_mut().insert("upgrade", "h2c".parse().unwrap());
    assert_eq!(send(gw.address, ask).await.unwrap().status, 200);
    gw.at_rest().await;
}

#[tokio::test]
async fn shutdown_waits_for_the_grace_and_then_cuts() {
    let gw = gateway(Limits {
        shutdown_grace: Duration::from_millis(300),
        ..Limits::default()
    })
    .await;
    gw.route(route(&[("inst-a", echoing().await)]));
    let mut socket = open(&gw).await;
    echo(&mut socket, "hello").await;
    gw.shutdown.cancel();
    until("no new connections", || {
        std::net::TcpStream::connect(gw.address).is_err()
    })
    .await;
    assert!(matches!(socket.next().await, None | Some(Err(_))));
    gw.task.await.unwrap();
}
