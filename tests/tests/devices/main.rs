//! Devices of real machines: what each kind is taken for, and what drivers that fail make of it.
#![allow(clippy::unwrap_used)]

mod failing;
mod kinds;

use std::time::{Duration, Instant};

use tidemill_agent::Machine;
use tidemill_agent::devices::{Discovery, Drivers, Telemetry, discover};
use tidemill_protocol::telemetry::DeviceReading;
use tidemill_tests::drivers::FakeDrivers;

/// Memory of the imagined machine.
const HOST_MEMORY: u64 = 64 << 30;

fn machine() -> Machine {
    Machine {
        machine_id: "0123456789abcdef".into(),
        node: "gpu-1".into(),
        cpus: 4,
        memory_bytes: HOST_MEMORY,
    }
}

fn drivers(fake: &FakeDrivers) -> Drivers {
    Drivers {
        nvml_library: Some(fake.library()),
        sysfs: fake.sysfs(),
        npu_smi: fake.npu_smi(),
        kernel_log: fake.kernel_log(),
        patience: Duration::from_secs(20),
        every: Duration::from_millis(20),
    }
}

fn look(fake: &FakeDrivers) -> Discovery {
    discover("auto", &machine(), &drivers(fake)).unwrap()
}

/// Waits for a reading of this device that is as wanted.
fn reading(telemetry: &Telemetry, uuid: &str, wanted: impl Fn(&DeviceReading) -> bool) -> DeviceReading {
    let began = Instant::now();
    loop {
        let (readings, _) = telemetry.readings();
        let found = readings.iter().find(|reading| reading.uuid == uuid);
        if let Some(reading) = found.filter(|reading| wanted(reading)) {
            return reading.clone();
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "waited in vain; last seen: {found:?}"
        );
        // tidy: waits for a thread that reads a driver; it tells nobody when it has
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn codes(reading: &DeviceReading) -> Vec<&str> {
    reading.findings.iter().map(|finding| finding.code.as_str()).collect()
}

/// Why a field has no value.
fn why(reading: &DeviceReading, field: &str) -> Option<String> {
    let holds = |fields: &Vec<String>| fields.iter().any(|name| name == field);
    let found = reading.unreadable.iter().find(|(_, fields)| holds(fields));
    found.map(|(why, _)| why.clone())
}
