//! What a beat says of a node's devices and of its host.
//!
//! A field that cannot be read is absent, never 0, and stands in [`DeviceReading::unreadable`] under the reason why. A
//! reading carries its age, since a driver may be slow while beats are not. Rejected: a list of capabilities sent once
//! at greeting, which a driver's failure would leave wrong.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Readings a beat carries at most; a node with more of them says how many it left out.
pub const MAX_READINGS: usize = 128;

/// The last reading of one device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceReading {
    /// Vendor UUID.
    pub uuid: String,
    /// How old it is, milliseconds.
    #[serde(default)]
    pub age_ms: u64,
    /// Share of time in which something ran on it, thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_milli: Option<u32>,
    /// Memory in use, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used_bytes: Option<u64>,
    /// Memory in all, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// Core temperature, degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_c: Option<i32>,
    /// Power drawn, milliwatts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_mw: Option<u64>,
    /// Clock of the compute cores, MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core_clock_mhz: Option<u32>,
    /// Clock of the memory, MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_clock_mhz: Option<u32>,
    /// Why its clocks are held down: `hw_slowdown`, `hw_thermal`, `power_brake`, `sw_thermal`, `power_cap`, …; empty if
    /// they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle: Option<Vec<String>>,
    /// Memory errors corrected since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    /// Memory errors that could not be corrected since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
    /// The driver's error code seen last since the agent started; 0: none was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xid: Option<u32>,
    /// How many such errors were seen since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xids: Option<u64>,
    /// Memory rows replaced by spare ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remapped_rows: Option<u64>,
    /// Errors on its links to other devices since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_errors: Option<u64>,
    /// Processes that hold a context on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// What is wrong with it or with what it says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Fields that cannot be read, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unreadable: BTreeMap<String, Vec<String>>,
}

/// Something an operator should know of a device or node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Stable code: `device_lost`, `driver_silent`, `sensor_conflict`, `slow_device`, …
    pub code: String,
    /// What was seen.
    pub detail: String,
    /// What to do.
    #[serde(default)]
    pub next: String,
}

/// The host's own figures beside those of the beat itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReading {
    /// Bytes in all where the agent keeps its data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_total_bytes: Option<u64>,
    /// Bytes received a second over all interfaces but loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_receive_bps: Option<u64>,
    /// Bytes sent a second over all interfaces but loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_transmit_bps: Option<u64>,
    /// Bytes read and written a second over all disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bps: Option<u64>,
}

/// What a node measured of itself before it joined. What could not be measured in time is absent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// How long it took, milliseconds.
    #[serde(default)]
    pub took_ms: u64,
    /// Bytes a second one core copies in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bps: Option<u64>,
    /// Bytes a second written to the data directory and synced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_write_bps: Option<u64>,
    /// Time of one small synced write there, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_sync_us: Option<u64>,
    /// Time to connect to a server, microseconds; the shortest of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
    /// What is wrong with the node as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// What is wrong with devices, by UUID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, Vec<Finding>>,
}
