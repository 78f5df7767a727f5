//! The repository's own rules, as tests: layout, dependency direction, what formats and pure code may not contain.
//!
//! Each rule is one test that lists every offender as `file:line` and says how to fix it, so that a rule costs its
//! reader a minute and nobody has to remember it. Source is looked at through [`source::Source`], which blanks comments
//! and strings and knows which lines are tests, so a rule never trips over prose.
//!
//! Kept: nothing but the standard library and the files of the checkout. Rejected: rules in a shell script of CI, which
//! would run later and elsewhere than the tests everyone runs.

#![allow(clippy::unwrap_used)]

mod code;
mod manifest;
mod source;

use std::path::{Path, PathBuf};

/// The checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Fails with every offender and the way out, if there is one.
#[track_caller]
pub fn none(rule: &str, fix: &str, offenders: Vec<String>) {
    assert!(
        offenders.is_empty(),
        "\n\n{rule} ({} places)\n  {}\n\nfix: {fix}\n",
        offenders.len(),
        offenders.join("\n  ")
    );
}

/// Files below `dir` as paths relative to the checkout, sorted; build output and hidden folders but `.ci` left out.
pub fn files(dir: &str) -> Vec<PathBuf> {
    let root = root();
    let mut found = Vec::new();
    let mut open = vec![root.join(dir)];
    while let Some(dir) = open.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.map(Result::unwrap) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if path.is_dir() {
                let hidden = name.starts_with('.') && name != ".ci";
                if !hidden && name != "target" && name != "node_modules" {
                    open.push(path);
                }
            } else if name != ".git" {
                // A linked checkout has a file of that name.
                found.push(path.strip_prefix(&root).unwrap().to_path_buf());
            }
        }
    }
    found.sort();
    found
}

/// The one place that says what the top level may hold.
const TOP_LEVEL: &[&str] = &[
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "bus",
    "compose",
    "domain",
    "examples",
    "migrations",
    "projections",
    "rustfmt.toml",
    "tests",
    "workers",
];

#[test]
fn the_top_level_is_the_ring_and_little_else() {
    let ignored = ["target", ".git"];
    let offenders = std::fs::read_dir(root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !TOP_LEVEL.contains(&name.as_str()) && !ignored.contains(&name.as_str()))
        .collect();
    none(
        "the top level holds the stages of the ring and little else",
        "move it into the stage it belongs to, or ignore it if it is build output",
        offenders,
    );
}

#[test]
fn nothing_speaks_of_where_it_was_built() {
    // Spelt in two halves so that this file passes its own rule.
    let banned = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/tm", "p/")];
    let mut offenders = Vec::new();
    for path in files("") {
        let Ok(text) = std::fs::read_to_string(root().join(&path)) else {
            continue;
        };
        for (at, line) in text.lines().enumerate() {
            if banned.iter().any(|word| begins_a_path(line, word)) {
                offenders.push(format!("{}:{}: {}", path.display(), at + 1, line.trim()));
            }
        }
    }
    none(
        "files name a path of some machine",
        "use a path relative to the checkout, a temporary directory of the system, or an example under /var/lib",
        offenders,
    );
}

/// Whether `prefix` stands in `line` as the beginning of a path rather than in the middle of one.
fn begins_a_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "-_.}".contains(c))
    })
}
