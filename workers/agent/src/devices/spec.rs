//! Which devices a node has: the `--devices` specification.
//!
//! `auto`, or a list such as `sim:A100-80G*8@0.93,cpu*4`: `*N` is a count, `@S` the measured speed over the model's
//! nominal. Simulated devices run real processes with no hardware behind them. A model outside the catalogue needs its
//! memory: `sim:NAME:24GiB*2`.
//!
//! A device keeps its UUID across restarts: it is derived from the machine, the node's name, the model and the position
//! among devices of that model, so a changed list renames only what changed. `auto` is what the machine has: accelerators
//! under the UUIDs of their vendors, and its CPUs.

use tidemill_protocol::agent::DeviceInfo;

use super::catalogue::MODELS;
use crate::Machine;

/// Most devices a node may claim.
const MAX_DEVICES: u32 = 10_000;

const GIB: u64 = 1 << 30;

/// Why a device specification was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No items at all.
    #[error("device specification is empty; use `auto`, or a list such as `sim:A100-80G*8,cpu*4` [bad_devices]")]
    Empty,
    /// An item that is none of the forms.
    #[error("`{item}` is not a device: {reason} [bad_devices]")]
    Item {
        /// The item.
        item: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A model without known memory.
    #[error(
        "model `{model}` is not known; use one of {known}, or give its memory: `sim:{model}:24GiB` [unknown_model]"
    )]
    Model {
        /// The model.
        model: String,
        /// Names known.
        known: String,
    },
    /// Something a later release does.
    #[error("`{item}`: devices with injected faults come with a later release; use `sim:` [not_yet]")]
    NotYet {
        /// The item.
        item: String,
    },
}

/// One item of a specification.
struct Item {
    kind: String,
    model: String,
    memory: Memory,
    count: u32,
    speed_milli: u32,
    simulated: bool,
}

enum Memory {
    Each(u64),
    /// The machine's, split evenly.
    Split,
}

/// Whether a specification has an item `auto`.
pub(super) fn asks_for_all(spec: &str) -> bool {
    spec.split(',').any(|item| item.trim() == "auto")
}

/// Reads a device specification for a machine without accelerators.
///
/// # Errors
/// When it makes no sense.
pub fn parse_spec(spec: &str, machine: &Machine) -> Result<Vec<DeviceInfo>, SpecError> {
    with_found(spec, machine, &[])
}

/// Reads a device specification for this machine, whose accelerators are `found`.
pub(super) fn with_found(spec: &str, machine: &Machine, found: &[DeviceInfo]) -> Result<Vec<DeviceInfo>, SpecError> {
    if spec.trim().is_empty() {
        return Err(SpecError::Empty);
    }
    let mut devices: Vec<DeviceInfo> = Vec::new();
    for text in spec.split(',').map(str::trim) {
        let item = parse_item(text, machine)?;
        if text == "auto" {
            if devices
                .iter()
                .any(|device| found.iter().any(|other| other.uuid == device.uuid))
            {
                return Err(bad(text, "`auto` stands in the list twice"));
            }
            devices.extend(found.iter().cloned());
        }
        let in_all = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        if in_all.saturating_add(item.count) > MAX_DEVICES {
            return Err(bad(text, format!("a node has at most {MAX_DEVICES} devices")));
        }
        let memory_bytes = match item.memory {
            Memory::Each(bytes) => bytes,
            Memory::Split => machine.memory_bytes / u64::from(item.count),
        };
        let first = devices.iter().filter(|d| d.model == item.model).count();
        for position in first..first + item.count as usize {
            devices.push(DeviceInfo {
                uuid: uuid(machine, &item, position),
                kind: item.kind.clone(),
                model: item.model.clone(),
                memory_bytes,
                speed_milli: item.speed_milli,
                simulated: item.simulated,
            });
        }
    }
    Ok(devices)
}

fn bad(item: &str, reason: impl Into<String>) -> SpecError {
    SpecError::Item {
        item: item.to_owned(),
        reason: reason.into(),
    }
}

