//! A kernel that fails in all the ways drivers fail.
#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, io};

use super::*;

/// Files by path; an `Err` is what reading one gives.
#[derive(Clone, Default)]
struct Fake(BTreeMap<String, Result<String, i32>>);

impl Fake {
    fn card() -> Self {
        let mut fake = Self::default();
        for (file, value) in [
            ("vendor", "0x1002"),
            ("device", "0x74a1"),
            ("unique_id", "c1b3f53c2d5b1f2d"),
            ("uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:C1:00.0\n"),
            ("mem_info_vram_total", "206141652992"),
            ("mem_info_vram_used", "297127936"),
            ("gpu_busy_percent", "37"),
            ("hwmon/hwmon3/temp1_input", "41000"),
            ("hwmon/hwmon3/power1_average", "142000000"),
            ("pp_dpm_sclk", "0: 132Mhz\n1: 2100Mhz *\n"),
            ("hwmon/hwmon3/freq2_input", "900000000"),
            ("ras/umc_err_count", "ue: 0\nce: 3\n"),
            ("pcie_replay_count", "0"),
        ] {
            fake.set(file, Ok(value));
        }
        fake
    }

    fn set(&mut self, file: &str, value: Result<&str, i32>) {
        self.0
            .insert(format!("class/drm/card1/device/{file}"), value.map(str::to_owned));
    }
}

impl Files for Fake {
    fn read(&self, path: &str) -> io::Result<String> {
        match self.0.get(path) {
            Some(Ok(text)) => Ok(text.clone()),
            Some(Err(code)) => Err(io::Error::from_raw_os_error(*code)),
            None => Err(io::Error::from_raw_os_error(2)),
        }
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = self
            .0
            .keys()
            .filter_map(|file| file.strip_prefix(path)?.strip_prefix('/'))
            .map(|rest| rest.split('/').next().unwrap_or_default().to_owned())
            .collect();
        names.dedup();
        if names.is_empty() {
            return Err(io::Error::from_raw_os_error(2));
        }
        Ok(names)
    }
}

fn read(fake: Fake) -> DeviceReading {
    let mut opened = open(Box::new(fake), "machine").ok().unwrap();
    opened.source.read().remove(0)
}

fn reason(reading: &DeviceReading, field: Field) -> String {
    let holds = |fields: &Vec<String>| fields.iter().any(|name| name == field.name());
    let found = reading.unreadable.iter().find(|(_, fields)| holds(fields));
    found.map(|(why, _)| why.clone()).unwrap_or_default()
}

#[test]
fn a_good_card_is_read() {
    let fake = Fake::card();
    let opened = open(Box::new(fake.clone()), "machine").ok().unwrap();
    let device = &opened.devices[0];
    assert_eq!(
        (device.uuid.as_str(), device.model.as_str(), device.memory_bytes),
        ("GPU-c1b3f53c2d5b1f2d", "MI300X", 206_141_652_992)
    );
    let reading = read(fake);
    assert_eq!(
        (
            reading.busy_milli,
            reading.temperature_c,
            reading.power_mw,
            reading.core_clock_mhz,
            reading.memory_clock_mhz
        ),
        (Some(370), Some(41), Some(142_000), Some(2100), Some(900))
    );
    assert_eq!((reading.ecc_corrected, reading.ecc_uncorrected), (Some(3), Some(0)));
    assert_eq!(reading.findings, []);
}

#[test]
fn each_file_fails_alone() {
    const ENOTSUPP: i32 = 524;
    let cases = [
        ("gpu_busy_percent", Field::Busy),
        ("mem_info_vram_used", Field::MemoryUsed),
        ("hwmon/hwmon3/temp1_input", Field::Temperature),
        ("hwmon/hwmon3/power1_average", Field::Power),
        ("hwmon/hwmon3/freq2_input", Field::MemoryClock),
        ("ras/umc_err_count", Field::EccUncorrected),
        ("pcie_replay_count", Field::LinkErrors),
    ];
    let good = read(Fake::card());
    let answers: [Result<&str, i32>; 9] = [
        Err(ENOTSUPP),
        Err(16),
        Err(22),
        Err(2),
        Err(13),
        Err(5),
        Ok(""),
        Ok("N/A"),
        Ok("18446744073709551615"),
    ];
    for (file, field) in cases {
        for answer in answers {
            let mut fake = Fake::card();
            fake.set(file, answer);
            let reading = read(fake);
            assert_ne!(reason(&reading, field), "", "{file} {answer:?}: {reading:?}");
            let json = serde_json::to_value(&reading).unwrap();
            assert_eq!(json.get(field.name()), None, "{file} {answer:?}");
            // All else is as before.
            let gone: usize = reading.unreadable.values().map(Vec::len).sum();
            let before: usize = good.unreadable.values().map(Vec::len).sum();
            let also = usize::from(field == Field::EccUncorrected);
            assert_eq!(gone, before + 1 + also, "{file} {answer:?}: {reading:?}");
        }
    }
}

