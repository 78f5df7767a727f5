//! Stretches of observations with their digests.

use std::collections::{BTreeMap, VecDeque};

use tidemill_domain::events::evidence::{NodeBeats, ObservationWindowSealed};
use tidemill_domain::id::NodeId;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_kit::ObservedBlock;
use tidemill_kit::observation::Body;

/// Length of a window: it ends with the first block of another such stretch of receive time.
pub const WINDOW: Span = Span::from_secs(300);
/// A window is sealed this long after its end: by then every minute in it can be closed.
const SEAL_AFTER: Span = Span::from_secs(120);
/// Windows kept at most while another process holds the role: two hours.
const KEPT: usize = 24;

/// Digest over a window's blocks: BLAKE3 over the exact bytes of each, each after its length (u64, little endian).
#[derive(Debug, Clone, Default)]
pub struct WindowDigest(blake3::Hasher);

impl WindowDigest {
    /// Takes the next block in.
    pub fn add(&mut self, block: &[u8]) {
        self.0.update(&(block.len() as u64).to_le_bytes());
        self.0.update(block);
    }

    /// The digest over what was taken in.
    pub fn finish(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }
}

/// Windows that are not sealed, the last still open.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    windows: VecDeque<Window>,
}

#[derive(Debug)]
struct Window {
    /// Number of its stretch of receive time.
    number: i64,
    first: u64,
    last: u64,
    digest: WindowDigest,
    beats: BTreeMap<NodeId, u64>,
    from: Timestamp,
    to: Timestamp,
}

impl Windows {
    /// Takes the next block in; `newest` is its latest receive time.
    pub(crate) fn add(&mut self, block: &ObservedBlock, newest: Option<Timestamp>) {
        // A block without a time that can be read belongs to the window it stands in.
        let Some(at) = newest.or(self.windows.back().map(|w| w.to)) else {
            return;
        };
        let number = at.0.div_euclid(WINDOW.micros() as i64);
        // Receive times of several doors overlap a little; a window never goes back.
        if self.windows.back().is_none_or(|w| w.number < number) {
            self.windows.push_back(Window {
                number,
                first: block.sequence,
                last: block.sequence,
                digest: WindowDigest::default(),
                beats: BTreeMap::new(),
                from: at,
                to: at,
            });
            if self.windows.len() > KEPT {
                self.windows.pop_front();
            }
        }
        let Some(window) = self.windows.back_mut() else {
            return;
        };
        window.last = block.sequence;
        window.digest.add(&block.body);
        window.from = window.from.min(at);
        window.to = window.to.max(at);
        for seen in &block.seen {
            if let Body::NodeBeat { node, .. } = seen.body {
                *window.beats.entry(node).or_default() += 1;
            }
        }
    }

    /// Drops what the ledger has sealed.
    pub(crate) fn forget_through(&mut self, sealed: u64) {
        self.windows.retain(|w| w.first > sealed);
    }

    /// The oldest window, if its time has come.
    pub(crate) fn next(&self, through: Timestamp) -> Option<ObservationWindowSealed> {
        let window = self.windows.front()?;
        let end = Timestamp((window.number + 1) * WINDOW.micros() as i64);
        if through < end + SEAL_AFTER || self.windows.len() < 2 {
            return None;
        }
        let beats = window.beats.iter();
        Some(ObservationWindowSealed {
            first: window.first,
            last: window.last,
            digest: window.digest.finish(),
            beats: beats
                .map(|(node, beats)| NodeBeats {
                    node: *node,
                    beats: *beats,
                })
                .collect(),
            from: window.from,
            to: window.to,
        })
    }
}
