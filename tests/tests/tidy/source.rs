//! Rust source with comments and strings blanked, and the lines that are tests.
//!
//! A small lexer, enough to tell code from prose: line and nested block comments, strings with escapes, raw and byte
//! strings, characters and lifetimes. Blanking keeps every line's number and length.

use std::path::{Path, PathBuf};

use crate::{files, root};

/// One file.
pub struct Source {
    /// Relative to the checkout.
    pub path: PathBuf,
    /// As it is.
    pub text: String,
    /// With comments and the contents of strings blanked.
    pub code: String,
    /// For each line, whether it is test code.
    tests: Vec<bool>,
}

impl Source {
    fn read(path: PathBuf) -> Self {
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        let code = blank(&text);
        let tests = if is_test_file(&path) || code.contains("#![cfg(test)]") {
            vec![true; code.lines().count()]
        } else {
            test_lines(&code)
        };
        Self {
            path,
            text,
            code,
            tests,
        }
    }

    /// Lines of code with their numbers from 1 and whether they are tests.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str, bool)> {
        self.code
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line, self.tests.get(at) == Some(&true)))
    }

    /// `file:line: text` of a place, for a person.
    pub fn place(&self, line: usize) -> String {
        let text = self.text.lines().nth(line - 1).unwrap_or_default();
        format!("{}:{line}: {}", self.path.display(), text.trim())
    }
}

/// All Rust files below a folder of the checkout.
pub fn sources(dir: &str) -> Vec<Source> {
    files(dir)
        .into_iter()
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .map(Source::read)
        .collect()
}

/// Integration tests, benches, examples, and modules of unit tests in files of their own.
fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| {
        let part = part.as_os_str();
        part == "tests" || part == "benches" || part == "examples" || part == "tests.rs"
    })
}

/// Marks what follows `#[cfg(test)]` up to the end of its block.
fn test_lines(code: &str) -> Vec<bool> {
    let mut marks = vec![false; code.lines().count()];
    for (start, _) in code.match_indices("#[cfg(test)]") {
        let rest = &code[start..];
        let end = match (rest.find('{'), rest.find(';')) {
            // `#[cfg(test)] mod tests;` or a `use`: the item is the one line.
            (open, Some(semicolon)) if open.is_none_or(|open| semicolon < open) => start + semicolon,
            (Some(open), _) => start + open + block_length(&rest[open..]),
            (None, _) => code.len(),
        };
        let first = code[..start].matches('\n').count();
        let last = code[..end].matches('\n').count();
        for mark in &mut marks[first..=last.min(first.max(last))] {
            *mark = true;
        }
    }
    marks
}

fn block_length(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    text.len().saturating_sub(1)
}

/// Blanks comments and the contents of strings, keeping line breaks.
pub fn blank(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let skip = |out: &mut String, from: usize, to: usize| {
        out.extend(chars[from..to].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
    };
    while at < chars.len() {
        let rest = &chars[at..];
        let length = match rest {
            ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => block_comment(rest),
            ['"', ..] => string(rest),
            ['r', '"' | '#', ..] | ['b', 'r', ..] if starts_word(&chars, at) => raw_string(rest),
            ['\'', ..] => character(rest),
            _ => 0,
        };
        if length == 0 {
            out.push(chars[at]);
            at += 1;
        } else {
            skip(&mut out, at, at + length);
            at += length;
        }
    }
    out
}

fn starts_word(chars: &[char], at: usize) -> bool {
    at == 0 || !(chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => {
                depth += 1;
                at += 2;
            }
            ['*', '/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `r"…"`, `r#"…"#`, `br"…"`; 0 if it is not one (a raw identifier, a name that begins with `br`).
fn raw_string(rest: &[char]) -> usize {
    let prefix = if rest[0] == 'b' { 2 } else { 1 };
    let hashes = rest[prefix..].iter().take_while(|c| **c == '#').count();
    if rest.get(prefix + hashes) != Some(&'"') {
        return 0;
    }
    let mut at = prefix + hashes + 1;
    while at < rest.len() {
        let closes = rest[at] == '"' && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
        if closes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    rest.len()
}

/// A character literal; 0 for a lifetime.
fn character(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', _, tail @ ..] => tail.iter().position(|c| *c == '\'').map_or(0, |end| end + 4),
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

#[test]
fn prose_is_not_code() {
    let text = r####"let a = "x.unwrap()"; // .unwrap()
let b = r#"y.unwrap() " "#; let c = '"'; let d = "\"z.unwrap()"; /* /* .unwrap() */ .unwrap() */
fn f<'a>(x: &'a str) { x.get('\'').unwrap() }"####;
    let code = blank(text);
    assert_eq!(code.matches("unwrap").count(), 1, "{code}");
    assert_eq!(code.lines().count(), text.lines().count());
}

#[test]
fn tests_are_told_from_code() {
    let code = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { {} }\n}\nfn c() {}\n#[cfg(test)]\nuse x;\nfn d() {}";
    assert_eq!(
        test_lines(code),
        [false, true, true, true, true, false, true, true, false]
    );
}
