//! What a command is about: `service/chat`, `service/acme/chat`, `acme/chat`, or just `chat`.
//!
//! The written forms are parsed once into a [`Target`] of kind, tenant and name, so that no verb splits strings of its
//! own and every one of them accepts the same forms.
//!
//! Kept: a kind that this release does not have is refused as `not_yet`, a kind nobody has is a usage error; names are
//! not checked here beyond being non-empty, since the door owns that rule.

use serde_json::Value;

use crate::exit::CliError;

/// The tenant of whoever has none of their own.
pub const DEFAULT_TENANT: &str = "default";

/// Words that say what kind of workload is meant.
const KINDS: [&str; 4] = ["service", "services", "job", "jobs"];

/// A service named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Tenant it belongs to; none if none was named: the caller's own, which the door knows by its token.
    pub tenant: Option<String>,
    /// Its name.
    pub name: String,
}

impl Target {
    /// Reads `NAME`, `TENANT/NAME`, `service/NAME` or `service/TENANT/NAME`; `tenant` is what `--tenant` said. Lists
    /// print the second form, so it is taken too: its first part is a tenant unless it is the word for a kind.
    pub fn parse(text: &str, tenant: Option<&str>) -> Result<Self, CliError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, inner, name) = match parts.as_slice() {
            [name] => ("service", None, *name),
            [kind, name] if KINDS.contains(kind) => (*kind, None, *name),
            [inner, name] => ("service", Some(*inner), *name),
            [kind, inner, name] => (*kind, Some(*inner), *name),
            _ => return Err(malformed(text)),
        };
        match kind {
            "service" | "services" => {}
            "job" | "jobs" => {
                return Err(CliError::not_yet(
                    format!("`{text}` is a job, and jobs are not part of this release yet"),
                    "use a service, or a newer release",
                ));
            }
            _ => return Err(malformed(text)),
        }
        if name.is_empty() || inner == Some("") {
            return Err(malformed(text));
        }
        if let (Some(inner), Some(flag)) = (inner, tenant)
            && inner != flag
        {
            return Err(CliError::usage(
                format!("`{text}` names tenant `{inner}` but --tenant says `{flag}`"),
                "give the tenant once",
            ));
        }
        Ok(Self {
            tenant: inner.or(tenant).map(str::to_owned),
            name: name.to_owned(),
        })
    }

    /// Whether this row is about it. Where no tenant was named, rows are the caller's own or an operator's, who means the
    /// default tenant.
    pub fn is(&self, row: &Value) -> bool {
        let is = |key: &str, value: &str| row.get(key).and_then(Value::as_str) == Some(value);
        is("name", &self.name) && is("tenant", self.tenant.as_deref().unwrap_or(DEFAULT_TENANT))
    }

    /// As other verbs take it: `chat`, `acme/chat`.
    pub fn short(&self) -> String {
        match self.tenant.as_deref() {
            None | Some(DEFAULT_TENANT) => self.name.clone(),
            Some(tenant) => format!("{tenant}/{}", self.name),
        }
    }

    /// Path of the service's own commands, such as `/v1/services/acme/chat/stop`.
    pub fn path(&self, verb: &str) -> String {
        format!(
            "/v1/services/{}/{}/{verb}",
            crate::api::segment(self.tenant.as_deref().unwrap_or("~")),
            crate::api::segment(&self.name)
        )
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "service/{}", self.short())
    }
}

fn malformed(text: &str) -> CliError {
    CliError::usage(
        format!("`{text}` does not name a workload"),
        "write NAME, TENANT/NAME, service/NAME or service/TENANT/NAME",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn forms() {
        let show = |text: &str, tenant| match Target::parse(text, tenant) {
            Ok(target) => format!("{} {}", target, target.path("stop")),
            Err(error) => error.code,
        };
        assert_eq!(show("chat", None), "service/chat /v1/services/~/chat/stop");
        assert_eq!(show("service/chat", None), "service/chat /v1/services/~/chat/stop");
        assert_eq!(
            show("service/acme/chat", None),
            "service/acme/chat /v1/services/acme/chat/stop"
        );
        assert_eq!(
            show("chat", Some("acme")),
            "service/acme/chat /v1/services/acme/chat/stop"
        );
        assert_eq!(show("service/acme/chat", Some("other")), "usage");
        assert_eq!(show("job/train", None), "not_yet");
        assert_eq!(show("acme/chat", None), "service/acme/chat /v1/services/acme/chat/stop");
        assert_eq!(
            show("default/chat", None),
            "service/chat /v1/services/default/chat/stop"
        );
        assert_eq!(show("acme/chat", Some("other")), "usage");
        assert_eq!(show("pod/acme/chat", None), "usage");
        assert_eq!(show("/chat", None), "usage");
        assert_eq!(show("service/", None), "usage");
        assert_eq!(show("a/b/c/d", None), "usage");
        assert_eq!(show("a b", None), "service/a b /v1/services/~/a%20b/stop");
    }
}
