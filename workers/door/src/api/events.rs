//! `events`: a page as JSON, or the live ledger as server-sent events.
//!
//! A stream is a reader with a cursor: pages of what the read models have, then a wait for more. It never holds more than
//! one page, so a slow client slows only itself; each event carries its address as `id`, so a client that comes back
//! with `Last-Event-ID`, to this server or another, gets the next event and no other.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::stream;
use http::{HeaderMap, HeaderValue, Uri, header};
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::Handled;
use super::params::Params;
use crate::gate::Caller;
use crate::metrics::Counted;
use crate::problem::Refusal;
use crate::reads::{EventPage, EventQuery, Point, Reads};
use crate::shared::Shared;

const KNOWN: &[&str] = &["at", "seq", "min_seq", "after", "about", "tenant", "since", "limit"];
/// Events of a page when none are asked for, and at most.
const PAGE: usize = 1_000;
const MAX_PAGE: usize = 10_000;
/// Events a stream reads at a time.
const STREAM_PAGE: usize = 256;
/// A comment is sent after this long without an event, so that proxies keep the connection and a dead peer shows.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    uri: Uri,
) -> Handled<Response> {
    let params = Params::of(&uri, KNOWN)?;
    let mut query = EventQuery {
        point: params.point(&shared)?,
        after: params.number("after")?.unwrap_or(0),
        index: None,
        about: params.text("about").map(str::to_owned),
        tenant: params.tenant(&caller.principal)?,
        since: params.time("since")?,
        limit: params.number("limit")?.unwrap_or(PAGE).clamp(1, MAX_PAGE),
    };
    let wants_stream = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/event-stream"));
    if !wants_stream {
        let Ok(_permit) = shared.requests.try_acquire() else {
            return Err(Refusal::overloaded("too many requests are being answered already"));
        };
        params.caught_up(&shared).await?;
        return Ok(Json(shared.deps.reads.events(query).await?.rows).into_response());
    }
    if query.point != Point::Latest {
        return Err(Refusal::bad_parameter(
            "a stream follows the present ledger; leave out at and seq",
            "",
        ));
    }
    if let Some(id) = headers.get("last-event-id") {
        let (sequence, index) = id.to_str().ok().and_then(parse_id).ok_or_else(|| {
            Refusal::invalid(
                "Last-Event-ID is not an event's id, such as 17.0",
                "leave it out to begin at `after`",
            )
        })?;
        query.after = sequence;
        query.index = index;
    }
    let Ok(permit) = Arc::clone(&shared.streams).try_acquire_owned() else {
        return Err(Refusal::overloaded(format!(
            "{} streams are open already",
            shared.config.limits.streams
        )));
    };
    query.limit = STREAM_PAGE;
    // The first page is read before the answer begins, so that a question that makes no sense is refused and not
    // answered by an empty stream.
    let first = shared.deps.reads.events(query.clone()).await?;
    let follower = Follower {
        shared: Arc::clone(&shared),
        caller,
        query,
        page: Some(first),
        _permit: permit,
    };
    let body = Body::from_stream(stream::unfold(follower, Follower::next));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// `SEQ.INDEX`, or `SEQ` for the whole record.
fn parse_id(id: &str) -> Option<(u64, Option<u32>)> {
    match id.trim().split_once('.') {
        Some((sequence, index)) => Some((sequence.parse().ok()?, Some(index.parse().ok()?))),
        None => Some((id.trim().parse().ok()?, None)),
    }
}

struct Follower {
    shared: Arc<Shared>,
    caller: Caller,
    query: EventQuery,
    page: Option<EventPage>,
    _permit: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        let shared = Arc::clone(&self.shared);
        let _counted = Counted::in_(&shared.metrics.streams);
        let text = tokio::select! {
            () = shared.closing.cancelled() => return None,
            text = self.more(&*shared.deps.reads) => text?,
        };
        Some((Ok(Bytes::from(text)), self))
    }

    /// The next events as text, or a comment after a while without any; none when the stream is to end.
    async fn more(&mut self, reads: &dyn Reads) -> Option<String> {
        loop {
            let page = match self.page.take() {
                Some(page) => page,
                // A reader that comes back with its last id loses nothing by the stream's end.
                None => reads.events(self.query.clone()).await.ok()?,
            };
            let text: String = page.rows.iter().map(field).collect();
            self.advance(&page);
            if !text.is_empty() {
                return Some(text);
            }
            if !reads.wait_for(self.query.after + 1, KEEP_ALIVE).await {
                // A token revoked meanwhile ends the stream here.
                return self.allowed().then(|| ": still here\n\n".to_owned());
            }
        }
    }

    fn advance(&mut self, page: &EventPage) {
        let full = page.rows.len() >= self.query.limit;
        match page.rows.last().filter(|_| full).and_then(address) {
            Some((sequence, index)) => {
                self.query.after = sequence;
                self.query.index = Some(index);
            }
            None if page.through > self.query.after || self.query.index.is_some() => {
                self.query.after = page.through.max(self.query.after);
                self.query.index = None;
            }
            None => {}
        }
    }

    /// Whether the caller's token is still good.
    fn allowed(&self) -> bool {
        let Some(credential) = self.caller.principal.credential() else {
            return true;
        };
        let now = self.shared.clock.now();
        self.shared.deps.view.read(|state| {
            state
                .credentials
                .get(&credential)
                .is_some_and(|c| !c.revoked && c.expires_at.is_none_or(|end| end > now))
        })
    }
}

fn address(row: &Value) -> Option<(u64, u32)> {
    let sequence = row.get("seq")?.as_u64()?;
    let index = u32::try_from(row.get("index")?.as_u64()?).ok()?;
    Some((sequence, index))
}

fn field(row: &Value) -> String {
    let id = address(row).map(|(sequence, index)| format!("id: {sequence}.{index}\n"));
    // JSON on one line has no line break that would end the field.
    format!("{}data: {row}\n\n", id.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_events() {
        assert_eq!(parse_id("17.3"), Some((17, Some(3))));
        assert_eq!(parse_id(" 17 "), Some((17, None)));
        assert_eq!(parse_id("17.x"), None);
        assert_eq!(parse_id(""), None);
    }
}
