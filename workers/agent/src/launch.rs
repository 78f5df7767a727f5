//! From a plan to a shim that runs it, and from a directory back to a shim that still does.
//!
//! Everything here blocks (directories, `fork`) and is called on blocking threads. The directory is complete before the
//! shim starts, and the shim's standard input is one end of a socket whose other end is ours: reports and death come
//! over it as events, with nothing to poll.

use std::{
    collections::HashSet,
    fs::{self, DirBuilder},
    io,
    net::{Ipv4Addr, TcpListener},
    os::unix::{fs::DirBuilderExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use tidemill_protocol::agent::DesiredInstance;
use tokio::task::JoinError;

use crate::{
    InstanceId, clock,
    core::Input,
    environment,
    shim::{
        stdin_of,
        wire::{self, Spec},
    },
};

/// Ended instances whose output is kept. With two full log files each that is 1 GiB.
const ENDED_KEPT: usize = 64;

/// Where instances live on disk.
#[derive(Debug, Clone)]
pub(crate) struct Homes {
    living: PathBuf,
    ended: PathBuf,
}

impl Homes {
    /// The homes below an agent's data directory.
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self {
            living: data_dir.join("instances"),
            ended: data_dir.join("ended"),
        }
    }

    /// Creates them, readable by the agent's user only: specifications hold tenants' environments.
    pub(crate) fn create(&self) -> io::Result<()> {
        for dir in [&self.living, &self.ended] {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        Ok(())
    }

    /// The directory of an instance that is not forgotten.
    pub(crate) fn of(&self, instance: &InstanceId) -> PathBuf {
        self.living.join(instance.as_str())
    }

    /// The directory holding an instance's output, if any does.
    pub(crate) fn with_log(&self, instance: &InstanceId) -> Option<PathBuf> {
        [&self.living, &self.ended]
            .into_iter()
            .map(|home| home.join(instance.as_str()))
            .find(|dir| dir.is_dir())
    }

    /// Instances that have a directory.
    pub(crate) fn all(&self) -> io::Result<Vec<InstanceId>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.living)? {
            if let Some(instance) = entry?.file_name().to_str().and_then(InstanceId::parse) {
                found.push(instance);
            }
        }
        Ok(found)
    }

    /// Puts away what is kept of an ended instance: its output stays a while, its environment and files do not.
    pub(crate) fn retire(&self, instance: &InstanceId) -> io::Result<()> {
        let dir = self.of(instance);
        if !dir.is_dir() {
            return Ok(());
        }
        let _ = fs::remove_dir_all(dir.join(wire::WORK));
        for file in [wire::SPEC, wire::SOCKET, wire::NOTICE, wire::LOCK] {
            let _ = fs::remove_file(dir.join(file));
        }
        let target = self.ended.join(instance.as_str());
        let _ = fs::remove_dir_all(&target);
        fs::rename(&dir, &target)
    }

    /// Removes the oldest of what was put away.
    pub(crate) fn prune(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.ended)? {
            let entry = entry?;
            // One may be removed meanwhile by another thread.
            if let Ok(meta) = entry.metadata() {
                kept.push((meta.modified()?, entry.path()));
            }
        }
        kept.sort();
        let excess = kept.len().saturating_sub(ENDED_KEPT);
        for (_, path) in kept.drain(..excess) {
            let _ = fs::remove_dir_all(path);
        }
        Ok(())
    }
}

/// Ports handed out to living instances.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ports(Arc<Mutex<HashSet<u16>>>);

impl Ports {
    /// A port nothing listens on and no living instance was given. The kernel chooses: it gives odd numbers to those
    /// who listen and even ones to those who connect, so the port is very likely still free when the command binds it.
    pub(crate) fn take(&self) -> io::Result<u16> {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refused = Vec::new();
        // Ports handed out but not bound yet come up again; they are held meanwhile, so each try gives another.
        for _ in 0..4096 {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            let port = listener.local_addr()?.port();
            if taken.insert(port) {
                return Ok(port);
            }
            refused.push(listener);
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "no port is free on this machine",
        ))
    }

    /// Counts a port of an adopted instance.
    pub(crate) fn adopt(&self, port: u16) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.insert(port);
    }

    /// Gives a port back.
    pub(crate) fn give_back(&self, port: u16) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(&port);
    }
}

