//! Between the agents' protocol and the domain.
//!
//! Everything that comes up is checked here against bounds: a number or text out of all proportion is refused by name,
//! or, in a fact that must not be lost, cut. What this build does not know is skipped, since an agent may be newer.

use std::str::FromStr;

use tidemill_domain::command::{FactBody, InstanceFact, JoinNode, OfferedDevice, OfferedFinding, OfferedInspection};
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::events::service::{FetchFile, FetchTarget, Runtime};
use tidemill_domain::id::{CredentialId, InstanceId};
use tidemill_domain::policy::work::{NodeWork, Work};
use tidemill_domain::state::State;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::time::Span;
use tidemill_domain::unit::Name;
use tidemill_protocol::agent::{
    self as wire, DesiredDevice, DesiredInstance, FetchSpec, Hello, LimitSpec, RunSpec, Want,
};
use tidemill_protocol::telemetry::{Finding, Inspection};
use tokio::time::Instant;

use super::facts::Batch;
use crate::problem::Refusal;
use crate::workload::{DEVICE_KINDS, SUPPLIES};

/// Longest name of a provider, region, zone, model, UUID or machine.
const MAX_LABEL: usize = 128;
/// Longest address.
const MAX_ADDRESS: usize = 255;
/// Longest sentence kept of a fact.
const MAX_REASON: usize = 1024;
/// Findings kept of one inspection, and the length of each.
const MAX_FINDINGS: usize = 64;
const MAX_FINDING: usize = 300;
/// Devices of a node.
const MAX_DEVICES: usize = 4096;
/// Instances that a node can speak of.
const MAX_INSTANCES: usize = 16_384;
/// A petabyte on one device is a broken reading.
const MAX_MEMORY: u64 = 1 << 50;
/// A hundred times its nominal speed is a broken reading.
const MAX_SPEED: u32 = 100_000;
/// Nothing on a node is older than this.
const MAX_AGE_MS: u64 = 400 * 24 * 3_600_000;
/// Facts of one command.
const MAX_FACTS: usize = 512;

fn refuse(key: &str, reason: impl std::fmt::Display) -> Refusal {
    Refusal::new(
        422,
        "invalid",
        format!("{key}: {reason}"),
        "correct the agent's flags and start it again",
    )
}

fn label(key: &str, text: &str) -> Result<String, Refusal> {
    if text.is_empty() || text.len() > MAX_LABEL || text.chars().any(char::is_control) {
        return Err(refuse(key, format_args!("it has 1 to {MAX_LABEL} printable bytes")));
    }
    Ok(text.to_owned())
}

fn word<T: Copy>(key: &str, text: &str, words: &[(&str, T)]) -> Result<T, Refusal> {
    words
        .iter()
        .find(|(word, _)| *word == text)
        .map(|(_, value)| *value)
        .ok_or_else(|| {
            let all: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let text: String = text.chars().take(40).collect();
            refuse(key, format_args!("`{text}` is none of {}", all.join(", ")))
        })
}

/// A greeting as the request to join.
pub(super) fn join(hello: &Hello, credential: Option<CredentialId>) -> Result<JoinNode, Refusal> {
    if hello.devices.len() > MAX_DEVICES {
        return Err(refuse(
            "devices",
            format_args!("{} are listed, at most {MAX_DEVICES} go", hello.devices.len()),
        ));
    }
    if hello.instances.len() > MAX_INSTANCES {
        return Err(refuse(
            "instances",
            format_args!("more than {MAX_INSTANCES} are listed"),
        ));
    }
    if let Some(address) = &hello.address
        && (address.is_empty() || address.len() > MAX_ADDRESS || !address.bytes().all(|b| b.is_ascii_graphic()))
    {
        return Err(refuse("address", "it is a host name or IP address"));
    }
    let instance = |status: &wire::InstanceStatus| {
        InstanceId::from_str(&status.instance).map_err(|error| refuse("instances", error))
    };
    Ok(JoinNode {
        name: Name::from_str(&hello.name).map_err(|error| refuse("name", error))?,
        supply: word::<Supply>("supply", &hello.supply, SUPPLIES)?,
        provider: label("provider", &hello.provider)?,
        region: label("region", &hello.region)?,
        zone: label("zone", &hello.zone)?,
        address: hello.address.clone(),
        boot_id: label("boot_id", &hello.boot_id)?,
        machine_id: label("machine_id", &hello.machine_id)?,
        agent_id: label("agent_id", &hello.agent_id)?,
        credential,
        devices: hello.devices.iter().map(device).collect::<Result<_, _>>()?,
        runtimes: runtimes(&hello.runtimes),
        instances: hello.instances.iter().map(instance).collect::<Result<_, _>>()?,
        inspection: hello.inspection.as_deref().map(inspection),
    })
}

