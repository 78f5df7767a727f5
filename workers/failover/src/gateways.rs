//! Which gateways there are, and from which position of the ledger their routes are.

use std::collections::BTreeMap;

use tidemill_domain::policy::liveness::{Doors, Presence};
use tidemill_domain::time::Span;
use tidemill_kit::observation::{Applied, Body, GATEWAY_LEASE, Seen};

/// How long a door has been heard since it came back, before its gateways count as known: they come back to a door that
/// restarted within this time, or their leases run.
const RETURNED: Span = Span::from_secs(2);

/// Gateways as heard. Their leases run on their doors' clocks, as nodes' silences do; the clocks are their own, since
/// they run over the past too, of which the detector of nodes knows nothing.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    doors: Doors,
    presence: Presence<String>,
    applied: BTreeMap<String, Applied>,
}

/// What the gateways say at one moment.
#[derive(Debug, Default)]
pub(crate) struct Word {
    /// Live gateways, and the routes each has reported last.
    pub(crate) live: BTreeMap<String, Option<Applied>>,
    /// Watched for long enough to know of every gateway there is.
    pub(crate) complete: bool,
}

impl Gateways {
    /// Takes one observation in, handed over at `at` on the worker's clock.
    pub(crate) fn hear(&mut self, seen: &Seen, at: Span) {
        if seen.body == Body::DoorStopping {
            self.doors.stopping(&seen.door);
            return;
        }
        self.doors.heard(&seen.door, seen.received_at, seen.sequence, at);
        let doors = &self.doors;
        match &seen.body {
            Body::GatewayBeat(beat) => {
                self.presence
                    .heard(doors, beat.gateway.clone(), &seen.door, seen.sequence);
                match beat.applied {
                    Some(applied) => self.applied.insert(beat.gateway.clone(), applied),
                    None => self.applied.remove(&beat.gateway),
                };
            }
            Body::GatewayGone { gateway, .. } => {
                self.presence.forget(gateway);
                self.applied.remove(gateway);
            }
            _ => {}
        }
    }

    /// Observations are missing.
    pub(crate) fn interrupted(&mut self) {
        self.doors.interrupted();
    }

    pub(crate) fn word(&mut self, now: Span) -> Word {
        let doors = &self.doors;
        let known: Vec<String> = self.presence.known().cloned().collect();
        let mut live = BTreeMap::new();
        for gateway in known {
            // While no door is heard, nobody knows: the gateway serves on from the routes it has.
            let silence = self.presence.silence(doors, &gateway, now);
            if silence.is_some_and(|s| s.span > GATEWAY_LEASE) {
                self.presence.forget(&gateway);
                self.applied.remove(&gateway);
            } else {
                let applied = self.applied.get(&gateway).copied();
                live.insert(gateway, applied);
            }
        }
        Word {
            live,
            complete: doors.covered() >= GATEWAY_LEASE && doors.watched() >= RETURNED,
        }
    }
}

impl Word {
    /// The first live gateway whose routes are older than record `sequence`.
    pub(crate) fn behind(&self, sequence: u64) -> Option<&str> {
        let behind = |applied: &Option<Applied>| applied.is_none_or(|a| a.sequence < sequence);
        let mut live = self.live.iter();
        live.find(|(_, applied)| behind(applied)).map(|(name, _)| name.as_str())
    }

    /// A live gateway whose routes include record `sequence`.
    pub(crate) fn knows(&self, sequence: u64) -> Option<&str> {
        let knows = |applied: &Option<Applied>| applied.is_some_and(|a| a.sequence >= sequence);
        let mut live = self.live.iter();
        live.find(|(_, applied)| knows(applied)).map(|(name, _)| name.as_str())
    }
}
