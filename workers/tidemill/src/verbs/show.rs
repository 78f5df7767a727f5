//! `status` and `explain`: anything by id, name or unique prefix.
//!
//! The door resolves what was meant and answers one object. `explain` has four parts in a fixed order, the dominant
//! reason first, because a person at three in the morning reads the first line; other fields follow as they are.

use clap::Args;
use serde_json::{Map, Value};

use super::follow;
use super::lists::PointArgs;
use crate::api::{Query, segment};
use crate::cli::GlobalArgs;
use crate::exit::CliError;
use crate::offline::Point;
use crate::output::column::plain;
use crate::output::{Format, details, print};
use crate::time::rfc3339;

const EXAMPLES: &str = "\
Examples:
  tidemill status hello
  tidemill status inst-7k2
  tidemill explain inst-7k2
  tidemill explain hello --at 10m";

/// Arguments of `status` and `explain`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ShowArgs {
    /// An id, a name, or a unique prefix of an id
    pub id: String,
    /// Print again whenever the answer changes
    #[arg(long)]
    pub watch: bool,
    /// As of when.
    #[command(flatten)]
    pub point: PointArgs,
}

/// Runs `status` or `explain`.
pub async fn run(verb: &str, args: ShowArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let server = global.connect()?;
    let printer = global.printer();
    let path = format!("/v1/{verb}/{}", segment(&args.id));
    let query = match args.point.point() {
        Point::Latest => Query::default(),
        Point::At(time) => Query::default().with("at", rfc3339(time)),
        Point::Seq(seq) => Query::default().with("seq", seq),
    };
    let render = || async {
        let answer = server.get(&path, &query).await?;
        match (printer.format, &answer) {
            (Format::Table, Value::Object(fields)) if verb == "explain" => Ok(explanation(fields)),
            _ => printer.object(&answer),
        }
    };
    if args.watch {
        follow::watch(render).await
    } else {
        print(&render().await?)
    }
}

/// The four parts of an explanation by their keys, and their titles.
const PARTS: [(&str, &str); 4] = [
    ("dominant_reason", "Reason"),
    ("evidence", "Evidence"),
    ("candidates", "Candidates"),
    ("next_step", "Next"),
];

fn explanation(fields: &Map<String, Value>) -> String {
    let mut rest = fields.clone();
    let mut text = String::new();
    for (key, title) in PARTS {
        match rest.remove(key) {
            None | Some(Value::Null) => text.push_str(&format!("{title}: -\n")),
            Some(Value::Array(items)) if items.is_empty() => {
                text.push_str(&format!("{title}: none\n"));
            }
            Some(value @ (Value::Array(_) | Value::Object(_))) => {
                text.push_str(&format!("{title}:\n"));
                for line in details::render(&value).lines() {
                    text.push_str(&format!("  {line}\n"));
                }
            }
            Some(value) => text.push_str(&format!("{title}: {}\n", plain(&value))),
        }
    }
    if !rest.is_empty() {
        text.push_str(&details::render(&Value::Object(rest)));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn an_explanation_leads_with_its_reason() {
        let answer = json!({
            "id": "inst-1", "dominant_reason": "no device of kind cuda is free",
            "evidence": ["8 devices looked at", "8 held"], "candidates": [{"node": "a", "score": 12}],
            "next_step": "add a node, or lower min",
        });
        insta::assert_snapshot!(explanation(answer.as_object().unwrap()), @r"
        Reason: no device of kind cuda is free
        Evidence:
          - 8 devices looked at
          - 8 held
        Candidates:
          - node:  a
            score: 12
        Next: add a node, or lower min
        id: inst-1
        ");
    }
}
