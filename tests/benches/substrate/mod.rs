//! What the ledger benches share: a cell of services, commands that always write one event, and the raw substrate.

use std::path::Path;
use std::time::{Duration, Instant};

use tidemill_bus::identity::{CellName, Genesis, LedgerId};
use tidemill_domain::command::{Command, DeclaredService, Envelope};
use tidemill_domain::commit::{Actor, Cause};
use tidemill_domain::events::evidence::{InstanceTraffic, RequestCounts, TrafficMinuteClosed};
use tidemill_domain::id::{CommandId, InstanceId, ServiceId};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::Name;
use tidemill_tests::make;

/// Cell and ledger of every bench.
pub fn genesis() -> Genesis {
    Genesis::new(CellName::new("bench").unwrap(), LedgerId(uuid::Uuid::from_u128(1)))
}

/// A command under the id derived from `parts`.
pub fn ask(parts: &[u64], command: Command) -> Envelope {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    let id = CommandId::derived(&[&bytes]);
    Envelope {
        id,
        actor: Actor::Local,
        cause: Cause::Request,
        trace: None,
        command,
    }
}

/// Commands that declare `count` services, 64 at a time.
pub fn declare(count: u64) -> Vec<Envelope> {
    let numbers: Vec<u64> = (0..count).collect();
    let declare = |numbers: &[u64]| {
        let service = |n: &u64| DeclaredService {
            tenant: Name::default_tenant(),
            name: make::name(&format!("s{n}")),
            spec: make::spec(0, 4),
        };
        ask(
            &[u64::MAX, numbers[0]],
            Command::ApplyServices {
                services: numbers.iter().map(service).collect(),
            },
        )
    };
    numbers.chunks(64).map(declare).collect()
}

/// Minute `n` of the traffic of a service with so many instances: one event of about 120 bytes, and 14 an instance, with
/// its commit.
pub fn minute(service: ServiceId, n: u64, instances: u64) -> Command {
    let arrived = 1000 + n % 500;
    let requests = RequestCounts {
        arrived,
        ok: arrived,
        ..RequestCounts::default()
    };
    let instance = |i: u64| InstanceTraffic {
        instance: InstanceId::from_bits(service.bits() + i),
        sent: arrived / 2,
        ok: arrived / 2,
        errors: 0,
        broken: 0,
    };
    Command::CloseTrafficMinute(TrafficMinuteClosed {
        service,
        minute: Timestamp(1_767_225_600_000_000) + Span::from_secs(60 * n),
        requests,
        bad_seconds: 0,
        covered_seconds: 60,
        longest_gap: Span::from_millis(12),
        peak_queued: 3,
        latency: (0..20).map(|i| if i < 12 { arrived / 12 } else { 0 }).collect(),
        instances: (0..instances).map(instance).collect(),
    })
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
