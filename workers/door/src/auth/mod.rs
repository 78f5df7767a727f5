//! Who asks, and what they may.
//!
//! A caller is the holder of a token, or a peer on this machine where the door is open to those. The ledger holds only
//! the tokens' hashes; a text has 256 bits of chance, so one round of BLAKE3 cannot be searched, and looking up by the
//! hash compares nothing that an attacker could learn byte by byte.
//!
//! Invariants: a peer is local only by its address, never by a header; a browser's cross-site request and a request
//! handed on by a proxy are never local, whatever their address; what another tenant owns is not found rather than
//! forbidden. Sessions and cookies were rejected: every request carries its authority.

mod access;
mod token;

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, header};
use tidemill_domain::commit::Actor;
use tidemill_domain::events::credential::Role;
use tidemill_domain::events::node::Supply;
use tidemill_domain::id::CredentialId;
use tidemill_domain::state::{Credential, State};
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::Name;

use crate::problem::Refusal;

pub use access::Access;
pub(crate) use access::role_name;
pub(crate) use token::TokenSource;
pub use token::{TokenText, hash};

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Principal {
    /// Somebody on this machine, without a token.
    Local,
    /// The holder of a token.
    Token {
        /// Its record.
        credential: CredentialId,
        /// What it allows.
        role: Role,
        /// Whose workloads.
        tenant: Option<Name>,
        /// The only supply kind it enrols.
        supply: Option<Supply>,
    },
}

impl Principal {
    /// As commits name it.
    pub fn actor(&self) -> Actor {
        match self {
            Principal::Local => Actor::Local,
            Principal::Token { credential, .. } => Actor::Credential(*credential),
        }
    }

    /// The tenant outside of which nothing is seen; none sees all.
    pub fn tenant(&self) -> Option<&Name> {
        match self {
            Principal::Local => None,
            Principal::Token { tenant, .. } => tenant.as_ref(),
        }
    }

    /// Whether things of this tenant (`None`: of the pool) may be seen.
    pub fn sees(&self, tenant: Option<&Name>) -> bool {
        self.tenant().is_none_or(|own| tenant == Some(own))
    }

    /// The token's record.
    pub fn credential(&self) -> Option<CredentialId> {
        match self {
            Principal::Local => None,
            Principal::Token { credential, .. } => Some(*credential),
        }
    }

    /// What keeps two callers' `Idempotency-Key`s apart.
    pub(crate) fn key(&self) -> Vec<u8> {
        match self {
            Principal::Local => b"local".to_vec(),
            Principal::Token { credential, .. } => credential.to_string().into_bytes(),
        }
    }
}

/// Finds out who asks.
pub fn authenticate(
    headers: &HeaderMap,
    peer: SocketAddr,
    loopback_open: bool,
    now: Timestamp,
    state: &State,
) -> Result<Principal, Refusal> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let token = value
            .to_str()
            .ok()
            .and_then(|text| text.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .ok_or_else(|| {
                unauthenticated(
                    "the Authorization header is not `Bearer TOKEN`",
                    "send the token as `Authorization: Bearer …`",
                )
            })?;
        return of_token(token, now, state);
    }
    if !loopback_open || !peer.ip().to_canonical().is_loopback() {
        return Err(unauthenticated(
            "this request carries no token",
            "make one with `tidemill token create` on the server's machine and set TIDEMILL_TOKEN",
        ));
    }
    local(headers)
}

fn of_token(token: &str, now: Timestamp, state: &State) -> Result<Principal, Refusal> {
    let unknown = || {
        unauthenticated(
            "this token is not known here",
            "check TIDEMILL_TOKEN, or make a new token",
        )
    };
    // A token's text is short; hashing a megabyte for anyone who asks is not.
    if token.len() > token::MAX_TEXT {
        return Err(unknown());
    }
    let credential = state.credential_hashed(&hash(token)).ok_or_else(unknown)?;
    check_good(credential, now)?;
    Ok(Principal::Token {
        credential: credential.id,
        role: credential.role,
        tenant: credential.tenant.clone(),
        supply: credential.supply,
    })
}

fn check_good(credential: &Credential, now: Timestamp) -> Result<(), Refusal> {
    const NEXT: &str = "make a new token with `tidemill token create`";
    if credential.revoked {
        return Err(Refusal::new(401, "token_revoked", "this token was revoked", NEXT));
    }
    match credential.expires_at.filter(|end| *end <= now) {
        None => Ok(()),
        Some(end) => Err(Refusal::new(
            401,
            "token_expired",
            format!("this token expired at {end}"),
            NEXT,
        )),
    }
}

/// That the token which let a connection or stream in is still good; its refusal if not. Nothing, where none did.
pub(crate) fn still_good(state: &State, credential: Option<CredentialId>, now: Timestamp) -> Result<(), Refusal> {
    let Some(id) = credential else { return Ok(()) };
    match state.credentials.get(&id) {
        Some(credential) => check_good(credential, now),
        None => Err(unauthenticated("this token is not known here", "make a new token")),
    }
}

/// A loopback peer is this machine's operator unless a browser or a proxy speaks for somebody else.
fn local(headers: &HeaderMap) -> Result<Principal, Refusal> {
    let refuse = |detail: &str| {
        Err(unauthenticated(
            detail,
            "send a token, or ask the server directly from its own machine",
        ))
    };
    if ["forwarded", "x-forwarded-for", "x-real-ip"]
        .iter()
        .any(|name| headers.contains_key(*name))
    {
        return refuse("a proxy handed this request on, so it is not known to come from this machine");
    }
    let host = headers
        .get(header::HOST)
        .and_then(|v| v.to_str().ok())
        .unwrap_or_default();
    // A name that an attacker's DNS points at loopback would make a browser treat this server as the attacker's site.
    if !host.is_empty() && !names_an_address(host) {
        return refuse("the Host header names neither an address nor localhost");
    }
    if let Some(origin) = headers.get(header::ORIGIN) {
        let own = origin
            .to_str()
            .ok()
            .and_then(|o| o.strip_prefix("http://"))
            .is_some_and(|o| o == host);
        if !own {
            return refuse("a page of another site made this request");
        }
    }
    Ok(Principal::Local)
}

fn names_an_address(host: &str) -> bool {
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    bare.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok()
}

fn unauthenticated(detail: impl Into<String>, next: &str) -> Refusal {
    Refusal::new(401, "not_authenticated", detail, next)
}

#[cfg(test)]
mod tests;
