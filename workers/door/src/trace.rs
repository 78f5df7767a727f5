//! W3C trace context: taken in, continued with a span of this door's own, handed on.

use http::HeaderMap;
use tidemill_domain::commit::TraceContext;

/// Header's name.
pub const TRACEPARENT: &str = "traceparent";

/// The trace a request belongs to: its caller's, else a new one. The span is new in either case, so that what the
/// ledger keeps names this request and not its caller.
pub(crate) fn of_request(headers: &HeaderMap) -> TraceContext {
    let given = headers
        .get(TRACEPARENT)
        .and_then(|value| value.to_str().ok())
        .and_then(TraceContext::parse);
    let random = uuid::Uuid::now_v7();
    // The last eight bytes of a version 7 UUID are random but for two bits.
    let mut span_id = [0; 8];
    span_id.copy_from_slice(&random.as_bytes()[8..]);
    TraceContext {
        trace_id: given.map_or_else(|| fresh().trace_id, |given| given.trace_id),
        span_id,
        flags: given.map_or(1, |given| given.flags),
    }
}

/// A new trace.
pub(crate) fn fresh() -> TraceContext {
    let random = uuid::Uuid::now_v7();
    let mut span_id = [0; 8];
    span_id.copy_from_slice(&random.as_bytes()[8..]);
    TraceContext {
        trace_id: *uuid::Uuid::now_v7().as_bytes(),
        span_id,
        flags: 1,
    }
}
