//! Following the desired state: which snapshot counts, and what follows from it.

use std::{collections::BTreeSet, time::Duration};

use tidemill_protocol::{
    Stamp,
    agent::{Desired, DesiredInstance, FactBody, Want},
};

use super::{Because, Core, Entry, Output, Phase};
use crate::InstanceId;

/// What to do with a snapshot.
enum Verdict {
    Follow,
    Ignore,
}

impl Core {
    pub(super) fn desired(&mut self, desired: Desired) {
        let first = std::mem::take(&mut self.greeted);
        if let Verdict::Ignore = self.judge(&desired.stamp, first) {
            return;
        }
        let mut listed = BTreeSet::new();
        for wish in desired.instances {
            let Some(instance) = InstanceId::parse(&wish.instance) else {
                self.out.push(Output::Alarm {
                    code: "bad_instance_id",
                    text: format!("the control plane named an instance `{}`", wish.instance),
                });
                continue;
            };
            listed.insert(instance.clone());
            match &wish.want {
                Want::Run => self.wanted(instance, wish),
                Want::Stop { reason } => {
                    let reason = reason.clone();
                    self.unwanted(&instance, &reason);
                }
                Want::Unknown => {}
            }
        }
        let unlisted: Vec<InstanceId> = self
            .instances
            .keys()
            .filter(|instance| !listed.contains(instance))
            .cloned()
            .collect();
        for instance in unlisted {
            if self.instances.get(&instance).map(|entry| &entry.phase) == Some(&Phase::Ended { settled: true }) {
                self.set_timer(&instance, None);
                self.instances.remove(&instance);
                self.out.push(Output::Forget(instance));
            } else {
                self.unwanted(&instance, "the control plane does not list it any more");
            }
        }
        if self.applied.as_ref() != Some(&desired.stamp) {
            self.out.push(Output::Remember(desired.stamp.clone()));
            self.applied = Some(desired.stamp);
        }
    }

    fn judge(&mut self, stamp: &Stamp, first: bool) -> Verdict {
        let Some(applied) = &self.applied else {
            return Verdict::Follow;
        };
        if stamp.covers(applied) {
            return Verdict::Follow;
        }
        if stamp.same_ledger(applied) {
            // Within a connection a snapshot may be overtaken by a newer one. The first of a connection being older
            // means that a server lags, or that its ledger was restored from a copy.
            if first {
                self.out.push(Output::Alarm {
                    code: "ledger_went_backwards",
                    text: format!(
                        "the server's ledger is at epoch {} sequence {}, this node has acted on epoch {} sequence {}; \
                         work goes on as it is until the ledger is past that again. If it was restored from a \
                         backup, check what was lost",
                        stamp.epoch, stamp.sequence, applied.epoch, applied.sequence
                    ),
                });
            }
            return Verdict::Ignore;
        }
        let confirmed = self.config.accept_ledger.as_deref() == Some(&stamp.ledger);
        if confirmed || !self.instances.values().any(Entry::lives) {
            return Verdict::Follow;
        }
        if first {
            self.out.push(Output::Alarm {
                code: "ledger_went_backwards",
                text: format!(
                    "the server keeps ledger {} of cell {}, this node follows ledger {} of cell {} and has work \
                     running; nothing is started or stopped. To follow the new ledger, start the agent with it as \
                     accepted ledger",
                    stamp.ledger, stamp.cell, applied.ledger, applied.cell
                ),
            });
        }
        Verdict::Ignore
    }

    fn wanted(&mut self, instance: InstanceId, wish: DesiredInstance) {
        // Known in any phase: it runs, will, or did. A name lives once.
        if let Some(entry) = self.instances.get_mut(&instance) {
            if entry.phase == Phase::Queued {
                *entry = Entry::planned(wish);
            }
            return;
        }
        self.instances.insert(instance.clone(), Entry::planned(wish));
        self.queue.push_back(instance);
    }

    fn unwanted(&mut self, instance: &InstanceId, reason: &str) {
        let Some(entry) = self.instances.get_mut(instance) else {
            // Nothing of it is here, which is what its stop asks for; the ledger waits for our word.
            self.instances.insert(instance.clone(), Entry::ended());
            self.fact(instance, FactBody::Stopped { killed: false });
            return;
        };
        match &mut entry.phase {
            Phase::Queued => {
                entry.phase = Phase::Ended { settled: false };
                self.fact(instance, FactBody::Stopped { killed: false });
            }
            Phase::Launching { stop } => {
                if stop.is_none() {
                    *stop = Some(reason.to_owned());
                    // What takes long (a pull) is given up; what does not is stopped as soon as it runs.
                    self.out.push(Output::Stop {
                        instance: instance.clone(),
                        grace: entry.grace,
                        reason: reason.to_owned(),
                    });
                }
            }
            Phase::Starting { .. } | Phase::Ready { .. } => {
                entry.phase = Phase::Ending(Because::Asked);
                let grace = entry.grace;
                self.set_timer(instance, None);
                self.out.push(Output::Stop {
                    instance: instance.clone(),
                    grace,
                    reason: reason.to_owned(),
                });
            }
            Phase::Ending(_) | Phase::Ended { .. } => {}
        }
    }
}

impl Entry {
    fn planned(wish: DesiredInstance) -> Self {
        Self {
            phase: Phase::Queued,
            devices: wish.devices.clone(),
            ready_http: wish.run.ready_http.clone(),
            ready_timeout: Duration::from_millis(wish.run.ready_timeout_ms),
            grace: Duration::from_millis(wish.run.stop_grace_ms),
            port: 0,
            pid: None,
            said: None,
            plan: Some(Box::new(wish)),
            timer: None,
            probing: false,
        }
    }

    pub(super) fn ended() -> Self {
        Self {
            phase: Phase::Ended { settled: false },
            devices: Vec::new(),
            ready_http: None,
            ready_timeout: Duration::ZERO,
            grace: Duration::ZERO,
            port: 0,
            pid: None,
            said: None,
            plan: None,
            timer: None,
            probing: false,
        }
    }

    /// Something of it is here, or is about to be.
    fn lives(&self) -> bool {
        !matches!(self.phase, Phase::Ended { .. })
    }
}
