//! Evidence: puts on the ledger what must outlive observations.
//!
//! Observations are kept for a day at most; bills, service levels, forecasts and incident pages read the ledger alone. So
//! this worker closes each minute of each service's traffic as one event, and seals stretches of observations with a
//! digest, so that what is cited from them later can be told from what was made up. Both are folds of the observations'
//! log from where the ledger says that it is sealed through, so a restart begins there and comes to the same events.
//!
//! Invariants: times are receive times less ages, on the doors' clocks; a second that nobody reported about is counted as
//! not covered, never as zero; a window is sealed only after every minute in it can be closed, so that the seal is also
//! the point from which a restart reads; a sample that comes after its minute was closed is counted in the oldest open
//! one, so that totals stay true.

mod minutes;
mod windows;

use tidemill_domain::command::Command;
use tidemill_domain::state::State;
use tidemill_domain::state::service::Lifecycle;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_kit::observation::{Body, Seen};
use tidemill_kit::{ObservedBlock, Reads, Step, StepInput, Wish, Worker};

use minutes::Minutes;
use windows::Windows;

pub use minutes::CLOSE_AFTER;
pub use windows::{WINDOW, WindowDigest};

/// The evidence worker's core.
#[derive(Debug, Default)]
pub struct Evidence {
    minutes: Minutes,
    windows: Windows,
    /// Latest receive time of any door.
    through: Option<Timestamp>,
}

impl Worker for Evidence {
    const ROLE: &'static str = "evidence";

    fn reads(&self, state: &State) -> Reads {
        Reads::From(state.cell.observations_through + 1)
    }

    fn observe(&mut self, blocks: &[ObservedBlock], _mono: Span) {
        for block in blocks {
            let newest = block.seen.iter().map(|s| s.received_at).max();
            self.through = self.through.max(newest);
            self.windows.add(block, newest);
            if let Some(through) = self.through {
                for seen in &block.seen {
                    self.take(seen, through);
                }
            }
        }
    }

    fn step(&mut self, input: StepInput<'_>) -> Step {
        let mut step = Step::default();
        let Some(through) = self.through else {
            return step;
        };
        self.close_minutes(input.state, through, &mut step);
        self.windows.forget_through(input.state.cell.observations_through);
        if let Some(window) = self.windows.next(through) {
            let observations = (window.first, window.last);
            let target = format!("observations from {}", window.first);
            let wish = Wish::about(target, Command::SealObservationWindow(window), observations);
            step.wishes.push(wish);
        }
        step
    }
}

impl Evidence {
    fn take(&mut self, seen: &Seen, through: Timestamp) {
        if let Body::GatewayBeat(beat) = &seen.body {
            self.minutes.add(beat, seen, through);
        }
    }

    /// The oldest minute that can be closed and is not, for each service: the next one follows when that is recorded.
    fn close_minutes(&mut self, state: &State, through: Timestamp, step: &mut Step) {
        self.minutes.forget(state, through);
        for service in state.services.values() {
            let active = service.lifecycle == Lifecycle::Active;
            let Some((minute, observations)) = self.minutes.oldest(service, active, through) else {
                continue;
            };
            let target = format!("{} at {}", service.id, minute.minute);
            let mut wish = Wish::about(target, Command::CloseTrafficMinute(minute), observations);
            wish.trace = service.trace;
            step.wishes.push(wish);
        }
    }
}
