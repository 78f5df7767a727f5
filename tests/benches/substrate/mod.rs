//! What the ledger benches share: their cell and the raw substrate.

use std::path::Path;
use std::time::{Duration, Instant};

use tidemill_bus::identity::{CellName, Genesis, LedgerId};

/// Cell and ledger of every bench.
pub fn genesis() -> Genesis {
    Genesis::new(CellName::new("bench").unwrap(), LedgerId(uuid::Uuid::from_u128(1)))
}

/// Median time of a 4 KiB write and fsync beside the data: what a durable figure is to be read with.
pub fn fsync_probe(dir: &Path) -> Duration {
    use std::io::{Seek, Write};
    let path = dir.join("fsync-probe");
    let mut file = std::fs::File::create(&path).unwrap();
    let times = (0..25).map(|_| {
        file.rewind().unwrap();
        file.write_all(&[7; 4096]).unwrap();
        let began = Instant::now();
        file.sync_data().unwrap();
        began.elapsed()
    });
    let probe = median(times.collect());
    std::fs::remove_file(path).unwrap();
    probe
}

/// The middle one.
pub fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// One figure set as a JSON line on stdout and a table row on stderr.
pub fn line(bench: &str, case: &str, figures: &[(&str, f64)]) {
    let mut row = format!("{case:<28}");
    let mut json = serde_json::Map::new();
    json.insert("bench".into(), bench.into());
    json.insert("case".into(), case.into());
    for (name, value) in figures {
        let rounded = (value * 1000.0).round() / 1000.0;
        json.insert((*name).into(), rounded.into());
        row.push_str(&format!(" {name} {rounded:>10}"));
    }
    eprintln!("{row}");
    println!("{}", serde_json::Value::Object(json));
}
