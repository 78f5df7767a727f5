//! The words of a placement: one dominant reason, and what would help.

use std::fmt::Write as _;

use crate::events::node::{DeviceKind, Supply};
use crate::events::placement::{Candidate, Explanation, Filter, Part};
use crate::events::service::{Runtime, ServiceSpec};
use crate::unit::Milli;

use super::filter::{Survey, memory_of_share};
use super::pool::Pool;

/// Most names listed in a sentence.
const LISTED: usize = 4;

/// Why instances went where they went.
pub(super) fn placed(pool: &Pool<'_>, survey: &Survey, candidates: Vec<Candidate>) -> Explanation {
    let name = |candidate: &Candidate| {
        let entry = pool.nodes.iter().find(|n| n.node.id == candidate.node);
        entry.map_or_else(|| candidate.node.to_string(), |n| n.node.name.to_string())
    };
    let dominant = match candidates.as_slice() {
        [] => "it was placed".to_owned(),
        [only] => format!("`{}` is the only node that fits", name(only)),
        [best, next, ..] => format!(
            "{} on {} fit; `{}` came first {}",
            plural(survey.fitting, "device"),
            plural(survey.suitable.len() as u32, "node"),
            name(best),
            lead(best, next),
        ),
    };
    Explanation {
        devices: pool.devices,
        fitting: survey.fitting,
        filtered: survey.filtered(),
        candidates,
        dominant,
        next_step: String::new(),
    }
}

/// The part in which the best candidate is furthest ahead of the next.
fn lead(best: &Candidate, next: &Candidate) -> &'static str {
    let ahead = best
        .parts
        .iter()
        .zip(&next.parts)
        .map(|(b, n)| (b.points - n.points, b.part));
    match ahead.max_by_key(|(points, _)| *points) {
        Some((points, part)) if points > 0 => match part {
            Part::Spread => "for having fewer replicas in its failure domain",
            Part::Packing => "for leaving less capacity in pieces",
            Part::Speed => "for its speed",
            Part::Supply => "for its more reliable supply",
            Part::Fit => "for its device that is no larger than needed",
            Part::Locality => "for having what it fetches",
            Part::Left => "since work was asked to leave the next",
        },
        _ => "among equals",
    }
}

/// Why instances wait. Devices are ruled out by the first reason that applies, so those with the last reason came
/// furthest: what they lack is what is missing.
pub(super) fn deferred(pool: &Pool<'_>, spec: &ServiceSpec, survey: &Survey) -> Explanation {
    let (dominant, next_step) = reason(pool, spec, survey);
    Explanation {
        devices: pool.devices,
        fitting: survey.fitting,
        filtered: survey.filtered(),
        candidates: Vec::new(),
        dominant,
        next_step,
    }
}

/// A new generation waits while older replicas serve: say what a rollout needs.
pub(super) fn add_rollout_hint(explanation: &mut Explanation, rolls_over: bool) {
    if rolls_over {
        explanation
            .next_step
            .push_str("; a rolling change needs room for a new replica beside the old ones, which serve until then");
    }
}

fn reason(pool: &Pool<'_>, spec: &ServiceSpec, survey: &Survey) -> (String, String) {
    let out = |filter| survey.out_for(filter);
    let wanted = wanted(spec);
    let (busy, unhealthy, apart) = (
        out(Filter::Busy),
        out(Filter::DeviceNotHealthy),
        out(Filter::TooFewOnNode),
    );
    let suited = busy + unhealthy + apart;
    if pool.devices == 0 {
        return (
            "the pool has no devices".to_owned(),
            "add a node: run `tidemill agent` on it with a token of role node".to_owned(),
        );
    }
    if apart > 0 {
        let (most, at) = survey.most_together.unwrap_or((0, 0));
        let name = pool.nodes.get(at).map_or("", |n| n.node.name.as_str());
        return (
            format!(
                "no node has {} free devices together ({wanted}): the most is {most}, on `{name}`",
                spec.devices.count
            ),
            "wait until more is free on one node, add a node with enough devices, or lower devices.count".to_owned(),
        );
    }
    if busy > 0 {
        let share = spec.devices.share;
        let mut dominant = if share < Milli::WHOLE {
            let part = thousandths(share);
            format!("no {wanted} has {part} of it free: all of {suited} are held as far as that goes")
        } else {
            format!("no {wanted} is free: {busy} of {suited} are held")
        };
        if unhealthy > 0 {
            let _ = write!(dominant, ", {unhealthy} are not confirmed clean");
        }
        let next = "add a node with such devices, or scale another service down";
        return (dominant, next.to_owned());
    }
    if unhealthy > 0 {
        return (
            format!("no {wanted} is in order: {unhealthy} of {suited} are lost or not confirmed clean"),
            "see `tidemill devices`: they return when their nodes confirm that nothing is left on them".to_owned(),
        );
    }
    if survey.revoked > survey.unreachable {
        return (
            format!(
                "no {wanted} may be used: {} of that sort are on nodes whose token was revoked",
                survey.revoked
            ),
            "make a new token with `tidemill token create --role node` and start their agents with it".to_owned(),
        );
    }
    if survey.unsteady > survey.unreachable {
        return (
            format!(
                "no {wanted} may be used yet: {} of that sort are on nodes that were doubted several times lately",
                survey.unsteady
            ),
            "they get work once they were steady for a while; `tidemill explain NODE` says when".to_owned(),
        );
    }
    if survey.unreachable > 0 {
        return (
            format!(
                "no {wanted} is in reach: {} of that sort are on nodes that are not ready",
                survey.unreachable
            ),
            "see `tidemill nodes` for why they are not ready".to_owned(),
        );
    }
    misfit(pool, spec, survey, &wanted)
}

