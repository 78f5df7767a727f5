//! One `kind: service` document; what it runs is read in [`super::run`].
//!
//! Defaults: tenant `default`; class `standard`; one whole device of any kind; `scale.min` 1 and `scale.max` the larger
//! of that and [`DEFAULT_MAX`]; supply `idc`, `cloud`, `enterprise`, since cafés and PCs are opt-in; spread over nodes;
//! idempotent requests may be retried; 5 minutes to become ready; 30 s between SIGTERM and SIGKILL.

use tidemill_domain::command::DeclaredService;
use tidemill_domain::decide::validate::{self, MAX_DEVICES, MAX_QUEUE, MAX_REPLICAS};
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::events::service::{
    Class, DeviceRequest, OnIsolation, PlacementRules, Retry, Route, Scale, ServiceSpec, Spread,
};
use tidemill_domain::rejection::Rejection;
use tidemill_domain::unit::{Milli, Name};

use super::error::WorkloadError;
use super::reader::{Field, Keys, Object};
use super::tree::Node;

type Result<T> = std::result::Result<T, WorkloadError>;

/// `scale.max` where a file sets none and its `min` is below: room for an override by hand, no more than that.
pub const DEFAULT_MAX: u32 = 20;
/// Longest text of a model or region name.
const MAX_LABEL: usize = 128;
/// Most entries of a list of models or regions.
const MAX_LIST: usize = 64;

const SERVICE: Keys = Keys {
    known: &[
        "kind",
        "name",
        "tenant",
        "class",
        "run",
        "devices",
        "scale",
        "placement",
        "route",
    ],
    reserved: &["on_isolation"],
};
const DEVICES: Keys = Keys {
    known: &["count", "kind", "model", "memory", "share"],
    reserved: &[],
};
const SCALE: Keys = Keys {
    known: &["min", "max", "standby", "target"],
    reserved: &["singleton", "forecast", "schedule"],
};
const TARGET: Keys = Keys {
    known: &["concurrency"],
    reserved: &[],
};
const PLACEMENT: Keys = Keys {
    known: &["supply", "region", "spread"],
    reserved: &[],
};
const ROUTE: Keys = Keys {
    known: &["host", "retry", "queue", "queue_timeout"],
    reserved: &[],
};

/// Supply kinds by their words.
pub(crate) const SUPPLIES: &[(&str, Supply)] = &[
    ("idc", Supply::Idc),
    ("cloud", Supply::Cloud),
    ("enterprise", Supply::Enterprise),
    ("cafe", Supply::Cafe),
    ("pc", Supply::Pc),
    ("partner", Supply::Partner),
];

/// Kinds of accelerators by their words.
pub(crate) const DEVICE_KINDS: &[(&str, DeviceKind)] = &[
    ("cuda", DeviceKind::Cuda),
    ("rocm", DeviceKind::Rocm),
    ("ascend", DeviceKind::Ascend),
    ("cpu", DeviceKind::Cpu),
];

/// Reads a document, of tenant `own` where it names none; with the line of its name.
pub(super) fn read(document: &Node, own: &Name, warnings: &mut Vec<String>) -> Result<(DeclaredService, u64)> {
    let root = Object::root(document)?;
    let kind = root.need("kind", "service")?;
    match kind.text()? {
        "service" => {}
        "job" => return Err(kind.not_yet("jobs are not there yet")),
        other => {
            let hint = format!(
                "`{}` is no kind of workload; known is service",
                super::tree::shorten(other)
            );
            return Err(kind.invalid(hint));
        }
    }
    root.check(&SERVICE)?;
    let name_field = root.need("name", "hello")?;
    let name = name_field.name()?;
    let tenant = match root.get("tenant") {
        Some(field) => field.name()?,
        None => own.clone(),
    };
    let spec = ServiceSpec {
        class: root.get("class").map_or(Ok(Class::Standard), |f| class(&f))?,
        run: super::run::read(&root, warnings)?,
        devices: devices(&root.object("devices", &DEVICES)?)?,
        scale: scale(&root.object("scale", &SCALE)?)?,
        placement: placement(&root.object("placement", &PLACEMENT)?)?,
        route: route(&root.object("route", &ROUTE)?)?,
        on_isolation: OnIsolation::Stop,
    };
    // What the rules above let through and the domain's do not is still told by line.
    validate::service_spec(&spec).map_err(|rejection| match rejection {
        Rejection::Invalid { key, reason } => WorkloadError::invalid(key.clone(), root.line_of(&key), reason),
        other => WorkloadError::invalid("", document.line, other.to_string()),
    })?;
    Ok((DeclaredService { tenant, name, spec }, name_field.line))
}

