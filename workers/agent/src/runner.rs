//! The hands of the core: launches, stops, checks, and the outbox, driven by one task.
//!
//! The task owns the core and takes inputs in whatever number is waiting, so that a burst of process events becomes one
//! batch of facts and one transaction. Nothing in it blocks but the outbox's bounded queue.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use chrono::{SecondsFormat, TimeDelta, Utc};
use tidemill_protocol::{
    Stamp,
    agent::{DesiredInstance, InstanceStatus},
};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    InstanceId,
    adopt::{End, Finding},
    clock,
    core::{Core, Input, Output},
    docker::{self, Engine, Keeper},
    launch::{Launcher, Ports},
    monitor::{Monitor, input_of},
    outbox::{Change, NewFact, Outbox},
    probe,
    shim::wire::{Ask, Notice},
};

/// Inputs taken into one batch of facts.
const BURST: usize = 1024;

/// Checks under way at a time; more wait their turn.
const MAX_PROBES: usize = 256;

/// A question to the core.
pub(crate) enum Question {
    /// What it knows of each instance.
    Statuses(oneshot::Sender<Vec<InstanceStatus>>),
}

/// What a beat says of the core.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vitals {
    pub(crate) running: u32,
    pub(crate) applied: Option<Stamp>,
}

/// The core with its hands.
pub(crate) struct Runner {
    core: Core,
    began: Instant,
    launcher: Launcher,
    engine: Engine,
    ports: Ports,
    probes: Arc<Semaphore>,
    outbox: Outbox,
    inputs: mpsc::Sender<Input>,
    vitals: watch::Sender<Vitals>,
    hands: HashMap<InstanceId, Hand>,
}

/// What is held for an instance from its launch to its end.
struct Hand {
    port: u16,
    asks: mpsc::Sender<Ask>,
}

