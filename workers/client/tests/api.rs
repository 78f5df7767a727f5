//! The API client against a real HTTP server: failover, refusals, streams.

#![allow(clippy::unwrap_used)]

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tidemill_client::{Api, ClientError, ServerUrl, Token};
use tidemill_protocol::Problem;
use tokio::net::TcpListener;

async fn answer(request: Request<Incoming>, has_node: bool) -> Result<Response<Full<Bytes>>, Infallible> {
    let header = |name: &str| {
        request
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned())
    };
    let seen = json!({
        "token": header("authorization"),
        "key": header("idempotency-key"),
        "trace": header("traceparent"),
        "resume": header("last-event-id"),
    });
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let (status, body) = match path.as_str() {
        "/echo" => (
            StatusCode::OK,
            json!({"seen": seen, "body": String::from_utf8_lossy(&body)}).to_string(),
        ),
        "/lines" => (StatusCode::OK, "one\r\ntwo\n\nlast".to_owned()),
        "/events" => (
            StatusCode::OK,
            ": hello\n\nid: 7\nevent: change\ndata: a\ndata: b\n\nid: 8\ndata:c\n\ndata: cut off".to_owned(),
        ),
        "/output" if has_node => (StatusCode::OK, "what it wrote\n".to_owned()),
        "/output" => (
            StatusCode::SERVICE_UNAVAILABLE,
            serde_json::to_string(&Problem::new(503, "node_not_connected", "not here", "ask another")).unwrap(),
        ),
        "/plain" => (StatusCode::BAD_GATEWAY, "<html>".to_owned()),
        _ => (
            StatusCode::CONFLICT,
            serde_json::to_string(&Problem::new(409, "name_taken", "taken", "choose another")).unwrap(),
        ),
    };
    let response = Response::builder().status(status);
    Ok(response.body(Full::from(body)).unwrap())
}

async fn serve() -> ServerUrl {
    serve_with(false).await
}

/// A server to which the node that is asked about is connected, or is not.
async fn serve_with(has_node: bool) -> ServerUrl {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(
                TokioIo::new(stream),
                service_fn(move |request| answer(request, has_node)),
            ));
        }
    });
    url.parse().unwrap()
}

async fn nobody() -> ServerUrl {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    url.parse().unwrap()
}

#[tokio::test]
async fn a_call_goes_round_to_a_server_that_answers() {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let api = Api::new(vec![nobody().await, serve().await], Token::new("secret"));
    let api = api.with_traceparent(trace);
    let answer: Value = api.post_json("/echo", &json!([1]), "key-1").await.unwrap();
    assert_eq!(
        answer,
        json!({
            "seen": {"token": "Bearer secret", "key": "key-1", "trace": trace, "resume": null},
            "body": "[1]",
        })
    );
    let again: Value = api.get_json("/echo").await.unwrap();
    assert_eq!(again["seen"]["key"], Value::Null);
}

#[tokio::test]
async fn what_only_the_nodes_server_has_is_asked_of_each() {
    let without = [serve_with(false).await, serve_with(false).await];
    let with = serve_with(true).await;
    let list = |last: ServerUrl| vec![without[0].clone(), without[1].clone(), last];
    let api = Api::new(list(with.clone()), None);
    let mut lines = api.get_stream("/output").await.unwrap();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("what it wrote"));
    // Where no server that answers has it, that is the answer, whatever else is away.
    for last in [without[0].clone(), nobody().await] {
        let error = Api::new(list(last), None).get_stream("/output").await.unwrap_err();
        assert_eq!(error.code(), "node_not_connected");
    }
}

#[tokio::test]
async fn failures_are_told_apart() {
    let api = Api::new(vec![nobody().await], None);
    let error = api.get_json::<Value>("/echo").await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { .. }), "{error:?}");
    let api = Api::new(vec![serve().await], None);
    let error = api.get_json::<Value>("/refused").await.unwrap_err();
    assert_eq!(error.code(), "name_taken");
    assert_eq!(error.problem().unwrap().status, 409);
    let error = api.get_json::<Value>("/plain").await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
    let error = api.get_json::<u64>("/echo").await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error:?}");
}

#[tokio::test]
async fn streams_are_cut_into_lines_and_events() {
    let api = Api::new(vec![serve().await], None);
    let mut lines = api.get_stream("/lines").await.unwrap();
    let mut seen = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        seen.push(line);
    }
    assert_eq!(seen, ["one", "two", "", "last"]);

    let mut events = api.get_events("/events", Some("6")).await.unwrap();
    let first = events.next_event().await.unwrap().unwrap();
    assert_eq!(
        (first.id.as_deref(), &*first.event, &*first.data),
        (Some("7"), "change", "a\nb")
    );
    let second = events.next_event().await.unwrap().unwrap();
    assert_eq!(
        (second.id.as_deref(), &*second.data),
        (Some("8"), "c"),
        "an event cut off by the end is not delivered"
    );
    assert!(events.next_event().await.unwrap().is_none());
}
