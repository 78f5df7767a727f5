//! One instance from launch to end.

use std::time::Duration;

use tidemill_protocol::agent::FactBody;

use super::{
    Adopted, Because, CHECK_EVERY, CHECK_FAILURES, Core, Entry, FIRST_PROBE, Found, LAPSE_MAX, Lapse, Output,
    PROBE_GAP_MAX, PROBE_GAP_MIN, Phase, READY_AFTER, Said,
};
use crate::{InstanceId, shim::wire::Exit};

impl Core {
    pub(super) fn launched(
        &mut self,
        instance: &InstanceId,
        pid: u32,
        port: u16,
        (fetch_ms, start_ms): (u64, u64),
        now: Duration,
    ) {
        let Some(entry) = self.instances.get_mut(instance) else {
            return;
        };
        entry.pid = Some(pid);
        entry.port = port;
        let Phase::Launching { stop } = &entry.phase else {
            // An adopted instance's shim repeats what it said to the agent before.
            return;
        };
        let stop = stop.clone();
        self.launching = self.launching.saturating_sub(1);
        entry.phase = Phase::Starting {
            launched: now,
            deadline: now + entry.ready_timeout,
            next_probe: now + FIRST_PROBE,
        };
        self.fact(
            instance,
            FactBody::Started {
                pid,
                port,
                fetch_ms,
                start_ms,
            },
        );
        match stop {
            Some(reason) => self.end(instance, Because::Asked, reason),
            None => self.schedule(instance, now),
        }
    }

    pub(super) fn launch_failed(&mut self, instance: &InstanceId, code: String, reason: String) {
        let Some(entry) = self.instances.get(instance) else {
            return;
        };
        if let Phase::Ended { .. } = entry.phase {
            return;
        }
        self.finish(instance, FactBody::StartFailed { code, reason });
    }

    /// Ends a running instance for a reason of this node.
    fn end(&mut self, instance: &InstanceId, because: Because, reason: String) {
        let Some(entry) = self.instances.get_mut(instance) else {
            return;
        };
        entry.phase = Phase::Ending(because);
        let grace = entry.grace;
        self.set_timer(instance, None);
        self.out.push(Output::Stop {
            instance: instance.clone(),
            grace,
            reason,
        });
    }

    pub(super) fn exited(&mut self, instance: &InstanceId, exit: &Exit) {
        let Some(entry) = self.instances.get_mut(instance) else {
            return;
        };
        let was_ready = match entry.phase {
            Phase::Starting { .. } => false,
            Phase::Ready { .. } => true,
            _ => return,
        };
        tracing::info!(%instance, exit = describe(exit), "main process ended; ending what it left behind");
        entry.phase = Phase::Ending(Because::Own { was_ready });
        self.set_timer(instance, None);
    }

    pub(super) fn gone(&mut self, instance: &InstanceId, exit: &Exit, killed: bool) {
        let Some(entry) = self.instances.get(instance) else {
            return;
        };
        let exited = |exit: &Exit| FactBody::Exited {
            code: exit.code,
            signal: exit.signal,
            reason: describe(exit),
        };
        let early = |exit: &Exit| FactBody::StartFailed {
            code: "exited_before_ready".to_owned(),
            reason: describe(exit),
        };
        let body = match &entry.phase {
            Phase::Ready { .. } | Phase::Ending(Because::Own { was_ready: true }) => exited(exit),
            Phase::Ending(Because::Asked) | Phase::Launching { stop: Some(_) } => FactBody::Stopped { killed },
            Phase::Queued
            | Phase::Launching { .. }
            | Phase::Starting { .. }
            | Phase::Ending(Because::Own { was_ready: false }) => early(exit),
            Phase::Ending(Because::Failed { code, reason }) => FactBody::StartFailed {
                code: code.clone(),
                reason: match &exit.last_line {
                    Some(line) => format!("{reason}; its last words: {line}"),
                    None => reason.clone(),
                },
            },
            Phase::Ended { .. } => return,
        };
        self.finish(instance, body);
    }

    pub(super) fn lost(&mut self, instance: &InstanceId, reason: String) {
        let Some(entry) = self.instances.get(instance) else {
            return;
        };
        let body = match &entry.phase {
            Phase::Ended { .. } => return,
            Phase::Ending(Because::Asked) => FactBody::Stopped { killed: true },
            Phase::Ending(Because::Failed { code, reason }) => FactBody::StartFailed {
                code: code.clone(),
                reason: reason.clone(),
            },
            Phase::Queued | Phase::Launching { .. } => FactBody::StartFailed {
                code: "spawn_failed".to_owned(),
                reason,
            },
            Phase::Starting { .. } | Phase::Ready { .. } | Phase::Ending(Because::Own { .. }) => FactBody::Exited {
                code: None,
                signal: None,
                reason,
            },
        };
        self.finish(instance, body);
    }

