//! NVIDIA: the management library of its driver, loaded at run time.
//!
//! Handles are asked for anew by UUID in each round: an index means another card after one has dropped off the bus, and
//! a handle is worth nothing once the driver was loaded again. The library stays loaded until the process ends, since a
//! call that hangs may return at any time.

use std::{ffi::OsStr, path::Path};

use nvml_wrapper::{
    Device, Nvml,
    bitmasks::{device::ThrottleReasons, event::EventTypes},
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor},
    enums::{device::SampleValue, event::XidError},
    error::NvmlError,
    event::EventSet,
    structs::device::FieldId,
    sys_exports::field_id::{
        NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_UNC,
    },
};
use tidemill_protocol::{agent::DeviceInfo, telemetry::DeviceReading};

use super::{
    catalogue,
    draft::{Draft, Field, NOT_SUPPORTED, Why},
    kernel_log::{self, KernelLog},
    source::{Maker, NotOpened, Opened, Scope, Source, derived_uuid},
};
use crate::machine;

/// Names under which drivers install the library; the first needs development files.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Cards of one machine, and parts of one card, beyond which an answer is broken.
const MOST: u32 = 64;

/// Events taken of one card in one round.
const MOST_EVENTS: usize = 32;

/// A card at less than this does nothing.
const IDLE_MW: u64 = 15_000;

const RESET: &str = "look the number up in NVIDIA's list of Xid errors; `nvidia-smi -r -i UUID` resets an idle card";

pub(super) fn maker(scope: &Scope) -> Maker {
    let scope = scope.clone();
    Maker {
        name: "nvml",
        open: Box::new(move || open(&scope)),
    }
}

struct Card {
    uuid: String,
    /// Its UUID is ours, not the driver's.
    derived: bool,
    pci: String,
    /// A part of a card.
    part: bool,
    events: Result<EventSet<'static>, Why>,
    xid: u64,
    xids: u64,
}

struct NvmlSource {
    nvml: &'static Nvml,
    cards: Vec<Card>,
    log: Option<KernelLog>,
}

fn open(scope: &Scope) -> Result<Opened, NotOpened> {
    let nvml: &'static Nvml = Box::leak(Box::new(load(scope.drivers.nvml_library.as_deref())?));
    let count = nvml
        .device_count()
        .map_err(|error| NotOpened::Broken(format!("it does not count its devices: {error}")))?;
    let mut finder = Finder {
        nvml,
        scope,
        cards: Vec::new(),
        devices: Vec::new(),
        limitations: Vec::new(),
    };
    for index in 0..count.min(MOST) {
        if let Err(error) = finder.card(index) {
            let why = words(&error);
            finder.limitations.push(format!(
                "driver (nvml): the card at position {index} does not answer ({why}) and is left out; reset it and start the agent again"
            ));
        }
    }
    let log = KernelLog::open(&scope.drivers.kernel_log);
    let Finder {
        cards,
        devices,
        limitations,
        ..
    } = finder;
    Ok(Opened {
        source: Box::new(NvmlSource { nvml, cards, log }),
        devices,
        limitations,
    })
}

fn load(library: Option<&Path>) -> Result<Nvml, NotOpened> {
    let init = |path: &OsStr| Nvml::builder().lib_path(path).init();
    let loaded = match library {
        Some(path) => init(path.as_os_str()),
        None => init(OsStr::new(LIBRARIES[0])).or_else(|error| match error {
            NvmlError::LibloadingError(_) => init(OsStr::new(LIBRARIES[1])),
            error => Err(error),
        }),
    };
    loaded.map_err(|error| match error {
        // A named library that is not there is a slip; the usual one is only there with the driver.
        NvmlError::LibloadingError(_) if library.is_none() => NotOpened::Absent,
        error => NotOpened::Broken(format!("NVIDIA's driver does not serve: {}", words(&error))),
    })
}

struct Finder<'a> {
    nvml: &'static Nvml,
    scope: &'a Scope,
    cards: Vec<Card>,
    devices: Vec<DeviceInfo>,
    limitations: Vec<String>,
}