/// No device of the pool would suit even if everything were free.
fn misfit(pool: &Pool<'_>, spec: &ServiceSpec, survey: &Survey, wanted: &str) -> (String, String) {
    let out = |filter| survey.out_for(filter);
    let ready = || pool.nodes.iter().flat_map(|n| n.devices.iter().map(|d| d.device));
    if out(Filter::TooLittleMemory) > 0 {
        let right_kind = ready().filter(|d| {
            (spec.devices.kinds.is_empty() || spec.devices.kinds.contains(&d.kind))
                && (spec.devices.models.is_empty() || spec.devices.models.contains(&d.model))
        });
        let most = right_kind
            .map(|d| memory_of_share(d.memory_bytes, spec.devices.share))
            .max()
            .unwrap_or(0);
        let part = if spec.devices.share < Milli::WHOLE {
            format!("a share of {} has", thousandths(spec.devices.share))
        } else {
            "the largest has".to_owned()
        };
        return (
            format!(
                "no {wanted} has {}: {part} at most {}",
                gib(spec.devices.memory_bytes),
                gib(most)
            ),
            "lower devices.memory, or add a node with larger devices".to_owned(),
        );
    }
    if out(Filter::WrongModel) > 0 {
        let models = listed(ready().map(|d| d.model.clone()));
        return (
            format!("the pool has no {wanted}"),
            format!("add one, or change devices.model: the pool has {models}"),
        );
    }
    if out(Filter::WrongKind) > 0 {
        let kinds = listed(ready().map(|d| kind_name(d.kind).to_owned()));
        return (
            format!("the pool has no {wanted}"),
            format!("add one, or change devices.kind: the pool has {kinds}"),
        );
    }
    if out(Filter::RuntimeMissing) > 0 {
        let (lacking, next) = match spec.run.runtime {
            Runtime::Docker => (
                "a Docker engine",
                "start an engine on one of them (its agent notices within seconds), or use run.runtime: process",
            ),
            Runtime::Process => ("runtime process", "add a node that offers it"),
        };
        return (format!("no node that is allowed has {lacking}"), next.to_owned());
    }
    if out(Filter::RegionNotAllowed) > 0 {
        let regions = listed(pool.nodes.iter().map(|n| n.node.region.clone()));
        return (
            format!("no node is in {}", one_of(&spec.placement.regions)),
            format!("add a node there, or change placement.region: the pool has {regions}"),
        );
    }
    if out(Filter::SupplyNotAllowed) > 0 {
        let supplies = listed(pool.nodes.iter().map(|n| supply_name(n.node.supply).to_owned()));
        let allowed: Vec<String> = spec
            .placement
            .supply
            .iter()
            .map(|s| supply_name(*s).to_owned())
            .collect();
        return (
            format!("no node is of supply {}", one_of(&allowed)),
            format!("add one, or change placement.supply: the pool has {supplies}"),
        );
    }
    (
        "no node is ready".to_owned(),
        "see `tidemill nodes` for why they are not ready".to_owned(),
    )
}

/// `A100-80G or H100 device`, `cuda device`, `device`.
fn wanted(spec: &ServiceSpec) -> String {
    let request = &spec.devices;
    if !request.models.is_empty() {
        return format!("device of model {}", one_of(&request.models));
    }
    let kinds: Vec<String> = request.kinds.iter().map(|k| kind_name(*k).to_owned()).collect();
    if kinds.is_empty() {
        "device".to_owned()
    } else {
        format!("{} device", one_of(&kinds))
    }
}

fn one_of(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [init @ .., last] => format!("{} or {last}", init.join(", ")),
    }
}

/// Distinct names in order, the first few of them.
fn listed(names: impl Iterator<Item = String>) -> String {
    let distinct: std::collections::BTreeSet<String> = names.filter(|n| !n.is_empty()).collect();
    let mut text = distinct.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    if distinct.len() > LISTED {
        let _ = write!(text, " and {} more", distinct.len() - LISTED);
    }
    if text.is_empty() { "none".to_owned() } else { text }
}

fn plural(count: u32, noun: &str) -> String {
    if count == 1 {
        format!("1 {noun}")
    } else {
        format!("{count} {noun}s")
    }
}

fn thousandths(share: Milli) -> String {
    let text = format!("{}.{:03}", share.0 / 1000, share.0 % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Bytes in GiB with one decimal, rounded down.
fn gib(bytes: u64) -> String {
    let tenths = u128::from(bytes) * 10 / (1 << 30);
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

fn kind_name(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cuda => "cuda",
        DeviceKind::Rocm => "rocm",
        DeviceKind::Ascend => "ascend",
        DeviceKind::Cpu => "cpu",
    }
}

fn supply_name(supply: Supply) -> &'static str {
    match supply {
        Supply::Idc => "idc",
        Supply::Cloud => "cloud",
        Supply::Enterprise => "enterprise",
        Supply::Cafe => "cafe",
        Supply::Pc => "pc",
        Supply::Partner => "partner",
    }
}
