//! The service of `examples/hello.yaml`: an HTTP server that needs nothing installed.
//!
//! It streams an answer with a set time per start and per request, which is what an inference server looks like from
//! outside: slow to start, then tokens that trickle. `?tokens=N` makes an answer of N pieces spread over the time, so
//! that a trace's lengths can be replayed; without it an answer is eight pieces. SIGTERM stops taking requests and lets those in
//! flight finish.
//!
//! Kept: `/health` answers 503 until the start delay is over, then 200; an answer names its instance.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use futures::StreamExt;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::exit::{CliError, Exit};
use crate::output::note;
use crate::time::parse_duration;

/// Pieces of an answer when the request does not say.
const DEFAULT_TOKENS: u32 = 8;

/// Most pieces of an answer; longer requests are cut.
const MOST_TOKENS: u32 = 100_000;

/// Arguments of `example-service`.
#[derive(Debug, Clone, Args)]
pub struct ExampleArgs {
    /// Port on 127.0.0.1
    #[arg(long, env = "PORT")]
    pub port: u16,
    /// Time from the process's start until it is ready
    #[arg(long, default_value = "0", value_parser = parse_duration)]
    pub start_delay: Duration,
    /// Time an answer of the usual length takes
    #[arg(long, default_value = "0", value_parser = parse_duration)]
    pub request_time: Duration,
}

struct Example {
    instance: String,
    ready_at: tokio::time::Instant,
    request_time: Duration,
}

type Body = BoxBody<Bytes, Infallible>;

/// Runs the service until SIGTERM or SIGINT.
pub async fn run(args: ExampleArgs) -> Result<(), CliError> {
    let failed = |what: &str, error: std::io::Error| {
        CliError::new(
            Exit::Error,
            "example_service_failed",
            format!("the example service cannot {what}: {error}"),
            "give it a free port with --port",
        )
    };
    let address = SocketAddr::from(([127, 0, 0, 1], args.port));
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| failed(&format!("listen on {address}"), error))?;
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| failed("handle SIGTERM", error))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| failed("handle SIGINT", error))?;
    let example = Arc::new(Example {
        instance: std::env::var("TIDEMILL_INSTANCE").unwrap_or_else(|_| "alone".to_owned()),
        ready_at: tokio::time::Instant::now() + args.start_delay,
        request_time: args.request_time,
    });
    note(&format!("example service of {} listens on {address}", example.instance));
    let server = auto::Builder::new(TokioExecutor::new());
    let (tasks, ending) = (TaskTracker::new(), CancellationToken::new());
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: those in use must first come back.
                    note(&format!("a connection was not accepted: {error}"));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
        // Without this small pieces wait for the acknowledgement of the piece before.
        let _ = stream.set_nodelay(true);
        let example = example.clone();
        let service = service_fn(move |request| answer(example.clone(), request));
        let connection = server.serve_connection(TokioIo::new(stream), service).into_owned();
        let ending = ending.clone();
        tasks.spawn(async move {
            let mut connection = pin!(connection);
            // A client that went away is its own business.
            tokio::select! {
                _ = connection.as_mut() => return,
                () = ending.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            let _ = connection.await;
        });
    }
    drop(listener);
    note("no new requests; finishing those in flight");
    ending.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(())
}

async fn answer(example: Arc<Example>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let ready = tokio::time::Instant::now() >= example.ready_at;
    let response = match (request.uri().path(), ready) {
        (_, false) => text(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        ("/health", true) => text(StatusCode::OK, "ok\n"),
        _ => stream(&example, tokens_of(request.uri().query())),
    };
    Ok(response)
}

fn text(status: StatusCode, body: &'static str) -> Response<Body> {
    let mut response = Response::new(Full::from(body).boxed());
    *response.status_mut() = status;
    response
}

fn tokens_of(query: Option<&str>) -> u32 {
    query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .find_map(|pair| pair.strip_prefix("tokens=")?.parse().ok())
        .map_or(DEFAULT_TOKENS, |tokens: u32| tokens.clamp(1, MOST_TOKENS))
}

/// A line that names the instance, then the pieces, one each time step: the usual number of pieces takes the request
/// time, twice as many take twice as long.
fn stream(example: &Example, tokens: u32) -> Response<Body> {
    let step = example.request_time / DEFAULT_TOKENS;
    let hello = Bytes::from(format!("hello from {}\n", example.instance));
    let pieces = futures::stream::unfold(0, move |sent| async move {
        if sent == tokens {
            return None;
        }
        tokio::time::sleep(step).await;
        let piece = if sent + 1 == tokens { "token\n" } else { "token " };
        Some((Bytes::from_static(piece.as_bytes()), sent + 1))
    });
    let body = futures::stream::once(std::future::ready(hello))
        .chain(pieces)
        .map(|piece| Ok(Frame::data(piece)));
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(body)));
    response.headers_mut().insert(
        hyper::header::CONTENT_TYPE,
        hyper::header::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        assert_eq!(tokens_of(None), DEFAULT_TOKENS);
        assert_eq!(tokens_of(Some("a=b&tokens=120")), 120);
        assert_eq!(tokens_of(Some("tokens=x")), DEFAULT_TOKENS);
        assert_eq!(tokens_of(Some("tokens=0")), 1);
        assert_eq!(tokens_of(Some("tokens=4000000000")), MOST_TOKENS);
    }
}
