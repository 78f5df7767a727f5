//! A reading under construction: every number passes its bounds here, and every absence gets its reason.

use std::borrow::Cow;

use tidemill_protocol::telemetry::{DeviceReading, Finding};

/// Why a field has no value: a short stable word where there is one, else a sentence.
pub(super) type Why = Cow<'static, str>;

/// The driver has no such thing for this device.
pub(super) const NOT_SUPPORTED: Why = Cow::Borrowed("not_supported");

/// The driver said "no value" by a number.
const BLANK: Why = Cow::Borrowed("blank");

/// Longest reason kept.
const MAX_WHY: usize = 120;

/// A field of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    Busy,
    MemoryUsed,
    MemoryTotal,
    Temperature,
    Power,
    CoreClock,
    MemoryClock,
    Throttle,
    EccCorrected,
    EccUncorrected,
    Xid,
    RemappedRows,
    LinkErrors,
    Processes,
    /// The device's UUID, where it is not its vendor's.
    Identity,
}

impl Field {
    /// Everything a device may say.
    pub(super) const READ: [Field; 14] = [
        Field::Busy,
        Field::MemoryUsed,
        Field::MemoryTotal,
        Field::Temperature,
        Field::Power,
        Field::CoreClock,
        Field::MemoryClock,
        Field::Throttle,
        Field::EccCorrected,
        Field::EccUncorrected,
        Field::Xid,
        Field::RemappedRows,
        Field::LinkErrors,
        Field::Processes,
    ];

    /// Its key in the reading.
    pub(super) fn name(self) -> &'static str {
        match self {
            Field::Busy => "busy_milli",
            Field::MemoryUsed => "memory_used_bytes",
            Field::MemoryTotal => "memory_total_bytes",
            Field::Temperature => "temperature_c",
            Field::Power => "power_mw",
            Field::CoreClock => "core_clock_mhz",
            Field::MemoryClock => "memory_clock_mhz",
            Field::Throttle => "throttle",
            Field::EccCorrected => "ecc_corrected",
            Field::EccUncorrected => "ecc_uncorrected",
            Field::Xid => "xid",
            Field::RemappedRows => "remapped_rows",
            Field::LinkErrors => "link_errors",
            Field::Processes => "processes",
            Field::Identity => "uuid",
        }
    }

    /// The largest value hardware can have; beyond it is a broken reading.
    fn most(self) -> u64 {
        match self {
            Field::Busy => 1000,
            Field::MemoryUsed | Field::MemoryTotal => 1 << 50,
            Field::Temperature => 150,
            Field::Power => 20_000_000,
            Field::CoreClock | Field::MemoryClock => 20_000,
            Field::RemappedRows => 1 << 20,
            Field::Processes => 100_000,
            Field::Xid => 10_000,
            Field::EccCorrected | Field::EccUncorrected | Field::LinkErrors => 1 << 53,
            Field::Throttle | Field::Identity => u64::MAX,
        }
    }
}

/// Numbers by which drivers say that there is none: all ones in 32 or 64 bits, and the "blank" ranges just below the
/// largest signed numbers.
fn blank(value: u64) -> bool {
    const BLANK_32: u64 = 0x7fff_fff0;
    const BLANK_64: u64 = 0x7fff_ffff_ffff_fff0;
    (BLANK_32..=0x7fff_ffff).contains(&value) || (0xffff_fff0..=0xffff_ffff).contains(&value) || value >= BLANK_64
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    reading: DeviceReading,
    seen: Vec<Field>,
}

impl Draft {
    pub(super) fn new(uuid: &str) -> Self {
        Self {
            reading: DeviceReading {
                uuid: uuid.to_owned(),
                ..DeviceReading::default()
            },
            seen: Vec::with_capacity(Field::READ.len()),
        }
    }

    /// Takes a number if the field can have it.
    pub(super) fn number(&mut self, field: Field, value: Result<u64, Why>) -> Option<u64> {
        let value = value.and_then(|value| match value {
            value if blank(value) => Err(BLANK),
            value if value > field.most() => Err(Why::Owned(format!("impossible: {value}"))),
            value => Ok(value),
        });
        let value = match value {
            Ok(value) => value,
            Err(why) => {
                self.unreadable(field, &why);
                return None;
            }
        };
        self.seen.push(field);
        let reading = &mut self.reading;
        let narrow = u32::try_from(value).unwrap_or(u32::MAX);
        match field {
            Field::Busy => reading.busy_milli = Some(narrow),
            Field::MemoryUsed => reading.memory_used_bytes = Some(value),
            Field::MemoryTotal => reading.memory_total_bytes = Some(value),
            Field::Temperature => reading.temperature_c = i32::try_from(value).ok(),
            Field::Power => reading.power_mw = Some(value),
            Field::CoreClock => reading.core_clock_mhz = Some(narrow),
            Field::MemoryClock => reading.memory_clock_mhz = Some(narrow),
            Field::EccCorrected => reading.ecc_corrected = Some(value),
            Field::EccUncorrected => reading.ecc_uncorrected = Some(value),
            Field::Xid => reading.xid = Some(narrow),
            Field::RemappedRows => reading.remapped_rows = Some(value),
            Field::LinkErrors => reading.link_errors = Some(value),
            Field::Processes => reading.processes = Some(narrow),
            Field::Throttle | Field::Identity => {}
        }
        Some(value)
    }

