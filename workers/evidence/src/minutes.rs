//! Traffic by service and minute, as gateways' beats come in.

use std::collections::BTreeMap;

use tidemill_domain::events::evidence::{InstanceTraffic, LATENCY_BOUNDS, RequestCounts, TrafficMinuteClosed};
use tidemill_domain::id::{InstanceId, ServiceId};
use tidemill_domain::state::service::Service;
use tidemill_domain::state::{MINUTE, State};
use tidemill_domain::time::{Span, Timestamp};
use tidemill_kit::observation::{GatewayBeat, Seen, TrafficSample};

/// A minute is closed when doors have been heard this long after its end: beats of its last second have arrived.
pub const CLOSE_AFTER: Span = Span::from_secs(5);
/// Minutes kept at most while another process holds the role.
const KEPT: Span = Span::from_secs(3600);
/// Two beats of a gateway this close together cover everything in between.
const CONTIGUOUS: Span = Span::from_secs(5);
/// A gap above this is perceived: `gateway::PERCEIVED_GAP_MS` of the protocol.
const PERCEIVED_GAP: Span = Span::from_secs(1);

const SECOND: i64 = 1_000_000;
const SECONDS: usize = 60;

/// What came in, by minute.
#[derive(Debug, Default)]
pub(crate) struct Minutes {
    minutes: BTreeMap<Timestamp, Minute>,
    /// When each gateway beat last.
    beats: BTreeMap<String, Timestamp>,
}

#[derive(Debug, Default)]
struct Minute {
    /// Seconds that some gateway reported about.
    covered: u64,
    services: BTreeMap<ServiceId, Traffic>,
    /// First and last observation that went in.
    observations: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Traffic {
    requests: RequestCounts,
    /// Seconds in which something failed or waited.
    bad: u64,
    longest_gap: Span,
    queued: [u64; SECONDS],
    latency: Vec<u64>,
    instances: BTreeMap<InstanceId, InstanceTraffic>,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            requests: RequestCounts::default(),
            bad: 0,
            longest_gap: Span::ZERO,
            queued: [0; SECONDS],
            latency: vec![0; LATENCY_BOUNDS.len() + 1],
            instances: BTreeMap::new(),
        }
    }
}

/// The begin of the minute and the number of the second in it.
fn place(at: Timestamp) -> (Timestamp, usize) {
    let minute = MINUTE.micros() as i64;
    let within = at.0.rem_euclid(minute);
    (Timestamp(at.0 - within), (within / SECOND) as usize)
}

/// Begin of the oldest minute that is open when doors have been heard through `through`.
fn open_from(through: Timestamp) -> Timestamp {
    place(through - CLOSE_AFTER).0
}

impl Minutes {
    /// Takes a gateway's beat in. `through` is the latest receive time of any door.
    pub(crate) fn add(&mut self, beat: &GatewayBeat, seen: &Seen, through: Timestamp) {
        let open = open_from(through);
        let before = self.beats.insert(beat.gateway.clone(), seen.received_at);
        let gap = before.map_or(Span::ZERO, |before| seen.received_at.since(before));
        let seconds = if gap <= CONTIGUOUS {
            (gap.micros() / SECOND as u64).max(1)
        } else {
            1
        };
        self.cover(seen.received_at, seconds, open, seen.sequence);
        for sample in &beat.samples {
            let end = seen.received_at - sample.age;
            self.cover(end, u64::from(sample.seconds.max(1)), open, seen.sequence);
            self.count(sample, end, open, seen.sequence);
        }
    }

    /// Marks the `seconds` up to `end` as reported about, as far as their minutes are open.
    fn cover(&mut self, end: Timestamp, seconds: u64, open: Timestamp, sequence: u64) {
        for back in 0..seconds.min(2 * SECONDS as u64) {
            // The middle of the second: its ends belong to its neighbours as much.
            let at = Timestamp(end.0 - SECOND / 2 - back as i64 * SECOND);
            let (minute, second) = place(at);
            if minute >= open {
                let entry = self.minutes.entry(minute).or_default();
                entry.covered |= 1 << second;
                entry.cite(sequence);
            }
        }
    }

