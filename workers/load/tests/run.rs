//! The generator against real sockets: what it sends, when, and what it counts.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidemill_load::{LoadOptions, Source, run, run_with};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// A server that answers with `answer(number of the request, its query)`: pause and status.
async fn server(answer: impl Fn(u64, &str) -> (Duration, u16) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    let number = Arc::new(AtomicU64::new(0));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (answer, number) = (Arc::clone(&answer), Arc::clone(&number));
            tokio::spawn(async move {
                let service = service_fn(|request: Request<Incoming>| {
                    let n = number.fetch_add(1, Ordering::Relaxed);
                    let (pause, status) = answer(n, request.uri().query().unwrap_or_default());
                    async move {
                        // tidy: waits for its time to answer: slowness is what is tested
                        sleep(pause).await;
                        let mut response = Response::new(Full::new(Bytes::from_static(b"ok")));
                        *response.status_mut() = status.try_into().unwrap();
                        Ok::<_, Infallible>(response)
                    }
                });
                let _ = http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    url
}

fn options(url: &str, rps: f64, duration_ms: u64) -> LoadOptions {
    let mut options = LoadOptions::new(url, Source::Rps(rps));
    options.duration = Some(Duration::from_millis(duration_ms));
    options
}

#[tokio::test]
async fn counts_by_status_and_sums_up() {
    let url = server(|n, _| (Duration::ZERO, [200, 200, 404, 503][n as usize % 4])).await;
    let report = run(options(&url, 200.0, 1000)).await.unwrap();
    assert_eq!(report.sent, 200);
    assert_eq!((report.ok, report.failed), (100, 100));
    assert_eq!(report.by_status[&404], 50);
    assert_eq!(report.failures["status_5xx"], 50);
    assert!(report.p50_ms.unwrap() < 100);
    assert!((report.rate_rps - 200.0).abs() < 10.0, "{}", report.rate_rps);
    let json = serde_json::to_value(&report).unwrap();
    for key in ["sent", "ok", "failed", "p50_ms", "p90_ms", "p99_ms", "longest_gap_ms"] {
        assert!(json[key].is_u64(), "{key}");
    }
}

#[tokio::test]
async fn arrivals_do_not_wait_for_answers() {
    let url = server(|_, _| (Duration::from_millis(300), 200)).await;
    let report = run(options(&url, 100.0, 500)).await.unwrap();
    assert_eq!((report.sent, report.ok), (50, 50));
    assert!(report.duration_ms < 1500, "{}", report.duration_ms);
    assert!((300..400).contains(&report.p50_ms.unwrap()));
}

#[tokio::test]
async fn a_full_client_is_late_and_says_so() {
    let url = server(|_, _| (Duration::from_millis(50), 200)).await;
    let mut options = options(&url, 100.0, 500);
    options.max_in_flight = 1;
    let report = run(options).await.unwrap();
    assert_eq!(report.sent, report.ok);
    assert!(report.lateness.over_10ms > 0);
    assert!(report.p99_ms.unwrap() > 100, "waiting in the client counts: {report:?}");
}

#[tokio::test]
async fn nobody_answers() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    let report = run(options(&url, 50.0, 200)).await.unwrap();
    assert_eq!((report.sent, report.failed, report.ok), (10, 10, 0));
    assert_eq!(report.failures["connect"], 10);
    assert_eq!(report.p50_ms, None);
}

#[tokio::test]
async fn a_request_without_an_answer_times_out() {
    let url = server(|_, _| (Duration::from_secs(60), 200)).await;
    let mut options = options(&url, 10.0, 100);
    options.timeout = Duration::from_millis(200);
    let report = run(options).await.unwrap();
    assert_eq!(report.failures["timeout"], 1);
    assert!(report.longest_gap_ms >= 200);
}

#[tokio::test]
async fn a_trace_sends_its_lengths_and_progress_is_told() {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&queries);
    let url = server(move |_, query| {
        seen.lock().unwrap().push(query.to_owned());
        (Duration::ZERO, 200)
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.csv");
    std::fs::write(&path, "TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,2\n22,7,3\n").unwrap();
    let mut options = LoadOptions::new(format!("{url}?a=1"), Source::Trace(path));
    options.speed = 20.0;
    let mut told = 0;
    let report = run_with(options, |_| told += 1).await.unwrap();
    assert_eq!(report.ok, 2);
    assert_eq!(told, 1, "1.1 s at this speed");
    assert_eq!(
        *queries.lock().unwrap(),
        ["a=1&context=10&tokens=2", "a=1&context=7&tokens=3"]
    );
}

#[tokio::test]
async fn stopping_early_still_reports() {
    let url = server(|_, _| (Duration::ZERO, 200)).await;
    let mut options = LoadOptions::new(url, Source::Rps(100.0));
    options.duration = None;
    let stop = options.stop.clone();
    let (report, ()) = tokio::join!(run(options), async {
        // tidy: waits for some requests to be sent; how many does not matter
        sleep(Duration::from_millis(200)).await;
        stop.cancel();
    });
    let report = report.unwrap();
    assert!(report.sent > 5 && report.sent == report.ok);
}

#[tokio::test]
async fn bad_input_is_refused_with_a_code() {
    for (url, rps, code) in [
        ("not a url", 1.0, "bad_url"),
        ("/hello", 1.0, "bad_url"),
        ("https://h/", 1.0, "not_yet"),
        ("http://h/", 0.0, "bad_number"),
        ("http://h/", f64::NAN, "bad_number"),
        ("http://h/", 1e18, "bad_number"),
    ] {
        let error = run(options(url, rps, 10)).await.unwrap_err();
        assert_eq!(error.code(), code, "{url} {rps}");
        assert!(error.to_string().contains("next: "));
    }
}