    /// Nothing of the instance is left: its devices are free, and `body` is its last fact.
    fn finish(&mut self, instance: &InstanceId, body: FactBody) {
        self.set_timer(instance, None);
        let Some(entry) = self.instances.get_mut(instance) else {
            return;
        };
        let held = entry.holds().then(|| entry.devices.clone());
        if let Phase::Launching { .. } = entry.phase {
            self.launching = self.launching.saturating_sub(1);
        }
        entry.phase = Phase::Ended { settled: false };
        entry.plan = None;
        if let Some(devices) = held {
            self.release(&devices);
        }
        self.fact(instance, body);
    }

    pub(super) fn settled(&mut self, instances: &[InstanceId]) {
        for instance in instances {
            if let Some(entry) = self.instances.get_mut(instance)
                && let Phase::Ended { settled } = &mut entry.phase
            {
                *settled = true;
            }
        }
    }

    pub(super) fn adopt(&mut self, adopted: Adopted, now: Duration) {
        let phase = match (adopted.found, adopted.said) {
            (Found::Ended, _) => Phase::Ended { settled: false },
            (Found::Settled, _) => Phase::Ended { settled: true },
            (Found::Living, Some(Said::Ready)) => Phase::Ready {
                failures: 0,
                unready: None,
            },
            // How long it has been so is not known: it gets its time anew.
            (Found::Living, Some(Said::Unready)) => Phase::Ready {
                failures: CHECK_FAILURES,
                unready: Some(Lapse {
                    deadline: now + adopted.ready_timeout.min(LAPSE_MAX),
                    reason: "it was not ready when its agent started".to_owned(),
                }),
            },
            (Found::Living, Some(Said::Started)) => Phase::Starting {
                launched: now.saturating_sub(adopted.age),
                deadline: (now + adopted.ready_timeout).saturating_sub(adopted.age),
                next_probe: now,
            },
            // Said to nobody: its shim tells us that it started, and so do we.
            (Found::Living, None | Some(Said::Ended)) => {
                self.launching += 1;
                Phase::Launching { stop: None }
            }
        };
        let entry = Entry {
            phase,
            devices: adopted.devices,
            ready_http: adopted.ready_http,
            ready_timeout: adopted.ready_timeout,
            grace: adopted.grace,
            port: adopted.port,
            said: adopted.said,
            ..Entry::ended()
        };
        if entry.holds() {
            let devices = entry.devices.clone();
            self.hold(&devices);
        }
        self.instances.insert(adopted.instance.clone(), entry);
        self.schedule(&adopted.instance, now);
    }

    /// Sets the instance's timer to what is due next in its phase.
    fn schedule(&mut self, instance: &InstanceId, now: Duration) {
        let Some(entry) = self.instances.get(instance) else {
            return;
        };
        let at = match &entry.phase {
            Phase::Starting {
                launched,
                deadline,
                next_probe,
            } => Some(match &entry.ready_http {
                None => *launched + READY_AFTER,
                Some(_) if entry.probing => *deadline,
                Some(_) => (*next_probe).min(*deadline),
            }),
            Phase::Ready {
                unready: Some(lapse), ..
            } if entry.ready_http.is_some() => Some(match entry.probing {
                true => lapse.deadline,
                false => (now + CHECK_EVERY).min(lapse.deadline),
            }),
            Phase::Ready { .. } if entry.ready_http.is_some() && !entry.probing => Some(now + CHECK_EVERY),
            _ => None,
        };
        self.set_timer(instance, at);
    }

    /// Does all that has fallen due.
    pub(super) fn due(&mut self, now: Duration) {
        while let Some((at, instance)) = self.timers.first().cloned() {
            if at > now {
                return;
            }
            self.set_timer(&instance, None);
            self.due_one(&instance, now);
        }
    }

