//! Tokens: made, listed, revoked. A text leaves this process once, in the answer that made it.

use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::response::Response;
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_domain::command::{Command, CreateCredential};
use tidemill_domain::events::Event;
use tidemill_domain::events::credential::Role;
use tidemill_domain::events::node::Supply;
use tidemill_domain::id::CredentialId;
use tidemill_domain::state::{Credential, State as CellState};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::Name;

use super::{Handled, answer_to, json_body};
use crate::auth::role_name;
use crate::gate::Caller;
use crate::problem::Refusal;
use crate::shared::Shared;
use crate::workload::SUPPLIES;

/// Longest life of a token: ten years. What is to outlive that is made without an end, and shown as such.
const MAX_TTL_MS: u64 = 3653 * 24 * 3_600_000;

pub(crate) async fn list(State(shared): State<Arc<Shared>>) -> Json<Vec<Value>> {
    let now = shared.clock.now();
    Json(
        shared
            .deps
            .view
            .read(|state| state.credentials.values().map(|c| row(c, now)).collect()),
    )
}

fn row(credential: &Credential, now: Timestamp) -> Value {
    let state = if credential.revoked {
        "revoked"
    } else if credential.expires_at.is_some_and(|end| end <= now) {
        "expired"
    } else {
        "active"
    };
    json!({
        "id": credential.id,
        "role": role_name(credential.role),
        "tenant": credential.tenant,
        "supply": credential.supply,
        "state": state,
        "created_at": credential.created_at,
        "expires_at": credential.expires_at,
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateBody {
    role: Role,
    #[serde(default)]
    supply: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    ttl_ms: Option<u64>,
}

pub(crate) async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Handled<Response> {
    let body: CreateBody = json_body(request, &shared).await?;
    let next = "roles are operator, tenant, node, gateway and read-only; see /openapi.json";
    let tenant = body
        .tenant
        .map(|text| Name::from_str(&text).map_err(|error| Refusal::invalid(error.to_string(), next)))
        .transpose()?;
    let ttl = match body.ttl_ms {
        Some(0) => {
            return Err(Refusal::invalid(
                "ttl_ms is 0: the token would be over before it is shown",
                next,
            ));
        }
        Some(ttl) if ttl > MAX_TTL_MS => {
            return Err(Refusal::invalid(
                format!("ttl_ms is {ttl}, more than ten years ({MAX_TTL_MS})"),
                "give a shorter one, or leave it out for a token without an end",
            ));
        }
        ttl => ttl.map(Span::from_millis),
    };
    let text = shared.tokens.text_for(caller.command_id());
    let create = CreateCredential {
        hash: text.hash(),
        role: body.role,
        supply: body.supply.map(|word| supply(&word)).transpose()?,
        tenant,
        ttl,
    };
    let (role, supply, tenant) = (create.role, create.supply, create.tenant.clone());
    let envelope = caller.envelope(Command::CreateCredential(create));
    let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    let made = answered.events.iter().find_map(|event| match event {
        Event::CredentialCreated(e) => Some(e),
        _ => None,
    });
    let made = made.ok_or_else(|| Refusal::new(500, "internal", "the token's record is not in the answer", ""))?;
    let more = json!({
        "id": made.credential, "token": text.reveal(), "role": role_name(role), "supply": supply, "tenant": tenant,
        "expires_at": made.expires_at,
    });
    Ok(answer_to(&answered, &[], more))
}

fn supply(word: &str) -> Handled<Supply> {
    SUPPLIES
        .iter()
        .find(|(known, _)| *known == word)
        .map(|(_, supply)| *supply)
        .ok_or_else(|| {
            let all: Vec<&str> = SUPPLIES.iter().map(|(word, _)| *word).collect();
            let word: String = word.chars().take(40).collect();
            Refusal::invalid(format!("supply: `{word}` is none of {}", all.join(", ")), "")
        })
}

pub(crate) async fn revoke(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Handled<Response> {
    let credential = shared.deps.view.read(|state| by_prefix(state, &id))?;
    let envelope = caller.envelope(Command::RevokeCredential { credential });
    let answered = shared.submit(envelope, shared.config.limits.submit_patience).await?;
    Ok(answer_to(
        &answered,
        &[],
        json!({"id": credential, "repeated": answered.repeated}),
    ))
}

fn by_prefix(state: &CellState, id: &str) -> Handled<CredentialId> {
    let matching = |c: &&CredentialId| {
        let text = c.to_string();
        text.starts_with(id)
            || text
                .strip_prefix("tok-")
                .is_some_and(|body| !id.is_empty() && body.starts_with(id))
    };
    let mut found = state.credentials.keys().filter(matching);
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(*only),
        (Some(_), Some(_)) => Err(Refusal::new(
            409,
            "ambiguous",
            format!(
                "several tokens begin with `{}`",
                id.chars().take(40).collect::<String>()
            ),
            "give more characters; see `tidemill token list`",
        )),
        (None, _) => Err(Refusal::not_found("token", id)),
    }
}
