//! What nodes say of their hardware, as lists, `doctor` and `/metrics` show it.
//!
//! A value that is not known is absent. Series are bounded: so many devices and nodes, in order of id, and the number of
//! those left out.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use tidemill_domain::events::node::{DeviceKind, InspectionFinding};
use tidemill_domain::id::NodeId;
use tidemill_domain::state::State as CellState;
use tidemill_domain::state::device::Device;
use tidemill_domain::state::node::{Node, NodeState};
use tidemill_protocol::agent::Beat;
use tidemill_protocol::telemetry::DeviceReading;

use crate::health::{Check, CheckState};
use crate::metrics::Text;
use crate::reads::ListKind;
use crate::telemetry::{Telemetry, ratio, reading};

/// Devices and nodes with series of their own.
const MOST_DEVICES: usize = 4096;
const MOST_NODES: usize = 2048;
/// Devices that `doctor` speaks of one by one.
const MOST_CHECKS: usize = 256;

/// Beats by node, read once for all rows of an answer.
struct Beats<'a> {
    telemetry: &'a Telemetry,
    read: BTreeMap<NodeId, Option<Beat>>,
}

impl<'a> Beats<'a> {
    fn new(telemetry: &'a Telemetry) -> Self {
        Self {
            telemetry,
            read: BTreeMap::new(),
        }
    }

    fn of(&mut self, node: NodeId) -> Option<&Beat> {
        self.read
            .entry(node)
            .or_insert_with(|| self.telemetry.of(node))
            .as_ref()
    }
}

/// Puts what is known now beside what is on the ledger.
pub(crate) fn enrich(kind: ListKind, rows: &mut [Value], telemetry: &Telemetry) {
    let key = match kind {
        ListKind::Nodes => "id",
        ListKind::Devices => "node",
        ListKind::Services | ListKind::Instances | ListKind::Queue | ListKind::Switches => return,
    };
    let mut beats = Beats::new(telemetry);
    for row in rows {
        let node = row.get(key).and_then(Value::as_str).and_then(|id| id.parse().ok());
        let Some(beat) = node.and_then(|node| beats.of(node)) else {
            continue;
        };
        match kind {
            ListKind::Nodes => row["telemetry"] = host(beat),
            _ => device(row, beat),
        }
    }
}

fn host(beat: &Beat) -> Value {
    let figures = json!({
        "cpu": beat.cpu_milli.map(ratio),
        "memory_used_bytes": beat.memory_used_bytes,
        "memory_total_bytes": beat.memory_total_bytes,
        "disk_free_bytes": beat.disk_free_bytes,
        "disk_total_bytes": beat.host.as_ref().and_then(|host| host.disk_total_bytes),
        "disk_bps": beat.host.as_ref().and_then(|host| host.disk_bps),
        "network_receive_bps": beat.host.as_ref().and_then(|host| host.network_receive_bps),
        "network_transmit_bps": beat.host.as_ref().and_then(|host| host.network_transmit_bps),
    });
    let Value::Object(figures) = figures else {
        return Value::Null;
    };
    Value::Object(figures.into_iter().filter(|(_, value)| !value.is_null()).collect())
}

fn device(row: &mut Value, beat: &Beat) {
    let Some(reading) = row
        .get("uuid")
        .and_then(Value::as_str)
        .and_then(|uuid| reading(beat, uuid))
    else {
        return;
    };
    if let Some(used) = reading.memory_used_bytes {
        row["memory_used_bytes"] = json!(used);
    }
    if let Some(busy) = reading.busy_milli {
        row["utilisation"] = json!(ratio(busy));
    }
    if let Some(temperature) = reading.temperature_c {
        row["temperature_c"] = json!(temperature);
    }
    row["telemetry"] = json!(reading);
    if let Some(first) = reading.findings.first() {
        let reason = row.get("reason").and_then(Value::as_str).unwrap_or_default();
        if !reason.contains(&first.code) {
            row["reason"] = json!(format!("{reason}; {}: {}", first.code, first.detail));
        }
    }
}

/// Findings about nodes and devices.
pub(crate) fn examine(state: &CellState, telemetry: &Telemetry, checks: &mut Vec<Check>) {
    let mut beats = Beats::new(telemetry);
    let (mut accelerators, mut cpus, mut simulated, mut told) = (0u64, 0u64, 0u64, 0usize);
    let living = |node: &&Node| !matches!(node.state, NodeState::Lost | NodeState::Left);
    for node in state.nodes.values().filter(living) {
        let beat = beats.of(node.id);
        for finding in node.findings(None) {
            checks.push(inspected(&format!("node {}", node.name), finding));
        }
        for device in node.devices.iter().filter_map(|id| state.devices.get(id)) {
            match (device.simulated, device.kind) {
                (true, _) => simulated += 1,
                (false, DeviceKind::Cpu) => cpus += 1,
                (false, _) => accelerators += 1,
            }
            let reading = beat.and_then(|beat| reading(beat, &device.uuid));
            let before = checks.len();
            if told < MOST_CHECKS {
                examine_device(node, device, reading, checks);
            }
            told += checks.len() - before;
        }
    }
    let detail =
        format!("{accelerators} accelerators, {cpus} CPUs, {simulated} simulated devices on nodes that are not lost");
    checks.push(Check::ok("devices", detail));
    if told >= MOST_CHECKS {
        checks.push(Check::new(
            "devices",
            CheckState::Unknown,
            "devices_left_out",
            format!("findings of the first {MOST_CHECKS} devices are shown"),
            "see the others with `tidemill devices -o json`",
        ));
    }
}

