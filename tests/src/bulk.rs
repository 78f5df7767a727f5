//! Long ledgers, quickly: records as full as a loaded sequencer writes them, decided by the real core without a store.

use std::collections::VecDeque;
use std::time::Duration;

use tidemill_bus::fold::Fold;
use tidemill_bus::identity::Genesis;
use tidemill_bus::ledger::RawRecord;
use tidemill_bus::sequencer::{Core, Dedupe, Now, Pending};
use tidemill_domain::command::{Command, DeclaredService, Envelope};
use tidemill_domain::events::evidence::{InstanceTraffic, RequestCounts, TrafficMinuteClosed};
use tidemill_domain::id::{CommandId, InstanceId, ServiceId};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_domain::unit::Name;

use crate::make;

/// Services of such a ledger; their traffic is what fills it.
const SERVICES: u64 = 64;

/// A command under the id derived from `parts`.
pub fn ask(parts: &[u64], command: Command) -> Envelope {
    let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
    make::envelope(CommandId::derived(&[&bytes]), command)
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

/// A ledger of at least `events` events, each of its own command, recorded from `from` on, a microsecond apart.
pub fn records(genesis: &Genesis, events: u64, from: Timestamp) -> Vec<RawRecord> {
    let now = |n: u64| Now {
        wall: Timestamp(from.0 + n.cast_signed()),
        elapsed: Duration::ZERO,
    };
    let fold = Fold::new(genesis);
    let (mut core, first) = Core::take_over(genesis, fold, Dedupe::default(), "bulk", "0", now(0)).unwrap();
    let mut records = vec![RawRecord {
        sequence: 1,
        body: first.record.bytes,
    }];
    let mut queue: VecDeque<Pending<()>> = VecDeque::new();
    let pending = |envelope: Envelope| Pending {
        body_hash: envelope.body_hash(),
        envelope: envelope.into(),
        reply: (),
    };
    queue.extend(declare(SERVICES).into_iter().map(pending));
    let mut asked = 0;
    while core.state().events < events {
        let services: Vec<_> = core.state().services.keys().copied().collect();
        if !services.is_empty() {
            while queue.len() < 4096 {
                let service = services[asked as usize % services.len()];
                queue.push_back(pending(ask(&[asked], minute(service, asked / SERVICES, 2))));
                asked += 1;
            }
        }
        core.decide(&mut queue, now(asked)).unwrap();
        let record = core.close().unwrap().planned.unwrap().record;
        records.push(RawRecord {
            sequence: record.anchor.sequence,
            body: record.bytes,
        });
    }
    records
}
