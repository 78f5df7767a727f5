//! Workload files: YAML (so JSON too) into declarations, all or nothing.
//!
//! A file is one change. Every document of it is read and checked before anything is asked of the sequencer, so one bad
//! key in the last document changes nothing of the first. The file is read into a tree with lines ([`tree`]), walked with
//! the format's keys ([`reader`], [`service`]), and the result is checked by the domain's own rules, whose complaints
//! are given back the line of their key.
//!
//! Invariants: no input makes it panic or take memory beyond a small multiple of its size, which is bounded; every
//! error names a line, and a key where there is one. Letting the client read the file was rejected: two releases of a
//! client would read the same file differently, and a dry run would not be judged by the code that judges the real one.

mod error;
mod reader;
mod run;
mod service;
mod syntax;
mod tree;

use std::collections::BTreeMap;

use tidemill_domain::command::DeclaredService;
use tidemill_domain::unit::Name;

pub use error::WorkloadError;
pub use reader::duration;
pub(crate) use service::{DEVICE_KINDS, SUPPLIES};
pub use tree::MAX_INPUT_BYTES;

/// Most documents of a file.
pub const MAX_SERVICES: usize = 64;

/// Most bytes of commands and environments of a whole file: the change is one commit, and a commit fits one record.
const MAX_TEXT_BYTES: usize = 160 * 1024;

/// What a file declares.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Workloads {
    /// The services, in the order written.
    pub services: Vec<DeclaredService>,
    /// What is allowed and likely not meant, in sentences.
    pub warnings: Vec<String>,
}

/// Reads a workload file; what names no tenant is the default tenant's.
pub fn parse(input: &str) -> Result<Workloads, WorkloadError> {
    parse_for(input, &Name::default_tenant())
}

/// Reads a workload file; what names no tenant is `own`'s.
pub fn parse_for(input: &str, own: &Name) -> Result<Workloads, WorkloadError> {
    let documents = tree::documents(input)?;
    if documents.is_empty() {
        return Err(WorkloadError::file(
            "it holds no document; a workload begins with `kind: service`",
        ));
    }
    let mut found = Workloads::default();
    let mut seen = BTreeMap::new();
    let mut text = 0;
    for (number, document) in documents.iter().enumerate() {
        if number == MAX_SERVICES {
            let reason = format!("the file declares more than {MAX_SERVICES} services; split it");
            return Err(WorkloadError::invalid("", document.line, reason));
        }
        let (service, name_line) = service::read(document, own, &mut found.warnings)?;
        text += service::text_bytes(&service.spec);
        if text > MAX_TEXT_BYTES {
            let reason =
                format!("commands and environments of the file are longer than {MAX_TEXT_BYTES} bytes; split it");
            return Err(WorkloadError::invalid("run", document.line, reason));
        }
        if let Some(first) = seen.insert((service.tenant.clone(), service.name.clone()), name_line) {
            let reason = format!(
                "{}/{} is declared twice, first at line {first}",
                service.tenant, service.name
            );
            return Err(WorkloadError::invalid("name", name_line, reason));
        }
        found.services.push(service);
    }
    Ok(found)
}
