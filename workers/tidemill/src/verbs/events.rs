//! `events`: the ledger, one event a line.
//!
//! What is there is read in pages of whole records; `--follow` then stays on a stream of server-sent events and, when
//! it breaks, resumes after the last event it printed. Columns are as wide as what was printed so far needs, and never
//! become narrower, so that lines stream and still align.
//!
//! Kept: an event is printed once and in order, across pages, reconnects and servers.

use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tidemill_client::SseEvent;

use super::follow::until_interrupt;
use super::lists::{PointArgs, SourceArgs};
use crate::api::{Query, Server};
use crate::cli::GlobalArgs;
use crate::exit::{CliError, Exit};
use crate::offline::{self, Point, Source};
use crate::output::column::{Column, Show, column, plain};
use crate::output::{Format, Printer, json_lines, note, print};
use crate::time::{parse_instant, rfc3339};

const EXAMPLES: &str = "\
Examples:
  tidemill events --about hello
  tidemill events --follow
  tidemill events --after 4711 -o jsonl
  tidemill events --since 10m --about node-7k2m
  tidemill events --file may.tml";

const PATH: &str = "/v1/events";

/// Events asked for at a time.
const PAGE: usize = 1_000;

/// Most that a server gives at a time.
const LARGEST_PAGE: usize = 10_000;

/// Longest pause before a broken stream is opened again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Columns, each with the least width it is padded to.
const COLUMNS: &[(Column, usize)] = &[
    (column("SEQ", "/seq", Show::Text), 7),
    (column("TIME", "/time", Show::Text), 24),
    (column("ACTOR", "/actor", Show::Text), 16),
    (column("KIND", "/kind", Show::Text), 24),
    (column("TARGET", "/target", Show::Text), 24),
    (column("CHANGE", "/change", Show::Text), 24),
    (column("REASON", "/reason", Show::Text), 16),
    (column("CAUSE", "/cause", Show::Text), 8),
    (column("TRACE", "/trace_id", Show::Text), 0),
];

/// Widest padding: one long sentence must not push every other line off the screen.
const WIDEST: usize = 60;

const CSV_COLUMNS: &[Column] = &[
    column("SEQ", "/seq", Show::Text),
    column("INDEX", "/index", Show::Text),
    column("TIME", "/time", Show::Text),
    column("ACTOR", "/actor", Show::Text),
    column("KIND", "/kind", Show::Text),
    column("TARGET", "/target", Show::Text),
    column("NAME", "/target_name", Show::Text),
    column("CHANGE", "/change", Show::Text),
    column("REASON", "/reason", Show::Text),
    column("CAUSE", "/cause", Show::Text),
    column("TRACE", "/trace_id", Show::Text),
];

/// Arguments of `events`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct EventsArgs {
    /// Only events after this sequence
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// Go on as events come
    #[arg(long)]
    pub follow: bool,
    /// Only events about this id or name
    #[arg(long, value_name = "ID")]
    pub about: Option<String>,
    /// Only events since then (RFC 3339, or how long ago)
    #[arg(long, value_name = "TIME", value_parser = parse_instant)]
    pub since: Option<chrono::DateTime<chrono::Utc>>,
    /// Only this tenant's
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// Up to when.
    #[command(flatten)]
    pub point: PointArgs,
    /// Read from where.
    #[command(flatten)]
    pub source: SourceArgs,
}

impl EventsArgs {
    fn query(&self) -> Query {
        let query = Query::default()
            .with_some("about", self.about.as_ref())
            .with_some("tenant", self.tenant.as_ref())
            .with_some("since", self.since.map(rfc3339));
        match self.point.point() {
            Point::Latest => query,
            Point::At(time) => query.with("at", rfc3339(time)),
            Point::Seq(seq) => query.with("seq", seq),
        }
    }

    /// Filters for sources that do not filter themselves.
    fn passes(&self, event: &Value) -> bool {
        let about = self.about.as_deref().is_none_or(|about| {
            ["target", "target_name", "data"]
                .into_iter()
                .filter_map(|key| event.get(key))
                .any(|value| mentions(value, about))
        });
        let recent = match (self.since, event.get("time").and_then(Value::as_str)) {
            (Some(since), Some(time)) => chrono::DateTime::parse_from_rfc3339(time).is_ok_and(|time| time >= since),
            _ => true,
        };
        about && recent
    }
}

fn mentions(value: &Value, about: &str) -> bool {
    match value {
        Value::String(text) => {
            text == about
                || text.split('/').any(|part| part == about)
                || (about.contains('-') && text.starts_with(about))
        }
        Value::Array(items) => items.iter().any(|item| mentions(item, about)),
        Value::Object(fields) => fields.values().any(|field| mentions(field, about)),
        _ => false,
    }
}

/// An event's place in the ledger.
type Address = (u64, u64);

fn address(event: &Value) -> Address {
    let number = |key: &str| event.get(key).and_then(Value::as_u64).unwrap_or(0);
    (number("seq"), number("index"))
}

