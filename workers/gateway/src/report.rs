//! Traffic samples waiting for a door.
//!
//! Each second of each service is closed and kept until a beat takes it. While no door can be reached the last 30
//! seconds of a service stay apart and older ones are summed into one, so an outage costs resolution and nothing else.
//! A service of which nothing is sent had no traffic and nobody waiting in that second; the beat itself says that the
//! gateway was there to see it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tidemill_protocol::gateway::{InstanceTraffic, TrafficSample};

use crate::admission::Service;
use crate::traffic::Second;

/// Seconds kept apart per service.
const KEPT: usize = 30;

/// Closed seconds by (tenant, name).
#[derive(Debug, Default)]
pub(crate) struct Reporter {
    closed: HashMap<(Box<str>, Box<str>), VecDeque<Closed>>,
    /// Services no route names any more that still have requests in flight.
    retired: Vec<Arc<Service>>,
}

#[derive(Debug)]
struct Closed {
    at: Instant,
    seconds: u32,
    counts: Second,
    queued: u64,
    in_flight: u64,
    instances: Vec<InstanceTraffic>,
}

impl Reporter {
    /// Keeps a service's last seconds although routes no longer name it.
    pub(crate) fn retire(&mut self, services: Vec<Arc<Service>>) {
        self.retired.extend(services);
    }

    /// Closes the second at `now`.
    pub(crate) fn close_second<'a>(&mut self, services: impl Iterator<Item = &'a Arc<Service>>, now: Instant) {
        for service in services {
            self.close(service, now);
        }
        let mut retired = std::mem::take(&mut self.retired);
        for service in &retired {
            self.close(service, now);
        }
        retired.retain(|service| service.traffic.waiting() > 0);
        self.retired = retired;
    }

    fn close(&mut self, service: &Arc<Service>, now: Instant) {
        let counts = service.traffic.close(now);
        let instances: Vec<_> = service
            .instances()
            .iter()
            .map(|i| i.close_second())
            .filter(|i| i.sent + i.ok + i.errors + i.broken + i.in_flight > 0)
            .collect();
        let queued = service.queued() as u64;
        if counts.is_quiet() && instances.is_empty() && queued == 0 {
            return;
        }
        let in_flight = instances.iter().map(|i| i.in_flight).sum();
        let key = (service.tenant.clone(), service.name.clone());
        let kept = self.closed.entry(key).or_default();
        kept.push_back(Closed {
            at: now,
            seconds: 1,
            counts,
            queued,
            in_flight,
            instances,
        });
        // One more than `KEPT`: the sum of all older seconds.
        if kept.len() > KEPT + 1
            && let (Some(mut old), Some(next)) = (kept.pop_front(), kept.pop_front())
        {
            old.absorb(next);
            kept.push_front(old);
        }
    }

    /// Takes what was closed since the last call, oldest first within a service, each with the time it was closed.
    /// `age_ms` is for the sender to fill in, at the moment of sending.
    pub(crate) fn take(&mut self) -> Vec<(Instant, TrafficSample)> {
        let mut samples = Vec::new();
        for ((tenant, name), seconds) in self.closed.drain() {
            let sample = |closed: Closed| TrafficSample {
                tenant: tenant.to_string(),
                service: name.to_string(),
                seconds: closed.seconds,
                queued: closed.queued,
                in_flight: closed.in_flight,
                instances: closed.instances,
                ..closed.counts.to_sample()
            };
            samples.extend(seconds.into_iter().map(|closed| (closed.at, sample(closed))));
        }
        samples
    }
}

impl Closed {
    /// Adds the second after this one; gauges are those at its end.
    fn absorb(&mut self, next: Closed) {
        self.at = next.at;
        self.seconds += next.seconds;
        self.counts.merge(&next.counts);
        self.queued = next.queued;
        self.in_flight = next.in_flight;
        for theirs in next.instances {
            match self.instances.iter_mut().find(|mine| mine.instance == theirs.instance) {
                Some(mine) => {
                    mine.sent += theirs.sent;
                    mine.ok += theirs.ok;
                    mine.errors += theirs.errors;
                    mine.broken += theirs.broken;
                    mine.in_flight = theirs.in_flight;
                }
                None => self.instances.push(theirs),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::Limits;
    use crate::traffic::Outcome;
    use std::time::Duration;

    #[test]
    fn an_outage_costs_resolution_but_no_counts() {
        let service = Arc::new(Service::new("default", "hello", &Limits::default()));
        let mut reporter = Reporter::default();
        let start = Instant::now();
        for second in 0..100 {
            let t = start + Duration::from_secs(second);
            service.traffic.arrived(t);
            service.traffic.ended(Outcome::Ok, t, t);
            reporter.close_second([&service].into_iter(), t + Duration::from_secs(1));
        }
        let samples = reporter.take();
        assert_eq!(samples.len(), KEPT + 1);
        assert_eq!(samples.iter().map(|(_, s)| s.ok).sum::<u64>(), 100);
        assert_eq!(samples[0].1.seconds, 70);
        assert_eq!(samples[0].0, start + Duration::from_secs(70));
        assert_eq!(samples[KEPT].0, start + Duration::from_secs(100));
        assert!(reporter.take().is_empty());
    }

    #[test]
    fn a_quiet_service_says_nothing() {
        let service = Arc::new(Service::new("default", "hello", &Limits::default()));
        let mut reporter = Reporter::default();
        let now = Instant::now();
        reporter.close_second([&service].into_iter(), now);
        assert!(reporter.take().is_empty());
        service.traffic.arrived(now);
        reporter.close_second([&service].into_iter(), now + Duration::from_secs(1));
        let again = now + Duration::from_secs(2);
        reporter.close_second([&service].into_iter(), again);
        let samples = reporter.take();
        assert_eq!(samples.len(), 2, "one waits in both seconds");
        assert_eq!(samples[1].1.longest_gap_ms, 2000);
    }
}
