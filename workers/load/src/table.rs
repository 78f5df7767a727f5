//! CSV files of times: reading, unpacking, and the several ways in which a time is written.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use chrono::{DateTime, NaiveDateTime};
use flate2::read::MultiGzDecoder;

use crate::LoadError;

/// A CSV file with a heading, plain or gzipped.
pub(crate) struct Table {
    reader: csv::Reader<Box<dyn Read + Send>>,
    heading: Vec<String>,
    /// Microseconds per unit of a bare number in the first column.
    unit_us: f64,
}

/// Microseconds after the epoch of the file's own choice.
pub(crate) type Micros = i64;

const NEXT_ROW: &str = "correct the line; a header line and commas are expected";
const NEXT_TIME: &str = "write the first column as RFC 3339, as `2023-11-16 18:17:03.97`, or as seconds (milliseconds if its heading ends in _ms)";

impl Table {
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let failed = |source| LoadError::File {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let gzipped = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gz"));
        let bytes: Box<dyn Read + Send> = if gzipped {
            Box::new(MultiGzDecoder::new(file))
        } else {
            Box::new(file)
        };
        let mut reader = csv::ReaderBuilder::new()
            .flexible(true)
            .trim(csv::Trim::All)
            .from_reader(bytes);
        let heading = reader
            .headers()
            .map_err(|error| row_error(path, error))?
            .iter()
            .map(str::to_ascii_lowercase)
            .collect::<Vec<_>>();
        if let Some(first) = heading.first()
            && parse_time(first, 1.0).is_some()
        {
            return Err(LoadError::Row {
                path: path.to_owned(),
                line: 1,
                what: format!("`{first}` is data, but the first line must name the columns"),
                next: "put a heading such as timestamp,value before the data",
            });
        }
        let unit_us = match heading.first() {
            Some(name) if name.ends_with("_ms") => 1e3,
            _ => 1e6,
        };
        Ok(Self {
            reader,
            heading,
            unit_us,
        })
    }

    /// Index of the first column whose name (any case) is one of `names`.
    pub(crate) fn column(&self, names: &[&str]) -> Option<usize> {
        let is_one = |name: &String| names.contains(&name.as_str());
        self.heading.iter().position(is_one)
    }

    /// Reads all rows; `row` gets the time, the fields, and a way to complain about one.
    pub(crate) fn rows(
        mut self,
        path: &Path,
        mut row: impl FnMut(Micros, &csv::StringRecord) -> Result<(), String>,
    ) -> Result<(), LoadError> {
        let mut record = csv::StringRecord::new();
        let mut line = 1;
        while self
            .reader
            .read_record(&mut record)
            .map_err(|error| row_error(path, error))?
        {
            line = record.position().map_or(line + 1, csv::Position::line);
            let complain = |what, next| LoadError::Row {
                path: path.to_owned(),
                line,
                what,
                next,
            };
            let field = record.get(0).unwrap_or_default();
            let time = parse_time(field, self.unit_us)
                .ok_or_else(|| complain(format!("`{field}` is not a time"), NEXT_TIME))?;
            row(time, &record).map_err(|what| complain(what, NEXT_ROW))?;
        }
        Ok(())
    }
}

fn row_error(path: &Path, error: csv::Error) -> LoadError {
    let line = error.position().map_or(1, csv::Position::line);
    match error.into_kind() {
        csv::ErrorKind::Io(source) => LoadError::File {
            path: path.to_owned(),
            source,
        },
        other => LoadError::Row {
            path: path.to_owned(),
            line,
            what: match other {
                csv::ErrorKind::Utf8 { .. } => "not UTF-8 text".to_owned(),
                other => format!("{other:?}"),
            },
            next: "give a CSV file, plain or with a name that ends in .gz",
        },
    }
}

fn parse_time(text: &str, unit_us: f64) -> Option<Micros> {
    if let Ok(number) = text.parse::<f64>() {
        let us = number * unit_us;
        // Far beyond any trace, and safe to subtract.
        return (us.abs() < 1e17).then_some(us.round() as i64);
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Some(time.timestamp_micros());
    }
    ["%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f"]
        .iter()
        .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
        .map(|time| time.and_utc().timestamp_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_all_their_forms() {
        let azure = parse_time("2023-11-16 18:17:03.9799600", 1e6);
        assert_eq!(azure, Some(1_700_158_623_979_960));
        assert_eq!(parse_time("2023-11-16T18:17:03.97996Z", 1e6), azure);
        assert_eq!(parse_time("2023-11-16T19:17:03.97996+01:00", 1e6), azure);
        assert_eq!(parse_time("2014-04-10 00:04:00", 1e6), Some(1_397_088_240_000_000));
        assert_eq!(parse_time("1.5", 1e6), Some(1_500_000));
        assert_eq!(parse_time("27000", 1e3), Some(27_000_000));
        for bad in ["", "yesterday", "NaN", "inf", "1e99", "2023-13-01 00:00:00"] {
            assert_eq!(parse_time(bad, 1e6), None, "{bad}");
        }
    }
}
