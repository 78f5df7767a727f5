//! `token create`, `token list`, `token revoke`: credentials.
//!
//! A secret is printed once, alone on stdout, so that `tidemill token create … > file` makes a token file; everything
//! else about it goes to stderr. The control plane keeps a hash.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::workload::report;
use crate::api::{Query, segment};
use crate::cli::GlobalArgs;
use crate::exit::{CliError, Exit};
use crate::output::lists::List;
use crate::output::{Format, note, print};
use crate::time::{millis, parse_duration};

const EXAMPLES: &str = "\
Examples:
  tidemill token create --role node --supply idc --ttl 1h > node.token
  tidemill token create --role tenant --tenant acme
  tidemill token list
  tidemill token revoke tok-7k2m";

/// Arguments of `token`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TokenArgs {
    /// What to do.
    #[command(subcommand)]
    pub verb: TokenVerb,
}

/// What to do with credentials.
#[derive(Debug, Subcommand)]
pub enum TokenVerb {
    /// Make a token; it is shown once
    Create(CreateArgs),
    /// List tokens, without their secrets
    List,
    /// Make a token useless from now on
    Revoke(RevokeArgs),
}

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Everything
    Operator,
    /// One tenant's workloads
    Tenant,
    /// Joining as a node
    Node,
    /// Connecting as a gateway
    Gateway,
    /// Reading
    ReadOnly,
}

/// Arguments of `token create`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CreateArgs {
    /// What it allows
    #[arg(long, value_enum)]
    pub role: Role,
    /// Supply kind of the nodes that may join with it
    #[arg(long, value_name = "KIND")]
    pub supply: Option<String>,
    /// Tenant it acts for
    #[arg(long, value_name = "NAME", required_if_eq("role", "tenant"))]
    pub tenant: Option<String>,
    /// How long it is good for; for ever if left out
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub ttl: Option<Duration>,
}

/// Arguments of `token revoke`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RevokeArgs {
    /// The token's id (not its secret)
    pub id: String,
}

/// Runs `token …`.
pub async fn run(args: TokenArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let server = global.connect()?;
    match args.verb {
        TokenVerb::Create(args) => {
            let role = args.role.to_possible_value().map(|value| value.get_name().to_owned());
            let body = json!({
                "role": role,
                "supply": args.supply,
                "tenant": args.tenant,
                "ttl_ms": args.ttl.map(millis),
            });
            let answer = server.post(List::Tokens.path(), &Query::default(), &body).await?;
            created(&answer, global)
        }
        TokenVerb::List => {
            let rows = server.rows(List::Tokens.path(), &Query::default()).await?;
            print(&global.printer().rows(List::Tokens.columns(), &rows)?)
        }
        TokenVerb::Revoke(args) => {
            let path = format!("/v1/tokens/{}/revoke", segment(&args.id));
            let answer = server.post(&path, &Query::default(), &json!({})).await?;
            report(&answer, &format!("token {} revoked", args.id), global)
        }
    }
}

fn created(answer: &Value, global: &GlobalArgs) -> Result<(), CliError> {
    if global.output != Format::Table {
        return print(&global.printer().object(answer)?);
    }
    let Some(secret) = answer.get("token").and_then(Value::as_str) else {
        return Err(CliError::new(
            Exit::Error,
            "protocol",
            "the server's answer holds no token",
            "check that server and command are of about the same release",
        ));
    };
    print(&format!("{secret}\n"))?;
    let id = answer.get("id").and_then(Value::as_str).unwrap_or("-");
    note(&format!(
        "id {id}; this is the only time it is shown. Take it back with `tidemill token revoke {id}`"
    ));
    Ok(())
}
