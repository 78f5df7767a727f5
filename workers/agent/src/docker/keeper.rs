//! The task that keeps one container: image, start, output, stop, end, removal.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{
    models::{ContainerState, ContainerStateStatusEnum as Status, CreateImageInfo},
    query_parameters::{CreateImageOptions, WaitContainerOptions},
};
use futures::StreamExt;
use tidemill_client::Backoff;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    SHARED,
    engine::{Engine, Held, Trouble, name_of, with_tag},
    output::Log,
};
use crate::{
    InstanceId,
    core::Input,
    monitor::input_of,
    shim::wire::{self, Ask, Container, Event, Exit, Identity, Notice, Spec, State},
};

/// A pull that says nothing for so long has stalled: layers report several times a second, also while they are unpacked.
const PULL_SILENCE: Duration = Duration::from_secs(180);

/// Between two lines of a pull's progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// Between two SIGKILLs, should the engine have missed one.
const SWEEP: Duration = Duration::from_secs(1);

/// Exit code of what was ended by SIGKILL.
const SIGKILLED: i64 = 137;

/// How the engine's init process says that there is nothing it could start.
const INIT_FAILED: &str = "[FATAL tini";

/// What is left of the output arrives within this once the container ended.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// What a keeper needs.
pub(crate) struct Keeper {
    pub(crate) engine: Engine,
    pub(crate) held: Held,
    pub(crate) instance: InstanceId,
    /// Its directory.
    pub(crate) dir: PathBuf,
    pub(crate) boot_id: String,
    /// There may be a container: an agent before this one began it, or this one asked for it.
    pub(crate) made: bool,
    pub(crate) asks: mpsc::Receiver<Ask>,
    pub(crate) inputs: mpsc::Sender<Input>,
}

/// How a container's life ended.
enum End {
    Failed { code: String, reason: String },
    Gone { exit: Exit, killed: bool },
    Lost(String),
}

fn failed(code: &str, reason: impl Into<String>) -> End {
    End::Failed {
        code: code.to_owned(),
        reason: reason.into(),
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        failed(
            "spawn_failed",
            format!("its directory on the node cannot be used: {error}"),
        )
    }
}

impl Keeper {
    /// Brings the container of `spec` to life, or goes on with one, until nothing is left of it.
    pub(crate) async fn run(mut self, spec: Spec) {
        let Some(container) = spec.container.clone() else {
            return;
        };
        let dir = self.dir.clone();
        let kept: Option<State> = wire::read(&dir.join(wire::STATE)).unwrap_or_default();
        let mut events = kept.map(|state| state.events).unwrap_or_default();
        let began = events.iter().any(|event| matches!(event, Event::Started { .. }));
        for event in events.iter().filter(|event| !is_last(event)) {
            self.tell(input_of(&self.instance, spec.port, event.clone())).await;
        }
        let last = match events.iter().find(|event| is_last(event)) {
            Some(last) => Ok(last.clone()),
            None => match self.live(&spec, &container, began, &mut events).await {
                Ok(end) | Err(end) => match end {
                    End::Failed { code, reason } => Ok(Event::Failed { code, reason }),
                    End::Gone { exit, killed } => Ok(Event::Gone { exit, killed }),
                    End::Lost(reason) => Err(reason),
                },
            },
        };
        if let Ok(last) = &last
            && !events.contains(last)
        {
            events.push(last.clone());
            self.keep(&events);
        }
        if self.made {
            self.remove(&spec.instance).await;
        }
        let input = match last {
            Ok(last) => input_of(&self.instance, spec.port, last),
            Err(reason) => Input::Lost {
                instance: self.instance.clone(),
                reason,
            },
        };
        // Before the end is told: the instance may be forgotten then, and nothing of it is left.
        drop(self.held);
        // Refused only while the agent ends; the state file tells the next one.
        let _ = self.inputs.send(input).await;
    }