impl Runner {
    pub(crate) fn new(
        core: Core,
        launcher: Launcher,
        engine: Engine,
        outbox: Outbox,
        inputs: mpsc::Sender<Input>,
        vitals: watch::Sender<Vitals>,
    ) -> Self {
        Self {
            core,
            began: Instant::now(),
            launcher,
            engine,
            ports: Ports::default(),
            probes: Arc::new(Semaphore::new(MAX_PROBES)),
            outbox,
            inputs,
            vitals,
            hands: HashMap::new(),
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Takes over what an earlier agent left, before anything else happens.
    pub(crate) async fn adopt(&mut self, findings: Vec<Finding>) {
        let mut change = Change::default();
        for finding in findings {
            let instance = finding.adopted.instance.clone();
            let port = finding.adopted.port;
            self.step(Input::Adopt(finding.adopted), &mut change);
            for event in finding.events {
                let input = input_of(&instance, port, event);
                self.step(input, &mut change);
            }
            match finding.end {
                End::Living(stream) => {
                    self.ports.adopt(port);
                    let monitor = self.monitor(&instance, port, None);
                    tokio::spawn(monitor.run(stream));
                }
                End::Container(spec) => {
                    self.ports.adopt(port);
                    let keeper = self.keeper(&instance, port, true);
                    tokio::spawn(keeper.run(*spec));
                }
                End::Over(Some(reason)) => {
                    self.step(Input::Lost { instance, reason }, &mut change);
                }
                End::Over(None) | End::Said => {}
            }
        }
        self.persist(change).await;
    }

    /// Runs until `shutdown`. Instances run on.
    pub(crate) async fn run(
        mut self,
        mut inputs: mpsc::Receiver<Input>,
        mut questions: mpsc::Receiver<Question>,
        shutdown: CancellationToken,
    ) {
        let mut burst = Vec::with_capacity(BURST);
        loop {
            let wake = self.core.next_wake().map(|at| self.began + at);
            let mut change = Change::default();
            tokio::select! {
                () = shutdown.cancelled() => return,
                Some(Question::Statuses(answer)) = questions.recv() => {
                    // Not waited for any more: the connection went.
                    let _ = answer.send(self.core.statuses());
                    continue;
                }
                taken = inputs.recv_many(&mut burst, BURST) => {
                    if taken == 0 {
                        return;
                    }
                    for input in burst.drain(..) {
                        self.step(input, &mut change);
                    }
                }
                () = sleep_until(wake) => self.step(Input::Tick, &mut change),
            }
            self.persist(change).await;
        }
    }

    async fn persist(&mut self, change: Change) {
        let forgotten = change.forget.clone();
        if !change.is_empty() && self.outbox.keep(change).await.is_err() {
            tracing::error!(code = "outbox_closed", "facts cannot be kept any more");
        }
        if !forgotten.is_empty() {
            let homes = self.launcher.homes.clone();
            tokio::task::spawn_blocking(move || {
                for instance in &forgotten {
                    if let Err(error) = homes.retire(instance) {
                        tracing::warn!(%instance, %error, "its directory cannot be put away");
                    }
                }
                if let Err(error) = homes.prune() {
                    tracing::warn!(%error, "old output cannot be removed");
                }
            });
        }
        self.vitals.send_replace(Vitals {
            running: self.core.running(),
            applied: self.core.applied().cloned(),
        });
    }

    fn step(&mut self, input: Input, change: &mut Change) {
        let ended = match &input {
            Input::LaunchFailed { instance, .. } | Input::Gone { instance, .. } | Input::Lost { instance, .. } => {
                Some(instance.clone())
            }
            _ => None,
        };
        if let Some(instance) = ended
            && let Some(hand) = self.hands.remove(&instance)
        {
            self.ports.give_back(hand.port);
        }
        let now = self.now();
        for output in self.core.step(input, now) {
            match output {
                Output::Remember(stamp) => change.applied = Some(stamp),
                Output::Fact { instance, body } => {
                    tracing::debug!(%instance, fact = ?body, "fact");
                    change.facts.push(NewFact {
                        instance,
                        at_ms: clock::boottime_ms(),
                        body,
                    });
                }
                Output::Forget(instance) => change.forget.push(instance),
                Output::Launch(plan) => self.launch(plan),
                Output::Stop {
                    instance,
                    grace,
                    reason,
                } => self.stop(&instance, grace, reason),
                Output::Probe { instance, port, path } => self.probe(instance, port, path),
                Output::Alarm { code, text } => tracing::error!(code, "{text}"),
            }
        }
    }

    fn monitor(&mut self, instance: &InstanceId, port: u16, shim: Option<std::process::Child>) -> Monitor {
        let (asks, asked) = mpsc::channel(4);
        self.hands.insert(instance.clone(), Hand { port, asks });
        Monitor {
            instance: instance.clone(),
            port,
            shim,
            asks: asked,
            inputs: self.inputs.clone(),
        }
    }

    fn launch(&mut self, plan: Box<DesiredInstance>) {
        let Some(instance) = InstanceId::parse(&plan.instance) else {
            return;
        };
        let port = self.ports.take();
        if plan.run.runtime == "docker" {
            return self.launch_container(instance, plan, port);
        }
        let mut monitor = self.monitor(&instance, *port.as_ref().unwrap_or(&0), None);
        let launcher = self.launcher.clone();
        tokio::spawn(async move {
            let launched = tokio::task::spawn_blocking({
                let instance = instance.clone();
                move || launcher.launch(&instance, &plan, port?)
            })
            .await;
            match launched.unwrap_or_else(|panic| Err(panic.into())) {
                Ok(launched) => {
                    monitor.shim = Some(launched.shim);
                    monitor.run(launched.stream).await;
                }
                // Refused only while the agent ends.
                Err(error) => {
                    let _ = monitor.inputs.send(error.of(instance)).await;
                }
            }
        });
    }

    fn keeper(&mut self, instance: &InstanceId, port: u16, made: bool) -> Keeper {
        let (asks, asked) = mpsc::channel(4);
        self.hands.insert(instance.clone(), Hand { port, asks });
        let dir = self.launcher.homes.of(instance);
        Keeper {
            engine: self.engine.clone(),
            held: self.engine.hold(instance),
            instance: instance.clone(),
            // What the engine mounts it is told by absolute path.
            dir: std::path::absolute(&dir).unwrap_or(dir),
            boot_id: self.launcher.boot_id.clone(),
            made,
            asks: asked,
            inputs: self.inputs.clone(),
        }
    }

    fn launch_container(&mut self, instance: InstanceId, plan: Box<DesiredInstance>, port: std::io::Result<u16>) {
        let keeper = self.keeper(&instance, *port.as_ref().unwrap_or(&0), false);
        let (launcher, engine, inputs) = (self.launcher.clone(), self.engine.clone(), self.inputs.clone());
        tokio::spawn(async move {
            let prepared = tokio::task::spawn_blocking({
                let instance = instance.clone();
                move || docker::prepare(&launcher, &engine, &instance, &plan, port?)
            })
            .await;
            match prepared.unwrap_or_else(|panic| Err(panic.into())) {
                Ok(spec) => keeper.run(spec).await,
                // Refused only while the agent ends.
                Err(error) => {
                    let _ = inputs.send(error.of(instance)).await;
                }
            }
        });
    }

    fn stop(&self, instance: &InstanceId, grace: Duration, reason: String) {
        let Some(hand) = self.hands.get(instance) else {
            return;
        };
        let deadline = TimeDelta::from_std(grace)
            .ok()
            .and_then(|grace| Utc::now().checked_add_signed(grace))
            .unwrap_or_else(Utc::now);
        let ask = Ask::Stop {
            grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
            notice: Notice {
                kind: "stop".to_owned(),
                deadline: deadline.to_rfc3339_opts(SecondsFormat::Secs, true),
                reason,
            },
        };
        // Asked once a life, so there is room; gone means that its end is being reported.
        let _ = hand.asks.try_send(ask);
    }

    fn probe(&self, instance: InstanceId, port: u16, path: String) {
        let (inputs, probes) = (self.inputs.clone(), Arc::clone(&self.probes));
        tokio::spawn(async move {
            let Ok(_permit) = probes.acquire().await else {
                return;
            };
            let result = probe::probe(port, &path).await;
            let _ = inputs.send(Input::Probed { instance, result }).await;
        });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
