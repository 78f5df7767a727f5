//! The example service inside the binary: `tidemill example-service --port $PORT`.
//!
//! An HTTP/1.1 server that behaves like a model server as far as a platform can tell: it takes a while to start, answers
//! 503 on `/health` until then, needs time before the first token and then streams tokens at a pace. How long an answer
//! is comes from the query (`?tokens=N&context=M`) or the headers `x-tokens` and `x-context`, so that a recorded trace
//! can be replayed against it. On SIGTERM it takes no new connections and finishes the answers it has begun.
//!
//! It runs on one thread, so that a thousand of them fit on a small machine, and computes nothing: all times are waits.

mod answer;

use std::{net::Ipv4Addr, time::Duration};

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::Instant,
};
use tokio_util::task::TaskTracker;

/// How the service behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Port to listen on, all addresses.
    pub port: u16,
    /// Time from start until `/health` answers 200.
    pub start_delay: Duration,
    /// Time from a request to the first piece of its answer, before what its context adds.
    pub request_time: Duration,
    /// Pieces of an answer whose request does not say.
    pub tokens: u32,
    /// Time between two pieces.
    pub per_token: Duration,
    /// Time each token of context adds before the first piece.
    pub per_context_token: Duration,
}

impl Options {
    /// The defaults on a port: ready at once, 20 ms to the first of 8 pieces, 1 ms a piece (a small model's pace times
    /// ten), 10 µs a token of context (100,000 tokens/s of prefill).
    pub fn new(port: u16) -> Self {
        Self {
            port,
            start_delay: Duration::ZERO,
            request_time: Duration::from_millis(20),
            tokens: 8,
            per_token: Duration::from_millis(1),
            per_context_token: Duration::from_micros(10),
        }
    }
}

/// Runs the service on a runtime of its own until SIGTERM or SIGINT. Call it outside of any runtime.
pub fn run(options: Options) -> std::io::Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve(options))
}

/// Serves until SIGTERM or SIGINT, then finishes what it began.
pub async fn serve(options: Options) -> std::io::Result<()> {
    let ready_at = Instant::now() + options.start_delay;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, options.port)).await?;
    println!("listening on port {}", listener.local_addr()?.port());
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (leaving, left) = watch::channel(false);
    let connections = TaskTracker::new();
    let name = std::env::var("TIDEMILL_INSTANCE").unwrap_or_else(|_| "nowhere".to_owned());
    let context = std::sync::Arc::new(answer::Context {
        options,
        name,
        ready_at,
    });
    loop {
        let stream = tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors: taking the next one at once would only spin.
                    eprintln!("no connection can be taken: {error}");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        // Pieces are small and timed; Nagle would bundle them.
        let _ = stream.set_nodelay(true);
        let context = std::sync::Arc::clone(&context);
        let mut left = left.clone();
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let context = std::sync::Arc::clone(&context);
                async move { context.answer(&request).await }
            });
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => return,
                _ = left.wait_for(|leaving| *leaving) => {}
            }
            connection.as_mut().graceful_shutdown();
            // A client that went away is no failure of ours.
            let _ = connection.await;
        });
    }
    drop(listener);
    leaving.send_replace(true);
    connections.close();
    connections.wait().await;
    Ok(())
}