fn parse_item(text: &str, machine: &Machine) -> Result<Item, SpecError> {
    if text.is_empty() {
        return Err(bad(text, "an item of the list is empty"));
    }
    if text.starts_with("sim-file:") {
        return Err(SpecError::NotYet { item: text.to_owned() });
    }
    let (rest, speed_milli) = match text.split_once('@') {
        None => (text, 1000),
        Some((rest, speed)) => (rest, parse_speed(text, speed)?),
    };
    let (name, count) = match rest.split_once('*') {
        None => (rest, None),
        Some((name, count)) => (name, Some(parse_count(text, count)?)),
    };
    let cpus = |count: u32, simulated| Item {
        kind: "cpu".to_owned(),
        model: "CPU".to_owned(),
        memory: Memory::Split,
        count,
        speed_milli,
        simulated,
    };
    match name {
        "auto" if count.is_some() => Err(bad(text, "`auto` takes no count")),
        "auto" => Ok(cpus(machine.cpus.max(1), false)),
        "cpu" => {
            let count = count.unwrap_or(1);
            // More of them than the machine has is a claim, not a fact.
            Ok(cpus(count, count > machine.cpus))
        }
        _ => {
            let Some(model) = name.strip_prefix("sim:") else {
                return Err(bad(
                    text,
                    "expected `auto`, `cpu*N` or `sim:MODEL*N` (real accelerators are found by `auto`)",
                ));
            };
            if model == "cpu" {
                return Ok(cpus(count.unwrap_or(1), true));
            }
            let (kind, model, memory) = parse_model(text, model)?;
            Ok(Item {
                kind,
                model,
                memory: Memory::Each(memory),
                count: count.unwrap_or(1),
                speed_milli,
                simulated: true,
            })
        }
    }
}

fn parse_model(item: &str, text: &str) -> Result<(String, String, u64), SpecError> {
    let (model, memory) = match text.split_once(':') {
        None => (text, None),
        Some((model, memory)) => (model, Some(memory)),
    };
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_' || b == b'.';
    if model.is_empty() || model.len() > 63 || !model.bytes().all(plain) {
        return Err(bad(item, "a model's name holds letters, digits, `-`, `_` and `.`"));
    }
    let known = MODELS.iter().find(|known| known.name.eq_ignore_ascii_case(model));
    let memory = memory.map(|memory| parse_memory(item, memory)).transpose()?;
    match (known, memory) {
        (Some(known), memory) => Ok((
            known.kind.to_owned(),
            known.name.to_owned(),
            memory.unwrap_or(known.memory_gib * GIB),
        )),
        (None, Some(memory)) => Ok(("cuda".to_owned(), model.to_owned(), memory)),
        (None, None) => Err(SpecError::Model {
            model: model.to_owned(),
            known: MODELS.map(|known| known.name).join(", "),
        }),
    }
}

fn parse_count(item: &str, text: &str) -> Result<u32, SpecError> {
    match text.parse::<u32>() {
        Ok(count) if (1..=MAX_DEVICES).contains(&count) => Ok(count),
        _ => Err(bad(
            item,
            format!("`{text}` is not a count between 1 and {MAX_DEVICES}"),
        )),
    }
}

