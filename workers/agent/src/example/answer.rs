//! One answer: how long it is, and its pieces over time.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use tokio::time::{Instant, sleep_until};

use super::Options;

/// Longest answer and context taken, tokens; beyond it a request is a mistake.
const MAX_TOKENS: u32 = 1_000_000;

/// What answers need.
pub(super) struct Context {
    pub(super) options: Options,
    pub(super) name: String,
    pub(super) ready_at: Instant,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl Context {
    /// Answers once the first piece is due: like an inference server, it commits to an answer when it has one.
    pub(super) async fn answer<B>(&self, request: &Request<B>) -> Result<Response<Body>, Infallible> {
        let response = match request.uri().path() {
            "/health" if Instant::now() < self.ready_at => whole(StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
            "/health" => whole(StatusCode::OK, "ok\n"),
            _ => match (
                length(request, "tokens", self.options.tokens),
                length(request, "context", 0),
            ) {
                (Some(tokens), Some(context)) => self.stream(tokens, context).await,
                _ => whole(
                    StatusCode::BAD_REQUEST,
                    "tokens and context are numbers up to 1000000\n",
                ),
            },
        };
        Ok(response)
    }

    async fn stream(&self, tokens: u32, context: u32) -> Response<Body> {
        let first = Instant::now() + self.options.request_time + self.options.per_context_token * context;
        sleep_until(first).await;
        let per_token = self.options.per_token;
        let greeting = format!("hello from {}:", self.name);
        let pieces = stream::iter(0..=tokens).then(move |piece| {
            let text = match piece {
                _ if piece == tokens => Bytes::from_static(b"\n"),
                0 => Bytes::from(greeting.clone()),
                _ => Bytes::from(format!(" {piece}")),
            };
            async move {
                // From the start, not from the last piece: a late timer must not add up.
                sleep_until(first + pace(per_token, piece.min(tokens.saturating_sub(1)))).await;
                Ok::<_, Infallible>(Frame::data(text))
            }
        });
        let mut response = Response::new(BodyExt::boxed_unsync(StreamBody::new(pieces)));
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        response
    }
}

fn pace(per_token: Duration, piece: u32) -> Duration {
    per_token.saturating_mul(piece)
}

fn whole(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Full::from(text).boxed_unsync());
    *response.status_mut() = status;
    response
}

/// A length from the query, else from the header `x-NAME`, else the default. `None` if it is not a length.
fn length<B>(request: &Request<B>, name: &str, default: u32) -> Option<u32> {
    let query = request.uri().query().unwrap_or_default();
    let in_query = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value.to_owned());
    let in_header = || {
        let value = request.headers().get(format!("x-{name}"))?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    match in_query.or_else(in_header) {
        None => Some(default),
        Some(text) => text.parse().ok().filter(|length| *length <= MAX_TOKENS),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn context(ready_at: Instant) -> Context {
        Context {
            options: Options::new(0),
            name: "inst-1".into(),
            ready_at,
        }
    }

    fn get(uri: &str) -> Request<()> {
        Request::get(uri).body(()).unwrap()
    }

    #[tokio::test]
    async fn healthy_after_its_start_delay() {
        for (ready_at, status) in [(Instant::now() + Duration::from_secs(60), 503), (Instant::now(), 200)] {
            assert_eq!(
                context(ready_at).answer(&get("/health")).await.unwrap().status(),
                status
            );
        }
    }

    #[tokio::test]
    async fn an_answer_takes_its_time() {
        let context = context(Instant::now());
        let began = Instant::now();
        let answer = context.answer(&get("/x?tokens=5&context=1000")).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&body[..], b"hello from inst-1: 1 2 3 4\n");
        // 20 ms a request, 10 µs × 1,000 of context, 4 gaps of 1 ms.
        assert!(began.elapsed() >= Duration::from_millis(34));
    }

    #[test]
    fn lengths_come_from_the_query_or_headers() {
        let mut request = get("/?context=7&tokens=9");
        request.headers_mut().insert("x-tokens", 3.into());
        assert_eq!(length(&request, "tokens", 1), Some(9));
        assert_eq!(length(&request, "other", 1), Some(1));
        *request.uri_mut() = "/".parse().unwrap();
        assert_eq!(length(&request, "tokens", 1), Some(3));
        *request.uri_mut() = "/?tokens=-1".parse().unwrap();
        assert_eq!(length(&request, "tokens", 1), None);
    }
}
