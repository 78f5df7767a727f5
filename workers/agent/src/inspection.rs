//! What a node measures of itself before it joins: memory, disk, the way to a server, the speed of its devices.
//!
//! Everything runs at once, each part on a thread of its own, within [`LIMIT`]; a part that is not done by then is
//! unknown and, if it is the disk, a finding. Measurements are kept for the boot, so that an agent that restarts greets
//! at once; findings about devices are made anew each time.
//!
//! CPUs: cycles a second of a chain of dependent one-cycle instructions, counted in the thread's own CPU time so that
//! neighbours do not slow it, over the clock the model is sold at. Accelerators: there is no way to run anything on them
//! without their vendor's runtime, so a program of the operator's choice measures them, or nobody does and it is said.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    hint::black_box,
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tidemill_client::ServerUrl;
use tidemill_protocol::{
    agent::DeviceInfo,
    telemetry::{DeviceReading, Finding, Inspection},
};
use tokio::sync::watch;

use crate::{
    AgentConfig,
    devices::{nominal_memory, tool_output},
};

/// Time for everything.
const LIMIT: Duration = Duration::from_millis(4500);

/// A device below this share of its model's speed, in thousandths, is slow.
const SLOW_MILLI: u32 = 800;

/// A disk below these is slow.
const SLOW_DISK_BPS: u64 = 5_000_000;
const SLOW_SYNC: Duration = Duration::from_millis(500);

/// A server farther away than this is far.
const SLOW_ROUND_TRIP: Duration = Duration::from_millis(500);

/// Written to the disk and read back.
const DISK_BYTES: usize = 4 << 20;

/// Copied in memory.
const MEMORY_BYTES: usize = 16 << 20;

/// Findings of one node told at most.
const MOST_FINDINGS: usize = 64;

/// Kept in the data directory.
const FILE: &str = "inspection.json";

/// What was measured, and what follows from it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inspected {
    pub(crate) report: Inspection,
    /// Speeds measured, by UUID, in thousandths.
    speeds: BTreeMap<String, u32>,
}

impl Inspected {
    /// Puts measured speeds where none was stated.
    pub(crate) fn correct(&self, devices: &mut [DeviceInfo]) {
        for device in devices {
            if let Some(speed) = self.speeds.get(&device.uuid) {
                device.speed_milli = *speed;
            }
        }
    }
}

/// What is kept of a boot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Measured {
    boot_id: String,
    uuids: Vec<String>,
    took_ms: u64,
    memory_bps: Option<u64>,
    disk: Option<Result<Disk, String>>,
    round_trip_us: Option<u64>,
    speeds: BTreeMap<String, u32>,
    speed_problem: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Disk {
    write_bps: u64,
    sync_us: u64,
}

/// Begins; the receiver sees the result within [`LIMIT`] and a little.
pub(crate) fn begin(config: &AgentConfig, boot_id: &str, fresh: bool) -> watch::Receiver<Option<Inspected>> {
    let (said, seen) = watch::channel(None);
    let (config, boot_id) = (config.clone(), boot_id.to_owned());
    let started = thread::Builder::new().name("inspection".to_owned()).spawn(move || {
        let measured = kept(&config, &boot_id).unwrap_or_else(|| {
            let measured = measure(&config, &boot_id);
            keep(&config.data_dir, &measured);
            measured
        });
        let inspected = judge(&config, measured, fresh);
        tell(&inspected.report);
        said.send_replace(Some(inspected));
    });
    if let Err(error) = started {
        tracing::warn!(code = "inspection_failed", %error, "the node joins without having been inspected");
    }
    seen
}

fn uuids(config: &AgentConfig) -> Vec<String> {
    config.devices.iter().map(|device| device.uuid.clone()).collect()
}

fn kept(config: &AgentConfig, boot_id: &str) -> Option<Measured> {
    let text = fs::read_to_string(config.data_dir.join(FILE)).ok()?;
    let measured: Measured = serde_json::from_str(&text).ok()?;
    (measured.boot_id == boot_id && measured.uuids == uuids(config)).then_some(measured)
}

fn keep(data_dir: &Path, measured: &Measured) {
    let Ok(text) = serde_json::to_vec(measured) else { return };
    if let Err(error) = fs::write(data_dir.join(FILE), text) {
        tracing::warn!(code = "inspection_not_kept", %error, "it is done again at the next start");
    }
}

/// One part's result.
enum Part {
    Memory(u64),
    Disk(Result<Disk, String>),
    RoundTrip(Option<u64>),
    Cpu(Option<u32>),
    Accelerators(Result<BTreeMap<String, u32>, String>),
}

