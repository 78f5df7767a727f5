//! `scale`: an override of a service's replica count, with an end, or back to automatic.
//!
//! The override is a fact on the ledger with its span, so that it ends by itself and a review shows who asked for it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::json;

use super::workload::{changed_services, report, wait_if_asked};
use crate::api::Query;
use crate::cli::GlobalArgs;
use crate::exit::CliError;
use crate::target::Target;
use crate::time::{millis, parse_duration, parse_later, rfc3339};

const EXAMPLES: &str = "\
Examples:
  tidemill scale hello 4
  tidemill scale hello 20 --for 2h
  tidemill scale hello 20 --from 30m --to 2h
  tidemill scale hello 20 --from 2026-11-11T00:00:00Z --to 2026-11-12T00:00:00Z
  tidemill scale hello --auto";

/// Arguments of `scale`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ScaleArgs {
    /// The service: NAME, TENANT/NAME, or either behind `service/`
    pub service: String,
    /// How many replicas
    #[arg(required_unless_present = "auto", conflicts_with = "auto")]
    pub replicas: Option<u32>,
    /// End the override: back to what the service's file says
    #[arg(long, conflicts_with_all = ["from", "to", "span"])]
    pub auto: bool,
    /// When the override begins: RFC 3339, or how long from now [default: now]
    #[arg(long, value_name = "TIME", value_parser = parse_later)]
    pub from: Option<DateTime<Utc>>,
    /// When it ends: RFC 3339, or how long from now [default: until --auto]
    #[arg(long, value_name = "TIME", value_parser = parse_later, conflicts_with = "span")]
    pub to: Option<DateTime<Utc>>,
    /// How long it lasts, from its begin
    #[arg(long = "for", id = "span", value_name = "DURATION", value_parser = parse_duration)]
    pub span: Option<Duration>,
    /// Tenant of the service
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Wait until that many replicas are ready
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub wait: Option<Duration>,
}

/// Runs `scale`.
pub async fn run(args: ScaleArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let target = Target::parse(&args.service, args.tenant.as_deref())?;
    let body = if args.auto {
        json!({"auto": true})
    } else {
        json!({
            "replicas": args.replicas,
            "from": args.from.map(rfc3339),
            "to": args.to.map(rfc3339),
            "for_ms": args.span.map(millis),
        })
    };
    let server = global.connect()?;
    let answer = server.post(&target.path("scale"), &Query::default(), &body).await?;
    report(&answer, &format!("{target}: scale accepted"), global)?;
    wait_if_asked(&server, args.wait, &answer, &changed_services(&answer)).await
}