impl Finder<'_> {
    fn card(&mut self, index: u32) -> Result<(), NvmlError> {
        let device = self.nvml.device_by_index(index)?;
        let product = device.name().unwrap_or_default();
        let pci = device
            .pci_info()
            .map(|pci| pci.bus_id.to_ascii_lowercase())
            .unwrap_or_default();
        let memory = device.memory_info().map(|memory| memory.total);
        let model = catalogue::canonical("cuda", &product, memory.as_ref().copied().unwrap_or(0));
        if device.mig_mode().is_ok_and(|mode| mode.current == 1) {
            // The whole card cannot run work while it is split.
            return self.parts(&device, &model, &pci);
        }
        let (uuid, derived) = match device.uuid() {
            Ok(uuid) => (uuid, false),
            Err(NvmlError::GpuLost) => return Err(NvmlError::GpuLost),
            Err(_) if !pci.is_empty() => (derived_uuid("GPU", &self.scope.machine_id, &pci), true),
            Err(error) => return Err(error),
        };
        if derived {
            self.limitations.push(format!(
                "devices (nvml): {uuid} has no UUID of its vendor; this one is made of its place {pci} in this machine"
            ));
        }
        let memory_bytes = match memory {
            Ok(total) if total > 0 && total < 1 << 50 => total,
            _ => self.shared_memory(&uuid, &model),
        };
        self.add(&device, uuid, derived, pci, model, memory_bytes, false);
        Ok(())
    }

    /// A chip that shares the host's memory reports none of its own.
    fn shared_memory(&mut self, uuid: &str, model: &str) -> u64 {
        let known = catalogue::MODELS.iter().find(|known| known.name == model);
        let (bytes, from) = match known {
            Some(known) => (known.memory_gib << 30, "its model's is taken"),
            None => (
                machine::memory().map_or(0, |memory| memory.total),
                "the host's is taken, which it shares",
            ),
        };
        self.limitations.push(format!(
            "devices (nvml): {uuid} does not say how much memory it has; {from}"
        ));
        bytes
    }

    fn parts(&mut self, device: &Device<'static>, model: &str, pci: &str) -> Result<(), NvmlError> {
        for index in 0..device.mig_device_count()?.min(MOST) {
            let Ok(part) = device.mig_device_by_index(index) else {
                continue;
            };
            let Ok(uuid) = part.uuid() else { continue };
            let name = part.name().unwrap_or_default();
            // `NVIDIA A100-SXM4-80GB MIG 1g.10gb`
            let profile = name.rsplit_once("MIG ").map_or("MIG", |(_, profile)| profile.trim());
            let model = format!("{model}-{profile}");
            let memory_bytes = match part.memory_info() {
                Ok(memory) if memory.total > 0 && memory.total < 1 << 50 => memory.total,
                _ => {
                    self.limitations
                        .push(format!("devices (nvml): {uuid} does not say how much memory it has"));
                    0
                }
            };
            self.add(&part, uuid, false, pci.to_owned(), model, memory_bytes, true);
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments)] // All that a card is.
    fn add(
        &mut self,
        device: &Device<'static>,
        uuid: String,
        derived: bool,
        pci: String,
        model: String,
        memory_bytes: u64,
        part: bool,
    ) {
        let events = match part {
            // The card's own errors are those of each of its parts; they come by the kernel's log.
            true => Err(NOT_SUPPORTED),
            false => self
                .nvml
                .create_event_set()
                .and_then(|set| {
                    device
                        .register_events(EventTypes::CRITICAL_XID_ERROR, set)
                        .map_err(|error| error.error)
                })
                .map_err(|error| words(&error)),
        };
        self.devices.push(DeviceInfo {
            uuid: uuid.clone(),
            kind: "cuda".to_owned(),
            model,
            memory_bytes,
            speed_milli: 1000,
            simulated: false,
        });
        self.cards.push(Card {
            uuid,
            derived,
            pci: kernel_log::short(&pci),
            part,
            events,
            xid: 0,
            xids: 0,
        });
    }
}