fn measure(config: &AgentConfig, boot_id: &str) -> Measured {
    let began = Instant::now();
    let (say, said) = mpsc::channel();
    let mut expected = 0;
    let mut begin = |name: &str, part: Box<dyn FnOnce() -> Part + Send>| {
        let say = say.clone();
        let started = thread::Builder::new().name(format!("inspect-{name}")).spawn(move || {
            // Nobody waits any more: it took too long.
            let _ = say.send(part());
        });
        expected += usize::from(started.is_ok());
    };
    begin("memory", Box::new(|| Part::Memory(memory())));
    let dir = config.data_dir.clone();
    begin(
        "disk",
        Box::new(move || Part::Disk(disk(&dir).map_err(|error| error.to_string()))),
    );
    let servers = config.servers.clone();
    begin("network", Box::new(move || Part::RoundTrip(round_trip(&servers))));
    let real = |kind_is_cpu: bool| {
        let unmeasured = |d: &&DeviceInfo| !d.simulated && d.speed_milli == 1000 && (d.kind == "cpu") == kind_is_cpu;
        config
            .devices
            .iter()
            .filter(unmeasured)
            .map(|d| d.uuid.clone())
            .collect::<Vec<_>>()
    };
    let (cpus, accelerators) = (real(true), real(false));
    if !cpus.is_empty() {
        begin("cpu", Box::new(|| Part::Cpu(cpu())));
    }
    if let Some(command) = config.speed_command.clone().filter(|_| !accelerators.is_empty()) {
        begin(
            "speed",
            Box::new(move || Part::Accelerators(speeds(&command, &accelerators))),
        );
    }
    let mut measured = Measured {
        boot_id: boot_id.to_owned(),
        uuids: uuids(config),
        ..Measured::default()
    };
    for _ in 0..expected {
        match said.recv_timeout(LIMIT.saturating_sub(began.elapsed())) {
            Ok(Part::Memory(bps)) => measured.memory_bps = Some(bps),
            Ok(Part::Disk(disk)) => measured.disk = Some(disk),
            Ok(Part::RoundTrip(round_trip)) => measured.round_trip_us = round_trip,
            Ok(Part::Cpu(speed)) => measured
                .speeds
                .extend(speed.iter().flat_map(|s| cpus.iter().map(|u| (u.clone(), *s)))),
            Ok(Part::Accelerators(Ok(speeds))) => measured.speeds.extend(speeds),
            Ok(Part::Accelerators(Err(problem))) => measured.speed_problem = Some(problem),
            Err(_) => break,
        }
    }
    measured.took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    measured
}

/// What measurements and readings mean. `fresh`: nothing of an earlier agent runs here.
fn judge(config: &AgentConfig, measured: Measured, fresh: bool) -> Inspected {
    let mut report = Inspection {
        took_ms: measured.took_ms,
        memory_bps: measured.memory_bps,
        disk_write_bps: measured
            .disk
            .as_ref()
            .and_then(|disk| disk.as_ref().ok())
            .map(|disk| disk.write_bps),
        disk_sync_us: measured
            .disk
            .as_ref()
            .and_then(|disk| disk.as_ref().ok())
            .map(|disk| disk.sync_us),
        round_trip_us: measured.round_trip_us,
        ..Inspection::default()
    };
    report.findings = of_node(&measured);
    let mut devices = config.devices.clone();
    let inspected = Inspected {
        report: Inspection::default(),
        speeds: measured.speeds,
    };
    inspected.correct(&mut devices);
    let (readings, _) = config.telemetry.readings();
    let mut told = report.findings.len();
    for device in &devices {
        let reading = readings.iter().find(|reading| reading.uuid == device.uuid);
        let found = of_device(device, reading, fresh);
        if !found.is_empty() && told < MOST_FINDINGS {
            told += found.len();
            report.devices.insert(device.uuid.clone(), found);
        }
    }
    for limitation in config.limitations.iter().take(MOST_FINDINGS.saturating_sub(told)) {
        report.findings.push(match limitation.strip_prefix("driver ") {
            Some(_) => finding(
                "driver_unusable",
                limitation,
                "look at the driver and the kernel's log, then start the agent again",
            ),
            None => finding(
                "not_known",
                limitation,
                "nothing, unless it should be known: then look at its driver",
            ),
        });
    }
    Inspected { report, ..inspected }
}

fn finding(code: &str, detail: impl Into<String>, next: &str) -> Finding {
    Finding {
        code: code.to_owned(),
        detail: detail.into(),
        next: next.to_owned(),
    }
}

