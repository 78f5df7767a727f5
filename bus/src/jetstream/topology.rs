//! The streams of a cell: settings as data, created, read back and compared.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::connection::{ApiError, Nats};
use crate::backoff::Backoff;
use crate::identity::{CellName, Genesis, LedgerId};
use crate::ledger::OpenError;

/// Stream settings as the JetStream API takes them, with `{cell}` to fill in.
const TOPOLOGY: &str = include_str!("../../../migrations/jetstream/topology.json");

/// A default size limit is not lowered below this.
const SMALLEST_DEFAULT_BYTES: u64 = 256 << 20;

/// How long a creation waits for a cluster that answers nothing: an election takes a few seconds on a busy machine.
const ELECTION_PATIENCE: Duration = Duration::from_secs(20);

const CELL_KEY: &str = "tidemill-cell";
const LEDGER_ID_KEY: &str = "tidemill-ledger-id";

/// Which of a cell's streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Ledger,
    Observations,
}

/// What an operator chooses about a stream; the rest is fixed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamLimits {
    /// Copies kept, 1 to 5; 3 survives the loss of a server.
    pub replicas: usize,
    /// Size limit in bytes; the topology's own if `None`.
    pub max_bytes: Option<u64>,
    /// Age limit, for observations only; the topology's own if `None`.
    pub max_age: Option<Duration>,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self {
            replicas: 1,
            max_bytes: None,
            max_age: None,
        }
    }
}

/// A stream as it should be.
#[derive(Debug, Clone)]
pub(crate) struct StreamSpec {
    pub(crate) name: String,
    pub(crate) subject: String,
    settings: Map<String, Value>,
    /// The operator chose the size limit.
    size_chosen: bool,
}

impl StreamSpec {
    pub(crate) fn new(role: Role, cell: &CellName, limits: &StreamLimits) -> Self {
        let text = TOPOLOGY.replace("{cell}", cell.as_str());
        let mut topology: HashMap<String, Map<String, Value>> =
            serde_json::from_str(&text).expect("the built-in topology parses, as its test shows");
        let key = match role {
            Role::Ledger => "ledger",
            Role::Observations => "observations",
        };
        let mut settings = topology.remove(key).expect("the built-in topology has both streams");
        settings.insert("num_replicas".to_owned(), json!(limits.replicas));
        if let Some(bytes) = limits.max_bytes {
            settings.insert("max_bytes".to_owned(), json!(bytes));
        }
        if role == Role::Observations {
            if let Some(age) = limits.max_age {
                settings.insert(
                    "max_age".to_owned(),
                    json!(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
                );
            }
            // The server's sync setting is for all streams; observations need not pay for it, and the server has this
            // mode for unreplicated streams only.
            if limits.replicas == 1 {
                settings.insert("persist_mode".to_owned(), json!("async"));
            }
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let name = settings.get("name").and_then(text).expect("each stream has a name");
        let subject = settings
            .get("subjects")
            .and_then(|list| text(list.get(0)?))
            .expect("each stream has a subject");
        Self {
            name,
            subject,
            settings,
            size_chosen: limits.max_bytes.is_some(),
        }
    }

    /// A server sets a stream's whole size limit aside when it is made. Where it has less than the default, half of that
    /// will do, and so on; what an operator chose is left alone. False if it cannot be less.
    fn halve_default_size(&mut self) -> bool {
        let Some(bytes) = self.settings.get("max_bytes").and_then(Value::as_u64) else {
            return false;
        };
        if self.size_chosen || bytes / 2 < SMALLEST_DEFAULT_BYTES {
            return false;
        }
        let max_bytes = bytes / 2;
        tracing::info!(
            code = "nats_max_bytes",
            stream = self.name,
            max_bytes,
            "the server lacks room for the default size limit"
        );
        self.settings.insert("max_bytes".to_owned(), json!(max_bytes));
        true
    }

    /// Opens the stream, creating it if there is none. Not for ledgers.
    pub(crate) async fn open_or_create(
        nats: &Nats,
        role: Role,
        genesis: &Genesis,
        limits: &StreamLimits,
    ) -> Result<(Self, Genesis), OpenError> {
        debug_assert_ne!(role, Role::Ledger, "a ledger is never created in passing");
        match open(nats, role, &genesis.cell).await {
            Err(OpenError::Missing { .. }) => {}
            opened => return opened,
        }
        match create(nats, &Self::new(role, &genesis.cell, limits), genesis).await {
            // Another server was quicker.
            Ok(()) | Err(OpenError::Exists { .. }) => open(nats, role, &genesis.cell).await,
            Err(error) => Err(error),
        }
    }

    /// The settings that are not as they should be, each as "KEY is FOUND, should be WANTED". Size and replicas are the
    /// operator's to change while servers run; they have findings of their own.
    pub(crate) fn differences(&self, found: &Map<String, Value>) -> Vec<String> {
        // The server leaves out what is off, empty or zero.
        let off = |value: &Value| {
            matches!(value, Value::Null | Value::Bool(false)) || value == &json!(0) || value == &json!("")
        };
        let differs = |(key, wanted): (&String, &Value)| {
            let found = found.get(key).unwrap_or(&Value::Null);
            (found != wanted && !(off(found) && off(wanted))).then(|| format!("{key} is {found}, should be {wanted}"))
        };
        self.settings
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "max_bytes" | "num_replicas"))
            .filter_map(differs)
            .collect()
    }
}

