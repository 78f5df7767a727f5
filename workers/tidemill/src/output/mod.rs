//! Showing rows: one renderer for everything that lists or shows.
//!
//! The API answers with JSON objects; `-o json` prints them as they came, `jsonl` one a line, `csv` the columns of the
//! list with raw values, `table` the same columns made readable. A list is therefore nothing but a [`column::Column`]
//! table, and a new field appears in JSON without a change here.
//!
//! Kept: data goes to stdout and nothing else does; no colour unless stdout is a terminal and `NO_COLOR` is unset;
//! machine formats never round, cut or humanise. Rejected: one Rust struct per row, which would drop every field that
//! a newer server adds.

pub mod column;
pub mod details;
pub mod lists;
pub mod table;

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;
use serde_json::Value;

use self::column::Column;
use self::table::{Style, render_table};
use crate::exit::CliError;

/// How data is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// One JSON array (or object) with every field.
    Json,
    /// One JSON object a line.
    Jsonl,
    /// The table's columns with raw values.
    Csv,
}

/// Where and how rows are printed.
#[derive(Debug, Clone)]
pub struct Printer {
    /// Format asked for.
    pub format: Format,
    /// Leave out the header line of tables and CSV.
    pub no_headers: bool,
    /// What the terminal can do.
    pub style: Style,
}

impl Printer {
    /// A printer for this process's stdout.
    pub fn for_stdout(format: Format, no_headers: bool) -> Self {
        let terminal = io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            format,
            no_headers,
            style: Style {
                color: terminal && !no_color,
                width: if terminal { terminal_width() } else { None },
            },
        }
    }

    /// Rows as text, ending in a newline unless empty.
    pub fn rows(&self, columns: &[Column], rows: &[Value]) -> Result<String, CliError> {
        match self.format {
            Format::Table => Ok(render_table(columns, rows, self.no_headers, &self.style)),
            Format::Csv => render_csv(columns, rows, self.no_headers),
            Format::Jsonl => Ok(json_lines(rows)),
            Format::Json => Ok(format!("{:#}\n", Value::from(rows.to_vec()))),
        }
    }

    /// One object as text.
    pub fn object(&self, object: &Value) -> Result<String, CliError> {
        match self.format {
            Format::Table => Ok(details::render(object)),
            Format::Csv => details::csv(object, self.no_headers),
            Format::Jsonl => Ok(format!("{object}\n")),
            Format::Json => Ok(format!("{object:#}\n")),
        }
    }
}

/// One compact JSON object a line.
pub fn json_lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

/// Writes text to stdout and flushes it, so that a reader of a pipe sees each batch at once.
pub fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// Tells a person something that is not data.
pub fn note(text: &str) {
    // Nobody reading stderr is no reason to fail.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

fn render_csv(columns: &[Column], rows: &[Value], no_headers: bool) -> Result<String, CliError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    if !no_headers {
        writer
            .write_record(columns.iter().map(Column::csv_name))
            .map_err(csv_error)?;
    }
    for row in rows {
        writer
            .write_record(columns.iter().map(|column| column.raw(row)))
            .map_err(csv_error)?;
    }
    csv_text(writer)
}

fn csv_text(writer: csv::Writer<Vec<u8>>) -> Result<String, CliError> {
    let bytes = writer
        .into_inner()
        .map_err(|error| CliError::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn csv_error(error: csv::Error) -> CliError {
    CliError::from(io::Error::other(error))
}

fn terminal_width() -> Option<usize> {
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn printer(format: Format) -> Printer {
        Printer {
            format,
            no_headers: false,
            style: Style::default(),
        }
    }

    fn instances() -> Vec<Value> {
        vec![
            json!({"id": "inst-7k2m9qa4xz", "workload": "default/hello", "node": "node-aaaaaaaaaa", "devices": ["cpu-1"],
                "state": "ready", "reason": "", "timings_ms": {"in_rotation": 412}, "new_field": 1}),
            json!({"id": "inst-b3", "workload": "default/hello", "node": null, "devices": [],
                "state": "pending", "reason": "no device of kind cuda, 2 nodes looked at", "timings_ms": {}}),
        ]
    }

    #[test]
    fn a_table_aligns_and_puts_the_reason_last() {
        let text = printer(Format::Table)
            .rows(lists::List::Instances.columns(), &instances())
            .unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn csv_has_raw_values() {
        let rows = [
            json!({"uuid": "GPU-1", "node": "node-a", "kind": "cuda", "model": "A100-80G, SXM",
            "memory_bytes": 85_899_345_920_u64, "speed": 0.93, "state": "free", "instance": null}),
        ];
        let text = printer(Format::Csv)
            .rows(lists::List::Devices.columns(), &rows)
            .unwrap();
        insta::assert_snapshot!(text);
    }

    #[test]
    fn json_keeps_fields_it_does_not_know() {
        let text = printer(Format::Jsonl)
            .rows(lists::List::Instances.columns(), &instances())
            .unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.contains("new_field"));
        let text = printer(Format::Json).rows(&[], &[]).unwrap();
        assert_eq!(text, "[]\n");
    }

    #[test]
    fn without_headers() {
        let mut printer = printer(Format::Csv);
        printer.no_headers = true;
        let columns = lists::List::Nodes.columns();
        assert_eq!(printer.rows(columns, &[]).unwrap(), "");
        printer.format = Format::Table;
        assert_eq!(printer.rows(columns, &[]).unwrap(), "");
    }
}
