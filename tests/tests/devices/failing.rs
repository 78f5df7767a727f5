//! Drivers that lack things, fail, hang or talk nonsense.

use std::time::{Duration, Instant};

use tidemill_agent::devices::discover;
use tidemill_tests::drivers::FakeDrivers;

use super::{codes, drivers, look, machine, reading, why};

const A: &str = "GPU-5eed0001-1c2d-4e5f-8a9b-000000000001";
const B: &str = "GPU-5eed0002-1c2d-4e5f-8a9b-000000000002";

/// A card of a data centre that says everything.
fn good(uuid: &str, bus: &str) -> String {
    format!(
        "gpu\nuuid {uuid}\nname NVIDIA A100-SXM4-80GB\npci 00000000:{bus}:00.0\nmemory.total 85899345920\n\
         memory.used 1073741824\nutil 37\ntemp 51\npower 212000\nsm 1410\nmem_clock 1593\nthrottle 4\necc.corrected 2\n\
         ecc.uncorrected 0\nprocesses 3\nremap.corrected 1\nremap.uncorrected 0\nremap.pending 0\nremap.failed 0\nlink 0\n\
         events 1\nmig_mode 0\n"
    )
}

/// The same with one line more or other.
fn with(conf: &str, line: &str) -> String {
    let key = line.split(' ').next().unwrap();
    let kept = conf.lines().filter(|old| old.split(' ').next() != Some(key));
    kept.chain([line]).fold(String::new(), |conf, line| conf + line + "\n")
}

#[test]
fn a_good_card_says_everything() {
    let fake = FakeDrivers::new();
    fake.nvml(&good(A, "3B"));
    let found = look(&fake);
    assert_eq!(found.limitations, Vec::<String>::new());
    let r = reading(&found.telemetry, A, |_| true);
    assert_eq!(
        (r.busy_milli, r.memory_used_bytes, r.memory_total_bytes),
        (Some(370), Some(1 << 30), Some(80 << 30))
    );
    assert_eq!((r.temperature_c, r.power_mw), (Some(51), Some(212_000)));
    assert_eq!((r.core_clock_mhz, r.memory_clock_mhz), (Some(1410), Some(1593)));
    assert_eq!(r.throttle.as_deref(), Some(&["power_cap".to_owned()][..]));
    assert_eq!(
        (r.ecc_corrected, r.ecc_uncorrected, r.remapped_rows, r.link_errors),
        (Some(2), Some(0), Some(1), Some(0))
    );
    assert_eq!((r.xid, r.xids, r.processes), (Some(0), Some(0), Some(3)));
    assert!(r.unreadable.is_empty() && r.findings.is_empty(), "{r:?}");
}

#[test]
fn what_a_card_does_not_offer_is_unknown() {
    let fake = FakeDrivers::new();
    // As under WSL and on cards for players: no events, processes, ECC, rows or links.
    fake.nvml(&format!(
        "gpu\nuuid {A}\nname NVIDIA GeForce RTX 3080\npci 00000000:01:00.0\nmemory.total 10737418240\nmemory.used 0\n\
         util !3\ntemp 40\npower !4\n"
    ));
    let found = look(&fake);
    let r = reading(&found.telemetry, A, |_| true);
    assert_eq!(
        (r.temperature_c, r.memory_used_bytes),
        (Some(40), Some(0)),
        "a zero that was measured is one"
    );
    assert_eq!(
        (r.busy_milli, r.power_mw, r.ecc_uncorrected, r.processes, r.link_errors),
        (None, None, None, None, None)
    );
    assert_eq!(why(&r, "power_mw").as_deref(), Some("no_permission"));
    for field in ["busy_milli", "ecc_corrected", "remapped_rows", "processes", "throttle"] {
        assert_eq!(why(&r, field).as_deref(), Some("not_supported"), "{field}");
    }
    let json = serde_json::to_value(&r).unwrap();
    assert!(
        json.get("busy_milli").is_none() && json.get("power_mw").is_none(),
        "{json}"
    );
    assert_eq!(codes(&r), Vec::<&str>::new(), "what a card cannot say is no fault");
}

