//! Header fields on their way through: what belongs to one hop stays there, what the instance should know is added.
//!
//! Rules of RFC 9110 §7.6.1 and RFC 7230 §6.1. `x-forwarded-for` is appended to, so the chain stays readable; host and
//! protocol are set only if a proxy in front has not said them already.

use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE,
    TRANSFER_ENCODING, UPGRADE,
};

/// Which instance answered.
pub(crate) const INSTANCE: HeaderName = HeaderName::from_static("x-tidemill-instance");
/// After how many tries.
pub(crate) const ATTEMPTS: HeaderName = HeaderName::from_static("x-tidemill-attempts");
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");

// `Trailer` stays: it announces fields of the message, and without it they are not passed on.
static HOP_BY_HOP: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What a client asks of this hop.
static WISHES: [HeaderName; 2] = [EXPECT, TE];

/// Removes what concerns one connection only, including what `Connection` names.
fn strip_hop(headers: &mut HeaderMap) {
    // Most messages have none of them, and one look at each name costs less than five searches.
    if !has_any(headers, &HOP_BY_HOP) {
        return;
    }
    if let Some(connection) = headers.get(CONNECTION) {
        // The usual values name fields that are removed below anyway.
        let usual = ["close", "keep-alive", "upgrade"];
        let named: Vec<HeaderName> = connection
            .to_str()
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|name| !usual.iter().any(|u| u.eq_ignore_ascii_case(name)))
            .filter_map(|name| name.parse().ok())
            // A field that frames or routes the message is not the client's to remove.
            .filter(|name| *name != HOST && *name != CONTENT_LENGTH)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn has_any(headers: &HeaderMap, names: &[HeaderName]) -> bool {
    headers.keys().any(|name| names.contains(name))
}

/// How a request came in.
#[derive(Debug)]
pub(crate) struct Arrival<'a> {
    /// The client's address.
    pub(crate) peer: Option<HeaderValue>,
    /// Over TLS.
    pub(crate) secure: bool,
    /// Part of the path that named the service, if it was the path.
    pub(crate) prefix: Option<HeaderValue>,
    /// `:authority` of HTTP/2, or of an absolute target.
    pub(crate) authority: Option<&'a str>,
    /// For a request that names no host, as HTTP/1.0 allows.
    pub(crate) fallback_host: &'a str,
}

/// Makes a client's header fields those of the request to an instance.
pub(crate) fn prepare_request(headers: &mut HeaderMap, arrival: Arrival<'_>) {
    strip_hop(headers);
    if has_any(headers, &WISHES) {
        // `100 Continue` is answered here, as soon as the body is wanted.
        headers.remove(EXPECT);
        let te = headers.remove(TE);
        if te.is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers")) {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
    if let Some(peer) = arrival.peer {
        append_forwarded_for(headers, peer);
    }
    if !headers.contains_key(FORWARDED_PROTO) {
        let proto = if arrival.secure { "https" } else { "http" };
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static(proto));
    }
    match headers.get(HOST).cloned() {
        Some(host) => {
            headers.entry(FORWARDED_HOST).or_insert(host);
        }
        None => {
            let host = arrival.authority.unwrap_or(arrival.fallback_host);
            if let Ok(host) = HeaderValue::from_str(host) {
                if arrival.authority.is_some() {
                    headers.entry(FORWARDED_HOST).or_insert(host.clone());
                }
                headers.insert(HOST, host);
            }
        }
    }
    if let Some(prefix) = arrival.prefix {
        headers.insert(FORWARDED_PREFIX, prefix);
    }
    join_cookies(headers);
}

/// HTTP/2 may split the cookies into several fields, which HTTP/1.1 forbids (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut all = headers.get_all(COOKIE).iter();
    let (Some(first), Some(second)) = (all.next(), all.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for more in std::iter::once(second).chain(all) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(more.as_bytes());
    }
    if let Ok(joined) = HeaderValue::from_bytes(&joined) {
        headers.insert(COOKIE, joined);
    }
}

/// Whether a message speaks gRPC.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// What a client wants to change to (`Connection: upgrade`). `h2c` may be ignored (RFC 9110 §7.8), and clients that
/// ask for it expect that.
pub(crate) fn wanted_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let to = headers.get(UPGRADE)?;
    let asked = headers.get(CONNECTION)?.to_str().ok()?;
    let asked = asked.split(',').any(|t| t.trim().eq_ignore_ascii_case("upgrade"));
    (asked && !to.as_bytes().eq_ignore_ascii_case(b"h2c")).then(|| to.clone())
}

/// Says on one hop that the connection is to change, or changes, to `protocol`.
pub(crate) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