fn examine_device(node: &Node, device: &Device, reading: Option<&DeviceReading>, checks: &mut Vec<Check>) {
    let name = format!("device {}", device.uuid);
    let live = reading.map(|reading| reading.findings.as_slice()).unwrap_or_default();
    for finding in live {
        let detail = format!("on {}: {}", node.name, finding.detail);
        checks.push(Check::new(
            &name,
            CheckState::Warn,
            &finding.code,
            detail,
            finding.next.clone(),
        ));
    }
    for finding in node.findings(Some(device.id)) {
        if live.iter().all(|known| known.code != finding.code) {
            checks.push(inspected(&name, finding));
        }
    }
    if device.simulated || device.kind == DeviceKind::Cpu {
        return;
    }
    let Some(reading) = reading else {
        checks.push(Check::new(
            &name,
            CheckState::Unknown,
            "no_telemetry",
            format!(
                "nothing is known of it now: its node {} has not spoken of it lately",
                node.name
            ),
            "see whether its agent runs; it may be of an older release",
        ));
        return;
    };
    let mut detail = format!("{} on {}", device.model, node.name);
    let mut before = "; not readable: ";
    for (why, fields) in &reading.unreadable {
        let _ = write!(detail, "{before}{} ({why})", fields.join(", "));
        before = "; ";
    }
    checks.push(Check::ok(&name, detail));
}

fn inspected(name: &str, finding: &InspectionFinding) -> Check {
    let state = match finding.code.as_str() {
        "not_known" => CheckState::Unknown,
        _ => CheckState::Warn,
    };
    Check::new(name, state, &finding.code, finding.detail.clone(), finding.next.clone())
}