    fn count(&mut self, sample: &TrafficSample, end: Timestamp, open: Timestamp, sequence: u64) {
        let (minute, second) = place(Timestamp(end.0 - SECOND / 2));
        let (minute, second) = if minute < open { (open, 0) } else { (minute, second) };
        let entry = self.minutes.entry(minute).or_default();
        entry.cite(sequence);
        let traffic = entry.services.entry(sample.service).or_default();
        add_counts(&mut traffic.requests, &sample.requests);
        let failed = sample.requests.failed + sample.requests.cut_streams > 0;
        if failed || sample.longest_gap > PERCEIVED_GAP {
            traffic.bad |= 1 << second;
        }
        traffic.longest_gap = traffic.longest_gap.max(sample.longest_gap);
        traffic.queued[second] += sample.queued;
        for (sum, count) in traffic.latency.iter_mut().zip(&sample.latency) {
            *sum += count;
        }
        for one in &sample.instances {
            let sum = traffic.instances.entry(one.instance).or_insert(InstanceTraffic {
                instance: one.instance,
                sent: 0,
                ok: 0,
                errors: 0,
                broken: 0,
            });
            sum.sent += one.sent;
            sum.ok += one.ok;
            sum.errors += one.errors;
            sum.broken += one.broken;
        }
    }

    /// Drops minutes that all services have on record, and the oldest while nobody asks.
    pub(crate) fn forget(&mut self, state: &State, through: Timestamp) {
        let oldest_kept = place(through - KEPT).0;
        let done = |minute: Timestamp| {
            let mut waiting = state.services.values();
            !waiting.any(|s| s.traffic_through.is_none_or(|t| t <= minute))
        };
        let open = open_from(through);
        self.minutes
            .retain(|minute, _| *minute >= open || (*minute >= oldest_kept && !done(*minute)));
    }

    /// The service's oldest minute that can be closed and is not on record, with the observations it rests on. A minute
    /// without a request is on record only while the service is `active`, and one that nobody reported about never is.
    pub(crate) fn oldest(
        &self,
        service: &Service,
        active: bool,
        through: Timestamp,
    ) -> Option<(TrafficMinuteClosed, (u64, u64))> {
        let from = service.traffic_through.unwrap_or(Timestamp(i64::MIN));
        let closable = self.minutes.range(from..open_from(through).max(from));
        let mut wanted = closable.filter(|(_, m)| m.services.contains_key(&service.id) || (active && m.covered != 0));
        let (begin, minute) = wanted.next()?;
        let observations = minute.observations?;
        let empty = Traffic::default();
        let traffic = minute.services.get(&service.id).unwrap_or(&empty);
        let closed = TrafficMinuteClosed {
            service: service.id,
            minute: *begin,
            requests: traffic.requests,
            bad_seconds: traffic.bad.count_ones(),
            covered_seconds: minute.covered.count_ones(),
            longest_gap: traffic.longest_gap,
            peak_queued: traffic.queued.iter().copied().max().unwrap_or(0),
            latency: traffic.latency.clone(),
            instances: traffic.instances.values().cloned().collect(),
        };
        Some((closed, observations))
    }
}

impl Minute {
    fn cite(&mut self, sequence: u64) {
        let (first, last) = self.observations.unwrap_or((sequence, sequence));
        self.observations = Some((first.min(sequence), last.max(sequence)));
    }
}

fn add_counts(sum: &mut RequestCounts, more: &RequestCounts) {
    sum.arrived += more.arrived;
    sum.ok += more.ok;
    sum.application_errors += more.application_errors;
    sum.failed += more.failed;
    sum.refused += more.refused;
    sum.cancelled += more.cancelled;
    sum.cut_streams += more.cut_streams;
    sum.retries += more.retries;
}