    fn due_one(&mut self, instance: &InstanceId, now: Duration) {
        let Some(entry) = self.instances.get_mut(instance) else {
            return;
        };
        if let Phase::Starting { launched, deadline, .. } = entry.phase {
            if entry.ready_http.is_none() {
                if now >= launched + READY_AFTER {
                    self.ready(instance, now);
                }
                return;
            }
            if now >= deadline {
                let reason = format!("it was not ready within {} ms", entry.ready_timeout.as_millis());
                let because = Because::Failed {
                    code: "not_ready_in_time".to_owned(),
                    reason: reason.clone(),
                };
                self.end(instance, because, reason);
                return;
            }
        }
        if let Phase::Ready {
            unready: Some(lapse), ..
        } = &entry.phase
            && now >= lapse.deadline
        {
            let limit = entry.ready_timeout.min(LAPSE_MAX).as_millis();
            let reason = format!("it was ready and then not for {limit} ms: {}", lapse.reason);
            let because = Because::Failed {
                code: "unready_too_long".to_owned(),
                reason: reason.clone(),
            };
            self.end(instance, because, reason);
            return;
        }
        if let (Phase::Starting { .. } | Phase::Ready { .. }, Some(path), false) =
            (&entry.phase, &entry.ready_http, entry.probing)
        {
            let probe = Output::Probe {
                instance: instance.clone(),
                port: entry.port,
                path: path.clone(),
            };
            entry.probing = true;
            self.out.push(probe);
        }
        self.schedule(instance, now);
    }

    pub(super) fn probed(&mut self, instance: &InstanceId, result: Result<(), String>, now: Duration) {
        let Some(entry) = self.instances.get_mut(instance) else {
            return;
        };
        entry.probing = false;
        match (&mut entry.phase, result) {
            (Phase::Starting { .. }, Ok(())) => return self.ready(instance, now),
            (
                Phase::Starting {
                    launched, next_probe, ..
                },
                Err(_),
            ) => {
                let gap = (now.saturating_sub(*launched) / 10).clamp(PROBE_GAP_MIN, PROBE_GAP_MAX);
                *next_probe = now + gap;
            }
            (Phase::Ready { failures, unready }, Ok(())) => {
                *failures = 0;
                if unready.take().is_some() {
                    let body = self.ready_fact(instance, Duration::ZERO);
                    self.fact(instance, body);
                }
            }
            (Phase::Ready { failures, unready }, Err(reason)) => {
                *failures = failures.saturating_add(1);
                match unready {
                    Some(lapse) => lapse.reason = reason,
                    None if *failures >= CHECK_FAILURES => {
                        let deadline = now + entry.ready_timeout.min(LAPSE_MAX);
                        *unready = Some(Lapse {
                            deadline,
                            reason: reason.clone(),
                        });
                        self.fact(instance, FactBody::Unready { reason });
                    }
                    None => {}
                }
            }
            _ => {}
        }
        self.schedule(instance, now);
    }

    fn ready(&mut self, instance: &InstanceId, now: Duration) {
        let Some(entry) = self.instances.get_mut(instance) else {
            return;
        };
        let Phase::Starting { launched, .. } = entry.phase else {
            return;
        };
        entry.phase = Phase::Ready {
            failures: 0,
            unready: None,
        };
        let body = self.ready_fact(instance, now.saturating_sub(launched));
        self.fact(instance, body);
        self.schedule(instance, now);
    }

    fn ready_fact(&self, instance: &InstanceId, load: Duration) -> FactBody {
        let port = self.instances.get(instance).map_or(0, |entry| entry.port);
        let endpoint = self.config.address.as_ref().map(|address| {
            // An IPv6 address has colons of its own.
            match address.contains(':') && !address.starts_with('[') {
                true => format!("[{address}]:{port}"),
                false => format!("{address}:{port}"),
            }
        });
        FactBody::Ready {
            endpoint,
            load_ms: u64::try_from(load.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// How a process ended, in a sentence.
fn describe(exit: &Exit) -> String {
    let mut text = match (exit.code, exit.signal) {
        _ if let Some(limit) = exit.out_of_memory => match limit {
            Some(limit) => format!(
                "killed for want of memory: it may have {} MiB (run.limits.memory)",
                limit >> 20
            ),
            None => "killed for want of memory: the node has no more".to_owned(),
        },
        (_, Some(signal)) => {
            let name = nix::sys::signal::Signal::try_from(signal)
                .map_or_else(|_| signal.to_string(), |signal| signal.to_string());
            format!("ended by signal {name}")
        }
        (Some(code), None) => format!("exited with code {code}"),
        (None, None) => "ended".to_owned(),
    };
    if let Some(line) = &exit.last_line {
        text.push_str(": ");
        text.push_str(line);
    }
    text
}
