//! The link against real sockets: coming back, moving on, noticing silence, saying last words.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde::{Deserialize, Serialize};
use tidemill_client::{Backoff, Connection, Link, LinkConfig, LinkEvent, ServerUrl};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Word(String);

fn word(text: &str) -> Word {
    Word(text.to_owned())
}

async fn listen() -> (TcpListener, ServerUrl) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url.parse().unwrap())
}

async fn accept(listener: &TcpListener) -> WebSocketStream<TcpStream> {
    let (stream, _) = soon(listener.accept()).await.unwrap();
    accept_async(stream).await.unwrap()
}

async fn heard(socket: &mut WebSocketStream<TcpStream>) -> Option<Word> {
    loop {
        match soon(socket.next()).await? {
            Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).unwrap()),
            Ok(Message::Close(_)) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

async fn soon<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_secs(10), future).await.expect("within 10 s")
}

fn open(servers: Vec<ServerUrl>) -> Link<Word, Word> {
    let mut config = LinkConfig::new(servers, "/v1/connect/test", None);
    config.backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(50));
    config.ping_every = Duration::from_millis(50);
    config.silent_after = Duration::from_millis(400);
    Link::open(config)
}

async fn connected(link: &mut Link<Word, Word>) -> Connection<Word> {
    loop {
        if let LinkEvent::Connected(connection) = soon(link.next()).await.unwrap() {
            return connection;
        }
    }
}

#[tokio::test]
async fn a_lost_connection_comes_back_and_carries_nothing_over() {
    let (listener, url) = listen().await;
    let mut link = open(vec![url]);
    let mut first = accept(&listener).await;
    let old = connected(&mut link).await;
    old.send(word("one")).await.unwrap();
    assert_eq!(heard(&mut first).await, Some(word("one")));
    drop(first);
    assert!(matches!(
        soon(link.next()).await.unwrap(),
        LinkEvent::Disconnected { .. }
    ));
    let mut second = accept(&listener).await;
    let new = connected(&mut link).await;
    assert!(old.send(word("stale")).await.is_err());
    new.send(word("two")).await.unwrap();
    assert_eq!(heard(&mut second).await, Some(word("two")));
    second.send(Message::text(r#"{"not":"a word"}"#)).await.unwrap();
    second.send(Message::text(r#""three""#)).await.unwrap();
    let LinkEvent::Message(message) = soon(link.next()).await.unwrap() else {
        panic!("a message that cannot be understood must be skipped");
    };
    assert_eq!(message, word("three"));
}

#[tokio::test]
async fn the_next_server_is_tried() {
    let (dead, dead_url) = listen().await;
    drop(dead);
    let (listener, url) = listen().await;
    let mut link = open(vec![dead_url, url.clone()]);
    let _socket = accept(&listener).await;
    assert_eq!(connected(&mut link).await.server(), url.to_string());
}

#[tokio::test]
async fn a_silent_server_is_noticed() {
    let (listener, url) = listen().await;
    let mut link = open(vec![url]);
    // Accepted and then never read: no pong will come.
    let _silent = accept(&listener).await;
    connected(&mut link).await;
    let LinkEvent::Disconnected { reason, .. } = soon(link.next()).await.unwrap() else {
        panic!("silence must end the connection");
    };
    assert_eq!(reason, "nothing heard for 400 ms");
}

#[tokio::test]
async fn an_idle_connection_stays() {
    let (listener, url) = listen().await;
    let mut link = open(vec![url]);
    let mut socket = accept(&listener).await;
    let server = tokio::spawn(async move { heard(&mut socket).await });
    connected(&mut link).await;
    assert!(
        timeout(Duration::from_secs(1), link.next()).await.is_err(),
        "pings and pongs keep it open"
    );
    link.close().await;
    assert_eq!(soon(server).await.unwrap(), None);
}

#[tokio::test]
async fn closing_sends_what_is_queued() {
    let (listener, url) = listen().await;
    let mut link = open(vec![url]);
    let mut socket = accept(&listener).await;
    let connection = connected(&mut link).await;
    let server = tokio::spawn(async move {
        let mut words = Vec::new();
        while let Some(word) = heard(&mut socket).await {
            words.push(word);
        }
        words
    });
    for n in 0..20 {
        connection.send(word(&n.to_string())).await.unwrap();
    }
    soon(link.close()).await;
    assert_eq!(soon(server).await.unwrap().len(), 20);
}

#[tokio::test]
async fn a_refusal_is_handed_on_with_its_code() {
    let (listener, url) = listen().await;
    let mut link = open(vec![url]);
    let (stream, _) = soon(listener.accept()).await.unwrap();
    stream.readable().await.unwrap();
    let body = r#"{"code":"token_revoked","detail":"the token was revoked"}"#;
    let answer = format!(
        "HTTP/1.1 401 Unauthorized\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = stream;
    tokio::io::AsyncWriteExt::write_all(&mut stream, answer.as_bytes())
        .await
        .unwrap();
    let LinkEvent::Disconnected { problem, reason } = soon(link.next()).await.unwrap() else {
        panic!("a refusal is told");
    };
    assert_eq!(problem.unwrap().code, "token_revoked");
    assert_eq!(reason, "refused: the token was revoked [token_revoked]");
}
