//! Which gateways there are, and from which position of the ledger their routes are.

use std::collections::BTreeMap;

use tidemill_domain::policy::liveness::{Doors, Presence};
use tidemill_domain::time::Span;
use tidemill_kit::observation::{Applied, Body, GATEWAY_LEASE, Seen};

/// Gateways as heard. Their leases run on their doors' clocks, as nodes' silences do.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
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
    /// Takes one observation in; the doors' clocks have been moved before.
    pub(crate) fn hear(&mut self, doors: &Doors, seen: &Seen) {
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

    pub(crate) fn word(&mut self, doors: &Doors, now: Span) -> Word {
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
            complete: doors.watched() >= GATEWAY_LEASE,
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
