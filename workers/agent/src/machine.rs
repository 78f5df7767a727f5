//! What the agent reads of its machine: who it is, how big, how busy.
//!
//! Everything comes from files every Linux has. What cannot be read is `None` in a beat (never zero, which would be a
//! measurement) and a limitation in the greeting.

use std::{fs, path::Path, time::Instant};

use tidemill_protocol::telemetry::HostReading;

/// The machine as device specifications and identities need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Stays with the installation: `/etc/machine-id`, or an id kept in the data directory where there is none.
    pub machine_id: String,
    /// The node's name: two agents on one machine have different devices.
    pub node: String,
    /// CPUs this process may use.
    pub cpus: u32,
    /// Memory in all, bytes.
    pub memory_bytes: u64,
}

impl Machine {
    /// Reads this machine for the node `node`; `data_dir` must exist.
    pub fn read(node: &str, data_dir: &Path) -> std::io::Result<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            machine_id: machine_id(data_dir)?,
            node: node.to_owned(),
            cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
            memory_bytes: memory().map_or(0, |memory| memory.total),
        })
    }
}

fn machine_id(data_dir: &Path) -> std::io::Result<String> {
    if let Ok(id) = fs::read_to_string("/etc/machine-id") {
        let id = id.trim();
        if !id.is_empty() && id != "uninitialized" {
            return Ok(id.to_owned());
        }
    }
    let own = data_dir.join("machine-id");
    match fs::read_to_string(&own) {
        Ok(id) if !id.trim().is_empty() => Ok(id.trim().to_owned()),
        _ => {
            let id = uuid::Uuid::now_v7().simple().to_string();
            fs::write(&own, &id)?;
            Ok(id)
        }
    }
}

/// Host memory, bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryUse {
    pub(crate) total: u64,
    pub(crate) used: u64,
}

/// Reads `/proc/meminfo`. Used = total − available, the kernel's own estimate.
pub(crate) fn memory() -> Option<MemoryUse> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    let total = field("MemTotal:")?;
    let available = field("MemAvailable:")?;
    Some(MemoryUse {
        total,
        used: total.saturating_sub(available),
    })
}

/// Free bytes for unprivileged writers where `path` is.
pub(crate) fn disk_free(path: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    stat.blocks_available().checked_mul(stat.fragment_size())
}

/// All bytes where `path` is.
fn disk_total(path: &Path) -> Option<u64> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    stat.blocks().checked_mul(stat.fragment_size())
}

/// Sectors of `/proc/diskstats` have this size whatever the disk's own.
const SECTOR: u64 = 512;

/// Network and disk traffic between two readings.
#[derive(Debug, Default)]
pub(crate) struct TrafficMeter {
    last: Option<(Instant, Counters)>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counters {
    received: Option<u64>,
    transmitted: Option<u64>,
    disk: Option<u64>,
}

impl TrafficMeter {
    /// The host's figures; rates need two readings.
    pub(crate) fn read(&mut self, data_dir: &Path) -> HostReading {
        let now = Instant::now();
        let network = fs::read_to_string("/proc/net/dev").ok().and_then(|text| network(&text));
        let counters = Counters {
            received: network.map(|(received, _)| received),
            transmitted: network.map(|(_, transmitted)| transmitted),
            disk: fs::read_to_string("/proc/diskstats").ok().and_then(|text| disks(&text)),
        };
        let before = self.last.replace((now, counters));
        let rate = |of: fn(&Counters) -> Option<u64>| {
            let (then, before) = before.as_ref()?;
            let millis = u64::try_from(now.duration_since(*then).as_millis()).ok()?;
            // A counter that went back was reset.
            let moved = of(&counters)?.checked_sub(of(before)?)?;
            moved.checked_mul(1000)?.checked_div(millis)
        };
        HostReading {
            disk_total_bytes: disk_total(data_dir),
            network_receive_bps: rate(|c| c.received),
            network_transmit_bps: rate(|c| c.transmitted),
            disk_bps: rate(|c| c.disk),
        }
    }
}

/// Bytes received and sent, of `/proc/net/dev`.
fn network(text: &str) -> Option<(u64, u64)> {
    let mut sums = None;
    for line in text.lines() {
        let Some((name, counts)) = line.split_once(':') else {
            continue;
        };
        if name.trim() == "lo" {
            continue;
        }
        let counts: Vec<u64> = counts.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect();
        let (Some(received), Some(sent)) = (counts.first(), counts.get(8)) else {
            continue;
        };
        let (all_received, all_sent) = sums.unwrap_or((0u64, 0u64));
        sums = Some((all_received.saturating_add(*received), all_sent.saturating_add(*sent)));
    }
    sums
}

/// Bytes read and written, of `/proc/diskstats`: whole disks alone, whose parts would count twice.
fn disks(text: &str) -> Option<u64> {
    let mut sectors = None;
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(name), Some(read), Some(written)) = (words.get(2), words.get(5), words.get(9)) else {
            continue;
        };
        let digit = name.ends_with(|c: char| c.is_ascii_digit());
        let whole = match name.get(..2) {
            Some("sd" | "vd" | "hd" | "xv") => !digit,
            Some("nv" | "mm") => !name.contains('p'),
            _ => false,
        };
        if let (true, Ok(read), Ok(written)) = (whole, read.parse::<u64>(), written.parse::<u64>()) {
            sectors = Some(sectors.unwrap_or(0u64).saturating_add(read).saturating_add(written));
        }
    }
    sectors?.checked_mul(SECTOR)
}

/// Busy share of all CPUs between two readings of `/proc/stat`.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    last: Option<(u64, u64)>,
}

impl CpuMeter {
    /// Thousandths busy since the last call; `None` at the first, and where nothing can be read.
    pub(crate) fn read(&mut self) -> Option<u32> {
        let now = cpu_ticks()?;
        let (busy, all) = self.last.replace(now)?;
        share(now.0.checked_sub(busy)?, now.1.checked_sub(all)?)
    }
}

fn share(busy: u64, all: u64) -> Option<u32> {
    u32::try_from((busy * 1000).checked_div(all)?).ok()
}

fn cpu_ticks() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq steal; guest time is within user time.
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .take(8)
        .filter_map(|tick| tick.parse().ok())
        .collect();
    let all: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((all - idle, all))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn this_machine_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let machine = Machine::read("n", dir.path()).unwrap();
        assert_eq!(machine, Machine::read("n", dir.path()).unwrap());
        assert!(machine.cpus > 0 && machine.memory_bytes > 0);
        assert!(disk_free(dir.path()).is_some());
        assert!(memory().unwrap().used > 0);
    }

    #[test]
    fn traffic_is_counted_once() {
        let net = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 900 1 0 0 0 0 0 0 900 1 0 0 0 0 0 0\n  eth0: 100 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n";
        assert_eq!(network(net), Some((100, 7)));
        assert_eq!(network("nothing"), None);
        let disk = "   8  0 sda 1 0 10 1 2 0 20 1 0 1 1\n   8  1 sda1 1 0 10 1 2 0 20 1 0 1 1\n 259 0 nvme0n1 1 0 1 1 1 0 1 1 0 1 1\n 259 1 nvme0n1p1 1 0 1 1 1 0 1 1 0 1 1\n   7 0 loop0 1 0 9 1 1 0 9 1 0 1 1\n";
        assert_eq!(disks(disk), Some(32 * 512));
        assert_eq!(disks(""), None);
    }

    #[test]
    fn a_share_needs_two_different_readings() {
        assert_eq!(CpuMeter::default().read(), None);
        assert_eq!(share(0, 0), None);
        assert_eq!(share(1, 4), Some(250));
    }
}
