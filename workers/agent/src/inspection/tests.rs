//! What measurements come to.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;

use super::*;

fn config(dir: &Path, spec: &str) -> AgentConfig {
    let machine = crate::Machine {
        machine_id: "m".into(),
        node: "n".into(),
        cpus: 2,
        memory_bytes: 8 << 30,
    };
    let mut config = AgentConfig::local("n", dir.to_owned(), vec![]).unwrap();
    config.devices = crate::devices::parse_spec(spec, &machine).unwrap();
    config
}

fn codes(findings: &[Finding]) -> Vec<&str> {
    findings.iter().map(|finding| finding.code.as_str()).collect()
}

#[test]
fn this_machine_is_inspected_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = config(dir.path(), "cpu*2,sim:L4@0.5,sim:T4@0.93");
    let server = format!("http://{}", listener.local_addr().unwrap());
    config.servers = vec![server.parse().unwrap()];
    let measured = measure(&config, "boot");
    assert!(measured.took_ms <= 5000, "{measured:?}");
    assert!(measured.memory_bps.unwrap() > 0 && measured.round_trip_us.is_some());
    assert!(matches!(measured.disk, Some(Ok(_))), "{measured:?}");
    // Simulated devices have the speed they were given; a CPU's is measured where its nominal clock is known.
    assert!(measured.speeds.keys().all(|uuid| uuid.starts_with("CPU-")));
    assert!(measured.speeds.is_empty() == nominal_hz().is_none(), "{measured:?}");
    keep(dir.path(), &measured);
    assert_eq!(kept(&config, "boot"), Some(measured.clone()));
    assert_eq!(kept(&config, "next boot"), None);
    let inspected = judge(&config, measured, true);
    let slow: Vec<_> = inspected
        .report
        .devices
        .iter()
        .filter(|(uuid, _)| uuid.starts_with("GPU-"))
        .collect();
    assert_eq!(slow.len(), 1);
    assert_eq!(codes(slow[0].1), ["slow_device"]);
    assert!(!dir.path().join("inspection.tmp").exists());
}

#[test]
fn a_broken_disk_and_a_far_server_are_told() {
    let mut measured = Measured {
        disk: Some(Err("Input/output error".into())),
        round_trip_us: Some(800_000),
        ..Measured::default()
    };
    assert_eq!(codes(&of_node(&measured)), ["broken_disk", "slow_network"]);
    measured.disk = None;
    measured.round_trip_us = None;
    assert_eq!(
        codes(&of_node(&measured)),
        ["broken_disk"],
        "unknown is no finding, but a disk that does not answer is"
    );
    measured.disk = Some(Ok(Disk {
        write_bps: 1_000_000,
        sync_us: 1,
    }));
    assert_eq!(codes(&of_node(&measured)), ["slow_disk"]);
    assert!(disk(Path::new("/nowhere")).is_err());
}

#[test]
fn what_a_device_says_of_itself_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut device = config(dir.path(), "sim:A100-80G").devices.remove(0);
    let reading = DeviceReading {
        memory_used_bytes: Some(40 << 30),
        memory_total_bytes: Some(80 << 30),
        findings: vec![finding("device_lost", "gone", "reset it")],
        ..DeviceReading::default()
    };
    assert_eq!(
        codes(&of_device(&device, Some(&reading), true)),
        ["device_lost", "memory_in_use"]
    );
    assert_eq!(
        codes(&of_device(&device, Some(&reading), false)),
        ["device_lost"],
        "it may be its own instances'"
    );
    device.memory_bytes = 60 << 30;
    assert_eq!(codes(&of_device(&device, None, true)), ["memory_missing"]);
}

#[test]
fn a_program_measures_accelerators() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("speed");
    let write = |text: &str| {
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let uuids = ["GPU-a".to_owned(), "GPU-b".to_owned()];
    write("#!/bin/sh\nfor d; do echo \"$d 0.91\"; done\n");
    let measured = speeds(&program, &uuids).unwrap();
    assert_eq!(measured.into_values().collect::<Vec<_>>(), [910, 910]);
    for broken in [
        "#!/bin/sh\necho GPU-a 0.9\n",
        "#!/bin/sh\nexit 1\n",
        "#!/bin/sh\necho GPU-a fast\n",
    ] {
        write(broken);
        assert!(speeds(&program, &uuids).is_err(), "{broken}");
    }
}

#[test]
fn clocks_are_read_of_names() {
    let of = |name: &str| sold_at(&format!("processor : 0\nmodel name\t: {name}\n"));
    assert_eq!(of("Intel(R) Xeon(R) CPU @ 2.20GHz"), Some(2_200_000_000));
    assert_eq!(of("AMD EPYC 7763 64-Core Processor"), None);
    assert_eq!(of("Weird @ 0GHz"), None);
}