#[test]
fn impossible_values_are_none() {
    let mut fake = Fake::card();
    fake.set("mem_info_vram_used", Ok("306141652992"));
    fake.set("gpu_busy_percent", Ok("255"));
    fake.set("hwmon/hwmon3/temp1_input", Ok("511000"));
    let reading = read(fake);
    assert_eq!(
        (reading.memory_used_bytes, reading.busy_milli, reading.temperature_c),
        (None, None, None)
    );
    assert_eq!(reading.memory_total_bytes, Some(206_141_652_992));
}

#[test]
fn full_use_by_nobody_is_a_conflict() {
    let mut fake = Fake::card();
    fake.set("gpu_busy_percent", Ok("100"));
    fake.set("hwmon/hwmon3/power1_average", Ok("9000000"));
    assert_eq!(read(fake.clone()).busy_milli, Some(1000), "who holds it is not known");
    /// As the kernel shows it while nobody has a queue: an empty folder.
    struct Nobody(Fake);
    impl Files for Nobody {
        fn read(&self, path: &str) -> io::Result<String> {
            self.0.read(path)
        }
        fn list(&self, path: &str) -> io::Result<Vec<String>> {
            if path == "class/kfd/kfd/proc" {
                Ok(vec![])
            } else {
                self.0.list(path)
            }
        }
    }
    let reading = open(Box::new(Nobody(fake)), "machine")
        .ok()
        .unwrap()
        .source
        .read()
        .remove(0);
    assert_eq!(
        (reading.busy_milli, reading.findings[0].code.as_str()),
        (None, "sensor_conflict")
    );
}

#[test]
fn a_card_without_identity_gets_one_of_its_place() {
    for unique in [Err(2), Ok(""), Ok("0000000000000000"), Ok("not hex")] {
        let mut fake = Fake::card();
        fake.set("unique_id", unique);
        let opened = open(Box::new(fake.clone()), "machine").ok().unwrap();
        let again = open(Box::new(fake.clone()), "machine").ok().unwrap();
        let elsewhere = open(Box::new(fake.clone()), "another").ok().unwrap();
        assert_eq!(opened.devices[0].uuid, again.devices[0].uuid);
        assert_ne!(opened.devices[0].uuid, elsewhere.devices[0].uuid);
        assert!(
            opened.limitations[0].contains("0000:c1:00.0"),
            "{:?}",
            opened.limitations
        );
        assert_eq!(
            reason(&read(fake), Field::Identity),
            "made of its place in this machine"
        );
    }
}

#[test]
fn a_card_that_vanished_is_lost_not_idle() {
    let files = Fake::card();
    let mut opened = open(Box::new(files), "machine").ok().unwrap();
    let mut gone = Fake::card();
    gone.set("vendor", Err(19));
    let card = Card {
        uuid: opened.devices.remove(0).uuid,
        derived: false,
        dir: "class/drm/card1/device".into(),
    };
    let reading = card.read(&gone);
    assert_eq!(reading.findings[0].code, "device_lost");
    assert_eq!(reading.unreadable["device_gone"].len(), Field::READ.len());
}

#[test]
fn other_vendors_cards_are_not_ours() {
    let mut fake = Fake::card();
    fake.set("vendor", Ok("0x10de"));
    assert!(matches!(open(Box::new(fake), "machine"), Err(NotOpened::Absent)));
    assert!(matches!(
        open(Box::new(Fake::default()), "machine"),
        Err(NotOpened::Absent)
    ));
}
