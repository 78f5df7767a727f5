//! Walks a document: which keys a mapping may have, and values with their units and limits.
//!
//! Every refusal names the dotted key and its line, also for keys that are merely unknown (with the likely one) or
//! reserved for a later release.

use std::ops::RangeInclusive;
use std::str::FromStr;

use tidemill_domain::time::Span;
use tidemill_domain::unit::Name;

use super::error::WorkloadError;
use super::tree::{Entry, Node, Scalar, Value, shorten};

type Result<T> = std::result::Result<T, WorkloadError>;

/// The keys of one mapping.
pub(super) struct Keys {
    /// Taken by this release.
    pub(super) known: &'static [&'static str],
    /// Named by the format, refused with `not_yet`.
    pub(super) reserved: &'static [&'static str],
}

/// A mapping whose keys have been checked.
pub(super) struct Object<'a> {
    path: String,
    line: u64,
    entries: &'a [Entry],
}

/// A value with its key.
#[derive(Clone)]
pub(super) struct Field<'a> {
    pub(super) path: String,
    pub(super) line: u64,
    pub(super) value: &'a Value,
}

impl<'a> Object<'a> {
    /// The document's outermost mapping, keys unchecked: they depend on its `kind`.
    pub(super) fn root(node: &'a Node) -> Result<Self> {
        match &node.value {
            Value::Map(entries) => Ok(Self {
                path: String::new(),
                line: node.line,
                entries,
            }),
            other => Err(WorkloadError::invalid(
                "",
                node.line,
                format!(
                    "a workload is a mapping that begins with `kind: service`, this is {}",
                    other.describe()
                ),
            )),
        }
    }

    /// Refuses reserved and unknown keys.
    pub(super) fn check(&self, keys: &Keys) -> Result<()> {
        for entry in self.entries {
            let path = self.path_of(&entry.key);
            if keys.reserved.contains(&entry.key.as_str()) {
                return Err(WorkloadError::not_yet(path, entry.line, "it is not there yet"));
            }
            if !keys.known.contains(&entry.key.as_str()) {
                return Err(unknown_key(&path, entry, keys));
            }
        }
        Ok(())
    }

    /// The value of a key; a key without a value counts as absent.
    pub(super) fn get(&self, key: &str) -> Option<Field<'a>> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (!matches!(entry.node.value, Value::Null)).then(|| Field {
            path: self.path_of(key),
            line: entry.line,
            value: &entry.node.value,
        })
    }

    /// The value of a key that must be there.
    pub(super) fn need(&self, key: &str, example: &str) -> Result<Field<'a>> {
        self.get(key).ok_or_else(|| {
            let entry = self.entries.iter().find(|entry| entry.key == key);
            let reason = match entry {
                Some(_) => format!("it has no value, such as {example}"),
                None => format!("it is missing; add it, such as `{key}: {example}`"),
            };
            WorkloadError::invalid(self.path_of(key), entry.map_or(self.line, |e| e.line), reason)
        })
    }

    /// The mapping under a key, its keys checked; empty if absent.
    pub(super) fn object(&self, key: &str, keys: &Keys) -> Result<Object<'a>> {
        let Some(field) = self.get(key) else {
            return Ok(Object {
                path: self.path_of(key),
                line: self.line,
                entries: &[],
            });
        };
        field.object(keys)
    }

    /// Key and value of each entry, in the order written.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + '_ {
        self.entries.iter().map(|entry| {
            let field = Field {
                path: self.path_of(&entry.key),
                line: entry.line,
                value: &entry.node.value,
            };
            (entry.key.as_str(), field)
        })
    }

    /// Line of a dotted key, or of the nearest mapping above it.
    pub(super) fn line_of(&self, path: &str) -> u64 {
        let mut entries = self.entries;
        let mut line = self.line;
        for part in path.split('.') {
            let Some(entry) = entries.iter().find(|entry| entry.key == part) else {
                break;
            };
            line = entry.line;
            match &entry.node.value {
                Value::Map(inner) => entries = inner,
                _ => break,
            }
        }
        line
    }

    fn path_of(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => shorten(key),
            path => format!("{path}.{}", shorten(key)),
        }
    }
}