/// Prints batches of events in the format asked for, each event once.
struct Sink {
    printer: Printer,
    last: Option<Address>,
    printed: bool,
    widths: Vec<usize>,
}

impl Sink {
    fn new(printer: Printer) -> Self {
        Self {
            printer,
            last: None,
            printed: false,
            widths: COLUMNS.iter().map(|(_, width)| *width).collect(),
        }
    }

    fn batch(&mut self, events: &[Value]) -> Result<(), CliError> {
        let fresh: Vec<Value> = events
            .iter()
            .filter(|event| self.last.is_none_or(|last| address(event) > last))
            .cloned()
            .collect();
        let Some(last) = fresh.last() else { return Ok(()) };
        self.last = Some(address(last));
        let first = !std::mem::replace(&mut self.printed, true);
        print(&self.text(&fresh, first)?)
    }

    fn text(&mut self, events: &[Value], first: bool) -> Result<String, CliError> {
        match self.printer.format {
            Format::Table => {
                let mut lines: Vec<Vec<String>> = Vec::with_capacity(events.len() + 1);
                if first && !self.printer.no_headers {
                    lines.push(COLUMNS.iter().map(|(column, _)| column.header.to_owned()).collect());
                }
                let cells = |event| COLUMNS.iter().map(|(column, _)| cell(column, event)).collect();
                lines.extend(events.iter().map(cells));
                for (at, width) in self.widths.iter_mut().enumerate() {
                    let fits = lines
                        .iter()
                        .map(|line| line[at].chars().count())
                        .filter(|n| *n <= WIDEST);
                    *width = fits.max().unwrap_or_default().max(*width);
                }
                Ok(lines.iter().map(|line| padded(line, &self.widths)).collect())
            }
            Format::Json => Ok(events
                .iter()
                .enumerate()
                .map(|(at, event)| format!("{}{event}", if first && at == 0 { "[\n" } else { ",\n" }))
                .collect()),
            Format::Jsonl => Ok(json_lines(events)),
            Format::Csv => Printer {
                no_headers: self.printer.no_headers || !first,
                ..self.printer.clone()
            }
            .rows(CSV_COLUMNS, events),
        }
    }

    fn finish(&self) -> Result<(), CliError> {
        match (self.printer.format, self.printed) {
            (Format::Json, true) => print("\n]\n"),
            (Format::Json, false) => print("[]\n"),
            _ => Ok(()),
        }
    }
}

fn cell(column: &Column, event: &Value) -> String {
    let cell = column.cell(event, chrono::DateTime::UNIX_EPOCH);
    // A server that has no sentence for an event still has its data.
    match (column.pointer, event.get("data")) {
        ("/change", Some(data)) if cell == "-" => plain(data).replace(char::is_control, " "),
        _ => cell,
    }
}

