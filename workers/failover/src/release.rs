//! Letting go of drained instances, and noting which are in rotation.

use std::collections::BTreeMap;

use tidemill_domain::command::{CHUNK, Command};
use tidemill_domain::id::{InstanceId, ServiceId};
use tidemill_domain::state::instance::{Instance, InstanceState};
use tidemill_domain::time::Span;
use tidemill_kit::{Step, StepInput, Wish};

use crate::gateways::Word;

/// A drained instance is released after this long even if a live gateway still has not taken newer routes: twice a
/// gateway's lease.
pub const RELEASE_CAP: Span = Span::from_secs(30);
/// Doors report an instance in rotation when a gateway says so; what is still unreported after this is made good here.
pub const IN_ROTATION_PATIENCE: Span = Span::from_secs(2);
/// How soon to look again while something waits for gateways.
const LOOK_AGAIN: Span = Span::from_secs(1);

/// Drained instances, and since when each has been waiting to be released.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    since: BTreeMap<InstanceId, Span>,
}

impl Releases {
    pub(crate) fn step(&mut self, input: &StepInput<'_>, word: &Word, step: &mut Step) {
        let mut release: BTreeMap<ServiceId, Vec<&Instance>> = BTreeMap::new();
        let mut in_rotation: BTreeMap<&str, Vec<&Instance>> = BTreeMap::new();
        let instances = &input.state.instances;
        let draining = |id: &InstanceId| {
            let state = instances.get(id).map(|i| i.state);
            matches!(state, Some(InstanceState::Draining(_)))
        };
        self.since.retain(|id, _| draining(id));
        let mut waits = false;
        for instance in instances.values() {
            match instance.state {
                InstanceState::Draining(_) if self.may_go(instance, input.mono, word) => {
                    release.entry(instance.service).or_default().push(instance);
                }
                InstanceState::Draining(_) => waits = true,
                InstanceState::Ready if !instance.standby && instance.timings.in_rotation.is_none() => {
                    let ready_for = instance.available_at().map_or(Span::ZERO, |at| input.now.since(at));
                    match word.knows(instance.changed.sequence) {
                        Some(gateway) if ready_for >= IN_ROTATION_PATIENCE => {
                            in_rotation.entry(gateway).or_default().push(instance);
                        }
                        Some(_) => waits = true,
                        None => {}
                    }
                }
                _ => {}
            }
        }
        for (service, instances) in release {
            // They leave because of what was last asked of their service, not because of what once made them.
            let asked = input.state.services.get(&service).and_then(|s| s.trace);
            for chunk in instances.chunks(CHUNK) {
                let instances = chunk.iter().map(|i| i.id).collect();
                let mut wish = Wish::about_instances(chunk[0], Command::ReleaseInstances { instances });
                wish.trace = asked.or(wish.trace);
                step.wishes.push(wish);
            }
        }
        for (gateway, instances) in in_rotation {
            for chunk in instances.chunks(CHUNK) {
                let command = Command::ReportInRotation {
                    gateway: gateway.to_owned(),
                    instances: chunk.iter().map(|i| i.id).collect(),
                };
                step.wishes.push(Wish::about_instances(chunk[0], command));
            }
        }
        if waits {
            let again = input.mono.micros() + LOOK_AGAIN.micros();
            step.wake_mono(Some(Span::from_micros(again)));
        }
    }

    /// Whether no gateway sends requests to a drained instance any more.
    fn may_go(&mut self, instance: &Instance, mono: Span, word: &Word) -> bool {
        // What never answered was in nobody's routes.
        if instance.ready_at.is_none() {
            return true;
        }
        let since = *self.since.entry(instance.id).or_insert(mono);
        if word.complete && word.behind(instance.changed.sequence).is_none() {
            return true;
        }
        let waited = Span::from_micros(mono.micros().saturating_sub(since.micros()));
        if waited < RELEASE_CAP {
            return false;
        }
        if let Some(gateway) = word.behind(instance.changed.sequence) {
            tracing::warn!(
                instance = %instance.id,
                gateway,
                "released although this gateway has not taken the routes without it for {waited}"
            );
        }
        true
    }
}