impl<'a> Field<'a> {
    pub(super) fn invalid(&self, reason: impl Into<String>) -> WorkloadError {
        WorkloadError::invalid(self.path.clone(), self.line, reason)
    }

    pub(super) fn not_yet(&self, reason: impl Into<String>) -> WorkloadError {
        WorkloadError::not_yet(self.path.clone(), self.line, reason)
    }

    /// A mapping with these keys.
    pub(super) fn object(&self, keys: &Keys) -> Result<Object<'a>> {
        let object = self.any_object()?;
        object.check(keys)?;
        Ok(object)
    }

    /// A mapping with any keys.
    pub(super) fn any_object(&self) -> Result<Object<'a>> {
        match self.value {
            Value::Map(entries) => Ok(Object {
                path: self.path.clone(),
                line: self.line,
                entries,
            }),
            other => Err(self.invalid(format!("it takes a mapping, not {}", other.describe()))),
        }
    }

    /// A text, as it is spelled.
    pub(super) fn text(&self) -> Result<&'a str> {
        match self.value {
            Value::Scalar { text, .. } => Ok(text),
            other => Err(self.invalid(format!("it takes a text, not {}", other.describe()))),
        }
    }

    /// A DNS label.
    pub(super) fn name(&self) -> Result<Name> {
        let text = self.text()?;
        Name::from_str(text).map_err(|error| self.invalid(error.to_string()))
    }

    /// The elements of a list; anything else is a list of one.
    pub(super) fn list(&self) -> Vec<Field<'a>> {
        let item = |node: &'a Node| Field {
            path: self.path.clone(),
            line: node.line,
            value: &node.value,
        };
        match self.value {
            Value::List(items) => items.iter().map(item).collect(),
            _ => vec![self.clone()],
        }
    }

    /// A list of texts.
    pub(super) fn texts(&self) -> Result<Vec<String>> {
        self.list().iter().map(|item| item.text().map(str::to_owned)).collect()
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T> {
        let text = self.text()?;
        words
            .iter()
            .find(|(word, _)| *word == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| {
                let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                self.invalid(format!("`{}` is none of {}", shorten(text), all.join(", ")))
            })
    }

    /// A whole number within limits.
    pub(super) fn whole(&self, limits: RangeInclusive<u32>) -> Result<u32> {
        let (from, to) = (*limits.start(), *limits.end());
        let out_of_range = |text: &str| self.invalid(format!("{} is out of range: {from} to {to}", shorten(text)));
        match self.value {
            Value::Scalar {
                text,
                scalar: Scalar::Int(value),
            } => u32::try_from(*value)
                .ok()
                .filter(|value| limits.contains(value))
                .ok_or_else(|| out_of_range(text)),
            Value::Scalar {
                text,
                scalar: Scalar::Float(value),
            } if value.is_nan() || (*value >= f64::from(from) && *value <= f64::from(to)) => {
                Err(self.invalid(format!("{} is not a whole number", shorten(text))))
            }
            Value::Scalar {
                text,
                scalar: Scalar::Float(_),
            } => Err(out_of_range(text)),
            other => Err(self.invalid(format!("it takes a number, not {}", other.describe()))),
        }
    }

    /// A number above 0 and at most 1 in steps of a thousandth, in thousandths.
    pub(super) fn share(&self) -> Result<u32> {
        self.thousandths_to(1)
    }

    /// A number above 0 and at most 100,000 in steps of a thousandth, in thousandths.
    pub(super) fn thousandths(&self) -> Result<u32> {
        self.thousandths_to(100_000)
    }

    fn thousandths_to(&self, most: u32) -> Result<u32> {
        let (text, value) = match self.value {
            Value::Scalar {
                text,
                scalar: Scalar::Int(value),
            } => (text, *value as f64),
            Value::Scalar {
                text,
                scalar: Scalar::Float(value),
            } => (text, *value),
            other => return Err(self.invalid(format!("it takes a number, not {}", other.describe()))),
        };
        let milli = value * 1000.0;
        // NaN fails both comparisons.
        if !(milli > 0.0 && milli <= f64::from(most) * 1000.0) {
            let reason = format!("{} is out of range: above 0, at most {most}", shorten(text));
            return Err(self.invalid(reason));
        }
        if (milli - milli.round()).abs() > 1e-6 || milli.round() < 1.0 {
            return Err(self.invalid(format!("{} is not a multiple of 0.001", shorten(text))));
        }
        Ok(milli.round() as u32)
    }

    /// A duration such as `30s`, `5m`, `1h30m` or `500ms`.
    pub(super) fn duration(&self) -> Result<Span> {
        let text = self.text()?;
        duration(text).ok_or_else(|| {
            self.invalid(format!(
                "`{}` is not a duration; write a number and a unit of ms, s, m, h or d, such as 30s or 5m",
                shorten(text)
            ))
        })
    }

    /// A size such as `40GiB`, in bytes.
    pub(super) fn bytes(&self) -> Result<u64> {
        let text = self.text()?;
        bytes(text).ok_or_else(|| {
            self.invalid(format!(
                "`{}` is not a size; write a number and a unit of B, KiB, MiB, GiB, TiB, KB, MB, GB or TB, such as 40GiB",
                shorten(text)
            ))
        })
    }
}