fn append_forwarded_for(headers: &mut HeaderMap, peer: HeaderValue) {
    let mut chain = Vec::new();
    for earlier in headers.get_all(&FORWARDED_FOR) {
        if let Ok(earlier) = earlier.to_str() {
            chain.extend_from_slice(earlier.as_bytes());
            chain.extend_from_slice(b", ");
        }
    }
    let value = if chain.is_empty() {
        Ok(peer)
    } else {
        chain.extend_from_slice(peer.as_bytes());
        HeaderValue::from_bytes(&chain)
    };
    if let Ok(value) = value {
        headers.insert(FORWARDED_FOR, value);
    }
}

/// Makes an instance's header fields those of the answer. Returns whether the instance keeps its connection open.
pub(crate) fn prepare_response(
    headers: &mut HeaderMap,
    version: http::Version,
    instance: &HeaderValue,
    attempts: u32,
) -> bool {
    let keep_alive = version == http::Version::HTTP_11
        && !headers.get(CONNECTION).is_some_and(|c| {
            let value = c.to_str().unwrap_or_default();
            value.split(',').any(|token| token.trim().eq_ignore_ascii_case("close"))
        });
    strip_hop(headers);
    headers.insert(INSTANCE, instance.clone());
    let attempts = match attempts {
        1 => HeaderValue::from_static("1"),
        more => HeaderValue::from(more),
    };
    headers.insert(ATTEMPTS, attempts);
    keep_alive
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v)))
            .collect()
    }

    fn arrival() -> Arrival<'static> {
        Arrival {
            peer: Some(HeaderValue::from_static("192.0.2.7")),
            secure: false,
            prefix: Some(HeaderValue::from_static("/chat")),
            authority: None,
            fallback_host: "chat",
        }
    }

    #[test]
    fn http_2_fields_become_those_of_http_1() {
        let mut headers = map(&[("cookie", "a=1")]);
        headers.append(COOKIE, HeaderValue::from_static("b=2"));
        headers.append(COOKIE, HeaderValue::from_static("c=3"));
        let secure = Arrival {
            secure: true,
            authority: Some("chat.example.com"),
            ..arrival()
        };
        prepare_request(&mut headers, secure);
        assert_eq!(headers.get_all(COOKIE).iter().count(), 1);
        assert_eq!(headers[COOKIE], "a=1; b=2; c=3");
        assert_eq!(headers[HOST], "chat.example.com");
        assert_eq!(headers[FORWARDED_HOST], "chat.example.com");
        assert_eq!(headers[FORWARDED_PROTO], "https");
    }

    #[test]
    fn only_a_full_request_for_another_protocol_is_one() {
        let asked = |fields: &[(&'static str, &'static str)]| wanted_upgrade(&map(fields)).is_some();
        assert!(asked(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket")
        ]));
        assert!(!asked(&[("connection", "upgrade, http2-settings"), ("upgrade", "h2c")]));
        assert!(!asked(&[("connection", "keep-alive"), ("upgrade", "websocket")]));
        assert!(!asked(&[("connection", "upgrade")]));
    }

    #[test]
    fn hop_by_hop_fields_stay_and_the_chain_grows() {
        let mut headers = map(&[
            ("connection", "keep-alive, x-secret, content-length"),
            ("x-secret", "1"),
            ("content-length", "3"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("expect", "100-continue"),
            ("te", "trailers"),
            ("host", "chat.example.com"),
            ("x-forwarded-for", "10.0.0.1"),
            ("accept", "*/*"),
        ]);
        prepare_request(&mut headers, arrival());
        let mut left: Vec<_> = headers
            .iter()
            .map(|(k, v)| format!("{k}: {}", v.to_str().unwrap()))
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "accept: */*",
                "content-length: 3",
                "host: chat.example.com",
                "te: trailers",
                "x-forwarded-for: 10.0.0.1, 192.0.2.7",
                "x-forwarded-host: chat.example.com",
                "x-forwarded-prefix: /chat",
                "x-forwarded-proto: http",
            ]
        );
    }

    #[test]
    fn a_closing_answer_is_not_kept_alive() {
        let instance = HeaderValue::from_static("inst-1");
        let mut closing = map(&[("connection", "Close")]);
        assert!(!prepare_response(&mut closing, http::Version::HTTP_11, &instance, 2));
        assert_eq!(closing.get(ATTEMPTS).unwrap(), "2");
        assert!(!closing.contains_key(CONNECTION));
        let mut open = HeaderMap::new();
        assert!(!prepare_response(&mut open, http::Version::HTTP_10, &instance, 1));
        assert!(prepare_response(&mut open, http::Version::HTTP_11, &instance, 1));
    }
}
