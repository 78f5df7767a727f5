//! Rules about Rust code.

use crate::none;
use crate::source::{Source, sources};

/// Longest file.
const MOST_LINES: usize = 800;

/// From here on a file is worth splitting.
const MANY_LINES: usize = 400;

const CRATES: [&str; 5] = ["domain", "bus", "projections", "workers", "tests"];

fn everything() -> Vec<Source> {
    CRATES.into_iter().flat_map(sources).collect()
}

/// Offending lines of code outside tests.
fn outside_tests(sources: &[Source], banned: &[&str]) -> Vec<String> {
    let mut offenders = Vec::new();
    for source in sources {
        for (line, code, test) in source.lines() {
            if !test && banned.iter().any(|word| contains_word(code, word)) {
                offenders.push(source.place(line));
            }
        }
    }
    offenders
}

/// Whether `word` stands in `code` and not as the tail of a longer name.
fn contains_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !(word.starts_with(char::is_alphanumeric) && before.is_some_and(|c| c.is_alphanumeric() || c == '_'))
    })
}

#[test]
fn files_are_short() {
    let mut long = Vec::new();
    for source in everything() {
        let lines = source.text.lines().count();
        if lines > MOST_LINES {
            long.push(format!("{}: {lines} lines", source.path.display()));
        } else if lines > MANY_LINES {
            eprintln!("worth splitting: {}: {lines} lines", source.path.display());
        }
    }
    none(
        "a file is longer than 800 lines",
        "one file per family of things: split by family, not by size",
        long,
    );
}

#[test]
fn every_module_says_what_it_is() {
    let offenders = everything()
        .iter()
        .filter(|source| {
            let first = source.text.lines().find(|line| !line.trim().is_empty());
            !first.is_some_and(|line| line.starts_with("//!"))
        })
        .map(|source| source.path.display().to_string())
        .collect();
    none(
        "a file does not open with its module documentation",
        "open with `//!`: the idea, then the invariants kept or the alternative rejected",
        offenders,
    );
}

#[test]
fn nothing_is_left_open() {
    let mut offenders = Vec::new();
    for source in everything() {
        for (line, code, test) in source.lines() {
            // A test's fixture may leave out what its cases do not use.
            let open = ["todo!", "dbg!"].iter().any(|word| contains_word(code, word))
                || !test && contains_word(code, "unimplemented!");
            if open {
                offenders.push(source.place(line));
            }
        }
    }
    none(
        "code is left open",
        "build it, or refuse it with code `not_yet`",
        offenders,
    );
}

#[test]
fn nothing_unwraps_outside_tests() {
    none(
        "`.unwrap()` outside tests",
        "return a typed error, or `expect(\"why this cannot fail\")` for a proven invariant",
        outside_tests(&everything(), &[".unwrap()", ".unwrap_err()"]),
    );
}

#[test]
fn the_domain_is_pure() {
    let banned = [
        "Instant::now",
        "SystemTime",
        "Utc::now",
        "Local::now",
        "rand::",
        "fastrand::",
        "Uuid::now_v",
        "Uuid::new_v",
        "thread::",
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
        "async fn",
        ".await",
        "tokio::",
        "println!",
        "eprintln!",
    ];
    none(
        "the domain touches a clock, randomness, I/O or async",
        "take the time and the ids in with the command; do I/O in a worker",
        outside_tests(&sources("domain/src"), &banned),
    );
}

/// Attributes that make serde skip or guess fields, which a positional encoding cannot do
/// (<https://postcard.jamesmunns.com/wire-format>).
const BREAKS_POSTCARD: [&str; 4] = ["default", "skip_serializing_if", "flatten", "untagged"];

#[test]
fn stored_types_have_no_attributes_that_break_postcard() {
    let stored = sources("domain/src/events")
        .into_iter()
        .chain(
            sources("domain/src")
                .into_iter()
                .filter(|source| source.path.ends_with("src/events.rs")),
        )
        .chain(sources("bus/src").into_iter().filter(|source| {
            let path = source.path.to_string_lossy().replace('\\', "/");
            path.starts_with("bus/src/record") || path.ends_with("src/observation.rs")
        }));
    let mut offenders = Vec::new();
    for source in stored {
        for (start, _) in source.code.match_indices("serde(") {
            let inside = &source.code[start + "serde(".len()..];
            let inside = &inside[..inside.find(")]").unwrap_or(inside.len())];
            if BREAKS_POSTCARD.iter().any(|word| names(inside, word)) {
                offenders.push(source.place(source.code[..start].matches('\n').count() + 1));
            }
        }
    }
    none(
        "a stored type has a serde attribute that breaks its encoding",
        "make the field plain (an Option is always written), or freeze a new version of the event",
        offenders,
    );
}

/// Whether a list of attributes has this one, as a word of its own.
fn names(attributes: &str, word: &str) -> bool {
    attributes
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .any(|part| part == word)
}

/// The comment that allows a sleep in a test.
const WAITS_FOR: &str = "// tidy: waits for ";

#[test]
fn tests_do_not_sleep() {
    let mut offenders = Vec::new();
    for source in everything() {
        let text: Vec<&str> = source.text.lines().collect();
        for (line, code, test) in source.lines() {
            if !test || !(code.contains("sleep(") || code.contains("sleep_until(")) {
                continue;
            }
            let explained = text[line.saturating_sub(3)..line]
                .iter()
                .any(|line| line.contains(WAITS_FOR));
            if !explained && !code.contains("fn ") {
                offenders.push(source.place(line));
            }
        }
    }
    none(
        "a test sleeps",
        "await the event itself with a bound; where nothing can be awaited write `// tidy: waits for …` on the line or just above",
        offenders,
    );
}

#[test]
fn words_are_words() {
    assert!(contains_word("let x = rand::random();", "rand::"));
    assert!(!contains_word("let x = fastrand::u64(..);", "rand::"));
    assert!(names("rename = , default", "default"));
    assert!(!names("default_value", "default"));
}
