//! The product as users have it: the binary, started as a process, on ports of its own, in a directory of its own.
//!
//! Waiting is always for something: a file, a line, a state that a command reports. Each wait has a bound far above
//! what it takes, and says what it waited for when that runs out. Whatever was started is ended when the value is
//! dropped, instances included.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Far above what any single step takes, also on two busy cores.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test: `$TIDEMILL_BIN`, or the one built beside this test.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("TIDEMILL_BIN") {
        return path.into();
    }
    let test = std::env::current_exe().expect("a test knows where it is");
    let built = test
        .ancestors()
        .nth(2)
        .expect("tests lie in target/PROFILE/deps")
        .join("tidemill");
    assert!(
        built.exists(),
        "{} is missing: run ./tests/run, or cargo build first",
        built.display()
    );
    built
}

/// Waits until `look` finds something.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "waited in vain for {what}");
        // tidy: waits for what another process does; there is nothing to be notified by
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process of the product.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `tidemill ARGS`, its stderr in `log`.
    pub fn start<S: AsRef<OsStr>>(log: &Path, args: &[S]) -> Self {
        let stderr = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .expect("the log can be written");
        let child = Command::new(binary())
            .args(args)
            .env_remove("TIDEMILL_SERVER")
            .env_remove("TIDEMILL_TOKEN")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .expect("the binary starts");
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// What it logged.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
    }

    /// Waits for its end; gives its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        let child = &mut self.child;
        eventually("a process to end", || child.try_wait().ok().flatten()).code()
    }

    /// `kill -9`, and waits for its end.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.runs() {
            return;
        }
        self.signal(Signal::SIGTERM);
        let began = Instant::now();
        while self.runs() {
            if began.elapsed() > Duration::from_secs(10) {
                self.signal(Signal::SIGKILL);
            }
            // tidy: waits for a process that was told to end
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What a command of the command line gave.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; -1 if a signal ended it.
    pub code: i32,
    /// Data.
    pub stdout: String,
    /// Everything else.
    pub stderr: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts that it went well.
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// Its stdout as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("not JSON ({e}): {}\nstderr: {}", self.stdout, self.stderr))
    }
}

/// Runs `tidemill ARGS` against `server`, with `input` on stdin.
pub fn run<S: AsRef<OsStr>>(server: &str, args: &[S], input: &str) -> Ran {
    let mut child = Command::new(binary())
        .args(args)
        .env("TIDEMILL_SERVER", server)
        .env_remove("TIDEMILL_TOKEN")
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("stdin was asked for");
    // A command that does not read its input may be gone already.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    Ran::of(child.wait_with_output().expect("its output can be read"))
}

/// `tidemill up`, and what it says of itself.
pub struct Up {
    /// Its process; replaced by [`Up::restart`].
    pub process: Process,
    /// `http://…` of the API.
    pub api: String,
    /// `http://…` of the gateway.
    pub gateway: String,
    dir: TempDir,
    devices: String,
    flags: Vec<String>,
}

impl Up {
    /// Starts one with these devices and waits until it is ready.
    pub fn start(devices: &str) -> Self {
        Self::start_with(devices, &[])
    }

    /// The same with further flags; no devices are named if that is empty.
    pub fn start_with(devices: &str, flags: &[String]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let process = Self::launch(dir.path(), devices, flags);
        let mut up = Self {
            process,
            api: String::new(),
            gateway: String::new(),
            dir,
            devices: devices.to_owned(),
            flags: flags.to_vec(),
        };
        up.read_endpoints();
        up
    }

    fn launch(dir: &Path, devices: &str, flags: &[String]) -> Process {
        let data = dir.join("data");
        let _ = fs::remove_file(data.join("endpoints.json"));
        let data = data.to_str().expect("temporary paths are UTF-8").to_owned();
        let mut args = vec!["up", "--data", &data];
        args.extend(["--listen", "127.0.0.1:0", "--gateway", "127.0.0.1:0"]);
        if !devices.is_empty() {
            args.extend(["--devices", devices]);
        }
        args.extend(flags.iter().map(String::as_str));
        Process::start(&dir.join("log"), &args)
    }

    fn read_endpoints(&mut self) {
        let path = self.data().join("endpoints.json");
        let process = &mut self.process;
        let endpoints: Value = eventually("endpoints.json", || {
            assert!(process.runs(), "up ended: {}", process.log());
            serde_json::from_str(&fs::read_to_string(&path).ok()?).ok()
        });
        self.api = endpoints["api"]
            .as_str()
            .expect("api stands in endpoints.json")
            .to_owned();
        self.gateway = endpoints["gateway"].as_str().expect("gateway stands there").to_owned();
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Starts it again on the same data, after it has ended.
    pub fn restart(&mut self) {
        self.process = Self::launch(self.dir.path(), &self.devices, &self.flags);
        self.read_endpoints();
    }

    /// Runs a command against it.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ran {
        run(&self.api, args, "")
    }

