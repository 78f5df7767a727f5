//! Huawei Ascend: its command-line tool.
//!
//! `npu-smi info` prints a table of two lines a chip whose columns moved from release to release; cells are found by the
//! words of its head, and figures by their place within a cell. `npu-smi info -t board` has the chip's identity.

use std::{path::PathBuf, time::Duration};

use tidemill_protocol::{agent::DeviceInfo, telemetry::DeviceReading};

use super::{
    catalogue,
    command::{self, NoOutput},
    draft::{Draft, Field, NOT_SUPPORTED, Why},
    source::{Maker, NotOpened, Opened, Scope, Source, derived_uuid},
};

/// Chips of one machine beyond which an answer is broken.
const MOST: usize = 64;

/// Time for one answer. The tool takes most of a second on a full machine.
const LIMIT: Duration = Duration::from_secs(5);

pub(super) fn maker(scope: &Scope) -> Maker {
    let scope = scope.clone();
    Maker {
        name: "npu-smi",
        open: Box::new(move || open(&scope)),
    }
}

struct Chip {
    npu: u32,
    chip: u32,
    uuid: String,
    derived: bool,
}

struct AscendSource {
    tool: PathBuf,
    chips: Vec<Chip>,
}

/// One chip as the table shows it.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    npu: u32,
    chip: u32,
    name: String,
    health: String,
    bus: String,
    power_mw: Result<u64, Why>,
    temperature: Result<u64, Why>,
    busy: Result<u64, Why>,
    /// Used and in all, bytes.
    memory: Result<(u64, u64), Why>,
}

fn open(scope: &Scope) -> Result<Opened, NotOpened> {
    let tool = &scope.drivers.npu_smi;
    let table = match command::output(tool, &["info"], LIMIT) {
        Ok(table) => table,
        Err(NoOutput::Missing) => return Err(NotOpened::Absent),
        Err(NoOutput::Failed(reason)) => return Err(NotOpened::Broken(format!("`npu-smi info`: {reason}"))),
    };
    let rows = parse(&table);
    if rows.is_empty() {
        return Err(NotOpened::Broken(
            "`npu-smi info` lists no chip that can be read".to_owned(),
        ));
    }
    let (mut chips, mut devices, mut limitations) = (Vec::new(), Vec::new(), Vec::new());
    for row in rows {
        let (uuid, derived) = match identity(&scope.drivers.npu_smi, &row) {
            Some(uuid) => (uuid, false),
            None => {
                let uuid = derived_uuid("NPU", &scope.machine_id, &row.bus);
                limitations.push(format!(
                    "devices (npu-smi): {uuid} does not tell its VDie id; its identity is made of its place {} in this machine",
                    row.bus
                ));
                (uuid, true)
            }
        };
        let memory_bytes = row.memory.as_ref().map_or(0, |(_, total)| *total);
        let product = if row.name.starts_with("Ascend") {
            row.name.clone()
        } else {
            format!("Ascend-{}", row.name)
        };
        if memory_bytes == 0 {
            limitations.push(format!(
                "devices (npu-smi): {uuid} does not say how much memory it has; it takes only work that asks for none"
            ));
        }
        devices.push(DeviceInfo {
            uuid: uuid.clone(),
            kind: "ascend".to_owned(),
            model: catalogue::canonical("ascend", &product, memory_bytes),
            memory_bytes,
            speed_milli: 1000,
            simulated: false,
        });
        chips.push(Chip {
            npu: row.npu,
            chip: row.chip,
            uuid,
            derived,
        });
    }
    Ok(Opened {
        source: Box::new(AscendSource {
            tool: tool.clone(),
            chips,
        }),
        devices,
        limitations,
    })
}

/// The chip's own id; that of its board does where there is one chip a board.
fn identity(tool: &std::path::Path, row: &Row) -> Option<String> {
    let (npu, chip) = (row.npu.to_string(), row.chip.to_string());
    let of_chip = command::output(tool, &["info", "-t", "board", "-i", &npu, "-c", &chip], LIMIT).ok();
    let vdie = of_chip
        .as_deref()
        .and_then(|text| value(text, &["VDie ID", "VDieID", "Die ID"]));
    if let Some(id) = vdie.as_deref().and_then(id_of) {
        return Some(format!("NPU-{id}"));
    }
    let of_board = command::output(tool, &["info", "-t", "board", "-i", &npu], LIMIT).ok()?;
    let serial = value(&of_board, &["Serial Number"])?;
    Some(format!("NPU-{}-{chip}", id_of(&serial)?))
}

/// An id without its blanks; none if it is no id.
fn id_of(text: &str) -> Option<String> {
    let id: String = text.chars().filter(char::is_ascii_alphanumeric).take(64).collect();
    let says_nothing = ["NA", "na", "NULL", "Unknown"].contains(&id.as_str()) || id.bytes().all(|b| b == b'0');
    (id.len() >= 6 && !says_nothing).then_some(id)
}

/// Of a list `Key   : Value`.
fn value(text: &str, keys: &[&str]) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        let value = value.trim();
        (keys.iter().any(|known| known.eq_ignore_ascii_case(key.trim())) && !value.is_empty()).then(|| value.to_owned())
    })
}

