//! Who is taken for whom.
#![allow(clippy::unwrap_used)]

use http::HeaderValue;
use tidemill_domain::commit::Address;
use tidemill_domain::events::credential::{CredentialCreated, CredentialRevoked};
use tidemill_domain::state::{EventMeta, Touched};

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

fn state() -> State {
    let mut state = State::default();
    let meta = EventMeta {
        address: Address::default(),
        recorded_at: NOW,
        trace: None,
    };
    let mut touched = Touched::new();
    for (bits, text, expires_at) in [
        (1, "good", None),
        (2, "over", Some(NOW)),
        (3, "revoked", None),
        (4, "lasting", Some(Timestamp::from_millis(1_000_001))),
    ] {
        let created = CredentialCreated {
            credential: CredentialId::from_bits(bits),
            hash: hash(text),
            role: Role::Operator,
            supply: None,
            tenant: None,
            expires_at,
        };
        state.apply(&created.into(), &meta, &mut touched).unwrap();
    }
    let revoked = CredentialRevoked {
        credential: CredentialId::from_bits(3),
    };
    state.apply(&revoked.into(), &meta, &mut touched).unwrap();
    state
}

fn who(peer: &str, open: bool, headers: &[(&'static str, &str)]) -> Result<Principal, String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_str(value).unwrap());
    }
    authenticate(&map, peer.parse().unwrap(), open, NOW, &state()).map_err(|refusal| {
        let code = match refusal.0.detail.as_str() {
            over if over.contains("expired") => "token_expired",
            revoked if revoked.contains("revoked") => "token_revoked",
            _ => "not_authenticated",
        };
        assert_eq!((refusal.0.status, refusal.0.code.as_str()), (401, code));
        assert!(!refusal.0.next.is_empty());
        refusal.0.detail
    })
}

const LOCAL: &str = "127.0.0.1:5000";
const REMOTE: &str = "10.0.0.7:5000";

#[test]
fn local_peers() {
    for peer in [LOCAL, "[::1]:5000", "[::ffff:127.0.0.1]:5000", "127.9.9.9:1"] {
        assert_eq!(
            who(peer, true, &[("host", "127.0.0.1:7070")]),
            Ok(Principal::Local),
            "{peer}"
        );
    }
    for host in ["localhost:7070", "LOCALHOST", "[::1]:7070", "192.168.0.9"] {
        assert_eq!(who(LOCAL, true, &[("host", host)]), Ok(Principal::Local), "{host}");
    }
    who(LOCAL, false, &[]).unwrap_err();
    for peer in [REMOTE, "[fe80::1]:5000", "0.0.0.0:1"] {
        who(peer, true, &[]).unwrap_err();
    }
}

#[test]
fn browsers_and_proxies_are_never_local() {
    let host = ("host", "127.0.0.1:7070");
    for headers in [
        vec![("host", "evil.example:7070")],
        vec![host, ("origin", "https://evil.example")],
        vec![host, ("origin", "null")],
        vec![host, ("origin", "http://127.0.0.1:9999")],
        vec![host, ("x-forwarded-for", "10.1.1.1")],
        vec![host, ("forwarded", "for=10.1.1.1")],
    ] {
        who(LOCAL, true, &headers).unwrap_err();
    }
    assert_eq!(
        who(LOCAL, true, &[host, ("origin", "http://127.0.0.1:7070")]),
        Ok(Principal::Local)
    );
}

#[test]
fn tokens() {
    let with = |value: &str| who(REMOTE, true, &[("authorization", value)]);
    assert_eq!(
        with("Bearer good").unwrap().credential(),
        Some(CredentialId::from_bits(1))
    );
    assert_eq!(
        with("bearer lasting").unwrap().credential(),
        Some(CredentialId::from_bits(4))
    );
    assert!(with("Bearer over").unwrap_err().contains("expired"));
    assert!(with("Bearer revoked").unwrap_err().contains("revoked"));
    for value in [
        "Bearer wrong",
        "Bearer ",
        "Basic good",
        "good",
        &format!("Bearer {}", "x".repeat(5000)),
    ] {
        with(value).unwrap_err();
    }
    // A token that is wrong is not mended by being local.
    who(LOCAL, true, &[("authorization", "Bearer wrong")]).unwrap_err();
}