#[test]
fn numbers_that_mean_none_are_none() {
    let fake = FakeDrivers::new();
    let mut conf = good(A, "3B");
    for line in [
        "util 4294967295",
        "temp 4294967295",
        "power 2147483632",
        "sm 2147483647",
        "ecc.corrected 18446744073709551615",
        "ecc.uncorrected 9223372036854775792",
        "remap.corrected 18446744073709551614",
        "memory.used 18446744073709551615",
        "link 9223372036854775807",
    ] {
        conf = with(&conf, line);
    }
    fake.nvml(&conf);
    let found = look(&fake);
    let r = reading(&found.telemetry, A, |_| true);
    assert_eq!(
        (r.busy_milli, r.temperature_c, r.power_mw, r.core_clock_mhz),
        (None, None, None, None)
    );
    assert_eq!(
        (r.ecc_corrected, r.ecc_uncorrected, r.remapped_rows, r.link_errors),
        (None, None, None, None)
    );
    assert_eq!((r.memory_used_bytes, r.memory_total_bytes), (None, Some(80 << 30)));
    assert_eq!(r.memory_clock_mhz, Some(1593), "its neighbours are read");
    assert!(r.findings.is_empty(), "{r:?}");
}

#[test]
fn a_card_that_is_lost_is_said_to_be_and_may_come_back() {
    let fake = FakeDrivers::new();
    let both = |a: &str| format!("{}{}", a, good(B, "AF"));
    fake.nvml(&both(&good(A, "3B")));
    let found = look(&fake);
    reading(&found.telemetry, A, |r| r.busy_milli.is_some());
    fake.nvml(&both(&with(&good(A, "3B"), "all !15")));
    let lost = reading(&found.telemetry, A, |r| r.busy_milli.is_none());
    assert_eq!(codes(&lost), ["device_lost"]);
    assert_eq!(why(&lost, "temperature_c").as_deref(), Some("device_lost"));
    assert_eq!(
        reading(&found.telemetry, B, |_| true).busy_milli,
        Some(370),
        "its neighbour works on"
    );
    fake.nvml(&both(&good(A, "3B")));
    let back = reading(&found.telemetry, A, |r| r.busy_milli.is_some());
    assert!(back.findings.is_empty(), "{back:?}");
    // A card that is gone when the agent starts is told and left out; it has no name to be listed under.
    fake.nvml(&both(&with(&good(A, "3B"), "handle !15")));
    let found = look(&fake);
    assert!(found.devices.iter().all(|device| device.uuid != A) && found.devices.iter().any(|device| device.uuid == B));
    assert!(found.limitations[0].contains("position 0"), "{:?}", found.limitations);
}

#[test]
fn a_card_is_its_uuid_wherever_it_is_listed() {
    let fake = FakeDrivers::new();
    let (a, b) = (with(&good(A, "3B"), "temp 41"), with(&good(B, "AF"), "temp 77"));
    fake.nvml(&format!("{a}{b}"));
    let found = look(&fake);
    reading(&found.telemetry, A, |r| r.temperature_c == Some(41));
    let (a, b) = (with(&a, "temp 42"), with(&b, "temp 78"));
    fake.nvml(&format!("{b}{a}"));
    reading(&found.telemetry, A, |r| r.temperature_c == Some(42));
    reading(&found.telemetry, B, |r| r.temperature_c == Some(78));
    let again = look(&fake);
    let uuids = |devices: &[tidemill_protocol::agent::DeviceInfo]| {
        let mut uuids: Vec<_> = devices.iter().map(|d| (d.uuid.clone(), d.model.clone())).collect();
        uuids.sort();
        uuids
    };
    assert_eq!(uuids(&found.devices), uuids(&again.devices));
}