impl Source for AscendSource {
    fn read(&mut self) -> Vec<DeviceReading> {
        let table = command::output(&self.tool, &["info"], LIMIT);
        let rows = match table {
            Ok(table) => parse(&table),
            Err(error) => {
                let why = match error {
                    NoOutput::Missing => "npu-smi is gone".to_owned(),
                    NoOutput::Failed(reason) => format!("npu-smi: {reason}"),
                };
                return self.chips.iter().map(|chip| chip.silent(&why)).collect();
            }
        };
        self.chips
            .iter()
            .map(
                |chip| match rows.iter().find(|row| (row.npu, row.chip) == (chip.npu, chip.chip)) {
                    Some(row) => chip.read(row),
                    None => chip.silent("not listed any more"),
                },
            )
            .collect()
    }
}

impl Chip {
    fn silent(&self, why: &str) -> DeviceReading {
        let mut draft = Draft::silent(&self.uuid, why);
        draft.finding(
            "device_lost",
            format!("its tool does not reach it: {why}"),
            "run `npu-smi info` there; reset the chip or restart the machine",
        );
        draft.done()
    }

    fn read(&self, row: &Row) -> DeviceReading {
        let mut draft = Draft::new(&self.uuid);
        draft.memory(row.memory.clone().map(|m| m.0), row.memory.clone().map(|m| m.1));
        draft.number(Field::Busy, row.busy.clone());
        draft.number(Field::Temperature, row.temperature.clone());
        draft.number(Field::Power, row.power_mw.clone());
        draft.unreadable(Field::Xid, "NVIDIA's only");
        if self.derived {
            draft.unreadable(Field::Identity, "made of its place in this machine");
        }
        if !row.health.eq_ignore_ascii_case("ok") {
            draft.finding(
                "unhealthy",
                format!("its tool calls it `{}`", row.health),
                "`npu-smi info -t health -i ID` and the driver's log say more; reset the chip if it stays so",
            );
        }
        draft.done()
    }
}

/// Reads the table of chips, up to that of processes.
fn parse(table: &str) -> Vec<Row> {
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(str::trim)
        .take_while(|line| !line.contains("Process id"))
        .filter_map(|line| {
            Some(
                line.strip_prefix('|')?
                    .strip_suffix('|')?
                    .split('|')
                    .map(str::trim)
                    .collect(),
            )
        })
        .collect();
    // The head's last cell of each kind names the figures of the lines below it.
    let head = |word: &str| {
        lines
            .iter()
            .find(|cells| cells.iter().any(|cell| cell.contains(word)))
            .cloned()
    };
    let (Some(first), Some(second)) = (head("Power(W)"), head("AICore")) else {
        return vec![];
    };
    let heads: Vec<&str> = second
        .last()
        .map(|cell| cell.split_whitespace().collect())
        .unwrap_or_default();
    let body = lines
        .iter()
        .skip_while(|cells| **cells != second)
        .skip(1)
        .filter(|cells| cells.len() == first.len());
    let body: Vec<&Vec<&str>> = body.collect();
    body.chunks_exact(2)
        .filter_map(|pair| row(pair[0], pair[1], &heads))
        .take(MOST)
        .collect()
}

fn row(above: &[&str], below: &[&str], heads: &[&str]) -> Option<Row> {
    let mut named = above.first()?.split_whitespace();
    let npu = named.next()?.parse().ok()?;
    let name = named.next()?.to_owned();
    let chip = below.first()?.split_whitespace().next()?.parse().ok()?;
    let figures: Vec<&str> = above.last()?.split_whitespace().collect();
    let (usage, pairs) = usage(below.last()?);
    // The chip's own memory is the last pair that is there at all: HBM where the chip has it.
    let memory = heads
        .iter()
        .filter(|head| head.contains("Usage(MB)"))
        .zip(&pairs)
        .map(|(_, pair)| *pair)
        .filter(|(_, total)| *total > 0)
        .last();
    Some(Row {
        npu,
        chip,
        name,
        health: (*above.get(1)?).to_owned(),
        bus: below.get(1)?.to_ascii_lowercase(),
        power_mw: thousandths(figures.first().copied()),
        temperature: whole(figures.get(1).copied()),
        busy: whole(usage.as_deref()).map(|percent| {
            if percent <= 100 {
                percent * 10
            } else {
                percent.max(1001)
            }
        }),
        memory: memory
            .map(|(used, total)| (used << 20, total << 20))
            .ok_or(NOT_SUPPORTED),
    })
}

/// `0           0    / 0          3390 / 65536`: the busy share, then pairs of used and total.
fn usage(cell: &str) -> (Option<String>, Vec<(u64, u64)>) {
    let spaced = cell.replace('/', " / ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut pairs = Vec::new();
    for at in 1..words.len().saturating_sub(1) {
        if words[at] == "/"
            && let (Ok(used), Ok(total)) = (words[at - 1].parse(), words[at + 1].parse::<u32>())
        {
            let used: u32 = used;
            pairs.push((u64::from(used), u64::from(total)));
        }
    }
    (words.first().map(|word| (*word).to_owned()), pairs)
}

fn whole(word: Option<&str>) -> Result<u64, Why> {
    word.and_then(|word| word.parse().ok()).ok_or(NOT_SUPPORTED)
}

/// Watts with a fraction; `-` and `NA` where the board does not tell them by chip.
fn thousandths(word: Option<&str>) -> Result<u64, Why> {
    let watts: f64 = word.and_then(|word| word.parse().ok()).ok_or(NOT_SUPPORTED)?;
    if !(0.0..1_000_000.0).contains(&watts) {
        return Err(Why::Owned(format!("impossible: {watts} W")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Bounded by the line above.
    Ok((watts * 1000.0).round() as u64)
}