/// Reads `30s`, `1h30m`; `None` for anything else, a number without a unit and overflow included.
pub fn duration(text: &str) -> Option<Span> {
    let mut rest = text;
    let mut millis: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let count: u64 = rest.get(..digits)?.parse().ok()?;
        let tail = rest.get(digits..)?;
        let letters = tail.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = match tail.get(..letters)? {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        millis = millis.checked_add(count.checked_mul(unit)?)?;
        rest = tail.get(letters..)?;
    }
    // Microseconds must fit too.
    millis.checked_mul(1000)?;
    Some(Span::from_millis(millis))
}

/// Reads `40GiB`, `1.5GB`, `4096`; `None` for anything else and for what does not fit.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let split = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = (text.get(..split)?, text.get(split..)?.trim_start());
    let scale: u128 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        u64::from_str(whole).ok()?.into()
    };
    let parts: u128 = if fraction.is_empty() {
        0
    } else {
        u64::from_str(fraction).ok()?.into()
    };
    let total = whole * scale + parts * scale / 10u128.pow(fraction.len() as u32);
    u64::try_from(total).ok()
}

/// Words of other systems for what a key here does.
const SYNONYMS: &[(&str, &str)] = &[
    ("replicas", "scale"),
    ("instances", "scale"),
    ("autoscaling", "scale"),
    ("cmd", "command"),
    ("args", "command"),
    ("entrypoint", "command"),
    ("environment", "env"),
    ("gpu", "devices"),
    ("gpus", "devices"),
    ("resources", "devices"),
    ("priority", "class"),
    ("namespace", "tenant"),
    ("readiness", "ready"),
    ("health", "ready"),
    ("minimum", "min"),
    ("maximum", "max"),
    ("regions", "region"),
    ("models", "model"),
    ("kinds", "kind"),
    ("domain", "host"),
    ("hostname", "host"),
];

fn unknown_key(path: &str, entry: &Entry, keys: &Keys) -> WorkloadError {
    let key = entry.key.as_str();
    let synonym = SYNONYMS
        .iter()
        .find(|(word, known)| *word == key && keys.known.contains(known))
        .map(|(_, known)| *known);
    let near = || {
        let candidates = keys.known.iter().map(|known| (distance(key, known), *known));
        candidates
            .min()
            .filter(|(edits, known)| *edits <= 2 && *edits < known.len())
            .map(|(_, known)| known)
    };
    let hint = match synonym.or_else(near) {
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("known here are {}", keys.known.join(", ")),
    };
    WorkloadError::invalid(path, entry.line, format!("unknown key: {hint}"))
}

/// Levenshtein's distance of two short words; long ones are far apart.
fn distance(a: &str, b: &str) -> usize {
    if a.len().max(b.len()) > 32 {
        return usize::MAX;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