/// The runtimes this build knows of those offered. An older agent says nothing, and offers processes.
fn runtimes(offered: &[String]) -> Vec<Runtime> {
    let offers = |word: &str| offered.iter().any(|offered| offered == word);
    let found = Runtime::WORDS.into_iter().filter(|(word, _)| offers(word));
    match offered.is_empty() {
        true => Runtime::unsaid(),
        false => found.map(|(_, runtime)| runtime).collect(),
    }
}

/// What a node found of itself, cut to bounds: it must not keep the node out.
fn inspection(said: &Inspection) -> OfferedInspection {
    let finding = |uuid: Option<&str>, finding: &Finding| OfferedFinding {
        uuid: uuid.map(str::to_owned),
        code: code(&finding.code),
        detail: shorten(&finding.detail).chars().take(MAX_FINDING).collect(),
        next: shorten(&finding.next).chars().take(MAX_FINDING).collect(),
    };
    let of_node = said.findings.iter().map(|f| finding(None, f));
    let of_devices = said
        .devices
        .iter()
        .flat_map(|(uuid, findings)| findings.iter().map(|f| finding(Some(uuid), f)));
    let micros = |us: u64| Span::from_micros(us.min(MAX_AGE_MS * 1000));
    OfferedInspection {
        took: span(said.took_ms),
        memory_bps: said.memory_bps,
        disk_write_bps: said.disk_write_bps,
        disk_sync: said.disk_sync_us.map(micros),
        round_trip: said.round_trip_us.map(micros),
        findings: of_node.chain(of_devices).take(MAX_FINDINGS).collect(),
    }
}

fn code(text: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    text.chars().filter(plain).take(64).collect()
}

fn device(device: &wire::DeviceInfo) -> Result<OfferedDevice, Refusal> {
    let uuid = label("devices.uuid", &device.uuid)?;
    if device.memory_bytes > MAX_MEMORY {
        return Err(refuse(
            "devices.memory_bytes",
            format_args!("{} on {uuid} cannot be", device.memory_bytes),
        ));
    }
    if device.speed_milli == 0 || device.speed_milli > MAX_SPEED {
        return Err(refuse(
            "devices.speed_milli",
            format_args!("{} on {uuid} cannot be", device.speed_milli),
        ));
    }
    Ok(OfferedDevice {
        kind: word::<DeviceKind>("devices.kind", &device.kind, DEVICE_KINDS)?,
        model: label("devices.model", &device.model)?,
        memory_bytes: device.memory_bytes,
        speed_milli: device.speed_milli,
        simulated: device.simulated,
        uuid,
    })
}

/// Facts as commands take them. `address` is where the node said that it is reached: an endpoint elsewhere would make
/// gateways send requests to whatever a node names.
pub(super) fn batches(facts: Vec<wire::Fact>, address: Option<&str>, received: Instant) -> Vec<Batch> {
    let mut batches = Vec::with_capacity(facts.len().div_ceil(MAX_FACTS));
    for chunk in facts.chunks(MAX_FACTS) {
        let mut hasher = blake3::Hasher::new();
        for fact in chunk {
            hasher.update(&fact.id.to_le_bytes());
            let said = serde_json::to_vec(&(&fact.instance, &fact.body)).unwrap_or_default();
            hasher.update(&(said.len() as u64).to_le_bytes());
            hasher.update(&said);
        }
        batches.push(Batch {
            digest: *hasher.finalize().as_bytes(),
            facts: chunk.iter().filter_map(|fact| self::fact(fact, address)).collect(),
            through: chunk.iter().map(|fact| fact.id).max().unwrap_or_default(),
            received,
        });
    }
    batches
}