    /// Applies a workload file given as text, waiting for it to serve.
    pub fn apply(&self, text: &str) -> Ran {
        run(&self.api, &["apply", "-f", "-", "--wait", "60s"], text)
    }

    /// The rows of a list.
    pub fn list(&self, name: &str) -> Vec<Value> {
        let ran = self.run(&[name, "-o", "json"]).ok();
        ran.json().as_array().expect("a list is an array").clone()
    }

    /// The one row of `services` of this name.
    pub fn service(&self, name: &str) -> Option<Value> {
        self.list("services").into_iter().find(|row| row["name"] == name)
    }

    /// Process ids of the workload processes of ready instances, by instance id, sorted.
    pub fn ready_pids(&self) -> Vec<(String, i32)> {
        let mut pids: Vec<_> = self
            .list("instances")
            .iter()
            .filter(|row| row["state"] == "ready")
            .filter_map(|row| {
                Some((
                    row["id"].as_str()?.to_owned(),
                    i32::try_from(row["pid"].as_i64()?).ok()?,
                ))
            })
            .collect();
        pids.sort();
        pids
    }
}

impl Drop for Up {
    /// Instances outlive the control plane by design; here they must not.
    fn drop(&mut self) {
        if self.process.runs() {
            let services = self.run(&["services", "-o", "json"]);
            let rows: Vec<Value> = serde_json::from_str(&services.stdout).unwrap_or_default();
            for row in rows {
                let target = format!(
                    "service/{}/{}",
                    row["tenant"].as_str().unwrap_or(""),
                    row["name"].as_str().unwrap_or("")
                );
                self.run(&["delete", &target, "--yes"]);
            }
        }
        end_instances(&self.data());
    }
}

/// `tidemill agent` as a process of its own, on a data directory of its own.
pub struct Agent {
    /// Its process.
    pub process: Process,
    /// Its node's name.
    pub name: String,
    dir: TempDir,
}

impl Agent {
    /// Starts one that enrols with the token in `token_file`, as node `name` of provider `provider`.
    pub fn start(up: &Up, token_file: &Path, name: &str, provider: &str, devices: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = |path: &Path| path.to_str().expect("temporary paths are UTF-8").to_owned();
        let args = [
            "agent".to_owned(),
            format!("--server={}", up.api),
            format!("--token-file={}", path(token_file)),
            format!("--data={}", path(&dir.path().join("data"))),
            format!("--name={name}"),
            format!("--provider={provider}"),
            "--supply=idc".to_owned(),
            "--region=r".to_owned(),
            "--zone=z".to_owned(),
            "--address=127.0.0.1".to_owned(),
            format!("--devices={devices}"),
        ];
        Self {
            process: Process::start(&dir.path().join("log"), &args),
            name: name.to_owned(),
            dir,
        }
    }

    /// Its data directory.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Sends a signal to the agent, its shims and everything they run, as a machine that stops does.
    pub fn signal_all(&self, signal: Signal) {
        signal_all(&self.data(), signal);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.signal_all(Signal::SIGCONT);
        end_instances(&self.data());
    }
}

/// Kills every process whose command line or environment names this data directory: shims and what they run.
pub fn end_instances(data: &Path) {
    signal_all(data, Signal::SIGKILL);
}

fn signal_all(data: &Path, signal: Signal) {
    let needle = data.to_string_lossy().into_owned();
    let Ok(entries) = fs::read_dir("/proc") else { return };
    let own = std::process::id();
    for entry in entries.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<u32>().ok())
            .filter(|p| *p != own)
        else {
            continue;
        };
        let of = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let named = [of("cmdline"), of("environ")]
            .iter()
            .any(|b| String::from_utf8_lossy(b).contains(&needle));
        if named {
            let _ = kill(Pid::from_raw(pid.cast_signed()), signal);
        }
    }
}

/// One GET over a connection of its own: status and body.
pub fn get(url: &str) -> (u16, String) {
    let rest = url.strip_prefix("http://").expect("tests speak http");
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = TcpStream::connect(host).unwrap_or_else(|e| panic!("{url}: {e}"));
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    write!(
        stream,
        "GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    )
    .expect("the request is sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap_or_else(|e| panic!("{url}: {e}"));
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer
        .split_whitespace()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    (status, body)
}
