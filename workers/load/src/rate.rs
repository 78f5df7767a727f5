//! Request-rate series: a rate over time, turned into single arrivals.
//!
//! Between two points the rate is linear; arrivals are a Poisson process of that rate, drawn by thinning (Lewis and
//! Shedler 1979) with a fixed seed. The last point holds for one more step.

use std::path::Path;
use std::time::Duration;

use crate::LoadError;
use crate::schedule::Arrival;
use crate::table::Table;

/// Points (seconds from the first, requests a second), at least two, times increasing.
#[derive(Debug)]
pub(crate) struct Rate {
    points: Vec<(f64, f64)>,
}

impl Rate {
    pub(crate) fn read(path: &Path) -> Result<Self, LoadError> {
        let table = Table::open(path)?;
        let counts = table.column(&["count", "requests"]);
        let column = table.column(&["value", "rate", "rps"]).or(counts).unwrap_or(1);
        let mut first = None;
        let mut points: Vec<(f64, f64)> = Vec::new();
        table.rows(path, |at, record| {
            let text = record.get(column).unwrap_or_default();
            let value = match text.parse::<f64>() {
                Ok(value) if (0.0..=1e9).contains(&value) => value,
                _ => return Err(format!("`{text}` is not a rate")),
            };
            let seconds = (at - *first.get_or_insert(at)) as f64 / 1e6;
            if points.last().is_some_and(|(last, _)| seconds <= *last) {
                return Err("its time is not after that of the line before".to_owned());
            }
            points.push((seconds, value));
            Ok(())
        })?;
        let [.., (before, _), (last, value)] = points[..] else {
            return Err(LoadError::Empty {
                path: path.to_owned(),
                next: "give at least two rows: the step is the time between them",
            });
        };
        points.push((last + (last - before), value));
        if column_holds_counts(counts, column) {
            for at in 0..points.len() - 1 {
                points[at].1 /= points[at + 1].0 - points[at].0;
            }
            let end = points.len() - 1;
            points[end].1 = points[end - 1].1;
        }
        Ok(Self { points })
    }

    /// Arrivals of `scale` times the series, played `speed` times as fast.
    pub(crate) fn arrivals(self, scale: f64, speed: f64, seed: u64) -> impl Iterator<Item = Arrival> + Send {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut segment = 0;
        let mut now = 0.0;
        std::iter::from_fn(move || {
            loop {
                let [(from, low), (to, high)] = *self.points.get(segment..segment + 2)? else {
                    return None;
                };
                let most = low.max(high) * scale;
                // With a rate of 0 the next candidate lies at infinity: on to the next segment.
                now += -(1.0 - rng.f64()).ln() / most;
                if now >= to || now.is_nan() {
                    // A Poisson process has no memory, so it may start anew at the seam.
                    now = to;
                    segment += 1;
                    continue;
                }
                let here = (low + (high - low) * (now - from) / (to - from)) * scale;
                if rng.f64() * most < here {
                    let at = Duration::from_secs_f64(now / speed);
                    return Some(Arrival {
                        at,
                        context: None,
                        tokens: None,
                    });
                }
            }
        })
    }
}

fn column_holds_counts(counts: Option<usize>, column: usize) -> bool {
    counts == Some(column)
}
