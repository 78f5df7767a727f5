//! AMD: what its kernel driver shows in sysfs.
//!
//! Each file is a question of its own that may fail in its own way; none of them fails the card.

use std::collections::BTreeMap;

use tidemill_protocol::{agent::DeviceInfo, telemetry::DeviceReading};

use super::{
    catalogue,
    draft::{Draft, Field, NOT_SUPPORTED, Why},
    files::{Files, Rooted, number, text},
    source::{Maker, NotOpened, Opened, Scope, Source, derived_uuid},
};

const CARDS: &str = "class/drm";

/// AMD's vendor id.
const VENDOR: &str = "0x1002";

/// Cards of one machine beyond which an answer is broken.
const MOST: usize = 64;

/// A card at less than this does nothing.
const IDLE_MW: u64 = 20_000;

pub(super) fn maker(scope: &Scope) -> Maker {
    let scope = scope.clone();
    Maker {
        name: "amdgpu",
        open: Box::new(move || open(Box::new(Rooted::new(&scope.drivers.sysfs)), &scope.machine_id)),
    }
}

struct Card {
    uuid: String,
    derived: bool,
    dir: String,
}

struct AmdSource {
    files: Box<dyn Files>,
    cards: Vec<Card>,
}

fn open(files: Box<dyn Files>, machine_id: &str) -> Result<Opened, NotOpened> {
    let names = files.list(CARDS).map_err(|_| NotOpened::Absent)?;
    let mut found: BTreeMap<String, (Card, DeviceInfo)> = BTreeMap::new();
    let mut limitations = Vec::new();
    // `card0-DP-1` is a connector, `renderD128` the same card again.
    let is_card = |name: &&String| name.strip_prefix("card").is_some_and(|n| n.parse::<u32>().is_ok());
    for name in names.iter().filter(is_card) {
        let dir = format!("{CARDS}/{name}/device");
        if !text(&*files, &format!("{dir}/vendor")).is_ok_and(|vendor| vendor == VENDOR) || found.len() == MOST {
            continue;
        }
        let (card, device) = describe(&*files, dir, machine_id, &mut limitations);
        // A card in several partitions shows as several nodes of one identity.
        if found.contains_key(&card.uuid) {
            limitations.push(format!(
                "devices (amdgpu): {} shows more than once; it is one device here",
                card.uuid
            ));
            continue;
        }
        found.insert(card.uuid.clone(), (card, device));
    }
    if found.is_empty() {
        return Err(NotOpened::Absent);
    }
    let (cards, devices) = found.into_values().unzip();
    Ok(Opened {
        source: Box::new(AmdSource { files, cards }),
        devices,
        limitations,
    })
}

fn describe(files: &dyn Files, dir: String, machine_id: &str, limitations: &mut Vec<String>) -> (Card, DeviceInfo) {
    let slot = text(files, &format!("{dir}/uevent")).ok().and_then(|uevent| {
        let line = uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="))?;
        Some(line.to_ascii_lowercase())
    });
    let place = slot.unwrap_or_else(|| dir.clone());
    let unique = text(files, &format!("{dir}/unique_id"));
    let hex =
        |id: &&String| id.len() <= 16 && id.bytes().all(|b| b.is_ascii_hexdigit()) && id.bytes().any(|b| b != b'0');
    let (uuid, derived) = match unique.as_ref().ok().filter(hex) {
        // As AMD's runtime takes it in ROCR_VISIBLE_DEVICES.
        Some(id) => (format!("GPU-{id:0>16}"), false),
        None => {
            let uuid = derived_uuid("GPU", machine_id, &place);
            limitations.push(format!(
                "devices (amdgpu): {uuid} has no unique_id; its identity is made of its place {place} in this machine"
            ));
            (uuid, true)
        }
    };
    let total = number(files, &format!("{dir}/mem_info_vram_total"))
        .ok()
        .filter(|total| *total > 0 && *total < 1 << 50);
    let id = text(files, &format!("{dir}/device")).unwrap_or_default();
    let id = id.strip_prefix("0x").and_then(|id| u16::from_str_radix(id, 16).ok());
    let product = text(files, &format!("{dir}/product_name"))
        .ok()
        .filter(|name| !name.is_empty());
    let product = match (product, id) {
        (Some(product), _) => product,
        (None, Some(id)) => catalogue::amd(id).map_or_else(|| format!("AMD-{id:04x}"), str::to_owned),
        (None, None) => String::new(),
    };
    let model = catalogue::canonical("rocm", &product, total.unwrap_or(0));
    let memory_bytes = total.unwrap_or_else(|| {
        let known = catalogue::MODELS.iter().find(|known| known.name == model);
        limitations.push(format!(
            "devices (amdgpu): {uuid} does not say how much memory it has; {}",
            if known.is_some() {
                "its model's is taken"
            } else {
                "it takes only work that asks for none"
            }
        ));
        known.map_or(0, |known| known.memory_gib << 30)
    });
    let device = DeviceInfo {
        uuid: uuid.clone(),
        kind: "rocm".to_owned(),
        model,
        memory_bytes,
        speed_milli: 1000,
        simulated: false,
    };
    (Card { uuid, derived, dir }, device)
}

