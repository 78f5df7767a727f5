//! `nodes`, `devices`, `services`, `instances`, `queue`, `pool`: one verb's worth of code for all of them.
//!
//! What differs between lists is a table in [`crate::output::lists`]. Rows come from the API, or from a ledger read
//! here ([`crate::offline`]), then pass the filters and are printed.
//!
//! Kept: a filter the list has no field for is a usage error, never silently ignored; the filters are applied here as
//! well as sent, so that every source gives the same answer.

use chrono::{DateTime, Utc};
use clap::Args;
use serde_json::Value;
use tidemill_domain::time::Timestamp;
use tidemill_domain::unit::NameError;
use tidemill_projections::filter::{Filter, supplies};

use super::follow;
use crate::api::Query;
use crate::cli::GlobalArgs;
use crate::exit::CliError;
use crate::offline::{self, Point, Source};
use crate::output::lists::List;
use crate::output::{Format, print};
use crate::time::{parse_instant, rfc3339};

const EXAMPLES: &str = "\
Examples:
  tidemill nodes --supply idc
  tidemill instances --state pending --watch
  tidemill services -o json
  tidemill devices --at 10m -o csv
  tidemill instances --seq 4711 --data ./tidemill-data";

/// Arguments of every list.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    /// Print again whenever the list changes
    #[arg(long)]
    pub watch: bool,
    /// Which rows.
    #[command(flatten)]
    pub filters: Filters,
    /// As of when.
    #[command(flatten)]
    pub point: PointArgs,
    /// Read from where.
    #[command(flatten)]
    pub source: SourceArgs,
}

/// Which rows.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Filters")]
pub struct Filters {
    /// Only rows in this state; several are separated by commas, here and below
    #[arg(long)]
    pub state: Option<String>,
    /// Only nodes of this supply kind, and what is on them
    #[arg(long, value_name = "KIND")]
    pub supply: Option<String>,
    /// Only nodes of this provider, and what is on them
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Only what changed since then (RFC 3339, or how long ago)
    #[arg(long, value_name = "TIME", value_parser = parse_instant)]
    pub since: Option<DateTime<Utc>>,
}

/// As of when.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Time travel")]
pub struct PointArgs {
    /// As of this time (RFC 3339, or how long ago)
    #[arg(long, value_name = "TIME", value_parser = parse_instant, conflicts_with = "seq")]
    pub at: Option<DateTime<Utc>>,
    /// As of this sequence of the ledger
    #[arg(long, value_name = "N")]
    pub seq: Option<u64>,
}

impl PointArgs {
    /// The point meant.
    pub fn point(&self) -> Point {
        match (self.seq, self.at) {
            (Some(seq), _) => Point::Seq(seq),
            (None, Some(time)) => Point::At(time),
            (None, None) => Point::Latest,
        }
    }
}

/// Read from where. No environment variable stands in for these: a list asks the server unless told otherwise.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Without a server")]
pub struct SourceArgs {
    /// Read the embedded ledger in this directory
    #[arg(long, value_name = "DIR", conflicts_with_all = ["nats", "file"])]
    pub data: Option<std::path::PathBuf>,
    /// Read the ledger from this NATS server
    #[arg(long, value_name = "URL", conflicts_with = "file")]
    pub nats: Option<String>,
    /// Read an exported file
    #[arg(long, value_name = "EXPORT")]
    pub file: Option<std::path::PathBuf>,
}

impl SourceArgs {
    /// The source named, if any.
    pub fn source(&self) -> Option<Source> {
        let Self { data, nats, file } = self.clone();
        data.map(Source::Data)
            .or(nats.map(Source::Nats))
            .or(file.map(Source::Export))
    }
}

