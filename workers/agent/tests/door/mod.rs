//! The test's side: an agent process on a directory of its own, and a door it connects to.

use std::{
    collections::VecDeque,
    fs,
    path::PathBuf,
    process::{Child, Command},
    time::Duration,
};

use futures::{SinkExt, StreamExt};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tidemill_protocol::{
    Problem, Stamp,
    agent::{
        AgentMessage, Beat, Desired, DesiredDevice, DesiredInstance, DoorMessage, Fact, FactBody, Goodbye, Hello,
        InstanceStatus, LogsWanted, RunSpec, Want, Welcome,
    },
};
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};

const PATIENCE: Duration = Duration::from_secs(30);

/// The binary of `examples/`, which cargo builds beside the tests.
fn program() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.join("examples/agent-under-test")
}

/// An agent process and where it lives.
pub struct Rig {
    /// Its own on this machine: containers carry it.
    pub node: String,
    /// Further environment of the agent.
    pub env: Vec<(String, String)>,
    dir: tempfile::TempDir,
    listener: TcpListener,
    agent: Option<Child>,
}

impl Rig {
    pub async fn new() -> Self {
        let mut rig = Self::idle().await;
        rig.start_agent();
        rig
    }

    /// A rig whose agent is not started yet.
    pub async fn idle() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let unique = dir.path().file_name().unwrap().to_string_lossy().replace('.', "");
        Self {
            node: format!("node-{unique}"),
            env: Vec::new(),
            dir,
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            agent: None,
        }
    }

    pub fn start_agent(&mut self) {
        let url = format!("http://{}", self.listener.local_addr().unwrap());
        let agent = Command::new(program())
            .arg("agent")
            .arg(self.dir.path())
            .arg(url)
            .env("TIDEMILL_TOKEN", "secret")
            .envs(self.env.iter().cloned())
            .spawn()
            .expect("cargo builds the example agent-under-test before it runs tests");
        self.agent = Some(agent);
    }

    pub async fn connect(&self) -> Door {
        loop {
            let (stream, _) = soon("a connection", self.listener.accept()).await.unwrap();
            // The inspection of a joining node only measures how long a connection takes.
            if let Ok(socket) = accept_async(stream).await {
                return Door::open(socket, &self.node).await;
            }
        }
    }

    pub async fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub fn terminate_agent(&self) {
        let pid = self.agent.as_ref().unwrap().id();
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM).unwrap();
    }

    pub async fn agent_ended(&mut self) {
        let mut agent = self.agent.take().unwrap();
        until("the agent ends", || agent.try_wait().unwrap().is_some()).await;
    }

    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub fn exists(&self, file: &str) -> bool {
        self.path(file).exists()
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_default()
    }

    pub fn outbox_len(&self) -> u64 {
        let path = self.path("outbox.sqlite");
        let connection = rusqlite::Connection::open(path).unwrap();
        connection
            .query_row("SELECT count(*) FROM facts", [], |row| row.get(0))
            .unwrap()
    }

    pub fn wish(&self, instance: &str, command: &[&str]) -> DesiredInstance {
        DesiredInstance {
            instance: instance.into(),
            want: Want::Run,
            run: RunSpec {
                runtime: "process".into(),
                command: command.iter().map(|&word| word.into()).collect(),
                ready_timeout_ms: 20_000,
                stop_grace_ms: 5_000,
                ..RunSpec::default()
            },
            workload: "default/test".into(),
            devices: vec![DesiredDevice {
                uuid: "CPU-x-0".into(),
                milli: 200,
                kind: "cpu".into(),
            }],
            fence: None,
            traceparent: None,
        }
    }

    /// Processes of this rig that carry the instance's mark.
    pub fn marked(&self, instance: &str) -> usize {
        let mark = format!("TIDEMILL_INSTANCE={instance}\0");
        let home = self.dir.path().display().to_string();
        pids()
            .filter_map(|pid| fs::read(format!("/proc/{pid}/environ")).ok())
            .map(|environ| String::from_utf8_lossy(&environ).into_owned())
            .filter(|environ| environ.contains(&mark) && environ.contains(&home))
            .count()
    }

    pub fn parent(&self, pid: u32) -> u32 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let (_, rest) = stat.rsplit_once(')').unwrap();
        rest.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub fn kill(&self, pid: u32) {
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        // What runs under shims outlives the agent; it is ended through them.
        let home = self.dir.path().display().to_string();
        for pid in pids() {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            if line.contains("shim\0--dir\0") && line.contains(&home) {
                if let Some(work) = work_of(pid) {
                    let _ = kill(Pid::from_raw(work), Signal::SIGKILL);
                }
                let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
            }
        }
    }
}

fn work_of(shim: i32) -> Option<i32> {
    let children = fs::read_to_string(format!("/proc/{shim}/task/{shim}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

pub fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
}

pub fn private_kib(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}

pub fn pid_of(fact: &FactBody) -> u32 {
    match fact {
        FactBody::Started { pid, .. } => *pid,
        other => panic!("expected `started`, not {other:?}"),
    }
}

/// Waits for something outside of the agent's reports.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let all = async {
        while !done() {
            // tidy: waits for something outside of the agent's reports
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(what, all).await;
}

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("within {PATIENCE:?}: {what}"))
}

/// One connection of the agent.
pub struct Door {
    socket: WebSocketStream<TcpStream>,
    pub hello: Hello,
    pub stamp: Stamp,
    /// Whether facts are acknowledged as they come.
    pub acknowledge: bool,
    waiting: VecDeque<Fact>,
    batches: Vec<usize>,
    seen: u64,
    pid: Option<u32>,
}

