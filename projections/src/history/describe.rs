//! What an event is about, what it changed and why, in words.

use std::collections::{BTreeMap, BTreeSet};

use tidemill_domain::commit::to_hex;
use tidemill_domain::events::Event;
use tidemill_domain::events::instance::{InstancesPlaced, InstancesRequested};
use tidemill_domain::events::node::{NodeInspected, NodeJoined};
use tidemill_domain::events::service::{DesiredReason, ServiceApplied, ServiceScaleOverridden};
use tidemill_domain::events::switch::{SwitchClosed, SwitchOutcome};
use tidemill_domain::id::{InstanceId, NodeId, ServiceId, SwitchId};
use tidemill_domain::state::{Entity, State};
use tidemill_domain::time::Span;

use crate::rows::count;

/// An event in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// What it is mainly about.
    pub target: Entity,
    /// Name of that: a node's name, `TENANT/NAME`, a role.
    pub name: String,
    /// What changed, in a few words.
    pub change: String,
    /// Why, in a sentence.
    pub reason: String,
}

fn said(target: Entity, name: impl Into<String>, change: impl Into<String>, reason: impl Into<String>) -> Description {
    Description {
        target,
        name: name.into(),
        change: change.into(),
        reason: reason.into(),
    }
}

/// Describes `event` from the state before it.
pub fn describe(event: &Event, before: &State) -> Description {
    let node = |id: NodeId, to: &str, reason: String| {
        let from = before.nodes.get(&id).map_or("unknown", |n| n.state_name());
        said(
            Entity::Node(id),
            node_name(before, id),
            format!("{from} → {to}"),
            reason,
        )
    };
    let service = |id: ServiceId, change: String, reason: String| {
        said(Entity::Service(id), service_name(before, id), change, reason)
    };
    let instance = |id: InstanceId, to: &str, reason: String| {
        let from = before.instances.get(&id).map_or("unknown", |i| i.state.name());
        let change = if from == to {
            format!("still {to}")
        } else {
            format!("{from} → {to}")
        };
        said(Entity::Instance(id), instance_name(before, id), change, reason)
    };
    match event {
        Event::LedgerCreated(e) => {
            let change = format!("ledger {} begins", e.ledger);
            said(Entity::Cell, &e.cell, change, "the cell was set up")
        }
        Event::EpochStarted(e) => {
            let change = format!("epoch {} → {}: {} leads", before.cell.epoch, e.epoch, e.leader);
            let reason = format!("a sequencer of release {} took over the writing", e.version);
            said(Entity::Cell, cell_name(before), change, reason)
        }
        Event::StateSealed(e) => {
            let change = format!("state of {} entities sealed as {}…", e.entities, &to_hex(&e.hash)[..12]);
            said(
                Entity::Cell,
                cell_name(before),
                change,
                "seals are taken regularly and with each epoch",
            )
        }
        Event::FeatureActivated(e) => {
            let change = format!("feature {} active", e.feature);
            said(Entity::Cell, cell_name(before), change, "an operator activated it")
        }
        Event::CredentialCreated(e) => {
            let whose = e
                .tenant
                .as_ref()
                .map_or_else(String::new, |t| format!(" for tenant {t}"));
            let change = format!("token with role {} created{whose}", word(&e.role));
            said(
                Entity::Credential(e.credential),
                e.credential.to_string(),
                change,
                "someone asked for it",
            )
        }
        Event::CredentialRevoked(e) => said(
            Entity::Credential(e.credential),
            e.credential.to_string(),
            "token revoked",
            "someone asked for it",
        ),
        Event::WorkerTermGranted(e) => {
            let change = format!("{} holds the role in term {}", e.holder, e.term);
            let reason = match before.terms.get(&e.role) {
                Some(old) => format!("the lease of {} ran out", old.holder),
                None => "nobody held it".to_owned(),
            };
            said(Entity::Term(e.role.clone()), &e.role, change, reason)
        }
        Event::NodeJoined(e) => joined(e, before),
        Event::NodeReady(e) => node(e.node, "ready", "inventory accepted".into()),
        Event::NodeSuspected(e) => node(e.node, "suspect", silent(e.silent, &e.reason)),
        Event::NodeRecovered(e) => node(e.node, "ready", e.reason.clone()),
        Event::NodeLost(e) => with_lost(node(e.node, "lost", silent(e.silent, &e.reason)), e.instances.len()),
        Event::NodeLeft(e) => with_lost(node(e.node, "left", e.reason.clone()), e.instances.len()),
        Event::NodeInspected(e) => inspected(e, before),
        Event::BreakerTripped(e) => {
            let change = "breaker tripped: work on silent nodes stays where it is".to_owned();
            let reason = format!(
                "{} of {} nodes, of {} providers, fell silent together",
                e.nodes.len(),
                e.of,
                e.providers
            );
            said(Entity::Cell, cell_name(before), change, reason)
        }
        Event::BreakerConfirmed(e) => {
            let change = "breaker confirmed: work on silent nodes is replaced";
            said(Entity::Cell, cell_name(before), change, e.reason.clone())
        }
        Event::BreakerReset(e) => {
            let change = "breaker closed: every node is judged by itself";
            said(Entity::Cell, cell_name(before), change, e.reason.clone())
        }
        Event::ServiceApplied(e) => applied(e, before),
        Event::ServiceStopRequested(e) => service(e.service, "to be stopped".into(), "its owner stopped it".into()),
        Event::ServiceStarted(e) => service(e.service, "to run again".into(), "its owner started it".into()),
        Event::ServiceDeleteRequested(e) => service(e.service, "to be deleted".into(), "its owner deleted it".into()),
        Event::ServiceDeleted(e) => service(e.service, "gone".into(), "nothing of it is left to stop".into()),
        Event::ServiceScaleOverridden(e) => service(e.service, overridden(e), "someone set it by hand".into()),
        Event::ServiceScaleReleased(e) => service(
            e.service,
            "replica count no longer set by hand".into(),
            "the override ended".into(),
        ),
        Event::ServiceDesiredChanged(e) => {
            let from = before.services.get(&e.service).map_or(0, |s| s.desired);
            service(
                e.service,
                format!("replicas wanted {from} → {}", e.desired),
                desired_why(e.reason).into(),
            )
        }
        Event::ServiceRolledOut(e) => service(
            e.service,
            format!("rolled out, generation {} after {}", e.generation, e.took),
            "every replica wanted is ready and of this generation".into(),
        ),
        Event::ServiceRolloutHalted(e) => service(
            e.service,
            format!("rollout of generation {} halted, {} serves on", e.generation, e.serving),
            e.reason.clone(),
        ),
        Event::ServiceRolledBack(e) => service(
            e.service,
            format!("rolled back, generation {} → {}", e.from, e.to),
            "its owner went back".into(),
        ),
        Event::InstancesRequested(e) => requested(e, before),
        Event::StandbysPromoted(e) => {
            let change = match (e.promoted.is_empty(), e.stood_by.is_empty()) {
                (false, true) => format!("{} promoted", named(&e.promoted)),
                (true, _) => format!("{} to stand by", named(&e.stood_by)),
                (false, false) => format!("{} promoted, {} to stand by", named(&e.promoted), named(&e.stood_by)),
            };
            service(e.service, change, "a replica was missing".into())
        }
        Event::InstancesPlaced(e) => placed(e, before),
        Event::PlacementDeferred(e) => {
            let change = match e.waiting {
                1 => "1 instance waits".to_owned(),
                n => format!("{n} instances wait"),
            };
            service(e.service, change, e.explanation.dominant.clone())
        }
        Event::InstanceStarted(e) => instance(
            e.instance,
            "starting",
            format!("its process runs with pid {} and port {}", e.pid, e.port),
        ),
        Event::InstanceReady(e) => {
            let place = e.endpoint.as_deref().unwrap_or("its tunnel");
            instance(
                e.instance,
                "ready",
                format!("it answers at {place} after loading for {}", e.load),
            )
        }
        Event::InstanceUnready(e) => instance(e.instance, "starting", format!("it stopped answering: {}", e.reason)),
        Event::InstancesInRotation(e) => several(
            before,
            &e.instances,
            "in rotation",
            format!("gateway {} sends requests there", e.gateway),
        ),
        Event::InstancesDrainRequested(e) => {
            several(before, &e.instances, "→ draining", e.reason.sentence().to_owned())
        }
        Event::InstancesStopRequested(e) => several(
            before,
            &e.instances,
            "to be stopped",
            "no gateway sends there any more".into(),
        ),
        Event::InstanceStopped(e) => {
            let ended = before.instances.get(&e.instance).filter(|i| i.state.ended());
            let reason = match (ended, e.killed) {
                (Some(_), _) => "its node confirms that nothing of it is left",
                (None, true) => "it outlived its grace and was killed",
                (None, false) => "it ended as asked",
            };
            instance(e.instance, ended.map_or("stopped", |i| i.state.name()), reason.into())
        }
        Event::InstanceFailed(e) => instance(e.instance, "failed", format!("{}: {}", e.code, e.reason)),
        Event::InstancesLost(e) => several(before, &e.instances, "→ lost", e.reason.clone()),
        Event::InstancesCancelled(e) => several(
            before,
            &e.instances,
            "→ stopped, never placed",
            e.reason.sentence().to_owned(),
        ),
        Event::InstanceMoveRequested(e) => {
            let state = before.instances.get(&e.instance).map_or("unknown", |i| i.state.name());
            instance(e.instance, state, format!("somebody wants it elsewhere: {}", e.reason))
        }
        Event::NodeCordoned(e) => node(e.node, "cordoned", e.reason.clone()),
        Event::NodeUncordoned(e) => node(e.node, "open for work", e.reason.clone()),
        Event::NodeDrainRequested(e) => match e.deadline {
            Some(deadline) => node(e.node, &format!("draining until {deadline}"), e.reason.clone()),
            None => node(e.node, "draining", e.reason.clone()),
        },
        Event::NodeDrained(e) => node(e.node, "drained", "everything on it is confirmed stopped".into()),
        Event::SwitchOpened(e) => {
            let change = format!(
                "{} of {} is to move off {} ({})",
                e.instance,
                service_name(before, e.service),
                node_name(before, e.node),
                e.cause.name()
            );
            said(
                Entity::Switch(e.switch),
                service_name(before, e.service),
                change,
                e.detail.clone(),
            )
        }
        Event::SwitchReplacementChosen(e) => {
            let change = format!("{} takes over", e.instance);
            let reason = "it was requested because of this switch";
            said(Entity::Switch(e.switch), switch_name(before, e.switch), change, reason)
        }
        Event::SwitchClosed(e) => closed(e, before),
        Event::TrafficMinuteClosed(e) => {
            let change = format!(
                "minute {}: {} requests, {} failed",
                e.minute, e.requests.arrived, e.requests.failed
            );
            service(e.service, change, "each minute's traffic is put on record".into())
        }
        Event::ObservationWindowSealed(e) => {
            let change = format!("observations {} to {} sealed", e.first, e.last);
            said(
                Entity::Cell,
                cell_name(before),
                change,
                "what is observed is sealed regularly",
            )
        }
    }
}

