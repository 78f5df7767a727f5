//! What nodes said of themselves last, for lists, `doctor` and `/metrics`.
//!
//! Every door follows the observations, since an agent is connected to one of them and people ask any. Beats are kept
//! as the bytes they came in and read only when someone asks: ten thousand nodes beat every second, and hardly anyone
//! asks that often.
//!
//! Invariants: one beat a node is kept, and none that is older than [`STALE`]: then nothing is known, which is not the
//! same as nothing going on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tidemill_bus::observations::{Observations, ObservationsError};
use tidemill_domain::id::NodeId;
use tidemill_kit::observation::{Body, Seen};
use tidemill_protocol::agent::Beat;
use tidemill_protocol::telemetry::DeviceReading;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// From here on a beat says nothing about now.
const STALE: Duration = Duration::from_secs(15);
/// Blocks read at once.
const BATCH: usize = 64;
/// Pauses after the observations could not be read.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Telemetry {
    nodes: Mutex<BTreeMap<NodeId, Last>>,
}

#[derive(Debug)]
struct Last {
    at: Instant,
    beat: Bytes,
}

impl Telemetry {
    fn heard(&self, node: NodeId, beat: Bytes) {
        let at = Instant::now();
        self.nodes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(node, Last { at, beat });
    }

    /// The last beat of a node, its readings aged; none if nothing is known of it now.
    pub(crate) fn of(&self, node: NodeId) -> Option<Beat> {
        let (beat, age) = {
            let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let last = nodes.get(&node)?;
            (last.beat.clone(), last.at.elapsed())
        };
        if age >= STALE {
            return None;
        }
        let mut beat: Beat = serde_json::from_slice(&beat).ok()?;
        let age = age.as_millis() as u64;
        for reading in &mut beat.devices {
            reading.age_ms = reading.age_ms.saturating_add(age);
        }
        Some(beat)
    }

    fn forget_old(&self) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.retain(|_, last| last.at.elapsed() < STALE);
    }

    /// Follows the observations until `shutdown`.
    pub(crate) async fn follow(self: Arc<Self>, observations: Arc<dyn Observations>, shutdown: CancellationToken) {
        let mut pause = RETRY_MIN;
        loop {
            let error = tokio::select! {
                () = shutdown.cancelled() => return,
                ended = self.read(&*observations, &mut pause) => ended,
            };
            if pause == RETRY_MIN {
                tracing::warn!(code = error.code(), %error, "what nodes say of themselves cannot be read; trying again");
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn read(&self, observations: &dyn Observations, pause: &mut Duration) -> ObservationsError {
        // Only what comes from now on: older beats are stale before they are shown.
        let begin = match observations.bounds().await {
            Ok(bounds) => bounds.last + 1,
            Err(error) => return error,
        };
        let mut follow = match observations.follow(begin).await {
            Ok(follow) => follow,
            Err(error) => return error,
        };
        let mut tidied = Instant::now();
        loop {
            let blocks = match follow.next_batch(BATCH).await {
                Ok(blocks) => blocks,
                Err(error) => return error,
            };
            *pause = RETRY_MIN;
            for stored in blocks {
                // A block that is damaged loses a second of telemetry.
                let Ok(block) = stored.decode() else { continue };
                for seen in Seen::of_block(stored.sequence, &block).0 {
                    if let Body::NodeBeat { node, telemetry } = seen.body {
                        self.heard(node, telemetry);
                    }
                }
            }
            if tidied.elapsed() >= STALE {
                tidied = Instant::now();
                self.forget_old();
            }
        }
    }
}

/// A share in thousandths as a ratio.
pub(crate) fn ratio(milli: u32) -> f64 {
    f64::from(milli) / 1000.0
}

/// The reading of one device in a beat.
pub(crate) fn reading<'a>(beat: &'a Beat, uuid: &str) -> Option<&'a DeviceReading> {
    beat.devices.iter().find(|reading| reading.uuid == uuid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_beat_ages_and_is_forgotten() {
        let telemetry = Telemetry::default();
        let node = NodeId::from_bits(1);
        let beat = Beat {
            devices: vec![DeviceReading {
                uuid: "GPU-1".into(),
                age_ms: 200,
                ..DeviceReading::default()
            }],
            ..Beat::default()
        };
        telemetry.heard(node, serde_json::to_vec(&beat).unwrap().into());
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(telemetry.of(node).unwrap().devices[0].age_ms, 2200);
        tokio::time::advance(STALE).await;
        assert_eq!(telemetry.of(node), None);
        telemetry.forget_old();
        assert!(telemetry.nodes.lock().unwrap().is_empty());
        telemetry.heard(node, Bytes::from_static(b"not json"));
        assert_eq!(telemetry.of(node), None);
    }
}
