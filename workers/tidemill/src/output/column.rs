//! A column: where in a row its value stands, and how a person reads it.
//!
//! Each list is a slice of these. The same pointer feeds the table (formatted) and CSV (raw), so the two can never
//! disagree about what a column means.
//!
//! Kept: a missing value is `-` in a table and empty in CSV, never 0. Bytes and milliseconds are
//! integers until the last step, which is this module.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::time::short_span;

/// How a value is shown in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// As it is.
    Text,
    /// A number, right-aligned.
    Number,
    /// Bytes as KiB, MiB, GiB or TiB.
    Bytes,
    /// Milliseconds as a short span.
    Millis,
    /// An RFC 3339 time as how long ago it was.
    Age,
    /// A ratio as percent, right-aligned.
    Percent,
    /// Coloured by what it says, where colour is allowed.
    State,
    /// How many elements an array has.
    Count,
}

/// One column of a list.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Header of the table.
    pub header: &'static str,
    /// JSON pointer of the value within a row.
    pub pointer: &'static str,
    /// How a table shows it.
    pub show: Show,
}

/// Shorthand for the tables of columns.
pub const fn column(header: &'static str, pointer: &'static str, show: Show) -> Column {
    Column { header, pointer, show }
}

impl Column {
    /// Header of CSV: the pointer with dots, `timings_ms.in_rotation`.
    pub fn csv_name(&self) -> String {
        self.pointer.trim_start_matches('/').replace('/', ".")
    }

    /// The value unrounded, as CSV has it; empty if it is missing.
    pub fn raw(&self, row: &Value) -> String {
        row.pointer(self.pointer).map(plain).unwrap_or_default()
    }

    /// The value for a person; `-` if it is missing.
    pub fn cell(&self, row: &Value, now: DateTime<Utc>) -> String {
        let text = row.pointer(self.pointer).and_then(|value| shown(self.show, value, now));
        match text {
            Some(text) if !text.is_empty() => one_line(&text),
            _ => "-".to_owned(),
        }
    }

    /// Whether the column is aligned to the right.
    pub fn right(&self) -> bool {
        matches!(
            self.show,
            Show::Number | Show::Bytes | Show::Percent | Show::Millis | Show::Count
        )
    }
}

fn shown(show: Show, value: &Value, now: DateTime<Utc>) -> Option<String> {
    let special = match show {
        Show::Text | Show::Number | Show::State => None,
        Show::Bytes => value.as_u64().map(bytes),
        Show::Percent => value.as_f64().map(|ratio| format!("{:.0}%", ratio * 100.0)),
        Show::Millis => value.as_u64().map(|ms| short_span(Duration::from_millis(ms))),
        Show::Age => value.as_str().and_then(|text| age(text, now)),
        Show::Count => value.as_array().map(|items| items.len().to_string()),
    };
    special.or_else(|| Some(plain(value)))
}

/// A value without JSON's quotes; arrays joined by commas, objects as `key=value`.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(","),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| format!("{key}={}", plain(value)))
            .collect::<Vec<_>>()
            .join(" "),
        other => other.to_string(),
    }
}

/// Control characters would break a table's lines and could drive a terminal: what instances and users wrote is shown
/// in rows too.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `80 GiB`, `1.5 MiB`, `12 B`: at most one decimal, none when exact.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (0..UNITS.len())
        .rev()
        .find(|unit| count >= 1 << (10 * unit))
        .unwrap_or(0);
    let tenths = u128::from(count) * 10 / (1 << (10 * unit));
    if tenths % 10 == 0 {
        format!("{} {}", tenths / 10, UNITS[unit])
    } else {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

fn age(text: &str, now: DateTime<Utc>) -> Option<String> {
    let then = DateTime::parse_from_rfc3339(text).ok()?.to_utc();
    // A server's clock a little ahead of this machine's is no reason to print a negative age.
    let span = (now - then).to_std().unwrap_or_default();
    Some(short_span(Duration::from_secs(span.as_secs())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn values_for_people() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1_536), "1.5 KiB");
        assert_eq!(bytes(85_899_345_920), "80 GiB");
        assert_eq!(bytes(u64::MAX), "16777215.9 TiB");
    }

    #[test]
    fn missing_is_never_zero() {
        let column = column("READY", "/ready", Show::Number);
        assert_eq!(column.cell(&json!({}), Utc::now()), "-");
        assert_eq!(column.cell(&json!({"ready": null}), Utc::now()), "-");
        assert_eq!(column.cell(&json!({"ready": 0}), Utc::now()), "0");
        assert_eq!(column.raw(&json!({})), "");
    }

    #[test]
    fn a_row_cannot_drive_the_terminal() {
        let column = column("REASON", "/reason", Show::Text);
        let row = json!({"reason": "a\nb\u{1b}[31mc"});
        assert_eq!(column.cell(&row, Utc::now()), "a b [31mc");
    }
}
