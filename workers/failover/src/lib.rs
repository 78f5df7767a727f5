//! Failover: notices nodes that are gone, and lets go of instances that nobody sends requests to any more.
//!
//! Nodes are judged by the pure [`Detector`] from what doors heard; a node that is given up takes its instances with it,
//! and the scheduler replaces them because they are missing, not because it was told. An instance that was drained is
//! released, which is when its node stops it, once every live gateway has reported routes that know of the drain, or has
//! been silent for its lease: so no gateway sends a request to a process that is being stopped.
//!
//! Invariants: a door that is not heard costs nobody anything; a gateway that has not been heard *yet* may exist, so
//! nothing is released on the absence of gateways before a whole lease of watching, the past read back included; a drain ends at the latest after
//! [`RELEASE_CAP`], with a warning that names who held it up.

mod breaker;
mod gateways;
mod release;
mod switches;

use tidemill_domain::command::Command;
use tidemill_domain::policy::liveness::{Detector, Heard};
use tidemill_domain::state::State;
use tidemill_domain::time::Span;
use tidemill_kit::observation::Body;
use tidemill_kit::{ObservedBlock, Reads, Step, StepInput, Wish, Worker};

use gateways::Gateways;
use release::Releases;
use switches::Switches;

pub use release::{IN_ROTATION_PATIENCE, RELEASE_CAP};
pub use switches::SETTLE;

/// Blocks of the past that are read at the start. A door publishes at most ten a second, so with a few doors they reach
/// back over a gateway's lease; where they do not, the rest of the lease is watched.
const PAST: u64 = 1024;

/// The failover worker's core.
#[derive(Debug, Default)]
pub struct Failover {
    detector: Detector,
    gateways: Gateways,
    releases: Releases,
    switches: Switches,
}

impl Worker for Failover {
    const ROLE: &'static str = "failover";

    fn reads(&self, _state: &State) -> Reads {
        // The past says nothing about which nodes are alive: they get a grace instead. Which gateways hold leases it does
        // say.
        Reads::Lately(PAST)
    }

    fn observe(&mut self, blocks: &[ObservedBlock], mono: Span) {
        for block in blocks {
            for seen in &block.seen {
                if !block.past {
                    self.switches.hear(seen, mono);
                    self.detector
                        .hear(&seen.door, seen.received_at, seen.sequence, mono, &heard(&seen.body));
                }
                self.gateways.hear(seen, mono);
            }
        }
    }

    fn missed(&mut self) {
        self.detector.interrupted();
        self.gateways.interrupted();
    }

    fn step(&mut self, input: StepInput<'_>) -> Step {
        let mut step = Step::default();
        let tripped = input.state.breaker_tripped();
        for verdict in self.detector.verdicts(input.state, input.mono) {
            // Nothing is given up before an operator has judged the loss; the verdict will be the same then.
            if tripped && matches!(verdict.command, Command::LoseNode { .. }) {
                continue;
            }
            if let Some(node) = input.state.nodes.get(&verdict.node) {
                let wish = Wish::about_node(node, verdict.command, verdict.observations);
                step.wishes.push(wish);
            }
        }
        step.wishes.extend(breaker::reset(input.state));
        let word = self.gateways.word(input.mono);
        self.releases.step(&input, &word, &mut step);
        self.switches.step(&input, &mut step);
        step
    }
}

/// What an observation says to the detector.
fn heard(body: &Body) -> Heard {
    match body {
        Body::DoorStopping => Heard::DoorStopping,
        Body::NodeBeat { node, .. } => Heard::Beat(*node),
        Body::NodeConnected { node, connection } => Heard::Connected(*node, *connection),
        Body::NodeDisconnected { node, connection, .. } => Heard::Disconnected(*node, *connection),
        Body::NodeGoodbye { node, leaving, reason } => Heard::Goodbye {
            node: *node,
            leaving: *leaving,
            reason: reason.clone(),
        },
        // Whatever else a door publishes shows that it is there.
        Body::DoorBeat | Body::GatewayBeat(_) | Body::GatewayGone { .. } | Body::Suspicion { .. } => Heard::Door,
    }
}