fn cell_name(before: &State) -> &str {
    match before.cell.name.as_str() {
        "" => "cell",
        name => name,
    }
}

fn node_name(before: &State, id: NodeId) -> String {
    before
        .nodes
        .get(&id)
        .map_or_else(|| id.to_string(), |n| n.name.to_string())
}

fn service_name(before: &State, id: ServiceId) -> String {
    before
        .services
        .get(&id)
        .map_or_else(|| id.to_string(), |s| s.full_name())
}

fn instance_name(before: &State, id: InstanceId) -> String {
    match before.instances.get(&id) {
        Some(instance) => service_name(before, instance.service),
        None => id.to_string(),
    }
}

fn switch_name(before: &State, id: SwitchId) -> String {
    before
        .switches
        .get(&id)
        .map_or_else(|| id.to_string(), |s| s.workload())
}

fn closed(e: &SwitchClosed, before: &State) -> Description {
    let change = match (e.outcome, e.replacement, e.to_node, e.replace) {
        (SwitchOutcome::Replaced, Some(replacement), Some(node), Some(took)) => {
            format!("replaced by {replacement} on {} after {took}", node_name(before, node))
        }
        (SwitchOutcome::Replaced, ..) => "replaced".to_owned(),
        (SwitchOutcome::Recovered, ..) => "over: what was to move came back".to_owned(),
        (SwitchOutcome::NotNeeded, ..) => "over: it is not wanted any more".to_owned(),
    };
    let effect = &e.effect;
    let reason = match (effect.is_perceived(), effect.covered_seconds) {
        (_, 0) => "no gateway reported any use of the service meanwhile".to_owned(),
        (false, _) => "customers noticed nothing".to_owned(),
        (true, _) => format!(
            "customers noticed: {} failed, {} cut, longest gap {}",
            count(effect.failed_requests as usize, "request"),
            count(effect.cut_streams as usize, "stream"),
            effect.longest_gap
        ),
    };
    said(Entity::Switch(e.switch), switch_name(before, e.switch), change, reason)
}

