//! The task that speaks with one shim: reports up, questions down, and its death.

use std::{process::Child, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
    sync::mpsc,
};

use crate::{
    InstanceId, adopt,
    core::Input,
    shim::wire::{Ask, Event},
};

/// Longest time a shim may take to take a question: it reads between two events of its command.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);

/// What a monitor needs.
pub(crate) struct Monitor {
    pub(crate) instance: InstanceId,
    pub(crate) port: u16,
    /// The shim, where it is our child and has to be reaped.
    pub(crate) shim: Option<Child>,
    pub(crate) asks: mpsc::Receiver<Ask>,
    pub(crate) inputs: mpsc::Sender<Input>,
}

impl Monitor {
    /// Runs until the instance is gone and everyone was told.
    pub(crate) async fn run(mut self, stream: std::os::unix::net::UnixStream) {
        let over = match self.speak(stream).await {
            Ok(over) => over,
            Err(error) => {
                tracing::warn!(instance = %self.instance, %error, "the connection to a shim broke");
                false
            }
        };
        let shim = self.shim.take();
        let instance = self.instance.clone();
        // A shim ends right after its last report; after a broken connection it may have to be ended.
        let cleaned = tokio::task::spawn_blocking(move || {
            let mut shim = shim;
            if !over {
                if let Some(shim) = &mut shim {
                    let _ = shim.kill();
                }
                adopt::end_leftovers(&instance);
            }
            if let Some(mut shim) = shim {
                let _ = shim.wait();
            }
        })
        .await;
        if !over && cleaned.is_ok() {
            self.tell(Input::Lost {
                instance: self.instance.clone(),
                reason: "its shim was killed".to_owned(),
            })
            .await;
        }
    }

    /// `true` once the shim said its last word.
    async fn speak(&mut self, stream: std::os::unix::net::UnixStream) -> std::io::Result<bool> {
        stream.set_nonblocking(true)?;
        let (reader, mut writer) = UnixStream::from_std(stream)?.into_split();
        let mut lines = BufReader::new(reader).lines();
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line?,
                Some(ask) = self.asks.recv() => {
                    let mut line = serde_json::to_vec(&ask)?;
                    line.push(b'\n');
                    tokio::time::timeout(ASK_TIMEOUT, writer.write_all(&line)).await??;
                    continue;
                }
            };
            let Some(line) = line else {
                return Ok(false);
            };
            let event: Event = serde_json::from_str(&line)?;
            let over = matches!(event, Event::Gone { .. } | Event::Failed { .. });
            let input = input_of(&self.instance, self.port, event);
            self.tell(input).await;
            if over {
                return Ok(true);
            }
        }
    }

    async fn tell(&self, input: Input) {
        // Refused only while the agent ends; the shim's state file tells the next one.
        let _ = self.inputs.send(input).await;
    }
}

/// What a shim's report means to the core.
pub(crate) fn input_of(instance: &InstanceId, port: u16, event: Event) -> Input {
    let instance = instance.clone();
    match event {
        Event::Started {
            pid,
            start_ms,
            fetch_ms,
        } => Input::Launched {
            instance,
            pid: pid.unsigned_abs(),
            port,
            fetch_ms,
            start_ms,
        },
        Event::Failed { code, reason } => Input::LaunchFailed { instance, code, reason },
        Event::Exited(exit) => Input::Exited { instance, exit },
        Event::Gone { exit, killed } => Input::Gone { instance, exit, killed },
    }
}