impl Source for AmdSource {
    fn read(&mut self) -> Vec<DeviceReading> {
        self.cards.iter().map(|card| card.read(&*self.files)).collect()
    }
}

impl Card {
    fn read(&self, files: &dyn Files) -> DeviceReading {
        let in_card = |file: &str| number(files, &format!("{}/{file}", self.dir));
        if let Err(why) = text(files, &format!("{}/vendor", self.dir)) {
            let mut draft = Draft::silent(&self.uuid, &why);
            draft.finding(
                "device_lost",
                format!("the kernel does not show it any more ({why})"),
                "look into the kernel's log; reset it or restart the machine",
            );
            return draft.done();
        }
        let mut draft = Draft::new(&self.uuid);
        draft.memory(in_card("mem_info_vram_used"), in_card("mem_info_vram_total"));
        let percent = in_card("gpu_busy_percent");
        draft.number(
            Field::Busy,
            percent.map(|percent| {
                if percent <= 100 {
                    percent * 10
                } else {
                    percent.max(1001)
                }
            }),
        );
        let hwmon = self.hwmon(files);
        let sensor = |name: &str| match &hwmon {
            Some(dir) => number(files, &format!("{dir}/{name}")),
            None => Err(NOT_SUPPORTED),
        };
        draft.number(Field::Temperature, sensor("temp1_input").map(|milli| milli / 1000));
        let power = sensor("power1_average").or_else(|_| sensor("power1_input"));
        draft.number(Field::Power, power.map(|micro| micro / 1000));
        draft.number(
            Field::CoreClock,
            sensor("freq1_input")
                .map(|hertz| hertz / 1_000_000)
                .or_else(|_| self.level(files, "pp_dpm_sclk")),
        );
        draft.number(
            Field::MemoryClock,
            sensor("freq2_input")
                .map(|hertz| hertz / 1_000_000)
                .or_else(|_| self.level(files, "pp_dpm_mclk")),
        );
        let (corrected, uncorrected) = self.ecc(files);
        draft.number(Field::EccCorrected, corrected);
        if let Some(errors) = draft
            .number(Field::EccUncorrected, uncorrected)
            .filter(|errors| *errors > 0)
        {
            draft.finding(
                "ecc_uncorrected",
                format!("{errors} memory errors could not be corrected"),
                "drain it and reset it; replace the card if they come back",
            );
        }
        draft.number(Field::LinkErrors, in_card("pcie_replay_count"));
        draft.number(Field::Processes, self.processes(files));
        draft.unreadable(Field::Xid, "NVIDIA's only");
        if self.derived {
            draft.unreadable(Field::Identity, "made of its place in this machine");
        }
        draft.doubt_busy(IDLE_MW);
        draft.done()
    }

    fn hwmon(&self, files: &dyn Files) -> Option<String> {
        let dir = format!("{}/hwmon", self.dir);
        let names = files.list(&dir).ok()?;
        names.first().map(|name| format!("{dir}/{name}"))
    }

    /// The level marked with a star: `1: 1402Mhz *`.
    fn level(&self, files: &dyn Files, file: &str) -> Result<u64, Why> {
        let levels = text(files, &format!("{}/{file}", self.dir))?;
        let marked = levels
            .lines()
            .find(|line| line.trim_end().ends_with('*'))
            .ok_or(NOT_SUPPORTED)?;
        let value = marked.split(':').nth(1).unwrap_or_default().trim();
        let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().map_err(|_| NOT_SUPPORTED)
    }

    /// Sums over the blocks that count: `ue: 0\nce: 3`.
    fn ecc(&self, files: &dyn Files) -> (Result<u64, Why>, Result<u64, Why>) {
        let dir = format!("{}/ras", self.dir);
        let Ok(names) = files.list(&dir) else {
            return (Err(NOT_SUPPORTED), Err(NOT_SUPPORTED));
        };
        let (mut corrected, mut uncorrected) = (None::<u64>, None::<u64>);
        for name in names.iter().filter(|name| name.ends_with("_err_count")) {
            let Ok(counts) = text(files, &format!("{dir}/{name}")) else {
                continue;
            };
            for line in counts.lines() {
                let (key, value) = line.split_once(':').unwrap_or((line, ""));
                let Ok(value) = value.trim().parse::<u64>() else {
                    continue;
                };
                match key.trim() {
                    "ce" => corrected = Some(corrected.unwrap_or(0).saturating_add(value)),
                    "ue" => uncorrected = Some(uncorrected.unwrap_or(0).saturating_add(value)),
                    _ => {}
                }
            }
        }
        (corrected.ok_or(NOT_SUPPORTED), uncorrected.ok_or(NOT_SUPPORTED))
    }

    /// Processes with a queue on any card of the machine: the kernel counts them by process, so what is known of one
    /// card is only that there are none at all.
    fn processes(&self, files: &dyn Files) -> Result<u64, Why> {
        match files.list("class/kfd/kfd/proc") {
            Ok(names) if names.is_empty() => Ok(0),
            Ok(_) => Err(Why::Borrowed("counted by machine, not by card")),
            Err(_) => Err(NOT_SUPPORTED),
        }
    }
}

#[cfg(test)]
mod tests;
