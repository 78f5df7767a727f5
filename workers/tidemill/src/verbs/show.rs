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

/// The four parts, then whatever else the answer holds.
fn explanation(fields: &Map<String, Value>) -> String {
    let text = |key: &str| fields.get(key).map(plain).unwrap_or_default();
    let mut lines = vec![format!(
        "{} {} ({}) is {}",
        text("kind"),
        text("name"),
        text("target"),
        text("state")
    )];
    part(&mut lines, "Reason", vec![text("reason")]);
    let items = |key: &str| fields.get(key).and_then(Value::as_array).into_iter().flatten();
    part(&mut lines, "Evidence", items("evidence").map(fact).collect());
    part(&mut lines, "Candidates", items("candidates").map(candidate).collect());
    part(&mut lines, "Next", vec![text("next_step")]);
    let mut rest = fields.clone();
    rest.retain(|key, _| !SHOWN.contains(&key.as_str()));
    let mut text = lines.join("\n").replace(|c: char| c.is_control() && c != '\n', " ") + "\n";
    if !rest.is_empty() {
        text.push('\n');
        text.push_str(&details::render(&Value::Object(rest)));
    }
    text
}

/// Fields that the four parts and their heading show.
const SHOWN: [&str; 8] = [
    "target",
    "kind",
    "name",
    "state",
    "reason",
    "evidence",
    "candidates",
    "next_step",
];

fn part(lines: &mut Vec<String>, title: &str, mut content: Vec<String>) {
    content.retain(|line| !line.is_empty());
    lines.push(String::new());
    lines.push(title.to_owned());
    if content.is_empty() {
        content.push("none".to_owned());
    }
    lines.extend(content.into_iter().map(|line| format!("  {}", line.replace('\n', " "))));
}

/// A sentence, and the record that says so.
fn fact(evidence: &Value) -> String {
    let sentence = evidence.get("fact").unwrap_or(evidence);
    match evidence.get("seq").and_then(Value::as_u64) {
        Some(seq) => format!("{} (record {seq})", plain(sentence)),
        None => plain(sentence),
    }
}

/// A node with its score and what that is made of.
fn candidate(candidate: &Value) -> String {
    let field = |key: &str| candidate.get(key).map(plain).unwrap_or_default();
    let parts: Vec<String> = candidate
        .get("parts")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|term| {
            let points = term.get("points").and_then(Value::as_i64).unwrap_or_default();
            format!("{} {points:+}", term.get("part").map(plain).unwrap_or_default())
        })
        .collect();
    format!("{:>6}  {}  {}", field("score"), field("name"), parts.join(", "))
        .trim_end()
        .to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn an_explanation_leads_with_its_reason() {
        let answer = json!({
            "target": "inst-1", "kind": "instance", "name": "default/hello", "state": "pending",
            "reason": "no device of kind cuda is free",
            "evidence": [{"fact": "8 devices looked at", "seq": null}, {"fact": "it was asked for", "seq": 17}],
            "candidates": [{"node": "node-a", "name": "gpu-1", "score": 12, "parts": [{"part": "spread", "points": -3}]}],
            "next_step": "add a node, or lower min", "new": 1,
        });
        insta::assert_snapshot!(explanation(answer.as_object().unwrap()), @r"
        instance default/hello (inst-1) is pending

        Reason
          no device of kind cuda is free

        Evidence
          8 devices looked at
          it was asked for (record 17)

        Candidates
              12  gpu-1  spread -3

        Next
          add a node, or lower min

        new: 1
        ");
    }
}
