//! The one clock facts are dated by: `CLOCK_BOOTTIME`, which no administrator sets and which goes on through suspend and
//! across restarts of the agent. It is only comparable within one boot, so it is always kept with the boot id.

use nix::time::{ClockId, clock_gettime};

/// Milliseconds since the machine was started.
pub(crate) fn boottime_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME since 2.6.39");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    seconds * 1000 + u64::try_from(now.tv_nsec()).unwrap_or(0) / 1_000_000
}

/// The kernel's id of this boot; empty where it cannot be read.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}
