//! The `docker` runtime: instances as containers of the node's own engine.
//!
//! The engine keeps a container alive, its exit status and its output, so a container needs no shim: a [`Keeper`] task
//! an instance brings it to life, follows it and removes it. All a keeper does follows from three things that survive
//! it (the instance's directory, the container, and whether it was ever started), so a keeper that an agent killed at
//! any moment left behind is simply begun again. Containers carry the node's and the data directory's mark; a
//! [`Watch`] removes those that no keeper holds, and says whether an engine is there at all.
//!
//! Invariants: the container of an instance has a name made of the instance's, so the engine itself refuses a second
//! one; a container that was ever started is never started again; an end is kept on disk before its container is
//! removed, and reported after. Rejected: a shim around `docker run`, which would have two owners of one life; the
//! host's network, which would let a tenant's container reach what listens on the node's loopback.

mod engine;
mod keeper;
mod output;
mod watch;

pub(crate) use engine::Engine;
pub(crate) use keeper::Keeper;
pub(crate) use watch::watch;

use std::{fs::DirBuilder, os::unix::fs::DirBuilderExt, path::Path};

use tidemill_protocol::agent::DesiredInstance;

use crate::{
    InstanceId, clock, environment,
    launch::{LaunchError, Launcher},
    shim::wire::{self, Container, Spec},
};

/// Where a container finds what the agent tells it.
const TOLD: &str = "/run/tidemill";

/// Folder of the instance's directory that is mounted there.
const SHARED: &str = "told";

/// Writes the directory and the specification of an instance that is to run as a container. Blocks.
pub(crate) fn prepare(
    launcher: &Launcher,
    engine: &Engine,
    instance: &InstanceId,
    plan: &DesiredInstance,
    port: u16,
) -> Result<Spec, LaunchError> {
    let Some(image) = plan.run.image.clone() else {
        return Err(LaunchError {
            code: "image_missing",
            reason: "runtime docker needs an image, and the declaration names none".to_owned(),
        });
    };
    let gpus = engine.gpus(&plan.devices)?;
    let dir = launcher.homes.of(instance);
    DirBuilder::new().mode(0o700).create(&dir)?;
    let dir = dir.canonicalize()?;
    let shared = dir.join(SHARED);
    // Read by whatever user the image runs as.
    DirBuilder::new().mode(0o755).create(&shared)?;
    let mut env = environment::environment(plan, port, Path::new(TOLD), |_| None);
    // The image knows its own; ours is a guess for processes.
    if !plan.run.env.contains_key("PATH") {
        env.remove("PATH");
    }
    // Images often say `all` here, which an engine that runs everything with the vendor's hook obeys.
    let visible = match gpus.is_empty() {
        true => "void".to_owned(),
        false => gpus.join(","),
    };
    env.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), visible);
    let spec = Spec {
        instance: plan.instance.clone(),
        workload: plan.workload.clone(),
        command: environment::substituted(&plan.run.command, &env),
        env,
        grace_ms: plan.run.stop_grace_ms,
        nofile: None,
        port,
        boot_id: launcher.boot_id.clone(),
        created_ms: clock::boottime_ms(),
        devices: plan.devices.clone(),
        ready_http: plan.run.ready_http.clone(),
        ready_timeout_ms: plan.run.ready_timeout_ms,
        container: Some(Container {
            image,
            node: engine.node(),
            gpus,
            cpu_milli: plan.run.limits.cpu_milli,
            memory_bytes: plan.run.limits.memory_bytes,
            processes: plan.run.limits.processes,
            publish: engine.publish().to_owned(),
        }),
    };
    wire::replace(&dir.join(wire::SPEC), &spec)?;
    Ok(spec)
}
