//! `/metrics`: the door's counters, and the cell's figures as the state shows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use tidemill_bus::sequencer::{APPEND_MICROS, GROUP_COMMITS, SequencerMetrics};
use tidemill_domain::state::State as CellState;
use tidemill_domain::state::instance::InstanceState;
use tidemill_domain::state::node::NodeState;

use super::hardware;
use crate::metrics::Text;
use crate::shared::Shared;

const NODE_STATES: [NodeState; 5] = [
    NodeState::Joining,
    NodeState::Ready,
    NodeState::Suspect,
    NodeState::Lost,
    NodeState::Left,
];
const INSTANCE_STATES: [&str; 8] = [
    "pending", "placed", "starting", "ready", "draining", "stopped", "failed", "lost",
];

pub(crate) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let mut out = Text::default();
    out.family("tidemill_build_info", "gauge", "The build; always 1.");
    out.sample(&format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0);
    let progress = *shared.deps.view.progress().borrow();
    let applied = shared.deps.reads.applied();
    out.gauge(
        "tidemill_ledger_sequence",
        "Last record of the ledger as last heard.",
        progress.ledger_last as f64,
    );
    out.gauge(
        "tidemill_view_lag_records",
        "Records the state has not folded yet.",
        progress.lag() as f64,
    );
    out.gauge(
        "tidemill_read_model_lag_records",
        "Records the read models have not applied yet.",
        progress.ledger_last.saturating_sub(applied) as f64,
    );
    let leading = f64::from(u8::from(shared.deps.health.role() == "leader"));
    out.gauge("tidemill_leader", "Whether this server leads.", leading);
    if let Some(figures) = shared.deps.health.sequencer() {
        sequencer(&figures, &mut out);
    }
    shared.deps.view.read(|state| {
        cell(state, &mut out);
        hardware::series(state, &shared.telemetry, &mut out);
    });
    shared.metrics.render(&mut out);
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        out.finish(),
    )
        .into_response()
}

fn sequencer(figures: &SequencerMetrics, out: &mut Text) {
    let seconds = |micros: u64| micros as f64 / 1e6;
    out.histogram(
        "tidemill_sequencer_append_seconds",
        "Time until a record was durable.",
        APPEND_MICROS.map(seconds).into_iter().zip(figures.append_times),
        (figures.records, seconds(figures.append_micros)),
    );
    out.histogram(
        "tidemill_sequencer_group_commits",
        "Commits in a record: how many commands share one append.",
        GROUP_COMMITS
            .map(|bound| bound as f64)
            .into_iter()
            .zip(figures.group_commits),
        (figures.records, figures.commits as f64),
    );
    out.counter(
        "tidemill_sequencer_decide_seconds_total",
        "Time spent deciding.",
        seconds(figures.decide_micros),
    );
    for (name, help, value) in [
        ("tidemill_sequencer_events_total", "Events appended.", figures.events),
        (
            "tidemill_sequencer_record_bytes_total",
            "Bytes of the records appended.",
            figures.bytes,
        ),
        (
            "tidemill_sequencer_commands_total",
            "Commands answered, refusals included.",
            figures.commands,
        ),
        (
            "tidemill_sequencer_rejected_total",
            "Commands refused.",
            figures.rejected,
        ),
        (
            "tidemill_sequencer_repeated_total",
            "Commands answered with their first answer.",
            figures.repeated,
        ),
        (
            "tidemill_sequencer_overloaded_total",
            "Commands turned away because too many waited.",
            figures.overloaded,
        ),
        (
            "tidemill_sequencer_takeovers_total",
            "Times this process came to lead.",
            figures.takeovers,
        ),
    ] {
        out.counter(name, help, value as f64);
    }
}

fn cell(state: &CellState, out: &mut Text) {
    out.gauge("tidemill_epoch", "Present epoch.", state.cell.epoch as f64);
    out.gauge("tidemill_ledger_events", "Events on the ledger.", state.events as f64);
    out.family("tidemill_nodes", "gauge", "Nodes by state.");
    for wanted in NODE_STATES {
        let count = state.nodes.values().filter(|node| node.state == wanted).count();
        out.sample(&format!("{{state=\"{}\"}}", wanted.name()), count as f64);
    }
    let mut classes =
        BTreeMap::from(["free", "held", "draining", "dirty", "quarantined", "lost"].map(|class| (class, 0u64)));
    for device in state.devices.values() {
        let c = device.classes();
        for (class, part) in [
            ("free", c.free),
            ("held", c.held),
            ("draining", c.draining),
            ("dirty", c.dirty),
            ("quarantined", c.quarantined),
            ("lost", c.lost),
        ] {
            *classes.entry(class).or_default() += u64::from(part.0);
        }
    }
    out.family("tidemill_devices", "gauge", "Devices by class; shares count as parts.");
    for (class, milli) in classes {
        out.sample(&format!("{{class=\"{class}\"}}"), milli as f64 / 1000.0);
    }
    let mut instances = BTreeMap::from(INSTANCE_STATES.map(|name| (name, 0u64)));
    for instance in state.instances.values() {
        *instances.entry(instance.state.name()).or_default() += 1;
    }
    out.family(
        "tidemill_instances",
        "gauge",
        "Instances by state; ended ones while they are remembered.",
    );
    for (name, count) in &instances {
        out.sample(&format!("{{state=\"{name}\"}}"), *count as f64);
    }
    out.gauge(
        "tidemill_queue_instances",
        "Instances that wait for devices.",
        instances
            .get(InstanceState::Pending.name())
            .copied()
            .unwrap_or_default() as f64,
    );
    out.gauge("tidemill_services", "Services declared.", state.services.len() as f64);
    let desired: u64 = state.services.values().map(|s| u64::from(s.desired)).sum();
    out.gauge(
        "tidemill_replicas_desired",
        "Replicas wanted, over all services.",
        desired as f64,
    );
    let ready = instances.get(InstanceState::Ready.name()).copied().unwrap_or_default();
    out.gauge(
        "tidemill_replicas_ready",
        "Replicas that answer, over all services.",
        ready as f64,
    );
}
