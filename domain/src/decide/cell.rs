//! Features, tokens, worker terms, sealed windows.

use crate::command::{Context, CreateCredential};
use crate::events::Event;
use crate::events::cell::FeatureActivated;
use crate::events::credential::{CredentialCreated, CredentialRevoked, Role};
use crate::events::evidence::ObservationWindowSealed;
use crate::events::worker::WorkerTermGranted;
use crate::id::CredentialId;
use crate::rejection::Rejection;
use crate::state::State;

use super::{fresh, not_found};

/// Features whose event kinds this build may write once activated. None yet: every kind of today came with release 1.
pub const FEATURES: &[&str] = &[];

pub(super) fn activate_feature(state: &State, feature: String) -> Result<Vec<Event>, Rejection> {
    if !FEATURES.contains(&feature.as_str()) {
        return Err(not_found("feature", feature));
    }
    if state.cell.features.contains(&feature) {
        return Ok(vec![]);
    }
    Ok(vec![FeatureActivated { feature }.into()])
}

pub(super) fn create_credential(
    state: &State,
    context: &Context<'_>,
    c: CreateCredential,
) -> Result<Vec<Event>, Rejection> {
    let invalid = |key: &str, reason: &str| Rejection::Invalid {
        key: key.to_owned(),
        reason: reason.to_owned(),
    };
    if c.supply.is_some() && c.role != Role::Node {
        return Err(invalid("supply", "only a node's token is bound to a supply kind"));
    }
    match (c.role, &c.tenant) {
        (Role::Tenant, None) => return Err(invalid("tenant", "a tenant's token names its tenant")),
        (Role::Operator | Role::Node | Role::Gateway, Some(_)) => {
            return Err(invalid(
                "tenant",
                "only tokens of tenants and readers are bound to a tenant",
            ));
        }
        _ => {}
    }
    if state.credential_hashed(&c.hash).is_some() {
        return Err(invalid("hash", "this token exists already"));
    }
    let credential = fresh(context, "credential", 0, CredentialId::from_bits, |id| {
        state.credentials.contains_key(id)
    });
    let expires_at = c.ttl.map(|ttl| context.now + ttl);
    let created = CredentialCreated {
        credential,
        hash: c.hash,
        role: c.role,
        supply: c.supply,
        tenant: c.tenant,
        expires_at,
    };
    Ok(vec![created.into()])
}

pub(super) fn revoke_credential(state: &State, credential: CredentialId) -> Result<Vec<Event>, Rejection> {
    match state.credentials.get(&credential) {
        None => Err(not_found("token", credential)),
        Some(c) if c.revoked => Ok(vec![]),
        Some(_) => Ok(vec![CredentialRevoked { credential }.into()]),
    }
}

pub(super) fn acquire_term(
    state: &State,
    context: &Context<'_>,
    role: String,
    holder: String,
) -> Result<Vec<Event>, Rejection> {
    match state.terms.get(&role) {
        Some(term) if term.holder == holder => Ok(vec![]),
        Some(term) if !context.term_lapsed => Err(Rejection::TermHeld {
            role,
            holder: term.holder.clone(),
        }),
        other => {
            let term = other.map_or(0, |t| t.term) + 1;
            Ok(vec![WorkerTermGranted { role, holder, term }.into()])
        }
    }
}

pub(super) fn seal_window(state: &State, window: ObservationWindowSealed) -> Result<Vec<Event>, Rejection> {
    if window.last <= state.cell.observations_through {
        return Ok(vec![]);
    }
    if window.first > window.last {
        return Err(Rejection::Invalid {
            key: "first".into(),
            reason: "the window ends before it begins".into(),
        });
    }
    Ok(vec![window.into()])
}
