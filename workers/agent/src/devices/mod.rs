//! Which devices a node has, and what they say of themselves.
//!
//! Each vendor's driver is a [`source::Source`]: it finds devices and reads them. Every source lives on a thread of its
//! own, since a driver's call may take seconds or never return; the agent only ever looks at what a source said last.
//! What is found becomes the node's inventory at start; what is read travels in beats.
//!
//! Invariants: a device is known by its vendor's UUID, never by an index; what cannot be read is absent and says why;
//! a number the hardware cannot have is no number; no driver call delays a beat or a start beyond its patience.
//! Rejected: linking a vendor's library (a machine without it could not run the agent), and parsing `nvidia-smi` (its
//! text changes with every release; that of `npu-smi` does too, but there is nothing else).

mod amd;
mod ascend;
mod catalogue;
mod command;
mod cpu;
mod draft;
mod files;
mod kernel_log;
mod nvml;
mod sampler;
mod source;
mod spec;

use std::{path::PathBuf, time::Duration};

use tidemill_protocol::agent::DeviceInfo;

pub use files::{Files, Rooted};
pub use sampler::Telemetry;
pub use spec::{SpecError, parse_spec};

use crate::Machine;

/// Where drivers are looked for. Tests and unusual installations change these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drivers {
    /// NVIDIA's management library; the usual names if none.
    pub nvml_library: Option<PathBuf>,
    /// Where the kernel shows AMD devices.
    pub sysfs: PathBuf,
    /// Huawei's command-line tool.
    pub npu_smi: PathBuf,
    /// The kernel's log, where NVIDIA's driver writes errors that its library does not report.
    pub kernel_log: PathBuf,
    /// How long all drivers together may take to say what is there.
    pub patience: Duration,
    /// Between two readings.
    pub every: Duration,
}

impl Default for Drivers {
    fn default() -> Self {
        Self {
            nvml_library: None,
            sysfs: PathBuf::from("/sys"),
            npu_smi: PathBuf::from("npu-smi"),
            kernel_log: PathBuf::from("/dev/kmsg"),
            patience: Duration::from_secs(4),
            every: Duration::from_secs(1),
        }
    }
}

/// What a node has.
#[derive(Debug, Clone)]
pub struct Discovery {
    /// Its inventory.
    pub devices: Vec<DeviceInfo>,
    /// What could not be found out, as `area: reason`.
    pub limitations: Vec<String>,
    /// What the devices say from now on.
    pub telemetry: Telemetry,
}

/// Finds the devices of a specification. Drivers are asked only where it says `auto`. Blocks for as long as drivers take,
/// at most [`Drivers::patience`].
///
/// # Errors
/// When the specification makes no sense. A driver that fails is a limitation.
pub fn discover(spec: &str, machine: &Machine, drivers: &Drivers) -> Result<Discovery, SpecError> {
    // Before any driver is asked: a slip of the pen is told at once.
    parse_spec(spec, machine)?;
    let telemetry = Telemetry::default();
    let mut limitations = Vec::new();
    let mut found = Vec::new();
    if spec::asks_for_all(spec) {
        let scope = source::Scope {
            machine_id: machine.machine_id.clone(),
            drivers: drivers.clone(),
        };
        let makers = [nvml::maker(&scope), amd::maker(&scope), ascend::maker(&scope)];
        for outcome in sampler::start(makers.into(), drivers, &telemetry) {
            found.extend(outcome.devices);
            limitations.extend(outcome.limitations);
        }
    }
    let devices = spec::with_found(spec, machine, &found)?;
    let cpus: Vec<String> = devices
        .iter()
        .filter(|device| device.kind == "cpu" && !device.simulated)
        .map(|device| device.uuid.clone())
        .collect();
    if !cpus.is_empty() {
        sampler::watch(Box::new(cpu::CpuSource::new(cpus, &drivers.sysfs)), drivers, &telemetry);
    }
    Ok(Discovery {
        devices,
        limitations,
        telemetry,
    })
}

/// The memory a model of the catalogue has, bytes.
pub(crate) fn nominal_memory(model: &str) -> Option<u64> {
    let known = catalogue::MODELS.iter().find(|known| known.name == model)?;
    Some(known.memory_gib << 30)
}

/// Runs a tool within a bound of time; its standard output, or why there is none.
pub(crate) fn tool_output(program: &std::path::Path, arguments: &[&str], limit: Duration) -> Result<String, String> {
    command::output(program, arguments, limit).map_err(|error| match error {
        command::NoOutput::Missing => "there is no such program".to_owned(),
        command::NoOutput::Failed(reason) => reason,
    })
}
