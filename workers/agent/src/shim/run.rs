//! The shim's loop: signals, output, questions, and the end of everything the command started.

use std::{
    ffi::OsString,
    io::{self, ErrorKind, PipeReader, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigSet, Signal, kill, killpg},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, setsid},
};

use super::{
    log::{FILE_BYTES, LastLine, LogWriter},
    tree,
    wire::{self, Ask, Event, Exit, Identity, Notice, Spec, State},
};
use crate::clock;

/// What a command leaves behind when its main process ends gets this long between SIGTERM and SIGKILL, or the grace
/// where that is less.
const LEFTOVER_GRACE: Duration = Duration::from_secs(5);

/// Between two sweeps of SIGKILL, where one was not enough.
const SWEEP: Duration = Duration::from_millis(50);

/// Connections served at a time: the agent's, and one that is being replaced.
const MAX_CONNECTIONS: usize = 4;

/// Longest question taken, bytes.
const MAX_ASK_BYTES: usize = 64 * 1024;

/// Runs the shim for `--dir DIR`; `args` exclude the program and the verb.
pub(crate) fn shim_with_args(args: impl Iterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.collect();
    let [flag, dir] = args.as_slice() else {
        eprintln!("usage: shim --dir DIR (started by the agent)");
        return ExitCode::from(2);
    };
    if flag != "--dir" {
        eprintln!("usage: shim --dir DIR (started by the agent)");
        return ExitCode::from(2);
    }
    match shim(Path::new(dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shim {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn shim(dir: &Path) -> io::Result<()> {
    let began = Instant::now();
    // Out of the agent's session, so that a terminal's or a service manager's signals to the agent pass by. Fails only
    // for a group leader, which is out of it already.
    let _ = setsid();
    std::env::set_current_dir(dir)?;
    let lock = std::fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(wire::LOCK)?;
    let Ok(_lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else {
        return Ok(());
    };
    if Path::new(wire::STATE).exists() {
        return Ok(());
    }
    let spec: Spec =
        wire::read(Path::new(wire::SPEC))?.ok_or_else(|| io::Error::new(ErrorKind::NotFound, "no spec.json"))?;
    prctl::set_child_subreaper(true)?;
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let blocked = signals;
    let signals = SignalFd::with_flags(&blocked, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
    let _ = std::fs::remove_file(wire::SOCKET);
    let listener = UnixListener::bind(wire::SOCKET)?;
    listener.set_nonblocking(true)?;
    let first = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    first.set_nonblocking(true)?;

    let mut shim = Shim {
        state: State {
            boot_id: clock::boot_id(),
            shim: tree::identity(std::process::id().cast_signed()).unwrap_or(Identity {
                pid: std::process::id().cast_signed(),
                start: 0,
            }),
            main: None,
            events: Vec::new(),
        },
        grace: Duration::from_millis(spec.grace_ms),
        log: LogWriter::new(Path::new("."), FILE_BYTES),
        last_line: LastLine::default(),
        outputs: Vec::new(),
        connections: vec![Connection::new(first)],
        exit: None,
        stopping: false,
        kill_at: None,
        killed: false,
    };
    match start(&spec, &blocked) {
        Ok(started) => {
            shim.state.main = Some(started.main);
            shim.outputs = started.outputs;
            shim.tell(Event::Started {
                pid: started.main.pid,
                start_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                fetch_ms: 0,
            })?;
            shim.run(&signals, &listener)
        }
        Err(event) => shim.tell(event),
    }
}

struct Started {
    main: Identity,
    outputs: Vec<Output>,
}

/// One of the command's output streams.
struct Output {
    pipe: PipeReader,
    is_stderr: bool,
}

fn start(spec: &Spec, blocked: &SigSet) -> Result<Started, Event> {
    let failed = |code: &str, reason: String| Event::Failed {
        code: code.to_owned(),
        reason,
    };
    let spawn_failed = |error: io::Error| failed("spawn_failed", error.to_string());
    if let Some(soft) = spec.nofile
        && let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
    {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard);
    }
    let Some((program, args)) = spec.command.split_first() else {
        return Err(failed("command_not_found", "the command is empty".into()));
    };
    std::fs::create_dir_all(wire::WORK).map_err(spawn_failed)?;
    let (out, out_writer) = io::pipe().map_err(spawn_failed)?;
    let (err, err_writer) = io::pipe().map_err(spawn_failed)?;
    for pipe in [out.as_fd(), err.as_fd()] {
        unblock(pipe).map_err(spawn_failed)?;
    }
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .envs(&spec.env)
        .current_dir(wire::WORK)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out_writer)
        .stderr(err_writer);
    // A command inherits the mask and would never hear SIGTERM. A shim that is itself ended in this moment is found out
    // about like one that is killed later.
    blocked.thread_unblock().map_err(|error| spawn_failed(error.into()))?;
    let spawned = command.spawn();
    blocked.thread_block().map_err(|error| spawn_failed(error.into()))?;
    let child = spawned.map_err(|error| match error.kind() {
        ErrorKind::NotFound => failed(
            "command_not_found",
            format!("there is no command `{program}` on this node"),
        ),
        ErrorKind::PermissionDenied => failed(
            "command_not_executable",
            format!("`{program}` may not be executed on this node"),
        ),
        _ => failed("spawn_failed", format!("`{program}`: {error}")),
    })?;
    let pid = child.id().cast_signed();
    Ok(Started {
        // Not reaped yet, so it is there even if it has ended.
        main: tree::identity(pid).unwrap_or(Identity { pid, start: 0 }),
        outputs: vec![
            Output {
                pipe: out,
                is_stderr: false,
            },
            Output {
                pipe: err,
                is_stderr: true,
            },
        ],
    })
}

fn unblock(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Ok(())
}

struct Connection {
    stream: UnixStream,
    pending: Vec<u8>,
}

impl Connection {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            pending: Vec::new(),
        }
    }
}

struct Shim {
    state: State,
    grace: Duration,
    log: LogWriter,
    last_line: LastLine,
    outputs: Vec<Output>,
    connections: Vec<Connection>,
    /// How the main process ended, once it did.
    exit: Option<Exit>,
    stopping: bool,
    kill_at: Option<Instant>,
    killed: bool,
}

impl Shim {
    fn run(mut self, signals: &SignalFd, listener: &UnixListener) -> io::Result<()> {
        loop {
            // First, since the command may have ended before its end could raise a signal.
            if self.reap()? {
                self.pump_outputs();
                let exit = self.exit.take().unwrap_or_default();
                let killed = self.killed;
                return self.tell(Event::Gone { exit, killed });
            }
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.killed |= tree::kill_descendants(self.state.shim.pid) > 0;
                self.kill_at = Some(Instant::now() + SWEEP);
            }
            self.wait(signals, listener)?;
            while let Ok(Some(signal)) = signals.read_signal() {
                let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
                // SIGINT and SIGHUP are for terminals; a shim has none.
                if number == Signal::SIGTERM as i32 {
                    self.stop(self.grace, None)?;
                }
            }
            self.pump_outputs();
            self.accept(listener);
            self.answer()?;
        }
    }

    fn wait(&self, signals: &SignalFd, listener: &UnixListener) -> io::Result<()> {
        let timeout = match self.kill_at {
            None => PollTimeout::NONE,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                // Rounded up, else the last millisecond would spin.
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut fds = vec![
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
        ];
        fds.extend(
            self.outputs
                .iter()
                .map(|output| PollFd::new(output.pipe.as_fd(), PollFlags::POLLIN)),
        );
        fds.extend(
            self.connections
                .iter()
                .map(|connection| PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN)),
        );
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves what the command wrote into the log. A stream at its end is dropped.
    fn pump_outputs(&mut self) {
        let mut buffer = [0u8; 16 * 1024];
        let (log, last_line) = (&mut self.log, &mut self.last_line);
        self.outputs.retain_mut(|output| {
            // Bounded, so that a command that writes without end cannot keep us from its stop.
            for _ in 0..64 {
                match output.pipe.read(&mut buffer) {
                    Ok(0) => return false,
                    Ok(length) => {
                        log.append(&buffer[..length]);
                        if output.is_stderr {
                            last_line.feed(&buffer[..length]);
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return error.kind() == ErrorKind::WouldBlock,
                }
            }
            true
        });
    }

    fn accept(&mut self, listener: &UnixListener) {
        while let Ok((stream, _)) = listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.connections.len() >= MAX_CONNECTIONS {
                self.connections.remove(0);
            }
            let mut connection = Connection::new(stream);
            if self.state.events.iter().all(|event| send(&mut connection, event)) {
                self.connections.push(connection);
            }
        }
    }

    /// Reads questions and acts on them. A connection at its end is dropped: the agent is gone, the work is not.
    fn answer(&mut self) -> io::Result<()> {
        let mut asks = Vec::new();
        let mut buffer = [0u8; 4096];
        self.connections.retain_mut(|connection| {
            loop {
                match connection.stream.read(&mut buffer) {
                    Ok(0) => return false,
                    Ok(length) => connection.pending.extend_from_slice(&buffer[..length]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return false,
                }
                if connection.pending.len() > MAX_ASK_BYTES {
                    return false;
                }
            }
            while let Some(end) = connection.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = connection.pending.drain(..=end).collect();
                asks.extend(serde_json::from_slice::<Ask>(&line));
            }
            true
        });
        for ask in asks {
            let Ask::Stop { grace_ms, notice } = ask;
            self.stop(Duration::from_millis(grace_ms), Some(notice))?;
        }
        Ok(())
    }

    fn stop(&mut self, grace: Duration, notice: Option<Notice>) -> io::Result<()> {
        let at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
        if std::mem::replace(&mut self.stopping, true) || self.exit.is_some() {
            return Ok(());
        }
        if let Some(notice) = notice {
            // A full disk must not keep an instance from being stopped.
            let _ = wire::replace(Path::new(wire::NOTICE), &notice);
        }
        if let Some(main) = self.state.main {
            let _ = killpg(Pid::from_raw(main.pid), Signal::SIGTERM);
        }
        Ok(())
    }

    /// Takes the exit statuses of all ended children. `true` when none is left, which means no descendant either:
    /// orphans become children of their sub-reaper.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            let (pid, code, signal) = match waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => (pid, Some(code), None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, None, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) => return Ok(false),
                Ok(_) => continue,
                Err(Errno::ECHILD) => return Ok(true),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if self.state.main.is_some_and(|main| main.pid == pid.as_raw()) {
                self.pump_outputs();
                self.main_exited(Exit {
                    code,
                    signal,
                    last_line: self.last_line.get(),
                    out_of_memory: None,
                })?;
            }
        }
    }

    fn main_exited(&mut self, exit: Exit) -> io::Result<()> {
        self.exit = Some(exit.clone());
        let left = tree::descendants(self.state.shim.pid);
        if left.is_empty() {
            return Ok(());
        }
        for pid in left {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let at = Instant::now() + self.grace.min(LEFTOVER_GRACE);
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
        self.tell(Event::Exited(exit))
    }

    /// Keeps an event in the state file, then reports it.
    fn tell(&mut self, event: Event) -> io::Result<()> {
        self.state.events.push(event);
        let kept = wire::replace(&PathBuf::from(wire::STATE), &self.state);
        let event = &self.state.events[self.state.events.len() - 1];
        self.connections.retain_mut(|connection| send(connection, event));
        // Without room for the file the report over the socket still stands; the work must not end over it.
        match kept {
            Err(error) if error.kind() != ErrorKind::StorageFull => Err(error),
            _ => Ok(()),
        }
    }
}

/// A report is a few hundred bytes, so a socket buffer that does not take it belongs to an agent that is not reading.
fn send(connection: &mut Connection, event: &Event) -> bool {
    let Ok(mut line) = serde_json::to_vec(event) else {
        return false;
    };
    line.push(b'\n');
    connection.stream.write_all(&line).is_ok()
}

/// The connection's other end for a shim about to be started: its standard input.
pub(crate) fn stdin_of(stream: UnixStream) -> Stdio {
    Stdio::from(OwnedFd::from(stream))
}
