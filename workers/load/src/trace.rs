//! Per-request traces: each row is a request, sent when the row says and as long as the row says.

use std::path::Path;
use std::time::Duration;

use crate::LoadError;
use crate::schedule::Arrival;
use crate::table::{Micros, Table};

/// Rows of a trace in order of time.
pub(crate) struct Trace {
    rows: Vec<Row>,
}

struct Row {
    at: Micros,
    context: Option<u32>,
    tokens: Option<u32>,
}

impl Trace {
    pub(crate) fn read(path: &Path) -> Result<Self, LoadError> {
        let table = Table::open(path)?;
        let context = table.column(&["contexttokens", "input_tokens"]);
        let tokens = table.column(&["generatedtokens", "output_tokens"]);
        let mut rows = Vec::new();
        table.rows(path, |at, record| {
            let count = |column: Option<usize>| match column.and_then(|c| record.get(c)) {
                None | Some("") => Ok(None),
                // Some tools write whole numbers as 5.0.
                Some(text) => match text.parse::<f64>() {
                    Ok(n) if (0.0..=4e9).contains(&n) => Ok(Some(n as u32)),
                    _ => Err(format!("`{text}` is not a number of tokens")),
                },
            };
            rows.push(Row {
                at,
                context: count(context)?,
                tokens: count(tokens)?,
            });
            Ok(())
        })?;
        if rows.is_empty() {
            return Err(LoadError::Empty {
                path: path.to_owned(),
                next: "give a file with one row a request",
            });
        }
        rows.sort_by_key(|row| row.at);
        Ok(Self { rows })
    }

    /// Each row `scale` times on average, its time from the first row divided by `speed`.
    pub(crate) fn arrivals(self, scale: f64, speed: f64, seed: u64) -> impl Iterator<Item = Arrival> + Send {
        let start = self.rows.first().map_or(0, |row| row.at);
        let mut rng = fastrand::Rng::with_seed(seed);
        self.rows.into_iter().flat_map(move |row| {
            let whole = scale.floor();
            let copies = whole as usize + usize::from(rng.f64() < scale - whole);
            let arrival = Arrival {
                at: Duration::from_micros(((row.at - start) as f64 / speed) as u64),
                context: row.context,
                tokens: row.tokens,
            };
            std::iter::repeat_n(arrival, copies)
        })
    }
}
