//! One thing in full: `status`, `explain` and other answers that are an object rather than a list.
//!
//! Keys stand on the left in alphabetical order, nested objects are indented, arrays of objects become small blocks.
//! The renderer knows no field, so what a newer server says is shown as well.
//!
//! Kept: missing is `-`; control characters never reach the terminal.

use serde_json::Value;

use super::column::{bytes, plain};
use super::{csv_error, csv_text};
use crate::exit::CliError;
use crate::time::short_span;

/// An object as indented `key: value` lines.
pub fn render(object: &Value) -> String {
    let mut text = String::new();
    push(&mut text, object, 0);
    text
}

/// An object as two CSV columns, with dotted keys.
pub fn csv(object: &Value, no_headers: bool) -> Result<String, CliError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    if !no_headers {
        writer.write_record(["key", "value"]).map_err(csv_error)?;
    }
    let mut flat = Vec::new();
    flatten(&mut flat, String::new(), object);
    for (key, value) in flat {
        writer.write_record([key, value]).map_err(csv_error)?;
    }
    csv_text(writer)
}

fn push(text: &mut String, value: &Value, indent: usize) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(fields) => {
            let width = fields.keys().map(|key| key.chars().count()).max().unwrap_or(0);
            for (key, value) in fields {
                if is_block(value) {
                    text.push_str(&format!("{pad}{key}:\n"));
                    push(text, value, indent + 2);
                } else {
                    let fill = " ".repeat(width - key.chars().count());
                    text.push_str(&format!("{pad}{key}:{fill} {}\n", leaf(key, value)));
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                if is_block(item) {
                    let mut inner = String::new();
                    push(&mut inner, item, indent + 2);
                    // The first line of a block carries the bullet.
                    text.push_str(&format!("{pad}- {}", inner.trim_start()));
                } else {
                    text.push_str(&format!("{pad}- {}\n", leaf("", item)));
                }
            }
        }
        other => text.push_str(&format!("{pad}{}\n", leaf("", other))),
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => {
            items.iter().any(|item| item.is_object() || item.is_array())
                || items
                    .iter()
                    .any(|item| item.as_str().is_some_and(|text| text.contains(' ')))
        }
        _ => false,
    }
}

fn leaf(key: &str, value: &Value) -> String {
    let text = match value.as_u64() {
        Some(count) if key.ends_with("_bytes") => format!("{count} ({})", bytes(count)),
        Some(ms) if key.ends_with("_ms") && ms >= 1_000 => {
            format!("{ms} ({})", short_span(std::time::Duration::from_millis(ms)))
        }
        _ => plain(value),
    };
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.is_empty() { "-".to_owned() } else { text }
}

fn flatten(flat: &mut Vec<(String, String)>, prefix: String, value: &Value) {
    let join = |key: &str| {
        if prefix.is_empty() {
            key.to_owned()
        } else {
            format!("{prefix}.{key}")
        }
    };
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                flatten(flat, join(key), value);
            }
        }
        Value::Array(items) if items.iter().any(|item| item.is_object() || item.is_array()) => {
            for (at, item) in items.iter().enumerate() {
                flatten(flat, join(&at.to_string()), item);
            }
        }
        other => flat.push((prefix, plain(other))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_answers_are_readable() {
        let answer = json!({
            "id": "inst-1", "memory_bytes": 1_073_741_824_u64, "start_ms": 61_000, "node": null, "devices": ["a", "b"],
            "timings_ms": {"start": 12}, "candidates": [{"node": "n1", "score": 3}, {"node": "n2", "score": 1}],
        });
        insta::assert_snapshot!(render(&answer), @r"
        candidates:
          - node:  n1
            score: 3
          - node:  n2
            score: 1
        devices:      a,b
        id:           inst-1
        memory_bytes: 1073741824 (1 GiB)
        node:         -
        start_ms:     61000 (1m01s)
        timings_ms:
          start: 12
        ");
        insta::assert_snapshot!(csv(&answer, false).unwrap(), @r#"
        key,value
        candidates.0.node,n1
        candidates.0.score,3
        candidates.1.node,n2
        candidates.1.score,1
        devices,"a,b"
        id,inst-1
        memory_bytes,1073741824
        node,
        start_ms,61000
        timings_ms.start,12
        "#);
    }
}
