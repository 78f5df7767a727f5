//! Latencies in bounded memory: a log-linear histogram of microseconds.
//!
//! Each power of two is cut into 128 equal buckets (the layout of HdrHistogram), so a quantile is at most 0.8% above the
//! true value; memory is 58 KiB whatever is recorded.

/// Buckets per power of two.
const SUB: u64 = 128;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Index of the largest u64, plus one.
const BUCKETS: usize = ((64 - SUB_BITS as usize) + 1) * SUB as usize;

/// Counts of values, microseconds by convention.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
            max: 0,
        }
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, value: u64) {
        self.counts[index(value)] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    /// The smallest recorded value (to 0.8%) that a share `q` of all does not exceed. `None`: nothing recorded.
    pub(crate) fn quantile(&self, q: f64) -> Option<u64> {
        if self.total == 0 {
            return None;
        }
        let rank = ((q * self.total as f64).ceil() as u64).clamp(1, self.total);
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(upper(at).min(self.max))
    }

    pub(crate) fn max(&self) -> Option<u64> {
        (self.total > 0).then_some(self.max)
    }
}

fn index(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = (63 - value.leading_zeros()) - SUB_BITS;
    ((u64::from(shift) + 1) * SUB + ((value >> shift) - SUB)) as usize
}

/// Largest value of a bucket.
fn upper(index: usize) -> u64 {
    let (group, within) = (index as u64 / SUB, index as u64 % SUB);
    if group == 0 {
        return within;
    }
    let shift = group - 1;
    ((SUB + within) << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in (0..5_000).chain([u64::MAX, u64::MAX / 3, 1 << 40, (1 << 40) - 1]) {
            let at = index(value);
            assert!(upper(at) >= value, "{value}");
            assert!(at == 0 || upper(at - 1) < value, "{value}");
            assert!(upper(at) - value <= value / 128, "{value}");
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_within_a_percent_of_an_exact_sort() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut exact: Vec<u64> = (0..20_000)
            .map(|_| {
                let bits = rng.u32(4..34);
                rng.u64(1..1 << bits)
            })
            .collect();
        let mut histogram = Histogram::default();
        exact.iter().for_each(|v| histogram.record(*v));
        exact.sort_unstable();
        for q in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let want = exact[((q * 20_000.0_f64).ceil() as usize).max(1) - 1];
            let got = histogram.quantile(q).unwrap();
            assert!(got >= want && got - want <= want / 100, "{q}: {got} {want}");
        }
        assert_eq!(Histogram::default().quantile(0.5), None);
    }
}