/// One fact; none if this build does not know what it says.
fn fact(fact: &wire::Fact, address: Option<&str>) -> Option<InstanceFact> {
    let Ok(instance) = InstanceId::from_str(&fact.instance) else {
        tracing::debug!(id = fact.id, "a fact about something that is no instance was skipped");
        return None;
    };
    let body = match &fact.body {
        wire::FactBody::Started {
            pid,
            port,
            fetch_ms,
            start_ms,
        } => FactBody::Started {
            pid: *pid,
            port: *port,
            fetch: span(*fetch_ms),
            start: span(*start_ms),
        },
        wire::FactBody::Ready { endpoint, load_ms } => FactBody::Ready {
            endpoint: endpoint.as_deref().and_then(|endpoint| own_endpoint(endpoint, address)),
            load: span(*load_ms),
        },
        wire::FactBody::Unready { reason } => FactBody::Unready {
            reason: shorten(reason),
        },
        wire::FactBody::Exited { reason, .. } => FactBody::Failed {
            code: "exited".to_owned(),
            reason: shorten(reason),
        },
        wire::FactBody::StartFailed { code, reason } => FactBody::Failed {
            code: self::code(code),
            reason: shorten(reason),
        },
        wire::FactBody::Stopped { killed } => FactBody::Stopped { killed: *killed },
        wire::FactBody::Unknown => return None,
    };
    Some(InstanceFact {
        instance,
        age: span(fact.age_ms),
        body,
    })
}

fn span(millis: u64) -> Span {
    Span::from_millis(millis.min(MAX_AGE_MS))
}

/// The endpoint, if it is a port of the node's own address.
fn own_endpoint(endpoint: &str, address: Option<&str>) -> Option<String> {
    let (host, port) = endpoint.rsplit_once(':')?;
    let port: u16 = port.parse().ok().filter(|port| *port != 0)?;
    let bare = |text: &str| text.trim_start_matches('[').trim_end_matches(']').to_owned();
    let own = address.is_some_and(|address| bare(address) == bare(host));
    if !own {
        tracing::warn!(
            endpoint,
            address,
            "an endpoint that is not at the node's own address is not routed to"
        );
        return None;
    }
    Some(format!("{host}:{port}"))
}

/// A sentence within bounds, without control characters.
pub(super) fn shorten(text: &str) -> String {
    let mut short: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_REASON)
        .collect();
    if short.trim().is_empty() {
        short = "no reason was given".to_owned();
    }
    short
}

/// What a node is to do with one instance.
pub(super) fn desired(state: &State, work: &NodeWork<'_>) -> DesiredInstance {
    let (instance, run) = (work.instance, &work.spec.run);
    let kind_word = |kind: DeviceKind| {
        DEVICE_KINDS
            .iter()
            .find(|(_, known)| *known == kind)
            .map_or_else(String::new, |(word, _)| (*word).to_owned())
    };
    let device = |hold: &tidemill_domain::events::instance::Hold| {
        let device = state.devices.get(&hold.device)?;
        Some(DesiredDevice {
            uuid: device.uuid.clone(),
            milli: hold.share.0,
            kind: kind_word(device.kind),
        })
    };
    let want = match (work.work, instance.state) {
        (Work::Run, _) => Want::Run,
        (Work::Stop, InstanceState::Draining(reason) | InstanceState::Stopping(reason)) => Want::Stop {
            reason: reason.sentence().to_owned(),
        },
        (Work::Stop, _) => Want::Stop {
            reason: instance.reason.clone(),
        },
    };
    DesiredInstance {
        instance: instance.id.to_string(),
        want,
        run: RunSpec {
            runtime: run.runtime.word().to_owned(),
            command: run.command.clone(),
            image: run.image.clone(),
            fetch: run.fetch.iter().map(fetch).collect(),
            limits: LimitSpec {
                cpu_milli: run.limits.cpu.map(|cpu| cpu.0),
                memory_bytes: run.limits.memory_bytes,
                processes: run.limits.processes,
            },
            env: run.env.clone(),
            ready_http: run.ready_http.clone(),
            ready_timeout_ms: run.ready_timeout.millis(),
            stop_grace_ms: run.stop_grace.millis(),
        },
        workload: work.service.full_name(),
        devices: instance.holds.iter().filter_map(device).collect(),
        fence: None,
        traceparent: instance.trace.map(|trace| trace.to_traceparent()),
    }
}

fn fetch(file: &FetchFile) -> FetchSpec {
    FetchSpec {
        url: file.url.clone(),
        blake3: file.blake3.to_string(),
        to: match &file.target {
            FetchTarget::File(path) => Some(path.clone()),
            FetchTarget::Image => None,
        },
    }
}
