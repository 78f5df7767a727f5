//! Starting an agent and ending it.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::DirBuilderExt,
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::resource::{Resource, getrlimit, setrlimit},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    AgentConfig, AgentError, Machine, adopt, clock,
    core::{Core, CoreConfig},
    docker, inspection,
    launch::{Homes, Launcher},
    leave::{LeaveStage, Owner},
    outbox::{Memory, Outbox},
    runner::{Runner, Vitals},
    session::Session,
};

/// Inputs that may wait for the core.
const INPUTS: usize = 4096;

/// Runs an agent until `shutdown`, then says goodbye; its instances run on.
///
/// # Errors
/// When its data directory cannot be used or what is in it cannot be taken over, or when the control plane refuses its
/// token for good before it was ever taken. An unreachable control plane is no error: the agent keeps its instances
/// running and keeps trying.
pub async fn run(config: AgentConfig, shutdown: CancellationToken) -> Result<(), AgentError> {
    let boot_id = clock::boot_id();
    let prepared = {
        let (config, boot_id) = (config.clone(), boot_id.clone());
        tokio::task::spawn_blocking(move || prepare(&config, &boot_id))
            .await
            .map_err(|error| AgentError::Defect(error.to_string()))??
    };
    let Prepared {
        _lock,
        machine,
        homes,
        outbox,
        memory,
        findings,
        nofile,
    } = prepared;
    let adopted = findings.len();
    tracing::info!(
        node = config.name,
        devices = config.devices.len(),
        adopted,
        data = %config.data_dir.display(),
        "agent started"
    );
    let core = Core::new(
        CoreConfig {
            address: config.address.clone(),
            max_launching: config.max_launching.max(1),
            accept_ledger: config.accept_ledger.clone(),
        },
        memory.applied,
    );
    let (inputs, incoming) = mpsc::channel(INPUTS);
    let (questions, asked) = mpsc::channel(4);
    let (vitals, vitals_seen) = watch::channel(Vitals::default());
    let launcher = Launcher {
        homes: homes.clone(),
        program: config.shim_program.clone(),
        boot_id: boot_id.clone(),
        nofile,
    };
    // Adopted containers are held before anything is looked through.
    let engine = docker::Engine::new(
        &config.data_dir,
        &machine.machine_id,
        config.address.as_deref(),
        &config.devices,
    );
    let mut runner = Runner::new(core, launcher, engine.clone(), outbox.clone(), inputs.clone(), vitals);
    runner.adopt(findings).await;
    let engine_there = docker::watch(engine.clone(), shutdown.clone());
    let inspected = inspection::begin(&config, &boot_id, adopted == 0);
    let (wishes, wished) = mpsc::channel(4);
    let (stage, staged) = watch::channel(LeaveStage::NotAsked);
    let owner = Owner::listen(&config.data_dir, wishes, staged).map_err(|source| AgentError::DataDir {
        path: config.data_dir.display().to_string(),
        source,
    })?;
    let session = Session {
        config,
        boot_id,
        machine_id: machine.machine_id,
        homes,
        outbox,
        inputs,
        questions,
        vitals: vitals_seen,
        inspected,
        wished,
        stage,
        leaving: None,
        engine,
        engine_there,
    };
    // Whichever ends first, by order or by defect, ends the other.
    let both = shutdown.child_token();
    let runner = tokio::spawn({
        let (both, guard) = (both.clone(), both.clone().drop_guard());
        async move {
            let _guard = guard;
            runner.run(incoming, asked, both).await;
        }
    });
    let session = tokio::spawn({
        let (both, guard) = (both.clone(), both.clone().drop_guard());
        async move {
            let _guard = guard;
            session.run(both).await
        }
    });
    let (runner, session, ()) = tokio::join!(runner, session, owner.run(both));
    runner
        .and(session)
        .map_err(|error| AgentError::Defect(error.to_string()))?
        .map_err(AgentError::Refused)
}

struct Prepared {
    _lock: Flock<File>,
    machine: Machine,
    homes: Homes,
    outbox: Outbox,
    memory: Memory,
    findings: Vec<adopt::Finding>,
    nofile: Option<u64>,
}

/// All that blocks.
fn prepare(config: &AgentConfig, boot_id: &str) -> Result<Prepared, AgentError> {
    let path = || config.data_dir.display().to_string();
    let unusable = |source| AgentError::DataDir { path: path(), source };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&config.data_dir)
        .map_err(unusable)?;
    let lock = lock(&config.data_dir)
        .map_err(unusable)?
        .ok_or_else(|| AgentError::InUse { path: path() })?;
    let homes = Homes::new(&config.data_dir);
    homes.create().map_err(unusable)?;
    let machine = Machine::read(&config.name, &config.data_dir).map_err(unusable)?;
    let file = config.data_dir.join("outbox.sqlite");
    let (outbox, memory) = Outbox::open(&file, boot_id).map_err(|source| AgentError::Outbox {
        path: file.display().to_string(),
        source,
    })?;
    let nofile = raise_nofile();
    let findings =
        adopt::look(&homes, &memory, boot_id).map_err(|source| AgentError::Adoption { path: path(), source })?;
    Ok(Prepared {
        _lock: lock,
        machine,
        homes,
        outbox,
        memory,
        findings,
        nofile,
    })
}

fn lock(data_dir: &Path) -> io::Result<Option<Flock<File>>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(data_dir.join("agent.lock"))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error.into()),
    }
}

/// An agent holds a socket an instance and one a check; the usual soft limit of 1,024 ends below a thousand instances.
/// Returns the old soft limit, which shims restore: it is what commands expect.
fn raise_nofile() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        tracing::warn!(code = "nofile_limit", soft, %error, "the limit of open files cannot be raised");
    }
    Some(soft)
}
