//! What every vendor's driver is to the agent.

use tidemill_protocol::{agent::DeviceInfo, telemetry::DeviceReading};

use super::Drivers;

/// A driver in use. It is made, asked and dropped on one thread.
pub(super) trait Source {
    /// Reads every device found, also those that do not answer any more.
    fn read(&mut self) -> Vec<DeviceReading>;
}

/// A driver that answered, and what it has.
pub(super) struct Opened {
    /// To be read from.
    pub(super) source: Box<dyn Source>,
    /// Its devices.
    pub(super) devices: Vec<DeviceInfo>,
    /// What it could not say, as `area: reason`.
    pub(super) limitations: Vec<String>,
}

/// Why there is no driver to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotOpened {
    /// The machine has no such hardware or driver: nothing to tell.
    Absent,
    /// It has, and the driver does not serve.
    Broken(String),
}

/// Opens one kind of driver, on the thread that will use it.
pub(super) struct Maker {
    /// `nvml`, `amdgpu`, `npu-smi`.
    pub(super) name: &'static str,
    /// Does it.
    pub(super) open: Box<dyn FnOnce() -> Result<Opened, NotOpened> + Send>,
}

/// What sources have to know.
#[derive(Debug, Clone)]
pub(super) struct Scope {
    /// Of the machine, for devices without an identity of their own.
    pub(super) machine_id: String,
    /// Where drivers are.
    pub(super) drivers: Drivers,
}

/// An identity for a device whose vendor gave it none: from where it sits. It stays over restarts and changes when the
/// card is moved.
pub(super) fn derived_uuid(prefix: &str, machine_id: &str, place: &str) -> String {
    let mut hash = blake3::Hasher::new();
    for part in [machine_id, place] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize().as_bytes()[..16]);
    // Version 8 of RFC 9562: made from a hash of our own choice.
    format!("{prefix}-{}", uuid::Builder::from_custom_bytes(bytes).into_uuid())
}
