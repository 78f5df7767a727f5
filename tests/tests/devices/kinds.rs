//! `tests/devices/cases` holds one case a kind of device: what its driver says, and what the agent is to make of it.
//! Kinds that this build has never heard of are among them; how many are taken in without hand work is printed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use tidemill_protocol::agent::DeviceInfo;
use tidemill_tests::drivers::FakeDrivers;

use super::{HOST_MEMORY, drivers, machine};

/// Share of kinds that must be taken in without hand work, in percent.
const LEAST: usize = 94;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// Who is asked: for readers of the file.
    #[serde(rename = "source")]
    _source: String,
    #[serde(default)]
    nvml: Vec<String>,
    #[serde(default)]
    sysfs: BTreeMap<String, String>,
    #[serde(default)]
    npu_smi: BTreeMap<String, Vec<String>>,
    /// This build does not know the model.
    #[serde(default)]
    unknown: bool,
    /// It is known not to be taken in.
    #[serde(default)]
    needs_hand_work: bool,
    expect: Vec<Expected>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// None where it is made of the device's place.
    uuid: Option<String>,
    kind: String,
    model: String,
    memory_bytes: Memory,
    speed_milli: u32,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Memory {
    Bytes(u64),
    /// `host`: it shares the host's.
    Word(String),
}

impl Expected {
    fn is(&self, device: &DeviceInfo) -> bool {
        let memory = match &self.memory_bytes {
            Memory::Bytes(bytes) => device.memory_bytes == *bytes,
            Memory::Word(word) => word == "host" && device.memory_bytes > 0,
        };
        memory
            && self.uuid.as_ref().is_none_or(|uuid| *uuid == device.uuid)
            && (self.kind.as_str(), self.model.as_str(), self.speed_milli)
                == (device.kind.as_str(), device.model.as_str(), device.speed_milli)
            && !device.simulated
    }
}

fn taken_in(case: &Case) -> Result<(), String> {
    let fake = FakeDrivers::new();
    fake.nvml(&case.nvml.join("\n"));
    for (path, text) in &case.sysfs {
        fake.sysfs_file(path, text);
    }
    if !case.npu_smi.is_empty() {
        fake.npu_smi_says(&case.npu_smi);
    }
    let found = tidemill_agent::devices::discover("auto", &machine(), &drivers(&fake)).map_err(|e| e.to_string())?;
    let (cpus, accelerators): (Vec<_>, Vec<_>) = found.devices.into_iter().partition(|device| device.kind == "cpu");
    // The machine's CPUs are always there too.
    let found = if accelerators.is_empty() && case.expect[0].kind == "cpu" {
        cpus
    } else {
        accelerators
    };
    let same = found.len() == case.expect.len() && case.expect.iter().zip(&found).all(|(e, d)| e.is(d));
    if same {
        Ok(())
    } else {
        Err(format!("{found:?}, expected {:?}", case.expect))
    }
}

#[test]
fn kinds_are_taken_in_without_hand_work() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("devices/cases");
    let (mut all, mut taken, mut unknown, mut unknown_taken) = (0, 0, 0, 0);
    let mut surprises = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        let case: Case = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let result = taken_in(&case);
        all += 1;
        unknown += usize::from(case.unknown);
        taken += usize::from(result.is_ok());
        unknown_taken += usize::from(case.unknown && result.is_ok());
        match result {
            Ok(()) if case.needs_hand_work => surprises.push(format!("{}: needs no hand work any more", case.name)),
            Err(found) if !case.needs_hand_work => surprises.push(format!("{}: {found}", case.name)),
            Ok(()) | Err(_) => {}
        }
    }
    println!(
        "device kinds taken in without hand work: {taken} of {all} ({:.1} %); unknown ones: {unknown_taken} of {unknown}",
        taken as f64 * 100.0 / f64::from(all)
    );
    assert!(surprises.is_empty(), "{}", surprises.join("\n"));
    assert!(taken * 100 >= LEAST * usize::try_from(all).unwrap());
    assert!(unknown >= 5 && HOST_MEMORY > 0);
}
