//! What machines are and how they are, as users see it: one cell with a machine without accelerators, one with NVIDIA's
//! cards and one with AMD's, whose drivers are stand-ins.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use tidemill_tests::drivers::FakeDrivers;
use tidemill_tests::product::{Process, Up, eventually, get};

const NVIDIA: &str = "GPU-5eed0001-1c2d-4e5f-8a9b-000000000001";
const AMD: &str = "GPU-c1b3f53c2d5b1f2d";

fn card(more: &str) -> String {
    format!(
        "gpu\nuuid {NVIDIA}\nname NVIDIA A100-SXM4-80GB\npci 00000000:3B:00.0\nmemory.total 85899345920\n\
         memory.used 1073741824\ntemp 51\npower 212000\nevents 1\nmig_mode 0\n{more}"
    )
}

fn amd_machine() -> FakeDrivers {
    let drivers = FakeDrivers::new();
    for (file, text) in [
        ("vendor", "0x1002"),
        ("device", "0x74a1"),
        ("unique_id", "c1b3f53c2d5b1f2d"),
        ("uevent", "PCI_SLOT_NAME=0000:c1:00.0\n"),
        ("mem_info_vram_total", "206141652992"),
        ("mem_info_vram_used", "297795584"),
        ("hwmon/hwmon3/temp1_input", "41000"),
        ("hwmon/hwmon3/power1_average", "142000000"),
    ] {
        drivers.sysfs_file(&format!("class/drm/card1/device/{file}"), text);
    }
    // There, and not to be read as a file: the kernel's other ways to refuse are tried below this level.
    fs::create_dir(drivers.sysfs().join("class/drm/card1/device/gpu_busy_percent")).unwrap();
    drivers
}

fn agent(up: &Up, dir: &TempDir, token: &Path, name: &str, drivers: &FakeDrivers) -> Process {
    let data = dir.path().join(name);
    let mut args = vec!["agent", "--server", &up.api, "--token-file", token.to_str().unwrap()];
    args.extend(["--data", data.to_str().unwrap(), "--name", name, "--devices", "auto"]);
    args.extend([
        "--supply",
        "idc",
        "--provider",
        "own",
        "--region",
        "east",
        "--zone",
        "a",
    ]);
    let flags = drivers.flags();
    args.extend(flags.iter().map(String::as_str));
    Process::start(&dir.path().join(format!("{name}.log")), &args)
}

fn device(up: &Up, uuid: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually("a device as wanted", || {
        up.list("devices")
            .into_iter()
            .find(|row| row["uuid"] == uuid && wanted(row))
    })
}

fn metrics(up: &Up) -> String {
    let (status, text) = get(&format!("{}/metrics", up.api));
    assert_eq!(status, 200);
    text
}

/// The value of the one series whose line begins with `name` and holds all of `labels`.
fn series(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'));
    let line = text
        .lines()
        .filter(of_name)
        .find(|line| labels.iter().all(|label| line.contains(label)))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn check<'a>(doctor: &'a [Value], name: &str, code: &str) -> Option<&'a Value> {
    doctor
        .iter()
        .find(|check| check["check"] == name && check["code"] == code)
}

#[test]
fn a_cells_hardware_is_shown_as_it_is() {
    let nothing = FakeDrivers::new();
    let up = Up::start_with("auto", &nothing.flags());
    without_accelerators(&up);
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    fs::write(&token, up.run(&["token", "create", "--role", "node"]).ok().stdout).unwrap();
    let nvidia = FakeDrivers::new();
    nvidia.nvml(&card("util 37\n"));
    let _nvidia_agent = agent(&up, &dir, &token, "nvidia-1", &nvidia);
    let amd = amd_machine();
    let amd_agent = agent(&up, &dir, &token, "amd-1", &amd);
    nvidias_card(&up, &nvidia);
    amds_card(&up, &amd);
    // A driver that hangs takes nothing but its own devices' readings with it.
    nvidia.nvml(&card("util hang\n"));
    // What is not heard any more is not known any more.
    drop(amd_agent);
    let silent = device(&up, AMD, |row| row.get("telemetry").is_none());
    assert!(
        silent.get("temperature_c").is_none() && silent.get("memory_used_bytes").is_none(),
        "{silent}"
    );
    assert_eq!(series(&metrics(&up), "DCGM_FI_DEV_GPU_TEMP", &[AMD]), None);
    let hung = device(&up, NVIDIA, |row| {
        row["telemetry"]["findings"][0]["code"] == "driver_silent"
    });
    assert!(hung.get("temperature_c").is_none(), "{hung}");
    let node = up
        .list("nodes")
        .into_iter()
        .find(|row| row["name"] == "nvidia-1")
        .unwrap();
    assert_eq!(node["state"], "ready", "its beats were never late: {node}");
}