/// The parts of `STREAM.INFO` that are used.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StreamInfo {
    pub(crate) config: Map<String, Value>,
    pub(crate) state: StreamState,
    #[serde(default)]
    pub(crate) cluster: Option<ClusterInfo>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StreamState {
    pub(crate) bytes: u64,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct ClusterInfo {
    #[serde(default)]
    pub(crate) leader: String,
    #[serde(default)]
    pub(crate) replicas: Vec<Replica>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Replica {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) current: bool,
    #[serde(default)]
    pub(crate) offline: bool,
}

impl StreamInfo {
    pub(crate) async fn fetch(nats: &Nats, name: &str) -> Result<Self, ApiError> {
        nats.api(&format!("STREAM.INFO.{name}"), Bytes::new()).await
    }

    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        self.config.get(key).and_then(Value::as_u64)
    }

    /// Cell and ledger id as noted at creation.
    pub(crate) fn genesis(&self) -> Option<Genesis> {
        let metadata = self.config.get("metadata")?;
        let text = |key: &str| metadata.get(key).and_then(Value::as_str);
        let cell = CellName::new(text(CELL_KEY)?).ok()?;
        let ledger_id: LedgerId = text(LEDGER_ID_KEY)?.parse().ok()?;
        Some(Genesis { cell, ledger_id })
    }
}

fn unavailable(place: &str, error: &ApiError) -> OpenError {
    OpenError::Unavailable {
        place: place.to_owned(),
        reason: error.to_string(),
    }
}

/// Creates the stream; fails if there is one, whatever its settings.
///
/// A cluster that has just started elects first and answers nothing meanwhile; a creation that went unanswered may have
/// been carried out. Both are tried again for a while: what stands there then with the id drawn for this creation is this
/// creation's, since nobody else can have drawn it.
pub(crate) async fn create(nats: &Nats, spec: &StreamSpec, genesis: &Genesis) -> Result<(), OpenError> {
    let deadline = Instant::now() + ELECTION_PATIENCE;
    let mut backoff = Backoff::new();
    let mut sent = false;
    let info = loop {
        let tried = match create_once(nats, spec, genesis, &mut sent).await {
            Ok(Creation::Created(info)) => break info,
            Ok(Creation::Found(info)) if sent && info.genesis().as_ref() == Some(genesis) => break info,
            Ok(Creation::Found(_)) => {
                return Err(OpenError::Exists {
                    place: format!("stream {}", spec.name),
                });
            }
            Err(error) => error,
        };
        if !tried.is_passing() || Instant::now() >= deadline {
            return Err(unavailable(&spec.name, &tried));
        }
        tracing::info!(
            code = "nats_create_retried",
            stream = spec.name,
            reason = %tried,
            "JetStream does not answer yet; creating the stream is tried again"
        );
        backoff.pause().await;
    };
    report_differences(spec, &info);
    Ok(())
}

enum Creation {
    Created(StreamInfo),
    Found(StreamInfo),
}

