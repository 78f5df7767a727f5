//! Closing switches, and putting on record that a drained node is empty.
//!
//! What customers noticed of a switch is what the gateways saw of its service from the last sign of life of the old
//! instance until the new one had served for [`SETTLE`]. The seconds are kept here for a while as they come in, on this
//! worker's own clock: gateways tell how long ago each ended, so no two machines' clocks are compared.

use std::collections::{BTreeMap, VecDeque};

use tidemill_domain::command::{CloseSwitch, Command};
use tidemill_domain::commit::Cause;
use tidemill_domain::events::switch::{SwitchEffect, SwitchOutcome};
use tidemill_domain::id::ServiceId;
use tidemill_domain::state::State;
use tidemill_domain::state::instance::{Instance, InstanceState};
use tidemill_domain::state::node::Intake;
use tidemill_domain::state::service::Lifecycle;
use tidemill_domain::state::switch::Switch;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_kit::observation::{Body, Seen};
use tidemill_kit::{Step, StepInput, Wish};

/// A switch is closed this long after its replacement came into rotation: by then the seconds before it are reported.
pub const SETTLE: Span = Span::from_secs(3);
/// A replacement that no gateway has reported in rotation counts as serving after this long: nobody uses the service.
const UNUSED: Span = Span::from_secs(10);
/// How long seconds of traffic are kept: longer than a replacement of a large model takes is told in part only.
const KEPT: Span = Span::from_secs(900);

/// One reported second of a service (or several, summed by a gateway that could not report).
#[derive(Debug, Clone, Copy)]
struct Second {
    /// When it ended, on this worker's clock.
    ended: Span,
    seconds: u32,
    failed: u64,
    cut: u64,
    gap: Span,
}

/// Traffic lately seen, by service.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    traffic: BTreeMap<ServiceId, VecDeque<Second>>,
}

impl Switches {
    /// Takes one observation in, handed over at `mono` on the worker's clock.
    pub(crate) fn hear(&mut self, seen: &Seen, mono: Span) {
        let Body::GatewayBeat(beat) = &seen.body else { return };
        for sample in &beat.samples {
            let seconds = self.traffic.entry(sample.service).or_default();
            seconds.push_back(Second {
                ended: minus(mono, sample.age),
                seconds: sample.seconds.max(1),
                failed: sample.requests.failed,
                cut: sample.requests.cut_streams,
                gap: sample.longest_gap,
            });
            while seconds.front().is_some_and(|s| s.ended < minus(mono, KEPT)) {
                seconds.pop_front();
            }
        }
    }

    pub(crate) fn step(&mut self, input: &StepInput<'_>, step: &mut Step) {
        self.traffic.retain(|id, _| input.state.services.contains_key(id));
        for switch in input.state.switches.values().filter(|switch| switch.is_open()) {
            match outcome(input.state, switch, input.now) {
                Verdict::Over(outcome) => {
                    let effect = self.effect(input, switch);
                    let close = CloseSwitch {
                        switch: switch.id,
                        outcome,
                        effect,
                    };
                    step.wishes.push(wish(switch, Command::CloseSwitch(close)));
                }
                Verdict::LookAgain(at) => step.wake_at(Some(at)),
                Verdict::Open => {}
            }
        }
        for node in input.state.nodes.values() {
            let draining = matches!(node.intake, Intake::Draining(_));
            let left = |id| {
                let instance = input.state.instances.get(id);
                instance.is_some_and(|i: &Instance| i.holding || !i.state.ended())
            };
            if draining && !node.instances.iter().any(left) {
                step.wishes.push(Wish {
                    command: Command::SettleDrain { node: node.id },
                    target: node.id.to_string(),
                    version: node.changed,
                    cause: Cause::Event(node.changed),
                    trace: None,
                });
            }
        }
    }

    /// What the gateways saw of the switch's service, from the last sign of life until now.
    fn effect(&self, input: &StepInput<'_>, switch: &Switch) -> SwitchEffect {
        let open_for = input.now.since(switch.opened_at);
        let from = minus(input.mono, plus(open_for, switch.detect.unwrap_or(Span::ZERO)));
        let seconds = self.traffic.get(&switch.service).into_iter().flatten();
        let mut effect = SwitchEffect::default();
        for second in seconds.filter(|second| second.ended >= from) {
            effect.covered_seconds = effect.covered_seconds.saturating_add(second.seconds);
            effect.failed_requests += second.failed;
            effect.cut_streams += second.cut;
            effect.longest_gap = effect.longest_gap.max(second.gap);
        }
        effect
    }
}

/// How a switch stands.
enum Verdict {
    Over(SwitchOutcome),
    LookAgain(Timestamp),
    Open,
}

fn outcome(state: &State, switch: &Switch, now: Timestamp) -> Verdict {
    let service = state.services.get(&switch.service);
    let Some(service) = service.filter(|s| s.lifecycle == Lifecycle::Active && s.desired > 0) else {
        return Verdict::Over(SwitchOutcome::NotNeeded);
    };
    let old = state.instances.get(&switch.instance);
    let replacement = switch.replacement.and_then(|id| state.instances.get(&id));
    let serves = replacement.filter(|i| i.serves());
    if let Some(since) = serves.and_then(Instance::in_rotation_at) {
        // A planned switch is over when the old one is gone; an unplanned one when it is not needed any more.
        let gone = old.is_none_or(|i| i.state.ended());
        if switch.cause.is_planned() && !gone {
            return Verdict::Open;
        }
        let due = since + SETTLE;
        return match now < due {
            true => Verdict::LookAgain(due),
            false => Verdict::Over(SwitchOutcome::Replaced),
        };
    }
    // It serves where it was, and nobody wants it elsewhere any more.
    let stays = |i: &&Instance| {
        let lives = matches!(
            i.state,
            InstanceState::Placed | InstanceState::Starting | InstanceState::Ready
        );
        lives && !i.standby && state.displaced(i).is_none()
    };
    if old.filter(stays).is_some() {
        return Verdict::Over(SwitchOutcome::Recovered);
    }
    if serves.is_some() {
        let due = serves.and_then(Instance::available_at).map_or(now, |at| at + UNUSED);
        return match now < due {
            true => Verdict::LookAgain(due),
            false => Verdict::Over(SwitchOutcome::Replaced),
        };
    }
    let going = old.is_none_or(|i| i.state.ended() || i.state.leaving());
    let coming = replacement.is_some_and(|i| !i.state.ended() && !i.state.leaving());
    let live = service.live.iter().filter_map(|id| state.instances.get(id));
    let staying = live.filter(stays).count();
    match going && !coming && staying >= service.desired as usize {
        true => Verdict::Over(SwitchOutcome::NotNeeded),
        false => Verdict::Open,
    }
}

fn wish(switch: &Switch, command: Command) -> Wish {
    Wish {
        command,
        target: switch.id.to_string(),
        version: switch.changed,
        cause: Cause::Event(switch.changed),
        trace: switch.trace,
    }
}

fn plus(a: Span, b: Span) -> Span {
    Span::from_micros(a.micros().saturating_add(b.micros()))
}

fn minus(a: Span, b: Span) -> Span {
    Span::from_micros(a.micros().saturating_sub(b.micros()))
}