#[test]
fn parts_of_a_card_are_devices_and_the_split_card_is_none() {
    let fake = FakeDrivers::new();
    let part = |uuid: &str, profile: &str| {
        format!(
            "mig\nuuid {uuid}\nname NVIDIA A100-SXM4-80GB MIG {profile}\npci 00000000:3B:00.0\nmemory.total 10200547328\n\
             memory.used 13631488\nutil !3\n"
        )
    };
    let card = with(&good(A, "3B"), "mig_mode 1");
    fake.nvml(&format!(
        "{card}{}{}{}",
        part("MIG-1", "1g.10gb"),
        part("MIG-2", "1g.10gb"),
        good(B, "AF")
    ));
    let found = look(&fake);
    let uuids: Vec<&str> = found
        .devices
        .iter()
        .filter(|d| d.kind == "cuda")
        .map(|d| d.uuid.as_str())
        .collect();
    assert_eq!(uuids, ["MIG-1", "MIG-2", B]);
    let r = reading(&found.telemetry, "MIG-2", |_| true);
    assert_eq!((r.memory_used_bytes, r.busy_milli), (Some(13_631_488), None));
    assert!(why(&r, "busy_milli").is_some() && r.findings.is_empty(), "{r:?}");
}

#[test]
fn errors_are_seen_through_the_library_and_through_the_kernels_log() {
    let fake = FakeDrivers::new();
    fake.log_line("NVRM: Xid (PCI:0000:3b:00): 31, pid=1, of another day");
    fake.nvml(&good(A, "3B"));
    let found = look(&fake);
    assert_eq!(reading(&found.telemetry, A, |_| true).xid, Some(0));
    fake.nvml(&with(&with(&good(A, "3B"), "xid 63"), "xid_seq 1"));
    let r = reading(&found.telemetry, A, |r| r.xid == Some(63));
    assert_eq!((r.xids, codes(&r)), (Some(1), vec!["xid"]));
    fake.log_line("4,9,9,-;NVRM: Xid (PCI:0000:3b:00): 62, 0e4b(2a6c) 00000000 00000000");
    fake.log_line("4,9,9,-;NVRM: Xid (PCI:0000:af:00): 79, pid=1, of another card");
    let r = reading(&found.telemetry, A, |r| r.xid == Some(62));
    assert_eq!(r.xids, Some(2));
}

#[test]
fn trouble_with_memory_is_told() {
    let fake = FakeDrivers::new();
    let mut conf = good(A, "3B");
    for line in ["ecc.uncorrected 5", "remap.pending 1", "remap.failed 1"] {
        conf = with(&conf, line);
    }
    fake.nvml(&conf);
    let found = look(&fake);
    let r = reading(&found.telemetry, A, |_| true);
    assert_eq!(codes(&r), ["remap_pending", "remap_failed", "ecc_uncorrected"]);
    assert!(r.findings.iter().all(|finding| !finding.next.is_empty()));
}

#[test]
fn full_use_at_idle_power_without_a_process_is_not_believed() {
    let fake = FakeDrivers::new();
    let mut conf = good(A, "3B");
    for line in ["util 100", "power 9000", "processes 0"] {
        conf = with(&conf, line);
    }
    fake.nvml(&conf);
    let found = look(&fake);
    let r = reading(&found.telemetry, A, |_| true);
    assert_eq!((r.busy_milli, codes(&r)), (None, vec!["sensor_conflict"]));
}

#[test]
fn a_driver_that_hangs_holds_up_nobody() {
    let fake = FakeDrivers::new();
    fake.nvml(&good(A, "3B"));
    let found = look(&fake);
    reading(&found.telemetry, A, |r| r.temperature_c.is_some());
    fake.nvml(&with(&good(A, "3B"), "power hang"));
    // The last word grows old while the call hangs, and is at hand at once all the same.
    let old = reading(&found.telemetry, A, |r| r.age_ms > 500);
    assert_eq!(old.temperature_c, Some(51));
    let silent = reading(&found.telemetry, A, |r| r.temperature_c.is_none());
    assert_eq!(codes(&silent), ["driver_silent"]);
    assert!(silent.age_ms >= 10_000);
}