fn of_node(measured: &Measured) -> Vec<Finding> {
    let mut found = Vec::new();
    match &measured.disk {
        Some(Ok(disk)) if disk.write_bps < SLOW_DISK_BPS || u128::from(disk.sync_us) > SLOW_SYNC.as_micros() => {
            found.push(finding(
                "slow_disk",
                format!(
                    "its data directory writes {} kB a second, a synced write takes {} ms",
                    disk.write_bps / 1000,
                    disk.sync_us / 1000
                ),
                "put --data on a faster disk, or find out what keeps this one busy",
            ));
        }
        Some(Ok(_)) => {}
        Some(Err(error)) => found.push(finding(
            "broken_disk",
            format!("its data directory cannot be written and read back: {error}"),
            "check the disk before work is placed here",
        )),
        None => found.push(finding(
            "broken_disk",
            format!(
                "its data directory did not take {DISK_BYTES} bytes within {} ms",
                LIMIT.as_millis()
            ),
            "check the disk before work is placed here",
        )),
    }
    if let Some(us) = measured
        .round_trip_us
        .filter(|us| u128::from(*us) > SLOW_ROUND_TRIP.as_micros())
    {
        found.push(finding(
            "slow_network",
            format!("connecting to a server takes {} ms", us / 1000),
            "look at the network between this node and the servers",
        ));
    }
    if let Some(problem) = &measured.speed_problem {
        found.push(finding(
            "speed_not_measured",
            format!("--speed-command: {problem}; accelerators count as nominal"),
            "run it by hand with the UUIDs of `tidemill devices`",
        ));
    }
    found
}

fn of_device(device: &DeviceInfo, reading: Option<&DeviceReading>, fresh: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    if device.speed_milli < SLOW_MILLI {
        found.push(finding(
            "slow_device",
            format!(
                "it runs at {:.2} of its model's speed",
                f64::from(device.speed_milli) / 1000.0
            ),
            "look at its cooling, its power limit and its slot; work that states no model may still land on it",
        ));
    }
    if let Some(nominal) = nominal_memory(&device.model).filter(|nominal| device.memory_bytes < nominal / 100 * 80) {
        found.push(finding(
            "memory_missing",
            format!(
                "it reports {} MiB, its model has {} MiB",
                device.memory_bytes >> 20,
                nominal >> 20
            ),
            "reset it; replace it if it stays so",
        ));
    }
    let Some(reading) = reading else { return found };
    found.extend(reading.findings.iter().cloned());
    let taken = reading.memory_used_bytes.zip(reading.memory_total_bytes);
    // Drivers keep some for themselves.
    if let Some((used, total)) = taken.filter(|(used, total)| fresh && *used > total / 5) {
        found.push(finding(
            "memory_in_use",
            format!(
                "{} of {} MiB are in use before anything was placed here",
                used >> 20,
                total >> 20
            ),
            "find whose they are (`nvidia-smi`, `rocm-smi`, `npu-smi info`) and end them",
        ));
    }
    found
}

/// The agent's own word.
fn tell(report: &Inspection) {
    tracing::info!(
        took_ms = report.took_ms,
        memory_bps = report.memory_bps,
        disk_write_bps = report.disk_write_bps,
        disk_sync_us = report.disk_sync_us,
        round_trip_us = report.round_trip_us,
        "inspected"
    );
    for finding in &report.findings {
        tracing::warn!(
            code = finding.code,
            next = finding.next,
            "this node: {}",
            finding.detail
        );
    }
    for (device, findings) in &report.devices {
        for finding in findings {
            tracing::warn!(
                code = finding.code,
                device,
                next = finding.next,
                "this device: {}",
                finding.detail
            );
        }
    }
}

/// Bytes a second one core copies; the best of a few, after what was copied was found to be there.
fn memory() -> u64 {
    let source: Vec<u8> = (0..MEMORY_BYTES).map(|n| u8::try_from(n % 251).unwrap_or(0)).collect();
    let mut target = vec![0u8; MEMORY_BYTES];
    let mut best = 0;
    for _ in 0..4 {
        let began = Instant::now();
        target.copy_from_slice(black_box(&source));
        black_box(&target);
        best = best.max(per_second(MEMORY_BYTES, began.elapsed()));
    }
    best
}