    /// Takes both numbers of the memory: what is used cannot be more than there is.
    pub(super) fn memory(&mut self, used: Result<u64, Why>, total: Result<u64, Why>) {
        // A device without any memory is a driver that does not know.
        let total = total.and_then(|total| if total == 0 { Err(BLANK) } else { Ok(total) });
        let total = self.number(Field::MemoryTotal, total);
        let used = used.and_then(|used| match total {
            Some(total) if used > total && !blank(used) => Err(Why::Owned(format!("impossible: {used} of {total}"))),
            _ => Ok(used),
        });
        self.number(Field::MemoryUsed, used);
    }

    /// Takes the reasons for which clocks are held down.
    pub(super) fn throttle(&mut self, reasons: Result<Vec<String>, Why>) {
        match reasons {
            Ok(reasons) => {
                self.seen.push(Field::Throttle);
                self.reading.throttle = Some(reasons);
            }
            Err(why) => self.unreadable(Field::Throttle, &why),
        }
    }

    /// How many of the driver's errors were seen; goes with [`Field::Xid`].
    pub(super) fn xids(&mut self, count: u64) {
        self.reading.xids = Some(count);
    }

    /// Says why a field has no value.
    pub(super) fn unreadable(&mut self, field: Field, why: &str) {
        self.seen.push(field);
        let why: String = why.chars().take(MAX_WHY).collect();
        let fields = self.reading.unreadable.entry(why).or_default();
        fields.push(field.name().to_owned());
    }

    /// A busy share that nothing else bears out is none: registers of a card that sleeps read as all ones.
    pub(super) fn doubt_busy(&mut self, idle_power_mw: u64) {
        let reading = &self.reading;
        let idle = reading.power_mw.is_some_and(|power| power <= idle_power_mw);
        if reading.busy_milli.is_some_and(|busy| busy >= 990) && idle && reading.processes == Some(0) {
            self.reading.busy_milli = None;
            let fields = self.reading.unreadable.entry("sensor_conflict".to_owned()).or_default();
            fields.push(Field::Busy.name().to_owned());
            self.finding(
                "sensor_conflict",
                "it claims to be fully busy with no process on it and at idle power".to_owned(),
                "reset the device or update its driver; its utilisation is not used until then",
            );
        }
    }

    pub(super) fn finding(&mut self, code: &str, detail: String, next: &str) {
        self.reading.findings.push(Finding {
            code: code.to_owned(),
            detail,
            next: next.to_owned(),
        });
    }

    /// The reading; what nobody spoke of is said not to be supported.
    pub(super) fn done(mut self) -> DeviceReading {
        for field in Field::READ {
            if !self.seen.contains(&field) {
                self.unreadable(field, &NOT_SUPPORTED);
            }
        }
        self.reading
    }

    /// A reading of a device that does not answer: everything is unknown for this reason.
    pub(super) fn silent(uuid: &str, why: &str) -> Self {
        let mut draft = Self::new(uuid);
        for field in Field::READ {
            draft.unreadable(field, why);
        }
        draft
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn blanks_and_impossible_numbers_are_unknown() {
        for value in [
            0xffff_ffff,
            0x7fff_fff0,
            0x7fff_ffff,
            u64::MAX,
            0x7fff_ffff_ffff_fff0,
            1 << 54,
        ] {
            for field in Field::READ {
                let mut draft = Draft::new("GPU-1");
                assert_eq!(
                    draft.number(field, Ok(value)).filter(|_| field != Field::Throttle),
                    None,
                    "{field:?} {value}"
                );
            }
        }
        let mut draft = Draft::new("GPU-1");
        draft.memory(Ok(17_000_000_000), Ok(16_000_000_000));
        let reading = draft.done();
        assert_eq!(
            (reading.memory_used_bytes, reading.memory_total_bytes),
            (None, Some(16_000_000_000))
        );
        assert!(
            reading.unreadable.keys().any(|why| why.starts_with("impossible")),
            "{reading:?}"
        );
    }

    #[test]
    fn every_field_is_read_or_has_a_reason() {
        let mut draft = Draft::new("GPU-1");
        draft.number(Field::Power, Ok(65_000));
        draft.number(Field::Busy, Err("no_permission".into()));
        let reading = draft.done();
        let told: usize = reading.unreadable.values().map(Vec::len).sum();
        assert_eq!((told, reading.power_mw), (Field::READ.len() - 1, Some(65_000)));
        assert_eq!(reading.unreadable["no_permission"], ["busy_milli"]);
    }

    #[test]
    fn full_use_of_an_idle_card_is_a_conflict() {
        let draft = |busy, power, processes| {
            let mut draft = Draft::new("GPU-1");
            draft.number(Field::Busy, Ok(busy));
            draft.number(Field::Power, Ok(power));
            draft.number(Field::Processes, Ok(processes));
            draft.doubt_busy(20_000);
            let reading = draft.done();
            (reading.busy_milli, reading.findings.len())
        };
        assert_eq!(draft(1000, 8_000, 0), (None, 1));
        assert_eq!(draft(1000, 8_000, 1), (Some(1000), 0));
        assert_eq!(draft(1000, 90_000, 0), (Some(1000), 0));
        assert_eq!(draft(400, 8_000, 0), (Some(400), 0));
    }
}
