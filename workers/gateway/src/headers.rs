//! Header fields on their way through: what belongs to one hop stays there, what the instance should know is added.
//!
//! Rules of RFC 9110 §7.6.1 and RFC 7230 §6.1. `x-forwarded-for` is appended to, so the chain stays readable; host and
//! protocol are set only if a proxy in front has not said them already.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE,
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

const HOP_BY_HOP: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    TRAILER,
    UPGRADE,
];

/// Removes what concerns one connection only, including what `Connection` names.
fn strip_hop(headers: &mut HeaderMap) {
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
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Makes a client's header fields those of the request to an instance.
pub(crate) fn prepare_request(headers: &mut HeaderMap, peer: IpAddr, prefix: &str, fallback_host: &str) {
    let trailers_welcome = headers
        .get(TE)
        .is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    strip_hop(headers);
    // `100 Continue` is answered here, as soon as the body is wanted.
    headers.remove(EXPECT);
    headers.remove(TE);
    if trailers_welcome {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    append_forwarded_for(headers, peer);
    if !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    match headers.get(HOST).cloned() {
        Some(host) => {
            headers.entry(FORWARDED_HOST).or_insert(host);
        }
        // An HTTP/1.0 client; HTTP/1.1 needs one.
        None => {
            if let Ok(host) = HeaderValue::from_str(fallback_host) {
                headers.insert(HOST, host);
            }
        }
    }
    if !prefix.is_empty()
        && let Ok(prefix) = HeaderValue::from_str(prefix)
    {
        headers.insert(FORWARDED_PREFIX, prefix);
    }
}

fn append_forwarded_for(headers: &mut HeaderMap, peer: IpAddr) {
    let mut chain = String::new();
    for earlier in headers.get_all(&FORWARDED_FOR) {
        if let Ok(earlier) = earlier.to_str() {
            chain.push_str(earlier);
            chain.push_str(", ");
        }
    }
    use std::fmt::Write;
    let _ = write!(chain, "{peer}");
    if let Ok(value) = HeaderValue::from_str(&chain) {
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
    headers.insert(ATTEMPTS, HeaderValue::from(attempts));
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
        prepare_request(&mut headers, "192.0.2.7".parse().unwrap(), "/chat", "h:1");
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