impl Source for NvmlSource {
    fn read(&mut self) -> Vec<DeviceReading> {
        let logged = self.log.as_mut().map(KernelLog::xids).unwrap_or_default();
        let has_log = self.log.is_some();
        let nvml = self.nvml;
        self.cards
            .iter_mut()
            .map(|card| {
                for xid in &logged {
                    if xid.pci == card.pci {
                        card.saw(xid.number);
                    }
                }
                card.read(nvml, has_log)
            })
            .collect()
    }
}

impl Card {
    fn saw(&mut self, xid: u64) {
        self.xid = xid;
        self.xids += 1;
    }

    fn take_events(&mut self, has_log: bool) {
        let Ok(events) = &self.events else { return };
        let mut seen = Vec::new();
        for _ in 0..MOST_EVENTS {
            match events.wait(0).map(|event| event.event_data) {
                Ok(Some(XidError::Value(xid))) => seen.push(xid),
                Ok(Some(XidError::Unknown)) => seen.push(0),
                Ok(None) => {}
                Err(_) => break,
            }
        }
        for xid in seen {
            // The log, where it can be read, has told of the same error already.
            if !(has_log && self.xid == xid) {
                self.saw(xid);
            }
        }
    }

    fn handle(&self, nvml: &'static Nvml) -> Result<Device<'static>, NvmlError> {
        if self.derived {
            let count = nvml.device_count()?.min(MOST);
            return (0..count)
                .filter_map(|index| nvml.device_by_index(index).ok())
                .find(|device| {
                    device
                        .pci_info()
                        .is_ok_and(|pci| kernel_log::short(&pci.bus_id) == self.pci)
                })
                .ok_or(NvmlError::NotFound);
        }
        nvml.device_by_uuid(self.uuid.as_str())
    }

    fn read(&mut self, nvml: &'static Nvml, has_log: bool) -> DeviceReading {
        self.take_events(has_log);
        let device = match self.handle(nvml).and_then(|device| device.name().map(|_| device)) {
            Ok(device) => device,
            Err(error) => return self.lost(&error),
        };
        let mut draft = Draft::new(&self.uuid);
        let number = |value: Result<u32, NvmlError>| value.map(u64::from).map_err(|error| words(&error));
        let memory = device.memory_info().map_err(|error| words(&error));
        draft.memory(memory.clone().map(|m| m.used), memory.map(|m| m.total));
        let busy = device.utilization_rates().map(|rates| rates.gpu);
        // Percent; out of bounds stays out of bounds.
        draft.number(
            Field::Busy,
            number(busy).map(|percent| {
                if percent <= 100 {
                    percent * 10
                } else {
                    percent.max(1001)
                }
            }),
        );
        draft.number(Field::Temperature, number(device.temperature(TemperatureSensor::Gpu)));
        draft.number(Field::Power, number(device.power_usage()));
        draft.number(Field::CoreClock, number(device.clock_info(Clock::SM)));
        draft.number(Field::MemoryClock, number(device.clock_info(Clock::Memory)));
        draft.throttle(
            device
                .current_throttle_reasons()
                .map(throttle)
                .map_err(|error| words(&error)),
        );
        let ecc = |kind| {
            device
                .total_ecc_errors(kind, EccCounter::Volatile)
                .map_err(|error| words(&error))
        };
        draft.number(Field::EccCorrected, ecc(MemoryError::Corrected));
        let uncorrected = draft.number(Field::EccUncorrected, ecc(MemoryError::Uncorrected));
        let processes = device.running_compute_processes_count();
        draft.number(Field::Processes, number(processes));
        fields(&device, &mut draft);
        match (&self.events, has_log) {
            (Err(why), false) => draft.unreadable(Field::Xid, &format!("{why}; the kernel's log cannot be read")),
            _ => {
                draft.number(Field::Xid, Ok(self.xid));
                draft.xids(self.xids);
            }
        }
        if self.derived {
            draft.unreadable(Field::Identity, "made of its place in this machine");
        }
        if self.part {
            draft.unreadable(
                Field::Identity,
                "a part of a card: what the card as a whole says is not its own",
            );
        }
        if self.xid != 0 {
            draft.finding(
                "xid",
                format!("its driver reported Xid {} ({} in all)", self.xid, self.xids),
                RESET,
            );
        }
        if let Some(errors) = uncorrected.filter(|errors| *errors > 0) {
            draft.finding(
                "ecc_uncorrected",
                format!("{errors} memory errors could not be corrected"),
                "drain it and reset it; replace the card if they come back",
            );
        }
        draft.doubt_busy(IDLE_MW);
        draft.done()
    }

    fn lost(&self, error: &NvmlError) -> DeviceReading {
        let why = words(error);
        let mut draft = Draft::silent(&self.uuid, &why);
        draft.finding(
            "device_lost",
            format!("its driver does not reach it: {error}"),
            "reset it; if it does not come back, restart the machine and look at its power and its slot",
        );
        if self.xid != 0 {
            draft.finding(
                "xid",
                format!("its driver reported Xid {} ({} in all)", self.xid, self.xids),
                RESET,
            );
        }
        draft.done()
    }
}

/// What only the list of numbered fields has.
fn fields(device: &Device<'_>, draft: &mut Draft) {
    const REMAPPED: [u32; 2] = [NVML_FI_DEV_REMAPPED_COR, NVML_FI_DEV_REMAPPED_UNC];
    const LINKS: [u32; 4] = [
        NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
        NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
    ];
    const STATE: [u32; 2] = [NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_FAILURE];
    let ids: Vec<FieldId> = [&REMAPPED[..], &LINKS[..], &STATE[..]]
        .concat()
        .into_iter()
        .map(FieldId)
        .collect();
    let values: Vec<Result<u64, Why>> = match device.field_values_for(&ids) {
        Ok(values) => values
            .into_iter()
            .map(|sample| {
                sample
                    .and_then(|sample| sample.value)
                    .map_err(|error| words(&error))
                    .and_then(whole)
            })
            .collect(),
        Err(error) => vec![Err(words(&error)); ids.len()],
    };
    let sum = |range: std::ops::Range<usize>| -> Result<u64, Why> {
        values[range]
            .iter()
            .cloned()
            .try_fold(0u64, |sum, value| Ok(sum.saturating_add(value?)))
    };
    draft.number(Field::RemappedRows, sum(0..2));
    draft.number(Field::LinkErrors, sum(2..6));
    if values[6] == Ok(1) {
        draft.finding(
            "remap_pending",
            "memory rows wait to be replaced".to_owned(),
            "drain it and reset it: rows are replaced at reset",
        );
    }
    if values[7] == Ok(1) {
        draft.finding(
            "remap_failed",
            "a broken memory row could not be replaced".to_owned(),
            "replace the card: it has no spare rows left",
        );
    }
}

fn whole(value: SampleValue) -> Result<u64, Why> {
    match value {
        SampleValue::U32(value) => Ok(u64::from(value)),
        SampleValue::U64(value) => Ok(value),
        SampleValue::I64(value) => u64::try_from(value).map_err(|_| Why::Owned(format!("impossible: {value}"))),
        SampleValue::F64(value) => Err(Why::Owned(format!("not a whole number: {value}"))),
    }
}

fn throttle(reasons: ThrottleReasons) -> Vec<String> {
    // Idle clocks and clocks asked for are no fault.
    [
        (ThrottleReasons::SW_POWER_CAP, "power_cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hw_slowdown"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "sw_thermal"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hw_thermal"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power_brake"),
    ]
    .into_iter()
    .filter(|(reason, _)| reasons.contains(*reason))
    .map(|(_, word)| word.to_owned())
    .collect()
}

/// One stable word for what is usual.
fn words(error: &NvmlError) -> Why {
    Why::Borrowed(match error {
        NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => "not_supported",
        NvmlError::NoPermission => "no_permission",
        NvmlError::GpuLost => "device_lost",
        NvmlError::NotFound => "device_gone",
        NvmlError::ResetRequired => "reset_required",
        NvmlError::NoData => "no_data",
        NvmlError::Timeout => "timeout",
        NvmlError::InvalidArg => "invalid_argument",
        other => return Why::Owned(other.to_string()),
    })
}