#[test]
fn a_driver_that_hangs_at_start_is_left_out() {
    let fake = FakeDrivers::new();
    fake.nvml(&format!("init hang\n{}", good(A, "3B")));
    let mut drivers = drivers(&fake);
    drivers.patience = Duration::from_millis(300);
    let began = Instant::now();
    let found = discover("auto", &machine(), &drivers).unwrap();
    assert!(began.elapsed() < Duration::from_secs(20));
    assert!(found.devices.iter().all(|device| device.kind == "cpu") && !found.devices.is_empty());
    assert!(
        found.limitations.iter().any(|l| l.starts_with("driver (nvml)")),
        "{:?}",
        found.limitations
    );
}

#[test]
fn a_library_that_is_missing_or_refuses_is_no_end() {
    let fake = FakeDrivers::new();
    let mut missing = drivers(&fake);
    missing.nvml_library = Some("/nowhere/libnvidia-ml.so".into());
    let found = discover("auto", &machine(), &missing).unwrap();
    assert!(found.devices.iter().all(|device| device.kind == "cpu"));
    assert_eq!(
        found.limitations.len(),
        1,
        "one that was named must be there: {:?}",
        found.limitations
    );
    // No library under its usual names, as on this test's machine or on one with a driver: either way no end.
    missing.nvml_library = None;
    discover("auto", &machine(), &missing).unwrap();
    // The driver's module is not loaded.
    fake.nvml("init 9\n");
    let found = look(&fake);
    assert!(found.limitations[0].contains("not loaded"), "{:?}", found.limitations);
    // Only `auto` asks drivers at all.
    let found = discover("cpu*2,sim:L4", &machine(), &missing).unwrap();
    assert_eq!((found.devices.len(), found.limitations.len()), (3, 0));
}

#[test]
fn a_tool_that_fails_or_hangs_is_told() {
    let fake = FakeDrivers::new();
    for (script, word) in [
        ("#!/bin/sh\nexit 1\n", "ended with"),
        (
            "#!/bin/sh\necho 'dcmi model initialized failed, because the device is used. ret is -8020'\n",
            "no chip",
        ),
    ] {
        fake.npu_smi_script(script);
        let found = look(&fake);
        assert!(found.limitations[0].contains(word), "{:?}", found.limitations);
    }
    fake.npu_smi_script("#!/bin/sh\nexec sleep 600\n");
    let mut drivers = drivers(&fake);
    drivers.patience = Duration::from_millis(200);
    let found = discover("auto", &machine(), &drivers).unwrap();
    let told = |limitation: &String| limitation.starts_with("driver (npu-smi)");
    assert!(found.limitations.iter().any(told), "{:?}", found.limitations);
}

#[test]
fn a_chip_that_is_ill_or_gone_is_told() {
    let fake = FakeDrivers::new();
    let table = |health: &str, chip: &str| {
        vec![
            "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|"
                .to_owned(),
            "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |"
                .to_owned(),
            format!(
                "| {chip}     910B3               | {health}            | NA          44                0    / 0             |"
            ),
            "| 0                         | 0000:C1:00.0  | 63          0    / 0          3390 / 65536         |"
                .to_owned(),
        ]
    };
    let board = vec!["VDie ID : 41F45C20 20A0C1D4 26AA0900 0D1D0203 14000000".to_owned()];
    let says = |table: Vec<String>| {
        fake.npu_smi_says(
            &[
                ("info".to_owned(), table),
                ("info -t board -i 0 -c 0".to_owned(), board.clone()),
            ]
            .into(),
        );
    };
    says(table("OK", "0"));
    let found = look(&fake);
    let uuid = &found.devices[0].uuid;
    let r = reading(&found.telemetry, uuid, |_| true);
    assert_eq!((r.busy_milli, r.temperature_c, r.power_mw), (Some(630), Some(44), None));
    assert_eq!(
        (r.memory_used_bytes, r.memory_total_bytes),
        (Some(3390 << 20), Some(65536 << 20))
    );
    says(table("Alarm", "0"));
    reading(&found.telemetry, uuid, |r| codes(r) == ["unhealthy"]);
    says(table("OK", "7"));
    reading(&found.telemetry, uuid, |r| {
        codes(r) == ["device_lost"] && r.busy_milli.is_none()
    });
}
