//! The YAML parser's complaints in the words of who writes a file: what is wrong on that line, and what would be right.
//!
//! The parser speaks of its own stages ("while parsing a flow mapping"), which tells nothing to a person with a missing
//! bracket. Its errors are sorted into the few slips there are; what fits none of them is told as a broken structure, by
//! its line. Passing the parser's text through was rejected: it changes with the parser's release.

use serde_saphyr::Error;
use serde_saphyr::budget::BudgetBreach;

use super::error::WorkloadError;
use super::tree::{MAX_DEPTH, MAX_DOCUMENTS, MAX_NODES, shorten};

/// The refusal of a file that the parser did not take.
pub(super) fn refusal(error: &Error, input: &str) -> WorkloadError {
    let line = error.location().map_or(0, |location| location.line());
    match error {
        Error::WithSnippet { error, .. } => refusal(error, input),
        Error::DuplicateMappingKey { key, .. } => {
            let reason = "the key stands twice in the same mapping; keep one of them";
            WorkloadError::invalid(key.as_deref().map(shorten).unwrap_or_default(), line, reason)
        }
        Error::Budget { breach, .. } => WorkloadError::invalid("", line, breach_sentence(breach)),
        other => match slip(other) {
            TAB => WorkloadError::syntax(tab_line(input, line), TAB),
            slip => WorkloadError::syntax(line, slip),
        },
    }
}

const TAB: &str = "a tab stands where only spaces may; indent with spaces";

/// The line that is indented by a tab; the parser tells of it where the value before it began.
fn tab_line(input: &str, from: u64) -> u64 {
    let indented_by_tab = |line: &str| line.trim_start_matches(' ').starts_with('\t');
    let mut lines = (1..).zip(input.lines()).filter(|(number, _)| *number >= from);
    lines
        .find(|(_, line)| indented_by_tab(line))
        .map_or(from, |(number, _)| number)
}

fn breach_sentence(breach: &BudgetBreach) -> String {
    match breach {
        BudgetBreach::Depth { .. } => format!("it is nested deeper than {MAX_DEPTH} levels; a workload needs five"),
        BudgetBreach::Documents { .. } => format!("the file holds more than {MAX_DOCUMENTS} documents; split it"),
        BudgetBreach::Aliases { .. } | BudgetBreach::Anchors { .. } | BudgetBreach::AliasAnchorRatio { .. } => {
            "the file repeats itself through more aliases (`*name`) than are read; write the values out".to_owned()
        }
        _ => format!("the file holds more than {MAX_NODES} values; split it"),
    }
}

fn slip(error: &Error) -> &'static str {
    let text = error.to_string().to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    match error {
        Error::Eof { .. } => "it ends in the middle of a value",
        Error::UnknownAnchor { .. } => {
            "an alias (`*name`) has no anchor (`&name`) before it; quote a text that begins with `*`"
        }
        Error::UnsupportedTag { .. } | Error::TaggedStructFieldName { .. } | Error::TaggedEnumMismatch { .. } => {
            "a tag (`!name`) stands before a value; leave it out, or quote a text that begins with `!`"
        }
        Error::InvalidScalar { .. }
        | Error::InvalidBinaryBase64 { .. }
        | Error::BinaryNotUtf8 { .. }
        | Error::SerdeInvalidType { .. }
        | Error::NullIntoString { .. } => {
            "a key or a value is not what its place or its tag (`!!int`) says; keys are texts"
        }
        Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "it repeats itself through more aliases (`*name`) than are read; write the values out"
        }
        _ if has(&["tab"]) => TAB,
        _ if has(&["quoted", "quote", "flow scalar"]) => {
            "a quoted text is not closed, or goes on at the wrong indentation"
        }
        _ if has(&["unclosed", "flow sequence", "flow mapping", "bracket", "',' or"]) => {
            "a list `[…]` or a mapping `{…}` is not closed, or a comma in it is missing"
        }
        _ if has(&["anchor", "alias"]) => {
            "an alias (`*name`) has no anchor (`&name`) before it; quote a text that begins with `*`"
        }
        _ if has(&["tag", "directive"]) => {
            "a tag (`!name`) or directive (`%name`) is not read; leave it out, or quote the text"
        }
        _ if has(&["start any token", "control character", "invalid character"]) => {
            "a character stands here that no plain text begins with or that is no text at all; quote it or take it out"
        }
        _ if has(&["mapping", "simple key", "':'", "block", "indent"]) => {
            "a line does not fit the ones above it; each is `key: value` or `- item`, indented like its neighbours"
        }
        _ => "the structure breaks off here; check indentation, colons, brackets and quotes",
    }
}
