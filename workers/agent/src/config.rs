//! What an agent is told when it starts, and why it may not.

use std::path::PathBuf;

use tidemill_client::{ServerUrl, Token};
use tidemill_protocol::agent::DeviceInfo;

/// How an agent is to run.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Control-plane servers, any of which will do.
    pub servers: Vec<ServerUrl>,
    /// Shown to them. Never passed on to instances.
    pub token: Option<Token>,
    /// Where the agent keeps its outbox and its instances; created if missing. One agent a directory.
    pub data_dir: PathBuf,
    /// Node name: a DNS label, unique in the cell.
    pub name: String,
    /// `idc`, `cloud`, `enterprise`, `cafe`, `pc` or `partner`.
    pub supply: String,
    /// Provider name.
    pub provider: String,
    /// Region name.
    pub region: String,
    /// Zone name.
    pub zone: String,
    /// Host or IP at which gateways reach instances; `None` = only by tunnel.
    pub address: Option<String>,
    /// Devices of the node: see [`crate::devices::parse_spec`].
    pub devices: Vec<DeviceInfo>,
    /// The binary that answers to `PROGRAM shim --dir DIR` with [`crate::shim_main`], and that the command word
    /// `tidemill` of a workload stands for.
    pub shim_program: PathBuf,
    /// Random id of this start.
    pub agent_id: String,
    /// What could not be read or is not supported here, as `area: reason`.
    pub limitations: Vec<String>,
    /// Id of a ledger an operator confirmed to follow though this node's work belongs to another.
    pub accept_ledger: Option<String>,
    /// Instances being launched at a time.
    pub max_launching: usize,
}

impl AgentConfig {
    /// A config for `name` on `data_dir` with the usual rest: supply `idc`, provider, region and zone `local`, reached at
    /// 127.0.0.1, this very program as shim.
    pub fn local(name: &str, data_dir: PathBuf, servers: Vec<ServerUrl>) -> std::io::Result<Self> {
        Ok(Self {
            servers,
            token: None,
            data_dir,
            name: name.to_owned(),
            supply: "idc".to_owned(),
            provider: "local".to_owned(),
            region: "local".to_owned(),
            zone: "local".to_owned(),
            address: Some("127.0.0.1".to_owned()),
            devices: Vec::new(),
            shim_program: std::env::current_exe()?,
            agent_id: uuid::Uuid::now_v7().to_string(),
            limitations: Vec::new(),
            accept_ledger: None,
            max_launching: 64,
        })
    }
}

/// Why an agent could not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The data directory cannot be used.
    #[error(
        "{path} in the data directory cannot be used: {source} [data_dir_unusable]\n  next: check its owner, its mode and the disk, or give another with --data"
    )]
    DataDir {
        /// The directory.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another agent uses it.
    #[error("another agent runs on {path} [data_dir_in_use]\n  next: end it, or give this one a directory of its own")]
    InUse {
        /// The directory.
        path: String,
    },
    /// The outbox cannot be used.
    #[error(
        "the outbox {path} cannot be opened: {source} [outbox_unusable]\n  next: if it is damaged, move it away; facts the control plane did not get yet are lost with it"
    )]
    Outbox {
        /// The file.
        path: String,
        /// What SQLite said.
        source: crate::OutboxError,
    },
    /// What an earlier agent left cannot be taken over.
    #[error(
        "instances below {path} cannot be taken over: {source} [adoption_failed]\n  next: look at the named directory; the shim in it does not answer"
    )]
    Adoption {
        /// The directory.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The control plane will not have this node with this token.
    #[error(transparent)]
    Refused(Box<tidemill_protocol::Problem>),
    /// A task of the agent ended by a defect.
    #[error("a part of the agent failed: {0} [agent_defect]")]
    Defect(String),
}
