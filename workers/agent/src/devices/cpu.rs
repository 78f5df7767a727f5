//! CPUs as capacity: busy share, clock and temperature of the host, the same for each of its CPUs.

use std::{fs, path::Path};

use tidemill_protocol::telemetry::DeviceReading;

use super::{
    draft::{Draft, Field, Why},
    files::{Files, Rooted, number, text},
    source::Source,
};
use crate::machine::CpuMeter;

/// Names of the sensors that CPUs bring along.
const SENSORS: [&str; 4] = ["coretemp", "k10temp", "zenpower", "cpu_thermal"];

pub(super) struct CpuSource {
    uuids: Vec<String>,
    files: Rooted,
    meter: CpuMeter,
}

impl CpuSource {
    pub(super) fn new(uuids: Vec<String>, sysfs: &Path) -> Self {
        Self {
            uuids,
            files: Rooted::new(sysfs),
            meter: CpuMeter::default(),
        }
    }
}

impl Source for CpuSource {
    fn read(&mut self) -> Vec<DeviceReading> {
        let busy = self
            .meter
            .read()
            .map(u64::from)
            .ok_or(Why::Borrowed("two readings are needed"));
        let temperature = temperature(&self.files);
        let clock = number(&self.files, "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
            .map(|khz| khz / 1000)
            .or_else(|why| proc_clock().ok_or(why));
        self.uuids
            .iter()
            .map(|uuid| {
                let mut draft = Draft::new(uuid);
                draft.number(Field::Busy, busy.clone());
                draft.number(Field::Temperature, temperature.clone());
                draft.number(Field::CoreClock, clock.clone());
                for field in [Field::MemoryUsed, Field::MemoryTotal] {
                    draft.unreadable(field, "shared by all CPUs of the host");
                }
                draft.done()
            })
            .collect()
    }
}

fn temperature(files: &Rooted) -> Result<u64, Why> {
    let names = files.list("class/hwmon").unwrap_or_default();
    let sensor = names
        .iter()
        .map(|name| format!("class/hwmon/{name}"))
        .find(|dir| text(files, &format!("{dir}/name")).is_ok_and(|name| SENSORS.contains(&name.as_str())));
    match sensor {
        Some(dir) => number(files, &format!("{dir}/temp1_input")).map(|milli| milli / 1000),
        None => Err(Why::Borrowed("no sensor")),
    }
}

/// In MHz, as the kernel last knew it.
fn proc_clock() -> Option<u64> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    let mhz = line.split(':').nth(1)?.trim();
    mhz.split('.').next()?.parse().ok()
}