fn silent(span: Span, reason: &str) -> String {
    format!("silent for {span}: {reason}")
}

fn with_lost(mut description: Description, instances: usize) -> Description {
    if instances > 0 {
        description.change = format!("{}, {} lost with it", description.change, count(instances, "instance"));
    }
    description
}

fn inspected(e: &NodeInspected, before: &State) -> Description {
    let name = before
        .nodes
        .get(&e.node)
        .map_or_else(|| e.node.to_string(), |n| n.name.to_string());
    let change = match e.findings.len() {
        0 => format!("inspected in {} ms: nothing is wrong", e.took.millis()),
        n => format!("inspected in {} ms: {}", e.took.millis(), count(n, "finding")),
    };
    let reason = match e.findings.first() {
        None => "it joined".to_owned(),
        Some(first) => format!("{}: {}", first.code, first.detail),
    };
    said(Entity::Node(e.node), name, change, reason)
}

fn joined(e: &NodeJoined, before: &State) -> Description {
    let mut models: BTreeMap<&str, usize> = BTreeMap::new();
    for device in &e.devices {
        *models.entry(&device.model).or_default() += 1;
    }
    let devices = match models.len() {
        0 => "no devices".to_owned(),
        _ => models
            .iter()
            .map(|(model, n)| format!("{n}×{model}"))
            .collect::<Vec<_>>()
            .join(", "),
    };
    let (verb, reason) = match before.nodes.get(&e.node) {
        None => ("joined", "its agent enrolled it".to_owned()),
        Some(known) if known.boot_id != e.boot_id => ("came back", "its machine was started again".to_owned()),
        Some(known) if known.agent_id != e.agent_id => ("came back", "its agent was started again".to_owned()),
        Some(known) => (
            "came back",
            format!("its agent reported in while it was {}", known.state.name()),
        ),
    };
    said(
        Entity::Node(e.node),
        e.name.to_string(),
        format!("{verb} with {devices}"),
        reason,
    )
}

