//! One `kind: service` document.
//!
//! Defaults: tenant `default`; class `standard`; one whole device of any kind; `scale.min` 1 and `scale.max` the larger
//! of that and [`DEFAULT_MAX`]; supply `idc`, `cloud`, `enterprise`, since cafés and PCs are opt-in; spread over nodes;
//! idempotent requests may be retried; 5 minutes to become ready; 30 s between SIGTERM and SIGKILL.

use std::collections::BTreeMap;

use tidemill_domain::command::DeclaredService;
use tidemill_domain::decide::validate::{self, MAX_DEVICES, MAX_REPLICAS};
use tidemill_domain::events::node::{DeviceKind, Supply};
use tidemill_domain::events::service::{
    Class, DeviceRequest, PlacementRules, Retry, Route, Run, Runtime, Scale, ServiceSpec, Spread,
};
use tidemill_domain::rejection::Rejection;
use tidemill_domain::time::Span;
use tidemill_domain::unit::{Milli, Name};

use super::error::WorkloadError;
use super::reader::{Field, Keys, Object};
use super::tree::Node;

type Result<T> = std::result::Result<T, WorkloadError>;

/// `scale.max` where a file sets none and its `min` is below: room for an override by hand, no more than that.
pub const DEFAULT_MAX: u32 = 20;
const DEFAULT_READY_TIMEOUT: Span = Span::from_secs(300);
const DEFAULT_GRACE: Span = Span::from_secs(30);
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
const RUN: Keys = Keys {
    known: &["runtime", "command", "env", "ready", "stop"],
    reserved: &["image", "fetch"],
};
const READY: Keys = Keys {
    known: &["http", "timeout"],
    reserved: &[],
};
const STOP: Keys = Keys {
    known: &["grace"],
    reserved: &[],
};
const DEVICES: Keys = Keys {
    known: &["count", "kind", "model", "memory", "share"],
    reserved: &[],
};
const SCALE: Keys = Keys {
    known: &["min", "max", "target"],
    reserved: &["standby", "singleton", "forecast", "schedule"],
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
    known: &["host", "retry"],
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
        run: run(&root, warnings)?,
        devices: devices(&root.object("devices", &DEVICES)?)?,
        scale: scale(&root.object("scale", &SCALE)?)?,
        placement: placement(&root.object("placement", &PLACEMENT)?)?,
        route: route(&root.object("route", &ROUTE)?)?,
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

fn run(root: &Object<'_>, warnings: &mut Vec<String>) -> Result<Run> {
    let run = root.need("run", "{command: [python3, serve.py]}")?.object(&RUN)?;
    if let Some(runtime) = run.get("runtime") {
        if runtime.text()? == "docker" {
            return Err(runtime.not_yet("runtime `docker` is not there yet; known is process"));
        }
        runtime.word(&[("process", Runtime::Process)])?;
    }
    let command = run.need("command", "[python3, serve.py]")?;
    if let super::tree::Value::Scalar { .. } = command.value {
        return Err(command.invalid("it takes a list of program and arguments, such as [python3, serve.py]"));
    }
    let ready = run.object("ready", &READY)?;
    let stop = run.object("stop", &STOP)?;
    Ok(Run {
        runtime: Runtime::Process,
        command: command.texts()?,
        env: env(&run, warnings)?,
        ready_http: ready.get("http").map(|f| f.text().map(str::to_owned)).transpose()?,
        ready_timeout: ready
            .get("timeout")
            .map_or(Ok(DEFAULT_READY_TIMEOUT), |f| f.duration())?,
        stop_grace: stop.get("grace").map_or(Ok(DEFAULT_GRACE), |f| f.duration())?,
    })
}

fn env(run: &Object<'_>, warnings: &mut Vec<String>) -> Result<BTreeMap<String, String>> {
    let mut env = BTreeMap::new();
    let Some(field) = run.get("env") else {
        return Ok(env);
    };
    for (key, value) in field.any_object()?.fields() {
        if matches!(value.value, super::tree::Value::Null) {
            return Err(value.invalid("it has no value; write '' for the empty text"));
        }
        let text = value.text()?;
        if looks_secret(key) {
            warnings.push(format!(
                "`{}` at line {} looks like a secret: it is kept readable on the ledger, for ever",
                value.path, value.line
            ));
        }
        env.insert(key.to_owned(), text.to_owned());
    }
    Ok(env)
}

/// Whether an environment variable's name suggests that its value should not be on record.
fn looks_secret(key: &str) -> bool {
    const WORDS: [&str; 8] = [
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "PASSWD",
        "CREDENTIAL",
        "APIKEY",
        "PRIVATEKEY",
        "ACCESSKEY",
    ];
    let squeezed: String = key
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_ascii_uppercase();
    // Settings of tokenizers and token limits are common and no secrets.
    let harmless = squeezed.contains("TOKENIZER") || squeezed.contains("TOKENS");
    !harmless && WORDS.iter().any(|word| squeezed.contains(word))
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
    Ok(Route { host, retry })
}