/// Looks, then creates. `sent` is set once a creation may be under way.
async fn create_once(nats: &Nats, spec: &StreamSpec, genesis: &Genesis, sent: &mut bool) -> Result<Creation, ApiError> {
    // Creating with equal settings succeeds in JetStream; a ledger must not be created twice.
    match StreamInfo::fetch(nats, &spec.name).await {
        Ok(info) => return Ok(Creation::Found(info)),
        Err(error) if error.is_stream_missing() => {}
        Err(error) => return Err(error),
    }
    let metadata = json!({ CELL_KEY: genesis.cell.as_str(), LEDGER_ID_KEY: genesis.ledger_id.to_string() });
    let mut spec = spec.clone();
    loop {
        let mut config = spec.settings.clone();
        config.insert("metadata".to_owned(), metadata.clone());
        let payload = Bytes::from(Value::Object(config).to_string());
        *sent = true;
        let created = nats
            .api::<StreamInfo>(&format!("STREAM.CREATE.{}", spec.name), payload)
            .await;
        match created {
            Ok(info) => return Ok(Creation::Created(info)),
            Err(error) if error.is_too_large_a_limit() && spec.halve_default_size() => {}
            Err(error) => return Err(error),
        }
    }
}

/// Opens the stream as it is: its own limits become the wanted ones, everything else is compared.
pub(crate) async fn open(nats: &Nats, role: Role, cell: &CellName) -> Result<(StreamSpec, Genesis), OpenError> {
    let name = StreamSpec::new(role, cell, &StreamLimits::default()).name;
    let place = format!("stream {name}");
    let info = StreamInfo::fetch(nats, &name)
        .await
        .map_err(|error| match error.is_stream_missing() {
            true => OpenError::Missing { place: place.clone() },
            false => unavailable(&place, &error),
        })?;
    let genesis = info.genesis().ok_or_else(|| OpenError::Unreadable {
        place: place.clone(),
        reason: "its metadata does not name a Tidemill cell and ledger".to_owned(),
    })?;
    if genesis.cell != *cell {
        return Err(OpenError::OtherCell {
            place,
            expected: cell.clone(),
            found: genesis.cell,
        });
    }
    let spec = StreamSpec::new(role, cell, &limits_of(&info));
    report_differences(&spec, &info);
    Ok((spec, genesis))
}

fn limits_of(info: &StreamInfo) -> StreamLimits {
    StreamLimits {
        replicas: info
            .number("num_replicas")
            .and_then(|n| usize::try_from(n).ok())
            .unwrap_or(1),
        // -1, no limit, is not a number of bytes: the difference is then reported.
        max_bytes: info.number("max_bytes"),
        max_age: info
            .number("max_age")
            .filter(|nanos| *nanos > 0)
            .map(Duration::from_nanos),
    }
}

fn report_differences(spec: &StreamSpec, info: &StreamInfo) {
    let differences = spec.differences(&info.config);
    if !differences.is_empty() {
        let differences = differences.join("; ");
        tracing::warn!(
            code = "nats_stream_config",
            stream = spec.name,
            differences,
            "stream settings are not as they must be"
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn spec(role: Role, replicas: usize) -> StreamSpec {
        let limits = StreamLimits {
            replicas,
            ..StreamLimits::default()
        };
        StreamSpec::new(role, &CellName::new("main").unwrap(), &limits)
    }

    #[test]
    fn the_built_in_topology_names_both_streams() {
        let ledger = spec(Role::Ledger, 3);
        assert_eq!(
            (ledger.name.as_str(), ledger.subject.as_str()),
            ("LEDGER_main", "tidemill.main.ledger")
        );
        assert_eq!(ledger.settings["num_replicas"], json!(3));
        assert!(
            !ledger.settings.contains_key("persist_mode"),
            "the ledger is always synced"
        );
        assert_eq!(spec(Role::Observations, 1).settings["persist_mode"], json!("async"));
        assert!(!spec(Role::Observations, 3).settings.contains_key("persist_mode"));
    }

    #[test]
    fn a_dropped_flag_is_noticed_and_an_omitted_default_is_not() {
        let ledger = spec(Role::Ledger, 1);
        let mut found = ledger.settings.clone();
        found.remove("allow_rollup_hdrs");
        found.remove("max_age");
        // Raised by the operator while we ran.
        found.insert("max_bytes".to_owned(), json!(1_u64 << 40));
        assert!(ledger.differences(&found).is_empty());
        found.remove("deny_purge");
        assert_eq!(ledger.differences(&found), ["deny_purge is null, should be true"]);
    }
}