/// How shims are started.
#[derive(Debug, Clone)]
pub(crate) struct Launcher {
    pub(crate) homes: Homes,
    pub(crate) program: PathBuf,
    pub(crate) boot_id: String,
    /// Soft limit of open files before the agent raised its own.
    pub(crate) nofile: Option<u64>,
}

/// Why a shim could not be started.
#[derive(Debug)]
pub(crate) struct LaunchError {
    /// Stable code.
    pub(crate) code: &'static str,
    /// One sentence.
    pub(crate) reason: String,
}

impl LaunchError {
    /// What the core is told of the launch of `instance`, which ended so.
    pub(crate) fn of(self, instance: InstanceId) -> Input {
        Input::LaunchFailed {
            instance,
            code: self.code.to_owned(),
            reason: self.reason,
        }
    }
}

/// The launch panicked.
impl From<JoinError> for LaunchError {
    fn from(panic: JoinError) -> Self {
        Self {
            code: "spawn_failed",
            reason: panic.to_string(),
        }
    }
}

impl From<io::Error> for LaunchError {
    fn from(error: io::Error) -> Self {
        Self {
            code: "spawn_failed",
            reason: error.to_string(),
        }
    }
}

/// A shim that was just started.
pub(crate) struct Launched {
    pub(crate) shim: Child,
    pub(crate) stream: UnixStream,
}

impl Launcher {
    /// Starts a shim for `plan`.
    pub(crate) fn launch(
        &self,
        instance: &InstanceId,
        plan: &DesiredInstance,
        port: u16,
    ) -> Result<Launched, LaunchError> {
        if plan.run.runtime != "process" {
            return Err(LaunchError {
                code: "runtime_unknown",
                reason: format!(
                    "runtime `{}` is not supported by this release of the agent; upgrade it",
                    plan.run.runtime
                ),
            });
        }
        let dir = self.homes.of(instance);
        DirBuilder::new().mode(0o700).create(&dir)?;
        // The command runs elsewhere: what it is told must not depend on where the agent was started.
        let dir = dir.canonicalize()?;
        let env = environment::environment(plan, port, &dir, |name| std::env::var(name).ok());
        let spec = Spec {
            instance: plan.instance.clone(),
            workload: plan.workload.clone(),
            command: environment::command(&plan.run.command, &env, &self.program),
            env,
            grace_ms: plan.run.stop_grace_ms,
            nofile: self.nofile,
            port,
            boot_id: self.boot_id.clone(),
            created_ms: clock::boottime_ms(),
            devices: plan.devices.clone(),
            ready_http: plan.run.ready_http.clone(),
            ready_timeout_ms: plan.run.ready_timeout_ms,
            container: None,
        };
        wire::replace(&dir.join(wire::SPEC), &spec)?;
        let (ours, theirs) = UnixStream::pair()?;
        let shim = Command::new(&self.program)
            .arg("shim")
            .arg("--dir")
            .arg(&dir)
            .env_clear()
            .stdin(stdin_of(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| LaunchError {
                code: "spawn_failed",
                reason: format!("the shim {} cannot be started: {error}", self.program.display()),
            })?;
        Ok(Launched { shim, stream: ours })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_port_is_given_once_until_it_is_given_back() {
        let ports = Ports::default();
        let given: HashSet<u16> = (0..500).map(|_| ports.take().unwrap()).collect();
        assert_eq!(given.len(), 500);
        for port in given {
            ports.give_back(port);
        }
        assert!(ports.0.lock().unwrap().is_empty());
    }

    #[test]
    fn the_oldest_of_what_ended_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let homes = Homes::new(dir.path());
        homes.create().unwrap();
        for n in 0..ENDED_KEPT + 3 {
            let instance = InstanceId::parse(&format!("inst-{n}")).unwrap();
            fs::create_dir(homes.of(&instance)).unwrap();
            fs::write(homes.of(&instance).join(wire::SPEC), "secret").unwrap();
            homes.retire(&instance).unwrap();
        }
        homes.prune().unwrap();
        assert_eq!(fs::read_dir(&homes.ended).unwrap().count(), ENDED_KEPT);
        assert!(homes.all().unwrap().is_empty());
        let kept = fs::read_dir(&homes.ended).unwrap().flatten();
        assert!(kept.into_iter().all(|entry| !entry.path().join(wire::SPEC).exists()));
    }
}