fn per_second(bytes: usize, took: Duration) -> u64 {
    let nanos = took.as_nanos().max(1);
    u64::try_from(bytes as u128 * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

fn disk(dir: &Path) -> io::Result<Disk> {
    let path = dir.join("inspection.tmp");
    let measured = disk_at(&path);
    // Gone already if it could not be made.
    let _ = fs::remove_file(&path);
    measured
}

fn disk_at(path: &PathBuf) -> io::Result<Disk> {
    let block: Vec<u8> = (0..DISK_BYTES).map(|n| u8::try_from(n % 253).unwrap_or(0)).collect();
    let mut file = File::create(path)?;
    let began = Instant::now();
    file.write_all(&block)?;
    file.sync_data()?;
    let write_bps = per_second(DISK_BYTES, began.elapsed());
    let began = Instant::now();
    file.write_all(&block[..4096])?;
    file.sync_data()?;
    let sync_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut read = Vec::with_capacity(DISK_BYTES + 4096);
    File::open(path)?.read_to_end(&mut read)?;
    if read[..DISK_BYTES.min(read.len())] != block[..] {
        return Err(io::Error::other("what was read back is not what was written"));
    }
    Ok(Disk { write_bps, sync_us })
}

/// The shortest time to connect to any server, microseconds.
fn round_trip(servers: &[ServerUrl]) -> Option<u64> {
    let mut best: Option<Duration> = None;
    for server in servers.iter().take(4) {
        let Ok(addresses) = (server.host(), server.port()).to_socket_addrs() else {
            continue;
        };
        for address in addresses.take(2) {
            for _ in 0..3 {
                let began = Instant::now();
                if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
                    break;
                }
                best = Some(best.map_or(began.elapsed(), |best| best.min(began.elapsed())));
            }
        }
    }
    u64::try_from(best?.as_micros()).ok()
}

/// Turns of the chain a slice; three cycles each.
const TURNS: u64 = 2_000_000;
const CYCLES: u64 = 3;
const SLICES: usize = 12;

/// Measured over nominal clock of a core in thousandths, at most 1000; none where the nominal clock is not known.
fn cpu() -> Option<u32> {
    let nominal = nominal_hz()?;
    let mut best = 0;
    let mut value = black_box(0x9e37_79b9_7f4a_7c15_u64);
    for _ in 0..SLICES {
        let began = cpu_time()?;
        for _ in 0..TURNS {
            // Rotate, xor, add: one cycle each, each on the result of the one before.
            value = (value.rotate_left(7) ^ 0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        }
        value = black_box(value);
        let took = cpu_time()?.checked_sub(began)?;
        let hertz = u128::from(TURNS * CYCLES) * 1_000_000_000 / took.as_nanos().max(1);
        best = best.max(u64::try_from(hertz).unwrap_or(u64::MAX));
    }
    let milli = u128::from(best) * 1000 / u128::from(nominal);
    // Turbo is a gift, not a promise.
    u32::try_from(milli.clamp(10, 1000)).ok()
}

fn cpu_time() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok().map(Into::into)
}

fn nominal_hz() -> Option<u64> {
    let dir = Path::new("/sys/devices/system/cpu/cpu0/cpufreq");
    let khz = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse::<u64>().ok();
    if let Some(khz) = khz("base_frequency")
        .or_else(|| khz("cpuinfo_max_freq"))
        .filter(|khz| *khz > 0)
    {
        return khz.checked_mul(1000);
    }
    sold_at(&fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// `model name : Intel(R) Xeon(R) CPU @ 2.20GHz`
fn sold_at(cpuinfo: &str) -> Option<u64> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let ghz: f64 = line
        .rsplit_once('@')?
        .1
        .trim()
        .strip_suffix("GHz")?
        .trim()
        .parse()
        .ok()?;
    if !(0.1..20.0).contains(&ghz) {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Bounded by the line above.
    Some((ghz * 1e9) as u64)
}

/// Asks the operator's program.
fn speeds(command: &Path, uuids: &[String]) -> Result<BTreeMap<String, u32>, String> {
    let arguments: Vec<&str> = uuids.iter().map(String::as_str).collect();
    let text = tool_output(command, &arguments, LIMIT.saturating_sub(Duration::from_millis(300)))?;
    let mut speeds = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(uuid), Some(speed)) = (words.next(), words.next()) else {
            continue;
        };
        let speed: f64 = speed.parse().map_err(|_| format!("`{speed}` is not a speed"))?;
        if uuids.iter().any(|known| known == uuid) && (0.01..=10.0).contains(&speed) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Bounded by the line above.
            speeds.insert(uuid.to_owned(), (speed * 1000.0).round() as u32);
        }
    }
    match uuids.iter().find(|uuid| !speeds.contains_key(*uuid)) {
        None => Ok(speeds),
        Some(missing) => Err(format!("it said no speed of {missing}")),
    }
}

#[cfg(test)]
mod tests;
