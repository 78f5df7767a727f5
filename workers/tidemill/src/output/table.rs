//! Tables for people: aligned columns, two spaces between them, cut to the terminal where there is one.
//!
//! The last column of a list is its reason or another sentence and takes the room that is left; when even that does
//! not fit, the widest text columns give way first. Without a terminal nothing is cut, so that a log or a test sees
//! whole values.
//!
//! Rejected: a table crate with borders; borders carry no information, and lines that are plain columns survive `awk`.

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::column::{Column, Show};

/// What the terminal can do.
#[derive(Debug, Clone, Default)]
pub struct Style {
    /// Colour may be used.
    pub color: bool,
    /// Columns of the terminal, if stdout is one.
    pub width: Option<usize>,
}

/// No column that gives way becomes narrower than this.
const NARROWEST: usize = 8;

/// Rows as an aligned table.
pub fn render_table(columns: &[Column], rows: &[Value], no_headers: bool, style: &Style) -> String {
    render_table_at(columns, rows, no_headers, style, Utc::now())
}

fn render_table_at(columns: &[Column], rows: &[Value], no_headers: bool, style: &Style, now: DateTime<Utc>) -> String {
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| columns.iter().map(|column| column.cell(row, now)).collect())
        .collect();
    let widths = widths(columns, &cells, no_headers, style.width);
    let mut text = String::new();
    if !no_headers {
        let headers: Vec<String> = columns.iter().map(|c| c.header.to_owned()).collect();
        push_line(&mut text, columns, &headers, &widths, false);
    }
    for line in &cells {
        push_line(&mut text, columns, line, &widths, style.color);
    }
    text
}

fn widths(columns: &[Column], cells: &[Vec<String>], no_headers: bool, room: Option<usize>) -> Vec<usize> {
    let mut widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let header = if no_headers { 0 } else { column.header.len() };
            let widest = cells.iter().map(|line| length(&line[at])).max();
            widest.unwrap_or(0).max(header)
        })
        .collect();
    let Some(room) = room else { return widths };
    let gaps = 2 * columns.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > room {
        let over = widths.iter().sum::<usize>() + gaps - room;
        // The last column first, then the widest; numbers are never cut.
        let last = widths.len() - 1;
        let candidate = (0..widths.len())
            .filter(|at| !columns[*at].right() && widths[*at] > NARROWEST)
            .max_by_key(|at| (*at == last, widths[*at]));
        let Some(at) = candidate else { break };
        widths[at] -= over.min(widths[at] - NARROWEST);
    }
    widths
}

fn push_line(text: &mut String, columns: &[Column], line: &[String], widths: &[usize], color: bool) {
    let mut padding = 0;
    for (at, cell) in line.iter().enumerate() {
        let cell = cut(cell, widths[at]);
        let fill = widths[at] - length(&cell);
        if at > 0 {
            padding += 2;
        }
        let before = if columns[at].right() { fill } else { 0 };
        // Padding is written only when something follows it, so that no line ends in spaces.
        text.extend(std::iter::repeat_n(' ', padding + before));
        match color.then(|| paint(columns[at].show, &cell)).flatten() {
            Some(code) => text.push_str(&format!("\u{1b}[{code}m{cell}\u{1b}[0m")),
            None => text.push_str(&cell),
        }
        padding = fill - before;
    }
    text.push('\n');
}

fn cut(cell: &str, width: usize) -> String {
    if length(cell) <= width {
        return cell.to_owned();
    }
    let mut short: String = cell.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// SGR colour of a state: green works, yellow is on its way, red is broken.
fn paint(show: Show, cell: &str) -> Option<&'static str> {
    if show != Show::State {
        return None;
    }
    match cell {
        "ready" | "free" | "ok" | "held" | "active" => Some("32"),
        "lost" | "failed" | "failing" | "quarantined" | "revoked" | "fail" => Some("31"),
        "-" | "idle" | "stopped" | "left" | "drained" | "unchanged" => None,
        _ => Some("33"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::column::column;
    use super::*;

    const COLUMNS: [Column; 4] = [
        column("NAME", "/name", Show::Text),
        column("FREE", "/free", Show::Number),
        column("STATE", "/state", Show::State),
        column("REASON", "/reason", Show::Text),
    ];

    fn rows() -> Vec<Value> {
        vec![
            json!({"name": "café-1", "free": 12, "state": "ready"}),
            json!({"name": "b", "free": 7, "state": "lost", "reason": "no beat for 5 s while its door was heard"}),
        ]
    }

    #[test]
    fn cut_to_the_terminal_the_reason_first() {
        let style = Style {
            color: false,
            width: Some(36),
        };
        let text = render_table(&COLUMNS, &rows(), false, &style);
        insta::assert_snapshot!(text, @r"
        NAME    FREE  STATE  REASON
        café-1    12  ready  -
        b          7  lost   no beat for 5 …
        ");
    }

    #[test]
    fn states_are_coloured_on_a_terminal_only() {
        let style = Style {
            color: true,
            width: None,
        };
        let text = render_table(&COLUMNS, &rows(), true, &style);
        assert!(text.contains("\u{1b}[32mready\u{1b}[0m"));
        assert!(text.contains("\u{1b}[31mlost\u{1b}[0m"));
        let plain = render_table(&COLUMNS, &rows(), true, &Style::default());
        assert!(!plain.contains('\u{1b}'));
    }

    #[test]
    fn an_impossibly_narrow_terminal_does_not_hang() {
        let style = Style {
            color: false,
            width: Some(1),
        };
        assert_eq!(render_table(&COLUMNS, &rows(), false, &style).lines().count(), 3);
    }
}