fn without_accelerators(up: &Up) {
    let devices = up.list("devices");
    assert!(
        !devices.is_empty() && devices.iter().all(|row| row["kind"] == "cpu"),
        "{devices:?}"
    );
    let doctor = up.run(&["doctor", "-o", "json"]).json();
    let doctor = doctor.as_array().unwrap();
    let found = check(doctor, "devices", "ok").unwrap();
    assert!(
        found["detail"].as_str().unwrap().starts_with("0 accelerators"),
        "{found}"
    );
    let node = eventually("the node's own figures", || {
        up.list("nodes")
            .into_iter()
            .find(|row| row["telemetry"]["memory_used_bytes"].is_u64())
    });
    assert!(
        node["inspection"]["disk_write_bps"].as_u64().is_some_and(|bps| bps > 0),
        "{node}"
    );
    assert!(
        node["inspection"]["round_trip_us"].is_u64() && node["inspection"]["memory_bps"].is_u64(),
        "{node}"
    );
    assert!(
        node["inspection"]["took_ms"].as_u64().is_some_and(|ms| ms <= 5000),
        "{node}"
    );
    let text = metrics(up);
    assert!(
        series(&text, "tidemill_host_memory_usage_bytes", &["local"]).is_some_and(|used| used > 0.0),
        "{text}"
    );
    assert!(!text.contains("DCGM_FI_DEV"), "no accelerator, no series");
}

fn nvidias_card(up: &Up, drivers: &FakeDrivers) {
    let row = device(up, NVIDIA, |row| row.get("telemetry").is_some());
    assert_eq!(
        (row["kind"].as_str(), row["model"].as_str()),
        (Some("cuda"), Some("A100-80G"))
    );
    assert_eq!(
        (row["memory_used_bytes"].as_u64(), row["utilisation"].as_f64()),
        (Some(1 << 30), Some(0.37))
    );
    assert_eq!(row["temperature_c"].as_i64(), Some(51));
    let table = up.run(&["devices"]).ok().stdout;
    let line = table.lines().find(|line| line.contains(NVIDIA)).unwrap();
    assert!(
        line.contains("37%") && line.contains("1 GiB") && line.contains("51"),
        "{table}"
    );
    let text = metrics(up);
    let labels = [NVIDIA, "Hostname=\"nvidia-1\""];
    assert_eq!(series(&text, "DCGM_FI_DEV_GPU_UTIL", &labels), Some(37.0));
    assert_eq!(series(&text, "DCGM_FI_DEV_FB_USED", &labels), Some(1024.0));
    assert_eq!(series(&text, "DCGM_FI_DEV_GPU_TEMP", &labels), Some(51.0));
    assert_eq!(series(&text, "DCGM_FI_DEV_POWER_USAGE", &labels), Some(212.0));
    assert_eq!(series(&text, "DCGM_FI_DEV_XID_ERRORS", &labels), Some(0.0));
    assert_eq!(
        series(&text, "tidemill_hw_gpu_utilization_ratio", &[NVIDIA]),
        Some(0.37)
    );
    assert_eq!(
        series(&text, "tidemill_hw_errors_total", &[NVIDIA, "uncorrected"]),
        None,
        "it does not count them"
    );
    // It stops telling how busy it is, and reports an error: one is absent, the other is told with what to do.
    drivers.nvml(&card("util 4294967295\nxid 79\nxid_seq 1\n"));
    let row = device(up, NVIDIA, |row| row["telemetry"]["xid"] == 79);
    assert!(row.get("utilisation").is_none(), "{row}");
    assert!(row["reason"].as_str().unwrap().contains("Xid 79"), "{row}");
    let text = metrics(up);
    assert_eq!(series(&text, "DCGM_FI_DEV_GPU_UTIL", &[NVIDIA]), None);
    assert_eq!(series(&text, "DCGM_FI_DEV_XID_ERRORS", &[NVIDIA]), Some(79.0));
    let doctor = up.run(&["doctor", "-o", "json"]).json();
    let doctor = doctor.as_array().unwrap();
    let name = format!("device {NVIDIA}");
    let found = check(doctor, &name, "xid").unwrap();
    assert!(
        found["state"] == "warn" && !found["next"].as_str().unwrap().is_empty(),
        "{found}"
    );
    let told = check(doctor, &name, "ok").unwrap()["detail"].as_str().unwrap();
    assert!(
        told.contains("ecc_uncorrected") && told.contains("not_supported"),
        "{told}"
    );
    // And falls off the bus.
    drivers.nvml(&card("all !15\n"));
    let row = device(up, NVIDIA, |row| {
        row["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("device_lost"))
    });
    assert!(row.get("temperature_c").is_none(), "{row}");
}

fn amds_card(up: &Up, drivers: &FakeDrivers) {
    let row = device(up, AMD, |row| row.get("telemetry").is_some());
    assert_eq!(
        (row["kind"].as_str(), row["model"].as_str()),
        (Some("rocm"), Some("MI300X"))
    );
    assert_eq!(
        (row["temperature_c"].as_i64(), row.get("utilisation")),
        (Some(41), None)
    );
    let text = metrics(up);
    assert_eq!(
        series(&text, "DCGM_FI_DEV_GPU_UTIL", &[AMD]),
        None,
        "a file that cannot be read is not 0 %"
    );
    assert_eq!(series(&text, "DCGM_FI_DEV_FB_USED", &[AMD]), Some(284.0));
    let doctor = up.run(&["doctor", "-o", "json"]).json();
    let told = check(doctor.as_array().unwrap(), &format!("device {AMD}"), "ok")
        .unwrap()
        .clone();
    assert!(told["detail"].as_str().unwrap().contains("busy_milli"), "{told}");
    drivers.sysfs_file("class/drm/card1/device/hwmon/hwmon3/temp1_input", "88000");
    device(up, AMD, |row| row["temperature_c"] == 88);
}
