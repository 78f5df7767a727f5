//! When each request is due.

use std::time::Duration;

use crate::rate::Rate;
use crate::trace::Trace;
use crate::{LoadError, LoadOptions, Source};

/// One request to come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Arrival {
    /// After the start of the run.
    pub(crate) at: Duration,
    /// Tokens read, if the trace says.
    pub(crate) context: Option<u32>,
    /// Tokens written, if the trace says.
    pub(crate) tokens: Option<u32>,
}

/// Arrivals in order of time.
pub(crate) type Schedule = Box<dyn Iterator<Item = Arrival> + Send>;

/// Reads the file, if there is one; draws arrivals as they are asked for.
pub(crate) fn schedule(options: &LoadOptions) -> Result<Schedule, LoadError> {
    let (scale, speed, seed) = (options.scale, options.speed, options.seed);
    Ok(match &options.source {
        Source::Rps(rps) => {
            let gap = 1.0 / (rps * scale * speed);
            Box::new((0_u64..).map(move |n| Arrival {
                at: Duration::from_secs_f64(n as f64 * gap),
                context: None,
                tokens: None,
            }))
        }
        Source::Trace(path) => Box::new(Trace::read(path)?.arrivals(scale, speed, seed)),
        Source::Rate(path) => Box::new(Rate::read(path)?.arrivals(scale, speed, seed)),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::path::PathBuf;

    fn file(dir: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
        let path = dir.path().join(name);
        let mut file = std::fs::File::create(&path).unwrap();
        if name.ends_with(".gz") {
            let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            packed.write_all(text.as_bytes()).unwrap();
            packed.finish().unwrap();
        } else {
            file.write_all(text.as_bytes()).unwrap();
        }
        path
    }

    fn arrivals(source: Source, scale: f64, speed: f64) -> Result<Vec<Arrival>, LoadError> {
        let mut options = LoadOptions::new("http://h/", source);
        options.scale = scale;
        options.speed = speed;
        Ok(schedule(&options)?.take(200_000).collect())
    }

    #[test]
    fn a_trace_gives_time_and_length_of_each_request() {
        let dir = tempfile::tempdir().unwrap();
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                    2023-11-16 18:17:03.9799600,4808,10\n\
                    2023-11-16 18:17:04.0319600,3180,8\n";
        for name in ["t.csv", "t.csv.gz"] {
            let got = arrivals(Source::Trace(file(&dir, name, text)), 1.0, 20.0).unwrap();
            let arrival = |us, context, tokens| Arrival {
                at: Duration::from_micros(us),
                context: Some(context),
                tokens: Some(tokens),
            };
            assert_eq!(got, [arrival(0, 4808, 10), arrival(2600, 3180, 8)]);
        }
    }

    #[test]
    fn milliseconds_by_the_heading_and_rows_out_of_order() {
        let dir = tempfile::tempdir().unwrap();
        let text = "timestamp_ms,input_tokens,output_tokens\n3000,2,3\n1000,7,\n";
        let got = arrivals(Source::Trace(file(&dir, "m.csv", text)), 1.0, 1.0).unwrap();
        assert_eq!(got[0].at, Duration::ZERO);
        assert_eq!((got[0].context, got[0].tokens), (Some(7), None));
        assert_eq!(got[1].at, Duration::from_secs(2));
    }

    #[test]
    fn scale_repeats_and_leaves_out_rows() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = "t\n".to_owned();
        (0..10_000).for_each(|n| text.push_str(&format!("{n}\n")));
        let path = file(&dir, "s.csv", &text);
        for (scale, want) in [(2.5, 25_000), (0.1, 1_000)] {
            let got = arrivals(Source::Trace(path.clone()), scale, 1.0).unwrap().len();
            assert!(got.abs_diff(want) < want / 10, "{scale}: {got}");
        }
    }

    #[test]
    fn bad_rows_are_named_by_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let cases = [
            (
                "a.csv",
                "t,ContextTokens\n1,5\nx,5\n",
                "a.csv, line 3: `x` is not a time",
            ),
            (
                "b.csv",
                "t,ContextTokens\n1,-5\n",
                "b.csv, line 2: `-5` is not a number of tokens",
            ),
            ("c.csv", "1,5\n2,6\n", "c.csv, line 1: `1` is data"),
            ("d.csv", "t\n", "d.csv: no rows after the heading"),
            ("e.csv.gz", "t\n", "e.csv.gz: no rows"),
        ];
        for (name, text, want) in cases {
            let error = arrivals(Source::Trace(file(&dir, name, text)), 1.0, 1.0).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(want) && said.contains("next: "), "{said}");
        }
        let missing = arrivals(Source::Rate(dir.path().join("none.csv")), 1.0, 1.0).unwrap_err();
        assert_eq!(missing.code(), "file_failed");
        let plain = file(&dir, "plain.csv", "t,value\n1,2\n");
        std::fs::rename(&plain, dir.path().join("fake.gz")).unwrap();
        let fake = arrivals(Source::Rate(dir.path().join("fake.gz")), 1.0, 1.0).unwrap_err();
        assert_eq!(fake.code(), "file_failed");
    }

    #[test]
    fn a_rate_series_is_interpolated_and_repeatable() {
        let dir = tempfile::tempdir().unwrap();
        // 0 → 100/s over 100 s, one more step at 100/s: 5,000 + 10,000 requests.
        let path = file(&dir, "r.csv", "timestamp,value\n0,0\n100,100\n");
        let got = arrivals(Source::Rate(path.clone()), 1.0, 1.0).unwrap();
        assert!(got.len().abs_diff(15_000) < 500, "{}", got.len());
        let early = got.iter().filter(|a| a.at < Duration::from_secs(50)).count();
        assert!(early.abs_diff(1_250) < 150, "{early}");
        assert!(got.is_sorted_by_key(|a| a.at));
        assert_eq!(got, arrivals(Source::Rate(path.clone()), 1.0, 1.0).unwrap());
        let fast = arrivals(Source::Rate(path), 0.5, 10.0).unwrap();
        assert!(fast.len().abs_diff(7_500) < 400, "{}", fast.len());
        assert!(fast.last().unwrap().at <= Duration::from_secs(20));
    }

    #[test]
    fn counts_a_step_and_pauses_of_zero() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(&dir, "c.csv", "timestamp,count\n0,600\n60,600\n120,0\n180,0\n");
        let got = arrivals(Source::Rate(path), 1.0, 1.0).unwrap();
        assert!(got.len().abs_diff(900) < 120, "{}", got.len());
        let back = file(&dir, "back.csv", "timestamp,value\n5,1\n4,1\n");
        let error = arrivals(Source::Rate(back), 1.0, 1.0).unwrap_err().to_string();
        assert!(error.contains("line 3: its time is not after"), "{error}");
    }

    #[test]
    fn a_constant_rate_is_even() {
        let got = arrivals(Source::Rps(50.0), 2.0, 1.0).unwrap();
        assert_eq!(got[100].at, Duration::from_secs(1));
    }
}
