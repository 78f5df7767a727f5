//! Threads that read devices, and the board on which their last word stands.
//!
//! A driver's call can hang for good, and no thread can be taken back from it. So each source has a thread, nobody waits
//! for it beyond a patience, and what it said last is shown with its age until that is worth nothing any more. A source
//! whose thread hangs is not started again: the next one would hang too.

use std::{
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use tidemill_protocol::{
    agent::DeviceInfo,
    telemetry::{DeviceReading, MAX_READINGS},
};

use super::{
    Drivers,
    draft::Draft,
    source::{Maker, NotOpened, Opened, Source},
};

/// From here on a reading says nothing about now.
const STALE: Duration = Duration::from_secs(10);

/// Longest list of readings, in bytes of JSON: what a door keeps of a beat, less its other fields.
const MAX_BYTES: usize = 60 * 1024;

/// What the devices of a node said last.
#[derive(Debug, Clone, Default)]
pub struct Telemetry {
    boards: Arc<Mutex<Vec<Board>>>,
}

#[derive(Debug)]
struct Board {
    /// Who reads.
    source: &'static str,
    uuids: Vec<String>,
    last: Option<(Instant, Vec<DeviceReading>)>,
    began: Instant,
}

impl Telemetry {
    /// The last word of every device, and how many found no room.
    #[must_use]
    pub fn readings(&self) -> (Vec<DeviceReading>, u32) {
        self.readings_at(Instant::now())
    }

    fn readings_at(&self, now: Instant) -> (Vec<DeviceReading>, u32) {
        let boards = self.boards.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for board in &*boards {
            board.show(now, &mut all);
        }
        drop(boards);
        let total = all.len();
        all.truncate(MAX_READINGS);
        let mut bytes = 0;
        let fits = all
            .iter()
            .take_while(|reading| {
                bytes += serde_json::to_vec(reading).map_or(0, |json| json.len() + 1);
                bytes <= MAX_BYTES
            })
            .count();
        all.truncate(fits);
        let left_out = u32::try_from(total - all.len()).unwrap_or(u32::MAX);
        (all, left_out)
    }

    fn add(&self, source: &'static str, uuids: Vec<String>) -> usize {
        let mut boards = self.boards.lock().unwrap_or_else(PoisonError::into_inner);
        boards.push(Board {
            source,
            uuids,
            last: None,
            began: Instant::now(),
        });
        boards.len() - 1
    }

    fn put(&self, board: usize, readings: Vec<DeviceReading>) {
        let mut boards = self.boards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(board) = boards.get_mut(board) {
            board.last = Some((Instant::now(), readings));
        }
    }
}

impl Board {
    fn show(&self, now: Instant, out: &mut Vec<DeviceReading>) {
        let since = self.last.as_ref().map_or(self.began, |(taken, _)| *taken);
        let age = now.saturating_duration_since(since);
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        match &self.last {
            Some((_, readings)) if age < STALE => out.extend(readings.iter().cloned().map(|mut reading| {
                reading.age_ms = reading.age_ms.saturating_add(age_ms);
                reading
            })),
            // Not asked yet.
            None if age < STALE => {}
            _ => out.extend(self.uuids.iter().map(|uuid| {
                let mut draft = Draft::silent(uuid, "driver_silent");
                draft.finding(
                    "driver_silent",
                    format!("its driver ({}) has not answered for {} s", self.source, age.as_secs()),
                    "look into the kernel's log; a driver that hangs needs its device reset or the machine restarted",
                );
                let mut reading = draft.done();
                reading.age_ms = age_ms;
                reading
            })),
        }
    }
}

/// What became of one source.
pub(super) struct Outcome {
    pub(super) devices: Vec<DeviceInfo>,
    pub(super) limitations: Vec<String>,
}

/// Opens all sources at once, each on a thread of its own that reads on from there, and waits for what they find.
pub(super) fn start(makers: Vec<Maker>, drivers: &Drivers, telemetry: &Telemetry) -> Vec<Outcome> {
    let deadline = Instant::now() + drivers.patience;
    let opening: Vec<_> = makers
        .into_iter()
        .map(|maker| open(maker, drivers.every, telemetry))
        .collect();
    opening
        .into_iter()
        .map(|(name, said)| {
            let left = deadline.saturating_duration_since(Instant::now());
            match said.map(|said| said.recv_timeout(left)) {
                Ok(Ok(Ok(outcome))) => outcome,
                Ok(Ok(Err(NotOpened::Absent))) => Outcome {
                    devices: vec![],
                    limitations: vec![],
                },
                Ok(Ok(Err(NotOpened::Broken(reason)))) => limited(name, &reason),
                Ok(Err(mpsc::RecvTimeoutError::Timeout)) => limited(
                    name,
                    &format!(
                        "the driver did not say what it has within {} s; its devices are left out until the agent is started again",
                        drivers.patience.as_secs()
                    ),
                ),
                Ok(Err(mpsc::RecvTimeoutError::Disconnected)) => limited(name, "the driver's reader ended"),
                Err(error) => limited(name, &format!("no thread for it: {error}")),
            }
        })
        .collect()
}

fn limited(name: &str, reason: &str) -> Outcome {
    tracing::warn!(
        code = "driver_unusable",
        driver = name,
        reason,
        "devices of this driver are left out"
    );
    Outcome {
        devices: vec![],
        limitations: vec![format!("driver ({name}): {reason}")],
    }
}

type Said = std::io::Result<mpsc::Receiver<Result<Outcome, NotOpened>>>;

fn open(maker: Maker, every: Duration, telemetry: &Telemetry) -> (&'static str, Said) {
    let (say, said) = mpsc::channel();
    let telemetry = telemetry.clone();
    let name = maker.name;
    let started = thread::Builder::new().name(format!("devices-{name}")).spawn(move || {
        let opened = match (maker.open)() {
            Ok(opened) => opened,
            Err(error) => {
                let _ = say.send(Err(error));
                return;
            }
        };
        let Opened {
            source,
            devices,
            limitations,
        } = opened;
        let uuids: Vec<String> = devices.iter().map(|device| device.uuid.clone()).collect();
        let nothing = uuids.is_empty();
        // Nobody waits any more: what these devices say has no place in the node's inventory.
        if say.send(Ok(Outcome { devices, limitations })).is_err() || nothing {
            return;
        }
        let board = telemetry.add(name, uuids);
        read_on(source, board, every, &telemetry);
    });
    (name, started.map(|_| said))
}

/// Reads a source that needs no opening.
pub(super) fn watch(source: Box<dyn Source + Send>, drivers: &Drivers, telemetry: &Telemetry) {
    let (telemetry, every) = (telemetry.clone(), drivers.every);
    let started = thread::Builder::new().name("devices-cpu".to_owned()).spawn(move || {
        let board = telemetry.add("cpu", Vec::new());
        read_on(source, board, every, &telemetry);
    });
    if let Err(error) = started {
        tracing::warn!(code = "driver_unusable", driver = "cpu", %error, "no thread for it");
    }
}

/// Until nobody looks any more.
fn read_on(mut source: Box<dyn Source>, board: usize, every: Duration, telemetry: &Telemetry) {
    while Arc::strong_count(&telemetry.boards) > 1 {
        let began = Instant::now();
        let mut readings = source.read();
        // A slow driver's first value is as old as its whole round.
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        for reading in &mut readings {
            reading.age_ms = took;
        }
        telemetry.put(board, readings);
        thread::sleep(every.saturating_sub(began.elapsed()).max(every / 4));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn reading(uuid: &str) -> DeviceReading {
        DeviceReading {
            uuid: uuid.to_owned(),
            power_mw: Some(5),
            ..DeviceReading::default()
        }
    }

    #[test]
    fn a_word_grows_old_and_then_is_none() {
        let telemetry = Telemetry::default();
        let board = telemetry.add("nvml", vec!["GPU-1".into()]);
        let now = Instant::now();
        assert_eq!(telemetry.readings_at(now).0, []);
        telemetry.put(board, vec![reading("GPU-1")]);
        let (young, _) = telemetry.readings_at(Instant::now() + Duration::from_secs(3));
        assert!(young[0].age_ms >= 3000 && young[0].power_mw == Some(5));
        let (old, _) = telemetry.readings_at(Instant::now() + STALE);
        assert_eq!(
            (old[0].power_mw, old[0].findings[0].code.as_str()),
            (None, "driver_silent")
        );
        assert_eq!(
            old[0].unreadable["driver_silent"].len(),
            super::super::draft::Field::READ.len()
        );
    }

    #[test]
    fn a_beat_has_room_for_so_many() {
        let telemetry = Telemetry::default();
        let board = telemetry.add("nvml", vec![]);
        telemetry.put(board, (0..200).map(|n| reading(&format!("GPU-{n}"))).collect());
        let (readings, left_out) = telemetry.readings();
        assert_eq!((readings.len(), left_out), (128, 72));
        telemetry.put(board, (0..100).map(|n| reading(&format!("GPU-{n:01000}"))).collect());
        let (readings, left_out) = telemetry.readings();
        assert!(readings.len() < 60 && readings.len() as u32 + left_out == 100);
    }
}