    async fn tell(&self, input: Input) {
        let _ = self.inputs.send(input).await;
    }

    /// Keeps what happened, for an agent that comes later.
    fn keep(&self, events: &[Event]) {
        let state = State {
            boot_id: self.boot_id.clone(),
            shim: Identity { pid: 0, start: 0 },
            main: None,
            events: events.to_vec(),
        };
        if let Err(error) = wire::replace(&self.dir.join(wire::STATE), &state) {
            tracing::warn!(instance = %self.instance, %error, "its state cannot be kept");
        }
    }

    async fn live(
        &mut self,
        spec: &Spec,
        container: &Container,
        began: bool,
        events: &mut Vec<Event>,
    ) -> Result<End, End> {
        let mut log = Log::open(&self.dir)?;
        if spec.boot_id != self.boot_id {
            return Ok(End::Lost("the machine was restarted".to_owned()));
        }
        let launch = Instant::now();
        let wait = self.made;
        let mut state = self.found(spec, wait).await?;
        let mut fetch = Duration::ZERO;
        if state.is_none() {
            if began {
                return Ok(End::Lost("its container was removed by someone else".to_owned()));
            }
            self.image(&container.image, &mut log).await?;
            fetch = launch.elapsed();
            self.made = true;
            match self.engine.create(spec, container, &self.dir).await {
                Ok(()) => {}
                // What an agent before us asked for arrived late.
                Err(trouble) if trouble.status() == Some(409) => {}
                Err(trouble) => return Err(refused("the container cannot be created", &trouble)),
            }
            state = self.found(spec, true).await?;
        }
        let mut state = state.ok_or_else(|| failed("spawn_failed", "its container vanished before it was started"))?;
        if !began && matches!(state.status, Some(Status::CREATED)) {
            if let Some(end) = self.cancelled() {
                return Ok(end);
            }
            if let Err(trouble) = self.engine.start(&spec.instance).await {
                return Err(refused("the container cannot be started", &trouble));
            }
            state = self
                .found(spec, true)
                .await?
                .ok_or_else(|| failed("spawn_failed", "its container vanished as it was started"))?;
        }
        if !began {
            let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            let started = Event::Started {
                pid: state.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0),
                start_ms: millis(launch.elapsed().saturating_sub(fetch)),
                fetch_ms: millis(fetch),
            };
            events.push(started.clone());
            self.keep(events);
            self.tell(input_of(&self.instance, spec.port, started)).await;
        }
        let (over, ended) = watch::channel(false);
        let output = tokio::spawn(log.follow(self.engine.clone(), spec.instance.clone(), ended));
        let (state, killed) = self.follow(spec).await;
        over.send_replace(true);
        let last_line = timeout(LAST_OUTPUT, output).await.ok().and_then(Result::ok).flatten();
        Ok(match state {
            Some(state) => self.end_of(spec, container, state, killed, last_line).await,
            None if killed => End::Gone {
                exit: Exit::default(),
                killed,
            },
            None => End::Lost("its container was removed by someone else".to_owned()),
        })
    }

    /// What the container came to, whose last line of stderr was this.
    async fn end_of(
        &self,
        spec: &Spec,
        container: &Container,
        state: ContainerState,
        killed: bool,
        mut last_line: Option<String>,
    ) -> End {
        let mut out_of_memory = state.oom_killed.unwrap_or(false);
        if let (false, false, Some(SIGKILLED), Some(limit)) =
            (out_of_memory, killed, state.exit_code, container.memory_bytes)
        {
            out_of_memory = self.engine.saw_out_of_memory(&spec.instance, &state).await;
            if !out_of_memory {
                // Engines miss the kernel's word of it at times, so it is not said as a fact.
                let mib = limit >> 20;
                let hint =
                    format!("SIGKILL, not from its agent; most likely want of memory, of which it may have {mib} MiB");
                last_line = Some(match last_line {
                    Some(line) => format!("{hint}; its last words: {line}"),
                    None => hint,
                });
            }
        }
        if let Some(line) = last_line
            .as_ref()
            .filter(|line| line.starts_with(INIT_FAILED) && !killed)
        {
            let (code, what) = match state.exit_code {
                Some(126) => ("command_not_executable", "may not be executed"),
                _ => ("command_not_found", "is not"),
            };
            let command = spec.command.first().map_or("its command", String::as_str);
            return failed(code, format!("`{command}` {what} in image {}: {line}", container.image));
        }
        let exit = Exit {
            code: state.exit_code.and_then(|code| i32::try_from(code).ok()),
            signal: None,
            last_line: last_line.or_else(|| state.error.filter(|error| !error.is_empty())),
            out_of_memory: out_of_memory.then_some(container.memory_bytes),
        };
        End::Gone { exit, killed }
    }

    /// The container's state. An engine that does not answer fails a launch and is waited for otherwise.
    async fn found(&mut self, spec: &Spec, wait: bool) -> Result<Option<ContainerState>, End> {
        let mut backoff = Backoff::default();
        loop {
            match self.engine.find(spec).await {
                Ok(found) => return Ok(found),
                Err(trouble) if trouble.status() == Some(409) => {
                    self.made = false;
                    return Err(failed("container_name_taken", trouble.to_string()));
                }
                Err(trouble) if !wait => {
                    return Err(failed(
                        "engine_unreachable",
                        format!("{trouble}; start the engine on this node, or use runtime process"),
                    ));
                }
                Err(trouble) => {
                    tracing::warn!(code = "engine_unreachable", instance = %self.instance, %trouble, "asking again")
                }
            }
            sleep(backoff.next_wait()).await;
        }
    }

    /// An end, if a stop was asked for before there was anything to stop.
    fn cancelled(&mut self) -> Option<End> {
        self.asks.try_recv().ok().map(|_| End::Gone {
            exit: Exit::default(),
            killed: false,
        })
    }

    /// Sees to it that the image is on the node.
    async fn image(&mut self, image: &str, log: &mut Log) -> Result<(), End> {
        let unreachable = |trouble: &Trouble| failed("engine_unreachable", trouble.to_string());
        let client = self.engine.client().await.map_err(|trouble| unreachable(&trouble))?;
        let whole = with_tag(image);
        match client.inspect_image(&whole).await {
            Ok(_) => return Ok(()),
            Err(error) => match self.engine.trouble(error) {
                trouble if trouble.status() == Some(404) => {}
                trouble => return Err(unreachable(&trouble)),
            },
        }
        log.say(&format!("pulling {whole}"));
        let options = CreateImageOptions {
            from_image: Some(whole.clone()),
            ..CreateImageOptions::default()
        };
        let mut answers = std::pin::pin!(client.create_image(Some(options), None, None));
        let mut progress = Progress::default();
        let mut said = Instant::now();
        loop {
            let answer = tokio::select! {
                answer = timeout(PULL_SILENCE, answers.next()) => answer,
                Some(_) = self.asks.recv() => {
                    log.say("the pull was given up: the instance is to stop");
                    return Err(End::Gone { exit: Exit::default(), killed: false });
                }
            };
            let problem = match answer {
                Ok(Some(Ok(info))) => match &info.error_detail {
                    Some(detail) => detail.message.clone().unwrap_or_default(),
                    None => {
                        progress.take(&info);
                        if said.elapsed() >= PROGRESS_EVERY {
                            said = Instant::now();
                            log.say(&format!("pulling {whole}: {progress}"));
                        }
                        continue;
                    }
                },
                Ok(Some(Err(error))) => self.engine.trouble(error).to_string(),
                Ok(None) => {
                    // The stream ends without a word also where the engine gave up.
                    if client.inspect_image(&whole).await.is_ok() {
                        log.say(&format!("{whole} is there"));
                        return Ok(());
                    }
                    "the engine ended the pull without saying why".to_owned()
                }
                Err(_) => format!("nothing came for {} s", PULL_SILENCE.as_secs()),
            };
            log.say(&format!("{whole} cannot be pulled: {problem}"));
            let low = problem.to_ascii_lowercase();
            let unknown = ["not found", "manifest unknown", "does not exist", "access denied"];
            return Err(match unknown.iter().any(|word| low.contains(word)) {
                true => failed(
                    "image_not_found",
                    format!(
                        "image {whole} is not on the node and its registry does not give it out: {problem}; check the \
                         name, or log the node's engine in"
                    ),
                ),
                false => failed(
                    "image_pull_failed",
                    format!(
                        "image {whole} is not on the node and cannot be pulled: {problem}; check that the node reaches \
                         the registry, or load the image there with `docker load`"
                    ),
                ),
            });
        }
    }

    /// Waits for the container's end, and brings it about when asked. `None`: the container was removed.
    async fn follow(&mut self, spec: &Spec) -> (Option<ContainerState>, bool) {
        let engine = self.engine.clone();
        let mut ended = std::pin::pin!(ended(&engine, spec));
        let (mut kill_at, mut asked, mut killed): (Option<Instant>, bool, bool) = (None, false, false);
        loop {
            tokio::select! {
                state = &mut ended => return (state, killed),
                Some(Ask::Stop { grace_ms, notice }) = self.asks.recv() => {
                    let at = Instant::now() + Duration::from_millis(grace_ms);
                    kill_at = Some(kill_at.map_or(at, |earlier| earlier.min(at)));
                    if !std::mem::replace(&mut asked, true) {
                        give_notice(&self.dir, &notice);
                        self.signal(&spec.instance, "SIGTERM").await;
                    }
                }
                () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                    killed = true;
                    self.signal(&spec.instance, "SIGKILL").await;
                    kill_at = Some(Instant::now() + SWEEP);
                }
            }
        }
    }

    async fn signal(&self, instance: &str, signal: &str) {
        // SIGKILL is sent until the container has ended, and follows a SIGTERM that did not arrive.
        if let Err(trouble) = self.engine.signal(instance, signal).await {
            tracing::warn!(instance, signal, %trouble, "a signal could not be sent");
        }
    }

    /// Removes the container, however long that takes: only then is nothing left.
    async fn remove(&self, instance: &str) {
        let mut backoff = Backoff::default();
        while let Err(trouble) = self.engine.remove(&name_of(instance)).await {
            tracing::warn!(code = "container_not_removed", instance, %trouble, "trying again");
            sleep(backoff.next_wait()).await;
        }
    }
}