fn parse_speed(item: &str, text: &str) -> Result<u32, SpecError> {
    let speed: f64 = text
        .parse()
        .map_err(|_| bad(item, format!("`{text}` is not a speed such as 0.93")))?;
    if !(0.01..=10.0).contains(&speed) {
        return Err(bad(item, "a speed lies between 0.01 and 10"));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 10 to 10,000 by the line above.
    Ok((speed * 1000.0).round() as u32)
}

fn parse_memory(item: &str, text: &str) -> Result<u64, SpecError> {
    let wrong = || bad(item, format!("`{text}` is not a memory size such as 24GiB"));
    let (number, unit) = match (text.strip_suffix("GiB"), text.strip_suffix("MiB")) {
        (Some(number), _) => (number, GIB),
        (_, Some(number)) => (number, 1 << 20),
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    // No device has 16 TiB; beyond it is a slip of the pen.
    match number.checked_mul(unit) {
        Some(bytes) if bytes > 0 && bytes <= 16_384 * GIB => Ok(bytes),
        _ => Err(wrong()),
    }
}

fn uuid(machine: &Machine, item: &Item, position: usize) -> String {
    let mut hash = blake3::Hasher::new();
    for part in [&machine.machine_id, &machine.node, &item.model] {
        hash.update(part.as_bytes());
        hash.update(&[0]);
    }
    if item.kind == "cpu" {
        let id = hash.finalize().to_hex();
        return format!("CPU-{}-{}-{position}", &id[..8], machine.node);
    }
    hash.update(&position.to_le_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize().as_bytes()[..16]);
    // Version 8 of RFC 9562: made from a hash of our own choice.
    format!("GPU-{}", uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use super::*;

    fn machine(node: &str) -> Machine {
        Machine {
            machine_id: "0123456789abcdef".into(),
            node: node.into(),
            cpus: 4,
            memory_bytes: 64 * GIB,
        }
    }

    #[test]
    fn the_contracts_example() {
        let devices = parse_spec("sim:A100-80G*8@0.93,cpu*4", &machine("n")).unwrap();
        assert_eq!(devices.len(), 12);
        let gpu = &devices[0];
        assert_eq!(
            (
                gpu.kind.as_str(),
                gpu.model.as_str(),
                gpu.memory_bytes,
                gpu.speed_milli,
                gpu.simulated
            ),
            ("cuda", "A100-80G", 80 * GIB, 930, true)
        );
        let cpu = &devices[11];
        assert_eq!(
            (cpu.kind.as_str(), cpu.memory_bytes, cpu.simulated),
            ("cpu", 16 * GIB, false)
        );
        let uuids: BTreeSet<&String> = devices.iter().map(|d| &d.uuid).collect();
        assert_eq!(uuids.len(), 12);
    }

    #[test]
    fn uuids_stay_and_differ_between_nodes() {
        let list = |spec: &str, node| -> Vec<String> {
            let devices = parse_spec(spec, &machine(node)).unwrap();
            devices.into_iter().map(|d| d.uuid).collect()
        };
        let one = list("sim:L4*2,cpu*1", "a");
        assert_eq!(one, list("sim:L4*2,cpu*1", "a"));
        assert_eq!(one[..2], list("sim:T4*3,sim:L4*1,sim:L4*1", "a")[3..]);
        let other = list("sim:L4*2,cpu*1", "b");
        assert!(one.iter().all(|uuid| !other.contains(uuid)));
    }

    #[test]
    fn other_forms() {
        let models = |spec: &str| -> Vec<(String, String, u64)> {
            let devices = parse_spec(spec, &machine("n")).unwrap();
            devices
                .into_iter()
                .map(|d| (d.kind, d.model, d.memory_bytes / GIB))
                .collect()
        };
        assert_eq!(models("auto").len(), 4);
        assert_eq!(models("sim:mi300x"), [("rocm".into(), "MI300X".into(), 192)]);
        assert_eq!(models("sim:B300:288GiB*2").len(), 2);
        assert_eq!(models("sim:L4*1000").len(), 1000);
        assert_eq!(models("sim:Ascend-910B")[0].0, "ascend");
    }

    #[test]
    fn nonsense_is_named() {
        let item = [
            "sim:L4*0",
            "sim:L4*-1",
            "sim:L4*1e18",
            "sim:L4@NaN",
            "sim:L4@0",
            "gpu*2",
            "auto*2",
            "cpu*4,",
            "sim:X:0GiB",
            "sim:X:9GB",
            "sim:*2",
            "sim:L4*9000,sim:L4*9000",
        ];
        for spec in item {
            let error = parse_spec(spec, &machine("n")).unwrap_err();
            assert!(matches!(error, SpecError::Item { .. }), "{spec}: {error}");
        }
        assert_eq!(parse_spec(" ", &machine("n")), Err(SpecError::Empty));
        let error = parse_spec("sim:Z9000*2", &machine("n")).unwrap_err();
        assert!(error.to_string().contains("A100-80G"), "{error}");
        let error = parse_spec("sim-file:faults.yaml", &machine("n")).unwrap_err();
        assert!(error.to_string().contains("[not_yet]"), "{error}");
    }
}