impl Door {
    async fn open(mut socket: WebSocketStream<TcpStream>, node: &str) -> Self {
        let AgentMessage::Hello(hello) = receive(&mut socket).await else {
            panic!("an agent greets first");
        };
        let stamp = Stamp {
            cell: "test".into(),
            ledger: "ledger-1".into(),
            epoch: 1,
            sequence: hello.applied.as_ref().map_or(1, |stamp| stamp.sequence),
        };
        let welcome = Welcome {
            node: node.into(),
            stamp: stamp.clone(),
            beat_ms: 100,
            resend_ms: 5_000,
        };
        let mut door = Self {
            socket,
            hello,
            stamp,
            acknowledge: true,
            waiting: VecDeque::new(),
            batches: Vec::new(),
            seen: 0,
            pid: None,
        };
        door.send(DoorMessage::Welcome(welcome)).await;
        door
    }

    async fn send(&mut self, message: DoorMessage) {
        let text = serde_json::to_string(&message).unwrap();
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// Takes the next message; facts are put aside and acknowledged.
    async fn next(&mut self) -> AgentMessage {
        let message = receive(&mut self.socket).await;
        if let AgentMessage::Facts(facts) = &message {
            self.batches.push(facts.facts.len());
            for fact in &facts.facts {
                if let FactBody::Started { pid, .. } = fact.body {
                    self.pid = Some(pid);
                }
                if fact.id > self.seen {
                    self.seen = fact.id;
                    self.waiting.push_back(fact.clone());
                }
            }
            if self.acknowledge {
                let through = self.seen;
                self.send(DoorMessage::FactsAck { through }).await;
            }
        }
        message
    }

    pub async fn desire<'a>(&mut self, wishes: impl IntoIterator<Item = &'a DesiredInstance>) {
        self.stamp.sequence += 1;
        let desired = Desired {
            stamp: self.stamp.clone(),
            instances: wishes.into_iter().cloned().collect(),
        };
        self.send(DoorMessage::Desired(desired)).await;
    }

    pub async fn stop(&mut self, wish: &mut DesiredInstance) {
        wish.want = Want::Stop {
            reason: "as the test asks".into(),
        };
        self.desire([&*wish]).await;
    }

    /// The next fact about an instance.
    pub async fn fact(&mut self, instance: &str) -> FactBody {
        self.fact_that(instance, |_| true).await
    }

    /// The next fact about an instance that `fits`; others about it are dropped.
    pub async fn fact_that(&mut self, instance: &str, fits: impl Fn(&FactBody) -> bool) -> FactBody {
        loop {
            while let Some(at) = self.waiting.iter().position(|f| f.instance == instance) {
                let fact = self.waiting.remove(at).unwrap();
                if fits(&fact.body) {
                    return fact.body;
                }
            }
            self.next().await;
        }
    }

    /// Waits for `count` facts that `fit`; others stay.
    pub async fn count(&mut self, count: usize, fits: impl Fn(&FactBody) -> bool) {
        let mut found = 0;
        loop {
            let before = self.waiting.len();
            self.waiting.retain(|fact| !fits(&fact.body));
            found += before - self.waiting.len();
            if found >= count {
                return;
            }
            self.next().await;
        }
    }

    /// The next batch as it comes.
    pub async fn facts(&mut self) -> Vec<Fact> {
        loop {
            if let AgentMessage::Facts(facts) = self.next().await {
                return facts.facts;
            }
        }
    }

    pub async fn beat(&mut self) -> Beat {
        loop {
            if let AgentMessage::Beat(beat) = self.next().await {
                return beat;
            }
        }
    }

    pub async fn goodbye(&mut self) -> Goodbye {
        loop {
            if let AgentMessage::Goodbye(goodbye) = self.next().await {
                return goodbye;
            }
        }
    }

    pub fn status(&self, instance: &str) -> InstanceStatus {
        let statuses = &self.hello.instances;
        let found = statuses.iter().find(|status| status.instance == instance);
        found.unwrap_or_else(|| panic!("{statuses:?}")).clone()
    }

    /// Follows an instance's output until it holds `word`, or for a moment if nothing comes.
    pub async fn logs(&mut self, instance: &str, after: Option<u64>, word: &str) -> (String, u64) {
        let wanted = LogsWanted {
            request: "r1".into(),
            instance: instance.into(),
            after,
            follow: after.is_some(),
        };
        self.send(DoorMessage::LogsWanted(wanted)).await;
        let (mut text, mut next) = (String::new(), 0);
        loop {
            let AgentMessage::Logs(part) = self.next().await else {
                continue;
            };
            if part.end {
                return (text, next);
            }
            next = part.next;
            text.push_str(&part.data);
            if text.contains(word) {
                let request = "r1".into();
                self.send(DoorMessage::LogsDone { request }).await;
                return (text, next);
            }
        }
    }

    pub async fn no_logs(&mut self, instance: &str) -> Problem {
        let wanted = LogsWanted {
            request: "r2".into(),
            instance: instance.into(),
            after: None,
            follow: false,
        };
        self.send(DoorMessage::LogsWanted(wanted)).await;
        loop {
            if let AgentMessage::Logs(part) = self.next().await
                && part.request == "r2"
            {
                return part.problem.unwrap();
            }
        }
    }

    pub fn any_pid(&self) -> u32 {
        self.pid.unwrap()
    }

    pub fn facts_batched(&self) -> bool {
        self.batches.iter().any(|batch| *batch > 1)
    }
}

async fn receive(socket: &mut WebSocketStream<TcpStream>) -> AgentMessage {
    loop {
        match soon("a message", socket.next()).await.unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Close(_) => panic!("the agent ended the connection"),
            _ => {}
        }
    }
}