impl Filters {
    fn named(&self) -> [(&'static str, Option<&str>); 4] {
        [
            ("state", self.state.as_deref()),
            ("supply", self.supply.as_deref()),
            ("provider", self.provider.as_deref()),
            ("tenant", self.tenant.as_deref()),
        ]
    }

    /// Refuses filters the list has no field for.
    fn check(&self, list: List) -> Result<(), CliError> {
        for (name, value) in self.named() {
            if value.is_some() && !list.filters().contains(&name) {
                return Err(CliError::usage(
                    format!("this list cannot be filtered by --{name}"),
                    match list.filters() {
                        [] => "leave the filter out".to_owned(),
                        some => format!("it takes --{}", some.join(", --")),
                    },
                ));
            }
        }
        Ok(())
    }

    fn query(&self) -> Query {
        let query = self
            .named()
            .into_iter()
            .fold(Query::default(), |query, (name, value)| query.with_some(name, value));
        query.with_some("since", self.since.map(rfc3339))
    }

    /// The same, for a ledger that is read here.
    fn filter(&self) -> Result<Filter, CliError> {
        let words = |text: &Option<String>| -> Vec<String> {
            let parts = text.iter().flat_map(|text| text.split(','));
            let parts = parts.map(str::trim).filter(|part| !part.is_empty());
            parts.map(str::to_owned).collect()
        };
        let tenant = self.tenant.as_deref().map(str::parse);
        Ok(Filter {
            state: words(&self.state),
            supply: supplies(&words(&self.supply)).map_err(|e| CliError::usage(e.to_string(), e.next()))?,
            provider: words(&self.provider),
            tenant: tenant
                .transpose()
                .map_err(|e: NameError| CliError::usage(e.to_string(), "correct --tenant"))?,
            since: self.since.map(Timestamp::from),
            ..Filter::default()
        })
    }

    /// Whether a row passes. A field the row does not have was the server's to judge.
    fn passes(&self, row: &Value) -> bool {
        let fields =
            self.named()
                .into_iter()
                .all(|(name, wanted)| match (wanted, row.get(name).and_then(Value::as_str)) {
                    (Some(wanted), Some(value)) => wanted.split(',').any(|one| one.trim() == value),
                    _ => true,
                });
        let changed = ["changed_at", "time", "created_at"]
            .into_iter()
            .find_map(|name| row.get(name).and_then(Value::as_str))
            .and_then(|text| DateTime::parse_from_rfc3339(text).ok());
        let recent = match (self.since, changed) {
            (Some(since), Some(changed)) => changed >= since,
            _ => true,
        };
        fields && recent
    }
}

/// Runs a list.
pub async fn run(list: List, args: ListArgs, global: &GlobalArgs) -> Result<(), CliError> {
    args.filters.check(list)?;
    let point = args.point.point();
    if args.watch && point != Point::Latest {
        return Err(CliError::usage(
            "the past does not change, so there is nothing to watch",
            "leave out --watch, or --at and --seq",
        ));
    }
    let server = global.connect()?;
    let printer = global.printer();
    let source = args.source.source();
    let render = || async {
        let mut rows = match &source {
            Some(source) => offline::rows(source, list, &args.filters.filter()?, point).await?,
            None => {
                let query = match point {
                    Point::Latest => args.filters.query(),
                    Point::At(time) => args.filters.query().with("at", rfc3339(time)),
                    Point::Seq(seq) => args.filters.query().with("seq", seq),
                };
                server.rows(list.path(), &query).await?
            }
        };
        rows.retain(|row| args.filters.passes(row));
        if matches!(printer.format, Format::Table | Format::Csv) {
            rows = list.tabular(rows);
        }
        printer.rows(list.columns(), &rows)
    };
    if args.watch {
        follow::watch(render).await
    } else {
        print(&render().await?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn filters_judge_what_they_see() {
        let filters = Filters {
            state: Some("ready".to_owned()),
            since: Some(parse_instant("2026-05-01T12:00:00Z").unwrap()),
            ..Filters::default()
        };
        assert!(filters.passes(&json!({"state": "ready"})));
        assert!(!filters.passes(&json!({"state": "lost"})));
        let either = Filters {
            state: Some("ready, suspect".to_owned()),
            ..Filters::default()
        };
        assert!(either.passes(&json!({"state": "suspect"})));
        assert!(!filters.passes(&json!({"state": "ready", "changed_at": "2026-05-01T11:59:59Z"})));
        assert!(filters.check(List::Nodes).is_ok());
        assert_eq!(filters.check(List::Pool).unwrap_err().code, "usage");
    }
}
