//! The lists of the contract and their columns. A new list is one variant and one table here.
//!
//! Columns name fields of the API's rows by JSON pointer; fields that no column names still appear in JSON. The reason
//! stands last, since it is a sentence and takes the room that is left.
//!
//! Kept: every filter a list accepts names the fields it looks at, so a filter that would silently match nothing is
//! refused instead.

use serde_json::{Map, Value, json};

use super::column::{Column, Show, column};

/// A list served under `/v1/NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// Hosts of the pool.
    Nodes,
    /// Accelerators and CPU capacity.
    Devices,
    /// Services.
    Services,
    /// Running copies.
    Instances,
    /// What waits for capacity.
    Queue,
    /// Work that moved or is moving.
    Switches,
    /// Sums over the whole pool.
    Pool,
    /// Credentials.
    Tokens,
    /// Findings of the doctor.
    Doctor,
    /// Changes a command made.
    Changes,
}

const NODES: &[Column] = &[
    column("NAME", "/name", Show::Text),
    column("ID", "/id", Show::Text),
    column("STATE", "/state", Show::State),
    column("SUPPLY", "/supply", Show::Text),
    column("PROVIDER", "/provider", Show::Text),
    column("REGION", "/region", Show::Text),
    column("DEVICES", "/devices", Show::Count),
    column("FREE", "/free_devices", Show::Count),
    column("REASON", "/reason", Show::Text),
];

const DEVICES: &[Column] = &[
    column("UUID", "/uuid", Show::Text),
    column("NODE", "/node", Show::Text),
    column("KIND", "/kind", Show::Text),
    column("MODEL", "/model", Show::Text),
    column("MEMORY", "/memory_bytes", Show::Bytes),
    column("USED", "/memory_used_bytes", Show::Bytes),
    column("UTIL", "/utilisation", Show::Percent),
    column("TEMP", "/temperature_c", Show::Number),
    column("SPEED", "/speed", Show::Number),
    column("STATE", "/state", Show::State),
    column("INSTANCE", "/instance", Show::Text),
    column("REASON", "/reason", Show::Text),
];

const SERVICES: &[Column] = &[
    column("NAME", "/name", Show::Text),
    column("TENANT", "/tenant", Show::Text),
    column("CLASS", "/class", Show::Text),
    column("DESIRED", "/desired", Show::Number),
    column("READY", "/ready", Show::Number),
    column("STANDBY", "/standby", Show::Number),
    column("STATE", "/state", Show::State),
    column("URL", "/url", Show::Text),
    column("REASON", "/reason", Show::Text),
];

const INSTANCES: &[Column] = &[
    column("ID", "/id", Show::Text),
    column("WORKLOAD", "/workload", Show::Text),
    column("NODE", "/node", Show::Text),
    column("DEVICES", "/devices", Show::Count),
    column("STATE", "/state", Show::State),
    column("START", "/timings_ms/start", Show::Millis),
    column("LOAD", "/timings_ms/load", Show::Millis),
    column("READY", "/timings_ms/ready", Show::Millis),
    column("REASON", "/reason", Show::Text),
];

const QUEUE: &[Column] = &[
    column("WORKLOAD", "/workload", Show::Text),
    column("CLASS", "/class", Show::Text),
    column("WAITING", "/waiting", Show::Number),
    column("FOR", "/since", Show::Age),
    column("DEVICES", "/devices", Show::Number),
    column("FITTING", "/fitting", Show::Number),
    column("REASON", "/reason", Show::Text),
];

const SWITCHES: &[Column] = &[
    column("ID", "/id", Show::Text),
    column("WORKLOAD", "/workload", Show::Text),
    column("FROM", "/from_node_name", Show::Text),
    column("TO", "/to_node_name", Show::Text),
    column("CAUSE", "/cause", Show::Text),
    column("STATE", "/state", Show::State),
    column("OPENED", "/opened_at", Show::Text),
    column("DETECT", "/detect_ms", Show::Millis),
    column("REPLACE", "/replace_ms", Show::Millis),
    column("FAILED", "/failed_requests", Show::Number),
    column("CUT", "/cut_streams", Show::Number),
    column("GAP", "/longest_gap_ms", Show::Millis),
    column("REASON", "/reason", Show::Text),
];

const POOL: &[Column] = &[
    column("SCOPE", "/scope", Show::Text),
    column("TOTAL", "/total", Show::Number),
    column("FREE", "/free", Show::Number),
    column("HELD", "/held", Show::Number),
    column("DRAINING", "/draining", Show::Number),
    column("DIRTY", "/dirty", Show::Number),
    column("QUARANTINED", "/quarantined", Show::Number),
    column("LOST", "/lost", Show::Number),
];