/// Bytes of command and environment.
pub(super) fn text_bytes(spec: &ServiceSpec) -> usize {
    let command: usize = spec.run.command.iter().map(String::len).sum();
    let env: usize = spec.run.env.iter().map(|(key, value)| key.len() + value.len()).sum();
    command + env
}

fn class(field: &Field<'_>) -> Result<Class> {
    if field.text()? == "spot" {
        return Err(field.not_yet("class `spot` is not there yet; known are critical and standard"));
    }
    field.word(&[("critical", Class::Critical), ("standard", Class::Standard)])
}

fn devices(devices: &Object<'_>) -> Result<DeviceRequest> {
    let kinds = devices.get("kind").map_or(Ok(vec![]), |field| {
        field.list().iter().map(|item| item.word(DEVICE_KINDS)).collect()
    })?;
    let count = devices.get("count").map_or(Ok(1), |f| f.whole(1..=MAX_DEVICES))?;
    let share = devices.get("share").map_or(Ok(1000), |f| f.share())?;
    if let (Some(field), true) = (devices.get("share"), count > 1 && share < 1000) {
        return Err(field.invalid("a share goes with one device; leave it out or set devices.count to 1"));
    }
    Ok(DeviceRequest {
        count,
        share: Milli(share),
        kinds,
        models: labels(devices.get("model"))?,
        memory_bytes: devices.get("memory").map_or(Ok(0), |f| f.bytes())?,
    })
}

fn labels(field: Option<Field<'_>>) -> Result<Vec<String>> {
    let Some(field) = field else { return Ok(vec![]) };
    let labels = field.texts()?;
    if labels.len() > MAX_LIST {
        return Err(field.invalid(format!("it lists {} entries, at most {MAX_LIST} go", labels.len())));
    }
    if labels.iter().any(|label| label.is_empty() || label.len() > MAX_LABEL) {
        return Err(field.invalid(format!("an entry is empty or longer than {MAX_LABEL} bytes")));
    }
    Ok(labels)
}

fn scale(scale: &Object<'_>) -> Result<Scale> {
    let min = scale.get("min").map_or(Ok(1), |f| f.whole(0..=MAX_REPLICAS))?;
    let max = scale
        .get("max")
        .map_or(Ok(min.max(DEFAULT_MAX)), |f| f.whole(1..=MAX_REPLICAS))?;
    if let (Some(field), true) = (scale.get("min"), min > max) {
        return Err(field.invalid(format!("{min} is above scale.max = {max}")));
    }
    if let (None, Some(field), true) = (scale.get("min"), scale.get("max"), min > max) {
        return Err(field.invalid(format!("{max} is below scale.min = {min}")));
    }
    let target = scale.object("target", &TARGET)?;
    Ok(Scale {
        min,
        max,
        concurrency: target.get("concurrency").map(|f| f.whole(1..=1_000_000)).transpose()?,
        standby: scale.get("standby").map_or(Ok(0), |f| f.whole(0..=max))?,
        singleton: false,
    })
}

fn placement(placement: &Object<'_>) -> Result<PlacementRules> {
    let supply = match placement.get("supply") {
        None => vec![Supply::Idc, Supply::Cloud, Supply::Enterprise],
        Some(field) => {
            let mut supply: Vec<Supply> = field
                .list()
                .iter()
                .map(|item| item.word(SUPPLIES))
                .collect::<Result<_>>()?;
            if supply.is_empty() {
                return Err(field.invalid("it allows nothing; name at least one supply kind or leave it out"));
            }
            supply.sort_unstable();
            supply.dedup();
            supply
        }
    };
    let spread = placement.get("spread").map_or(Ok(Spread::Node), |field| {
        field.word(&[
            ("node", Spread::Node),
            ("provider", Spread::Provider),
            ("region", Spread::Region),
            ("none", Spread::None),
        ])
    })?;
    Ok(PlacementRules {
        supply,
        regions: labels(placement.get("region"))?,
        spread,
    })
}

fn route(route: &Object<'_>) -> Result<Route> {
    let retry = route.get("retry").map_or(Ok(Retry::Idempotent), |field| {
        field.word(&[
            ("never", Retry::Never),
            ("idempotent", Retry::Idempotent),
            ("any", Retry::Any),
        ])
    })?;
    let host = route.get("host").map(|f| f.text().map(str::to_owned)).transpose()?;
    Ok(Route {
        host,
        retry,
        queue: route.get("queue").map(|f| f.whole(0..=MAX_QUEUE)).transpose()?,
        queue_timeout: route.get("queue_timeout").map(|f| f.duration()).transpose()?,
    })
}