/// Samples by family, so that a family without any is not written at all.
#[derive(Default)]
struct Families(BTreeMap<&'static str, Family>);

struct Family {
    kind: &'static str,
    help: &'static str,
    samples: Vec<(String, f64)>,
}

impl Families {
    fn put(&mut self, name: &'static str, kind: &'static str, help: &'static str, labels: &str, value: Option<f64>) {
        let Some(value) = value else { return };
        let samples = Vec::new();
        let family = self.0.entry(name).or_insert(Family { kind, help, samples });
        family.samples.push((labels.to_owned(), value));
    }

    fn write(self, out: &mut Text) {
        for (name, family) in self.0 {
            out.family(name, family.kind, family.help);
            for (labels, value) in family.samples {
                out.sample(&labels, value);
            }
        }
    }
}

/// A label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}

/// Series of devices and hosts.
pub(crate) fn series(state: &CellState, telemetry: &Telemetry, out: &mut Text) {
    let mut beats = Beats::new(telemetry);
    let mut families = Families::default();
    let (mut devices, mut left_out) = (0usize, 0usize);
    for (at, node) in state.nodes.values().enumerate() {
        let Some(beat) = beats.of(node.id) else { continue };
        if at < MOST_NODES {
            host_series(&escape(node.name.as_str()), beat, &mut families);
        }
        left_out += beat.devices_left_out as usize;
        for device in node.devices.iter().filter_map(|id| state.devices.get(id)) {
            let Some(reading) = reading(beat, &device.uuid) else {
                continue;
            };
            if devices == MOST_DEVICES {
                left_out += 1;
                continue;
            }
            devices += 1;
            device_series(node, device, reading, &mut families);
        }
    }
    families.write(out);
    out.gauge(
        "tidemill_hw_devices_left_out",
        "Devices with readings that have no series here.",
        left_out as f64,
    );
}

fn host_series(node: &str, beat: &Beat, families: &mut Families) {
    let labels = format!("{{node=\"{node}\"}}");
    let host = beat.host.clone().unwrap_or_default();
    let bytes = |value: Option<u64>| value.map(|value| value as f64);
    let mut put = |name, help, value| families.put(name, "gauge", help, &labels, value);
    put(
        "tidemill_host_cpu_utilization_ratio",
        "Busy share of a node's CPUs.",
        beat.cpu_milli.map(ratio),
    );
    put(
        "tidemill_host_memory_usage_bytes",
        "Memory of a node in use.",
        bytes(beat.memory_used_bytes),
    );
    put(
        "tidemill_host_memory_limit_bytes",
        "Memory of a node.",
        bytes(beat.memory_total_bytes),
    );
    put(
        "tidemill_host_disk_free_bytes",
        "Free where a node keeps its data.",
        bytes(beat.disk_free_bytes),
    );
    put(
        "tidemill_host_disk_limit_bytes",
        "All bytes there.",
        bytes(host.disk_total_bytes),
    );
    put(
        "tidemill_host_disk_bytes_per_second",
        "Read and written.",
        bytes(host.disk_bps),
    );
    put(
        "tidemill_host_network_receive_bytes_per_second",
        "Received.",
        bytes(host.network_receive_bps),
    );
    put(
        "tidemill_host_network_transmit_bytes_per_second",
        "Sent.",
        bytes(host.network_transmit_bps),
    );
}

fn device_series(node: &Node, device: &Device, reading: &DeviceReading, families: &mut Families) {
    let (uuid, name, model) = (escape(&device.uuid), escape(node.name.as_str()), escape(&device.model));
    let common = format!("uuid=\"{uuid}\",node=\"{name}\",model=\"{model}\"");
    let labels = format!("{{{common}}}");
    let number = |value: Option<u64>| value.map(|value| value as f64);
    let busy = reading.busy_milli.map(ratio);
    let temperature = reading.temperature_c.map(f64::from);
    let watts = reading.power_mw.map(|milli| milli as f64 / 1000.0);
    let mut put = |name, help, value| families.put(name, "gauge", help, &labels, value);
    put("tidemill_hw_gpu_utilization_ratio", "Busy share of a device.", busy);
    put(
        "tidemill_hw_gpu_memory_usage_bytes",
        "Memory of a device in use.",
        number(reading.memory_used_bytes),
    );
    put(
        "tidemill_hw_gpu_memory_limit_bytes",
        "Memory of a device.",
        number(reading.memory_total_bytes),
    );
    put(
        "tidemill_hw_temperature_celsius",
        "Core temperature of a device.",
        temperature,
    );
    put("tidemill_hw_power_watts", "Power a device draws.", watts);
    put(
        "tidemill_hw_gpu_remapped_rows",
        "Memory rows replaced by spare ones.",
        number(reading.remapped_rows),
    );
    put(
        "tidemill_hw_gpu_processes",
        "Processes on a device.",
        reading.processes.map(f64::from),
    );
    let (age, findings) = (reading.age_ms as f64 / 1000.0, reading.findings.len() as f64);
    put(
        "tidemill_hw_reading_age_seconds",
        "Age of what a device said last.",
        Some(age),
    );
    put(
        "tidemill_hw_findings",
        "Things wrong with a device; see `tidemill doctor`.",
        Some(findings),
    );
    for (domain, mhz) in [("core", reading.core_clock_mhz), ("memory", reading.memory_clock_mhz)] {
        let labels = format!("{{{common},domain=\"{domain}\"}}");
        let hertz = mhz.map(|mhz| f64::from(mhz) * 1e6);
        families.put(
            "tidemill_hw_gpu_clock_hertz",
            "gauge",
            "Clock of a device.",
            &labels,
            hertz,
        );
    }
    for (kind, count) in [
        ("corrected", reading.ecc_corrected),
        ("uncorrected", reading.ecc_uncorrected),
        ("link", reading.link_errors),
        ("xid", reading.xids),
    ] {
        let labels = format!("{{{common},type=\"{kind}\"}}");
        let help = "Errors of a device since its driver or its agent started.";
        families.put("tidemill_hw_errors_total", "counter", help, &labels, number(count));
    }
    // Words of the agent's own closed list; a newer agent may know one more or two.
    for reason in reading.throttle.iter().flatten().take(8) {
        let labels = format!("{{{common},reason=\"{}\"}}", escape(reason));
        let help = "Whether a device's clocks are held down, by reason.";
        families.put("tidemill_hw_gpu_throttled", "gauge", help, &labels, Some(1.0));
    }
    if device.kind == DeviceKind::Cpu {
        return;
    }
    // Names that dashboards made for NVIDIA's exporter look for.
    let labels = format!("{{UUID=\"{uuid}\",Hostname=\"{name}\",modelName=\"{model}\"}}");
    let mut put = |name, help, value| families.put(name, "gauge", help, &labels, value);
    put(
        "DCGM_FI_DEV_GPU_UTIL",
        "GPU utilization (in %).",
        busy.map(|busy| busy * 100.0),
    );
    let mib = reading.memory_used_bytes.map(|bytes| (bytes >> 20) as f64);
    put("DCGM_FI_DEV_FB_USED", "Framebuffer memory used (in MiB).", mib);
    put("DCGM_FI_DEV_GPU_TEMP", "GPU temperature (in C).", temperature);
    put("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", watts);
    put(
        "DCGM_FI_DEV_XID_ERRORS",
        "Value of the last XID error encountered.",
        reading.xid.map(f64::from),
    );
}