fn applied(e: &ServiceApplied, before: &State) -> Description {
    let change = match before.services.get(&e.service) {
        None => format!("declared, generation {}", e.generation),
        Some(known) if known.generation != e.generation => {
            format!(
                "declaration changed, generation {} → {}",
                known.generation, e.generation
            )
        }
        Some(_) => format!("scale, class or route changed, still generation {}", e.generation),
    };
    said(
        Entity::Service(e.service),
        format!("{}/{}", e.tenant, e.name),
        change,
        "its owner applied it",
    )
}

fn overridden(e: &ServiceScaleOverridden) -> String {
    let from = e.from.map_or_else(String::new, |t| format!(" from {t}"));
    let until = e
        .until
        .map_or_else(|| " until released".to_owned(), |t| format!(" until {t}"));
    format!("{} set by hand{from}{until}", count(e.replicas as usize, "replica"))
}

fn desired_why(reason: DesiredReason) -> &'static str {
    match reason {
        DesiredReason::Minimum => "the declared minimum",
        DesiredReason::Override => "set by hand",
        DesiredReason::Stopped => "its owner stopped it",
        DesiredReason::Deleted => "its owner deleted it",
    }
}

fn requested(e: &InstancesRequested, before: &State) -> Description {
    let (desired, live) = before
        .services
        .get(&e.service)
        .map_or((0, 0), |s| (s.desired, s.live.len()));
    if e.standby {
        return said(
            Entity::Service(e.service),
            service_name(before, e.service),
            format!("{} asked for, to stand by", named(&e.instances)),
            "its declared standbys".to_owned(),
        );
    }
    let change = format!("{} asked for", named(&e.instances));
    let reason = format!("{} wanted, {live} there", count(desired as usize, "replica"));
    said(
        Entity::Service(e.service),
        service_name(before, e.service),
        change,
        reason,
    )
}

fn placed(e: &InstancesPlaced, before: &State) -> Description {
    let nodes: BTreeSet<NodeId> = e.placements.iter().map(|p| p.node).collect();
    let instances: Vec<InstanceId> = e.placements.iter().map(|p| p.instance).collect();
    let place = match (nodes.len(), nodes.first()) {
        (1, Some(node)) => format!("node {}", node_name(before, *node)),
        (n, _) => count(n, "node"),
    };
    let change = format!("{} placed on {place}", named(&instances));
    let name = service_name(before, e.service);
    said(Entity::Service(e.service), name, change, e.explanation.dominant.clone())
}

/// What befell several instances at once: about the instance if it is one, else about the service of the first.
fn several(before: &State, instances: &[InstanceId], what: &str, reason: String) -> Description {
    let Some(first) = instances.first() else {
        return said(Entity::Cell, cell_name(before), format!("no instance {what}"), reason);
    };
    if instances.len() == 1 {
        let change = match before.instances.get(first) {
            Some(i) if what.starts_with('→') => format!("{} {what}", i.state.name()),
            _ => what.to_owned(),
        };
        return said(Entity::Instance(*first), instance_name(before, *first), change, reason);
    }
    let change = format!("{} {what}", named(instances));
    match before.instances.get(first).map(|i| i.service) {
        Some(service) => said(Entity::Service(service), service_name(before, service), change, reason),
        None => said(Entity::Instance(*first), first.to_string(), change, reason),
    }
}

fn named(instances: &[InstanceId]) -> String {
    match instances {
        [one] => one.to_string(),
        many => count(many.len(), "instance"),
    }
}

fn word(value: &impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