fn is_last(event: &Event) -> bool {
    matches!(event, Event::Gone { .. } | Event::Failed { .. })
}

/// Waits until the container does not run any more, across restarts of the engine.
async fn ended(engine: &Engine, spec: &Spec) -> Option<ContainerState> {
    let mut backoff = Backoff::default();
    loop {
        match engine.find(spec).await {
            Ok(None) => return None,
            Ok(Some(state)) if matches!(state.status, Some(Status::EXITED | Status::DEAD)) => return Some(state),
            Ok(Some(_)) => {
                if let Ok(client) = engine.client().await {
                    let options = WaitContainerOptions {
                        condition: "not-running".to_owned(),
                    };
                    let name = name_of(&spec.instance);
                    let mut answer = std::pin::pin!(client.wait_container(&name, Some(options)));
                    // An answer of any kind is looked into by asking for the state.
                    if let Some(Ok(_) | Err(bollard::errors::Error::DockerContainerWaitError { .. })) =
                        answer.next().await
                    {
                        backoff.reset();
                        continue;
                    }
                }
            }
            Err(_) => {}
        }
        sleep(backoff.next_wait()).await;
    }
}

fn give_notice(dir: &Path, notice: &Notice) {
    use std::os::unix::fs::PermissionsExt;
    let file = dir.join(SHARED).join(wire::NOTICE);
    // A full disk must not keep an instance from being stopped.
    let _ = wire::replace(&file, notice);
    let _ = fs::set_permissions(&file, fs::Permissions::from_mode(0o644));
}

