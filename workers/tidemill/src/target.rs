//! What a command is about: `service/chat`, `service/acme/chat`, or just `chat`.
//!
//! The written forms are parsed once into a [`Target`] of kind, tenant and name, so that no verb splits strings of its
//! own and every one of them accepts the same forms.
//!
//! Kept: a kind that this release does not have is refused as `not_yet`, a kind nobody has is a usage error; names are
//! not checked here beyond being non-empty, since the door owns that rule.

use crate::exit::CliError;

/// The tenant meant when none is named.
pub const DEFAULT_TENANT: &str = "default";

/// A service named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Tenant it belongs to.
    pub tenant: String,
    /// Its name.
    pub name: String,
}

impl Target {
    /// Reads `NAME`, `service/NAME` or `service/TENANT/NAME`; `tenant` is what `--tenant` said.
    pub fn parse(text: &str, tenant: Option<&str>) -> Result<Self, CliError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, inner, name) = match parts.as_slice() {
            [name] => ("service", None, *name),
            [kind, name] => (*kind, None, *name),
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
            tenant: inner.or(tenant).unwrap_or(DEFAULT_TENANT).to_owned(),
            name: name.to_owned(),
        })
    }

    /// Path of the service's own commands, such as `/v1/services/acme/chat/stop`.
    pub fn path(&self, verb: &str) -> String {
        format!(
            "/v1/services/{}/{}/{verb}",
            crate::api::segment(&self.tenant),
            crate::api::segment(&self.name)
        )
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.tenant == DEFAULT_TENANT {
            write!(f, "service/{}", self.name)
        } else {
            write!(f, "service/{}/{}", self.tenant, self.name)
        }
    }
}

fn malformed(text: &str) -> CliError {
    CliError::usage(
        format!("`{text}` does not name a workload"),
        "write service/NAME or service/TENANT/NAME",
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
        assert_eq!(show("chat", None), "service/chat /v1/services/default/chat/stop");
        assert_eq!(
            show("service/chat", None),
            "service/chat /v1/services/default/chat/stop"
        );
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
        assert_eq!(show("pod/x", None), "usage");
        assert_eq!(show("service/", None), "usage");
        assert_eq!(show("a/b/c/d", None), "usage");
        assert_eq!(show("a b", None), "service/a b /v1/services/default/a%20b/stop");
    }
}
