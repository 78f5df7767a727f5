//! Durations and instants as people type them.
//!
//! A duration is a sum of numbers with units (`90s`, `1m30s`, `200ms`, `2d`); an instant is RFC 3339 or a duration,
//! which then means "that long ago". Both parse into typed values at the edge, so that no verb handles a bare number
//! whose unit is in someone's head.
//!
//! Kept: a number without a unit is refused (except `0`), never guessed. Rejected: natural language ("yesterday"),
//! since a script's meaning must not depend on the locale or the day.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};

/// Milliseconds per unit, longest unit name first so that `ms` is not read as `m`.
const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Parses `200ms`, `60s`, `1h30m`, `2d` or `0`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration; write 200ms, 60s, 5m, 1h30m or 2d");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .filter(|n| *n > 0)
            .ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let (unit, millis) = UNITS
            .iter()
            .find(|(unit, _)| {
                rest.strip_prefix(unit)
                    .is_some_and(|after| !after.starts_with(|c: char| c.is_alphabetic()))
            })
            .ok_or_else(wrong)?;
        rest = &rest[unit.len()..];
        total = number
            .checked_mul(*millis)
            .and_then(|part| total.checked_add(part))
            .ok_or_else(wrong)?;
    }
    if text.is_empty() {
        return Err(wrong());
    }
    Ok(Duration::from_millis(total))
}

/// As the API takes it.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Parses RFC 3339, or a duration that means "that long before `now`".
fn parse_instant_at(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.to_utc());
    }
    let ago = parse_duration(text)
        .map_err(|_| format!("`{text}` is not a time; write RFC 3339 (2026-05-01T12:00:00Z) or how long ago (10m)"))?;
    chrono::Duration::from_std(ago)
        .ok()
        .and_then(|ago| now.checked_sub_signed(ago))
        .ok_or_else(|| format!("`{text}` ago is before time began"))
}

/// Parses RFC 3339, or a duration that means "that long from `now`".
fn parse_later_at(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.to_utc());
    }
    let ahead = parse_duration(text).map_err(|_| {
        format!("`{text}` is not a time; write RFC 3339 (2026-05-01T12:00:00Z) or how long from now (2h)")
    })?;
    chrono::Duration::from_std(ahead)
        .ok()
        .and_then(|ahead| now.checked_add_signed(ahead))
        .ok_or_else(|| format!("`{text}` from now is later than can be written"))
}

/// Parses RFC 3339, or a duration that means "that long from now": for what is to be, not for what was.
pub fn parse_later(text: &str) -> Result<DateTime<Utc>, String> {
    parse_later_at(text, Utc::now())
}

/// Parses RFC 3339, or a duration that means "that long ago".
pub fn parse_instant(text: &str) -> Result<DateTime<Utc>, String> {
    parse_instant_at(text, Utc::now())
}

/// RFC 3339 UTC with milliseconds, as every answer of the API has it.
pub fn rfc3339(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The two largest units of a span: `350ms`, `12s`, `4m30s`, `2h05m`, `3d4h`.
pub fn short_span(span: Duration) -> String {
    let millis = span.as_millis();
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{millis}ms"),
        1..60 if seconds < 10 && millis % 1_000 >= 100 => {
            format!("{seconds}.{}s", millis % 1_000 / 100)
        }
        1..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d{}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(parse_duration("200ms").unwrap().as_millis(), 200);
        assert_eq!(parse_duration("60s").unwrap().as_secs(), 60);
        assert_eq!(parse_duration("1h30m").unwrap().as_secs(), 5_400);
        assert_eq!(parse_duration("2d").unwrap().as_secs(), 172_800);
        assert_eq!(parse_duration("0").unwrap(), Duration::ZERO);
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "1e18s",
            "99999999999999999999s",
            "5 m",
            "3mins",
        ] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn instants() {
        let now = DateTime::parse_from_rfc3339("2026-05-01T12:00:00Z").unwrap().to_utc();
        let ten = parse_instant_at("10m", now).unwrap();
        assert_eq!(rfc3339(ten), "2026-05-01T11:50:00.000Z");
        let fixed = parse_instant_at("2026-05-01T14:00:00+02:00", now).unwrap();
        assert_eq!(fixed, now);
        assert!(parse_instant_at("yesterday", now).is_err());
        let later = parse_later_at("2h", now).unwrap();
        assert_eq!(rfc3339(later), "2026-05-01T14:00:00.000Z");
        assert_eq!(parse_later_at("2026-05-01T14:00:00+02:00", now).unwrap(), now);
        assert!(parse_later_at("999999999999d", now).is_err());
    }

    #[test]
    fn spans() {
        let spans = [0, 350, 1_500, 12_000, 270_000, 7_500_000, 273_600_000];
        let text: Vec<String> = spans.iter().map(|ms| short_span(Duration::from_millis(*ms))).collect();
        assert_eq!(text.join(" "), "0ms 350ms 1.5s 12s 4m30s 2h05m 3d4h");
    }
}