fn padded(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        let fill = width.saturating_sub(cell.chars().count());
        text.push_str(cell);
        text.extend(std::iter::repeat_n(' ', fill + 2));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Runs `events`.
pub async fn run(args: EventsArgs, global: &GlobalArgs) -> Result<(), CliError> {
    let mut printer = global.printer();
    if args.follow {
        if args.point.point() != Point::Latest || args.source.source().is_some() {
            return Err(CliError::usage(
                "--follow reads the live ledger from a server",
                "leave out --follow, or --at, --seq, --data, --nats and --file",
            ));
        }
        // An array that never ends is no use to a reader.
        if printer.format == Format::Json {
            printer.format = Format::Jsonl;
        }
    }
    let mut sink = Sink::new(printer);
    if let Some(source) = args.source.source() {
        pages_of_source(&source, &args, &mut sink).await?;
        return sink.finish();
    }
    let server = global.connect()?;
    if !args.follow {
        pages(&server, &args, &mut sink).await?;
        return sink.finish();
    }
    match until_interrupt(follow(&server, &args, &mut sink)).await {
        Some(result) => result,
        None => {
            note("stopped following; nothing was cancelled");
            Ok(())
        }
    }
}

async fn pages_of_source(source: &Source, args: &EventsArgs, sink: &mut Sink) -> Result<(), CliError> {
    let mut after = args.after.unwrap_or(0);
    loop {
        let mut events = offline::events(source, after, args.point.point(), PAGE).await?;
        let Some(last) = events.last() else { return Ok(()) };
        after = address(last).0;
        events.retain(|event| args.passes(event));
        sink.batch(&events)?;
    }
}

/// Reads pages until one is not full. A full page may end inside a record, so that record is asked for again and what
/// was printed of it is dropped by its address; a record larger than a page makes the page larger.
async fn pages(server: &Server, args: &EventsArgs, sink: &mut Sink) -> Result<(), CliError> {
    let (mut after, mut limit) = (args.after, PAGE);
    loop {
        let query = args.query().with_some("after", after).with("limit", limit);
        let events = server.rows(PATH, &query).await?;
        let before = sink.last;
        sink.batch(&events)?;
        let Some(last) = events.last() else { return Ok(()) };
        if events.len() < limit {
            return Ok(());
        }
        let end = address(last).0;
        after = Some(match sink.last == before {
            false => end.saturating_sub(1),
            true if limit < LARGEST_PAGE => {
                limit = (limit * 2).min(LARGEST_PAGE);
                end.saturating_sub(1)
            }
            // No record is that large, so what was asked for again is all there is of it.
            true => end,
        });
    }
}

async fn follow(server: &Server, args: &EventsArgs, sink: &mut Sink) -> Result<(), CliError> {
    let mut last_id: Option<String> = None;
    let mut pause = Duration::from_millis(100);
    let mut connected_once = false;
    loop {
        let query = args.query().with_some("after", args.after);
        match server.events(PATH, &query, last_id.as_deref()).await {
            Ok(mut stream) => {
                connected_once = true;
                pause = Duration::from_millis(100);
                loop {
                    match stream.next_event().await {
                        Ok(Some(SseEvent { id, data, .. })) => {
                            sink.batch(&decode(&data)?)?;
                            last_id = id.or(last_id);
                        }
                        Ok(None) => break,
                        Err(error) => {
                            note(&format!("the stream broke and is opened again: {error}"));
                            break;
                        }
                    }
                }
            }
            Err(error) if error.exit == Exit::Unreachable && connected_once => {
                note(&format!("still following, but: {error}"));
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn decode(data: &str) -> Result<Vec<Value>, CliError> {
    match serde_json::from_str(data) {
        Ok(Value::Array(events)) => Ok(events),
        Ok(event) => Ok(vec![event]),
        Err(error) => Err(CliError::new(
            Exit::Error,
            "protocol",
            format!("an event of the stream is not JSON: {error}"),
            "check that server and command are of about the same release",
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::output::table::Style;

    fn event(seq: u64, index: u64) -> Value {
        json!({"seq": seq, "index": index, "time": "2026-05-01T12:00:00.000Z", "actor": "worker/scheduler", "kind": "InstancePlaced",
            "target": "inst-7k2m9qa4xz", "data": {"node": "node-a", "devices": 1}, "change": "on node-a with 1 device", "reason": "most free", "cause": null, "trace_id": "00ff"})
    }

    fn sink(format: Format) -> Sink {
        Sink::new(Printer {
            format,
            no_headers: false,
            style: Style::default(),
        })
    }

    #[test]
    fn one_event_a_line() {
        let mut sink = sink(Format::Table);
        insta::assert_snapshot!(sink.text(&[event(12, 0), event(12, 1)], true).unwrap());
        assert_eq!(sink.text(&[event(12, 0)], false).unwrap().lines().count(), 1);
    }

    #[test]
    fn columns_stand_below_each_other_whatever_is_in_them() {
        let mut sink = sink(Format::Table);
        let mut long = event(13, 0);
        long["target"] = json!("GPU-5c8b0d4e-8a3c-4f1e-9b1a-0123456789ab");
        long["change"] = json!("a longer sentence than the others have here");
        let mut longest = event(14, 0);
        longest["reason"] = json!("x".repeat(500));
        let text =
            sink.text(&[event(12, 0), long, longest], true).unwrap() + &sink.text(&[event(15, 0)], false).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let begins = |line: &str, what: &str| line.find(what).unwrap();
        for (line, change) in [(1, "on node-a"), (2, "a longer"), (3, "on node-a"), (4, "on node-a")] {
            assert_eq!(begins(lines[line], change), begins(lines[0], "CHANGE"), "{text}");
        }
        for line in [1, 2, 4] {
            assert_eq!(begins(lines[line], "most free"), begins(lines[0], "REASON"), "{text}");
            assert_eq!(begins(lines[line], "00ff"), begins(lines[0], "TRACE"), "{text}");
        }
    }

    #[test]
    fn json_pages_join_to_one_array() {
        let mut sink = sink(Format::Json);
        let text = sink.text(&[event(1, 0), event(1, 1)], true).unwrap()
            + &sink.text(&[event(2, 0)], false).unwrap()
            + "\n]\n";
        assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap().len(), 3);
    }

    #[test]
    fn about_means_the_target_or_anything_named() {
        let args = |about: &str| EventsArgs {
            after: None,
            follow: false,
            about: Some(about.to_owned()),
            since: None,
            tenant: None,
            point: PointArgs::default(),
            source: SourceArgs::default(),
        };
        assert!(args("inst-7k2").passes(&event(1, 0)));
        assert!(args("node-a").passes(&event(1, 0)));
        assert!(!args("node-b").passes(&event(1, 0)));
        assert!(args("hello").passes(&json!({"target": "default/hello"})));
        assert!(!args("hell").passes(&json!({"target": "default/hello"})));
    }
}
