//! The role matrix.

use tidemill_domain::events::credential::Role;

use super::Principal;
use crate::problem::Refusal;

/// What a route takes to be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anyone who reaches the port: probes, which carry no token.
    Public,
    /// Reading workloads: operators, readers, and tenants within their own.
    Read,
    /// Reading what is the pool's and no tenant's: operators and readers that are not bound to a tenant.
    ReadPool,
    /// Changing workloads: operators, and tenants within their own.
    Write,
    /// Everything else: operators.
    Operate,
    /// The agents' connection.
    Node,
    /// The gateways' connection.
    Gateway,
}

impl Access {
    /// Lets `principal` through or says why not.
    pub fn check(self, principal: &Principal) -> Result<(), Refusal> {
        let Principal::Token { role, tenant, .. } = principal else {
            return Ok(());
        };
        let allowed = match self {
            Access::Public => true,
            Access::Read => matches!(role, Role::Operator | Role::Tenant | Role::ReadOnly),
            Access::ReadPool => match role {
                Role::Operator => true,
                Role::ReadOnly => tenant.is_none(),
                Role::Tenant | Role::Node | Role::Gateway => false,
            },
            Access::Write => matches!(role, Role::Operator | Role::Tenant),
            Access::Operate => *role == Role::Operator,
            Access::Node => *role == Role::Node,
            Access::Gateway => *role == Role::Gateway,
        };
        if allowed {
            return Ok(());
        }
        let role = role_name(*role);
        Err(Refusal::not_allowed(format!(
            "a token of role `{role}` does not allow this"
        )))
    }

    /// Its word in the API's description.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Access::Public => "public",
            Access::Read => "read",
            Access::ReadPool => "read_pool",
            Access::Write => "write",
            Access::Operate => "operate",
            Access::Node => "node",
            Access::Gateway => "gateway",
        }
    }
}

/// A role's word.
pub(crate) fn role_name(role: Role) -> &'static str {
    match role {
        Role::Operator => "operator",
        Role::Tenant => "tenant",
        Role::Node => "node",
        Role::Gateway => "gateway",
        Role::ReadOnly => "read-only",
    }
}