/// Why the engine did not create or start it, told apart.
fn refused(what: &str, trouble: &Trouble) -> End {
    let text = trouble.to_string();
    let low = text.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| low.contains(word));
    let (code, next) = if trouble.status().is_none() {
        (
            "engine_unreachable",
            "start the engine on this node, or use runtime process",
        )
    } else if has(&[
        "could not select device driver",
        "nvidia-container",
        "unknown or invalid runtime",
    ]) {
        (
            "gpu_runtime_missing",
            "install the NVIDIA container toolkit on this node",
        )
    } else if has(&[
        "executable file not found",
        "no such file or directory",
        "no command specified",
    ]) {
        ("command_not_found", "name a command that is in the image")
    } else if has(&["permission denied"]) {
        (
            "command_not_executable",
            "name a command that may be executed in the image",
        )
    } else if has(&["port is already allocated", "address already in use"]) {
        ("port_taken", "it is tried again on another port")
    } else {
        ("spawn_failed", "look at the engine's own log on this node")
    };
    failed(code, format!("{what}: {text}; {next}"))
}

/// How far a pull is.
#[derive(Default)]
struct Progress(std::collections::BTreeMap<String, (i64, i64)>);

impl Progress {
    fn take(&mut self, info: &CreateImageInfo) {
        let Some(layer) = &info.id else { return };
        let entry = self.0.entry(layer.clone()).or_default();
        match (info.status.as_deref(), &info.progress_detail) {
            (Some("Downloading"), Some(detail)) => {
                *entry = (detail.current.unwrap_or(entry.0), detail.total.unwrap_or(entry.1));
            }
            (Some("Download complete" | "Pull complete"), _) => entry.0 = entry.1,
            _ => {}
        }
    }
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (got, all) = self
            .0
            .values()
            .fold((0, 0), |sum, layer| (sum.0 + layer.0, sum.1 + layer.1));
        let percent = (got * 100).checked_div(all).unwrap_or(0);
        write!(f, "{percent} % of {} MiB in {} layers", all >> 20, self.0.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use bollard::models::ProgressDetail;

    use super::*;

    fn info(id: &str, status: &str, current: i64, total: i64) -> CreateImageInfo {
        CreateImageInfo {
            id: Some(id.into()),
            status: Some(status.into()),
            progress_detail: Some(ProgressDetail {
                current: Some(current),
                total: Some(total),
            }),
            error_detail: None,
        }
    }

    #[test]
    fn a_pull_says_how_far_it_is() {
        let mut progress = Progress::default();
        progress.take(&info("a", "Downloading", 10 << 20, 40 << 20));
        progress.take(&info("b", "Downloading", 10 << 20, 40 << 20));
        assert_eq!(progress.to_string(), "25 % of 80 MiB in 2 layers");
        progress.take(&info("a", "Pull complete", 0, 0));
        assert_eq!(progress.to_string(), "62 % of 80 MiB in 2 layers");
    }

    #[test]
    fn refusals_are_told_apart() {
        let code = |message: &str| {
            let trouble = Trouble::Refused {
                status: 400,
                message: message.into(),
            };
            match refused("x", &trouble) {
                End::Failed { code, .. } => code,
                _ => String::new(),
            }
        };
        assert_eq!(
            code("could not select device driver \"\" with capabilities: [[gpu]]"),
            "gpu_runtime_missing"
        );
        assert_eq!(
            code("exec: \"x\": executable file not found in $PATH"),
            "command_not_found"
        );
        assert_eq!(code("driver failed: port is already allocated"), "port_taken");
        assert_eq!(code("anything"), "spawn_failed");
    }
}