const TOKENS: &[Column] = &[
    column("ID", "/id", Show::Text),
    column("ROLE", "/role", Show::Text),
    column("TENANT", "/tenant", Show::Text),
    column("SUPPLY", "/supply", Show::Text),
    column("STATE", "/state", Show::State),
    column("AGE", "/created_at", Show::Age),
    column("EXPIRES", "/expires_at", Show::Text),
];

const DOCTOR: &[Column] = &[
    column("CHECK", "/check", Show::Text),
    column("STATE", "/state", Show::State),
    column("CODE", "/code", Show::Text),
    column("DETAIL", "/detail", Show::Text),
    column("NEXT", "/next", Show::Text),
];

const CHANGES: &[Column] = &[
    column("KIND", "/kind", Show::Text),
    column("TENANT", "/tenant", Show::Text),
    column("NAME", "/name", Show::Text),
    column("ACTION", "/action", Show::State),
    column("CHANGE", "/sentence", Show::Text),
];

impl List {
    /// Path of the API.
    pub fn path(self) -> &'static str {
        match self {
            Self::Nodes => "/v1/nodes",
            Self::Devices => "/v1/devices",
            Self::Services => "/v1/services",
            Self::Instances => "/v1/instances",
            Self::Queue => "/v1/queue",
            Self::Switches => "/v1/switches",
            Self::Pool => "/v1/pool",
            Self::Tokens => "/v1/tokens",
            Self::Doctor => "/v1/doctor",
            Self::Changes => "/v1/apply",
        }
    }

    /// Columns of tables and CSV.
    pub fn columns(self) -> &'static [Column] {
        match self {
            Self::Nodes => NODES,
            Self::Devices => DEVICES,
            Self::Services => SERVICES,
            Self::Instances => INSTANCES,
            Self::Queue => QUEUE,
            Self::Switches => SWITCHES,
            Self::Pool => POOL,
            Self::Tokens => TOKENS,
            Self::Doctor => DOCTOR,
            Self::Changes => CHANGES,
        }
    }

    /// Fields that filters may look at, of `state`, `supply`, `provider` and `tenant`.
    pub fn filters(self) -> &'static [&'static str] {
        match self {
            Self::Nodes => &["state", "supply", "provider"],
            Self::Devices => &["state", "supply", "provider"],
            Self::Services => &["state", "tenant"],
            Self::Instances => &["state", "tenant", "supply", "provider"],
            Self::Queue | Self::Switches => &["state", "tenant"],
            Self::Pool | Self::Tokens | Self::Doctor | Self::Changes => &[],
        }
    }

    /// Rows as a table or CSV shows them; JSON always shows what the API answered.
    pub fn tabular(self, rows: Vec<Value>) -> Vec<Value> {
        match self {
            Self::Pool => rows.iter().flat_map(pool_scopes).collect(),
            _ => rows,
        }
    }
}

/// One line for the whole pool, then one a model and one a supply kind.
fn pool_scopes(pool: &Value) -> Vec<Value> {
    let mut rows = vec![scope("all", pool.get("devices"))];
    for (key, label) in [("by_model", "model"), ("by_supply", "supply")] {
        match pool.get(key) {
            Some(Value::Object(groups)) => {
                for (name, counts) in groups {
                    rows.push(scope(&format!("{label} {name}"), Some(counts)));
                }
            }
            Some(Value::Array(groups)) => {
                for group in groups {
                    let name = group.get(label).map(super::column::plain).unwrap_or_default();
                    rows.push(scope(&format!("{label} {name}"), Some(group)));
                }
            }
            _ => {}
        }
    }
    rows
}

fn scope(name: &str, counts: Option<&Value>) -> Value {
    let mut row = match counts {
        Some(Value::Object(fields)) => fields.clone(),
        Some(Value::Number(total)) => Map::from_iter([("total".to_owned(), json!(total))]),
        _ => Map::new(),
    };
    row.insert("scope".to_owned(), json!(name));
    Value::Object(row)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Format, Printer, table::Style};
    use super::*;

    #[test]
    fn the_pool_reads_as_scopes() {
        let pool = json!({
            "devices": {"total": 12, "free": 8, "held": 4, "draining": 0, "dirty": 0, "quarantined": 0, "lost": 0},
            "by_model": {"A100-80G": {"total": 8, "free": 8}, "cpu": 4},
            "by_supply": [{"supply": "idc", "total": 12}],
        });
        let printer = Printer {
            format: Format::Table,
            no_headers: false,
            style: Style::default(),
        };
        let text = printer.rows(POOL, &List::Pool.tabular(vec![pool])).unwrap();
        insta::assert_snapshot!(text, @r"
        SCOPE           TOTAL  FREE  HELD  DRAINING  DIRTY  QUARANTINED  LOST
        all                12     8     4         0      0            0     0
        model A100-80G      8     8     -         -      -            -     -
        model cpu           4     -     -         -      -            -     -
        supply idc         12     -     -         -      -            -     -
        ");
    }
}
