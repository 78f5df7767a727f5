//! What can be said about the settings of servers and stream, one finding each.

use super::connection::{MIN_SERVER_VERSION, Nats};
use super::monitor::{self, Varz};
use super::topology::{StreamInfo, StreamSpec};
use crate::disk::DISK_RESERVE_BYTES;
use crate::identity::Genesis;
use crate::ledger::{Description, Finding};
use crate::record::MAX_RECORD_BYTES;

pub(super) async fn describe(nats: &Nats, spec: &StreamSpec, genesis: &Genesis) -> Description {
    let mut findings = vec![version(nats), max_payload(nats)];
    match StreamInfo::fetch(nats, &spec.name).await {
        Ok(info) => {
            findings.extend([
                stream_identity(&info, genesis),
                stream_config(spec, &info),
                size_limit(&info),
                replicas(&info),
            ]);
        }
        Err(error) if error.is_stream_missing() => findings.push(Finding::wrong(
            "nats_stream",
            format!("stream {} does not exist", spec.name),
            "restore the stream from a backup; it is never created anew by itself",
        )),
        Err(error) => findings.push(Finding::not_verifiable(
            "nats_stream",
            format!("stream {} cannot be asked: {error}", spec.name),
            "check that nats-server runs and that a majority of its cluster is up",
        )),
    }
    findings.extend(servers(nats).await);
    Description {
        backend: "jetstream",
        place: format!("stream {}", spec.name),
        cell: genesis.cell.clone(),
        ledger_id: genesis.ledger_id,
        findings,
    }
}

fn version(nats: &Nats) -> Finding {
    const CODE: &str = "nats_version";
    let found = nats.server_version();
    if nats.version_is_enough() {
        return Finding::verified(CODE, format!("nats-server {found}"));
    }
    let message = format!("nats-server {found} is older than {MIN_SERVER_VERSION} and drops settings the ledger needs");
    Finding::wrong(CODE, message, "upgrade nats-server")
}

fn max_payload(nats: &Nats) -> Finding {
    const CODE: &str = "nats_max_payload";
    // Room for the headers beside a full record.
    let needed = MAX_RECORD_BYTES + (8 << 10);
    let found = nats.client().max_payload();
    if found >= needed {
        return Finding::verified(CODE, format!("messages may have {found} bytes"));
    }
    let message = format!("messages may have {found} bytes; full records need {needed}");
    Finding::wrong(CODE, message, "set max_payload to 1MB in the nats-server configuration")
}

fn stream_identity(info: &StreamInfo, genesis: &Genesis) -> Finding {
    const CODE: &str = "nats_stream";
    match info.genesis() {
        Some(found) if found == *genesis => Finding::verified(CODE, format!("ledger {}", found.ledger_id)),
        found => {
            let found = found.map_or("no ledger".to_owned(), |found| format!("ledger {}", found.ledger_id));
            let message = format!(
                "the stream holds {found}, not ledger {}: it was replaced",
                genesis.ledger_id
            );
            Finding::wrong(
                CODE,
                message,
                "restore the stream that was there, or confirm the new one on purpose",
            )
        }
    }
}

fn stream_config(spec: &StreamSpec, info: &StreamInfo) -> Finding {
    const CODE: &str = "nats_stream_config";
    let differences = spec.differences(&info.config);
    if differences.is_empty() {
        return Finding::verified(CODE, "every stream setting was read back as set");
    }
    let step = "set them with `nats stream edit`; if the server drops a setting, upgrade it";
    Finding::wrong(CODE, differences.join("; "), step)
}

fn size_limit(info: &StreamInfo) -> Finding {
    const CODE: &str = "nats_max_bytes";
    const STEP: &str = "raise max_bytes with `nats stream edit`, after making sure that the disks have the room";
    let used = info.state.bytes;
    match info.number("max_bytes") {
        None => Finding::wrong(
            CODE,
            "the stream has no size limit: it would fill the disk",
            "set max_bytes with `nats stream edit`",
        ),
        Some(limit) if used.saturating_mul(10) >= limit.saturating_mul(9) => {
            Finding::wrong(CODE, format!("{used} of {limit} bytes are used"), STEP)
        }
        Some(limit) => Finding::verified(CODE, format!("{used} of {limit} bytes are used")),
    }
}

fn replicas(info: &StreamInfo) -> Finding {
    const CODE: &str = "nats_replicas";
    let wanted = info.number("num_replicas").unwrap_or(1);
    let cluster = info.cluster.clone().unwrap_or_default();
    let behind: Vec<_> = cluster
        .replicas
        .iter()
        .filter(|r| r.offline || !r.current)
        .map(|r| r.name.as_str())
        .collect();
    if wanted > 1 && !behind.is_empty() {
        let message = format!(
            "of {wanted} replicas these are offline or behind: {}",
            behind.join(", ")
        );
        return Finding::wrong(
            CODE,
            message,
            "bring these servers back; with a majority lost nothing can be written",
        );
    }
    match wanted {
        1 => Finding::verified(
            CODE,
            "1 replica: the ledger is lost with that server's disk, so take backups",
        ),
        _ => Finding::verified(
            CODE,
            format!("{wanted} replicas, all current, led by {}", cluster.leader),
        ),
    }
}

/// What only monitoring endpoints show, for each that is given.
async fn servers(nats: &Nats) -> Vec<Finding> {
    const CODE: &str = "nats_sync_always";
    if nats.monitors().is_empty() {
        return vec![Finding::not_verifiable(
            CODE,
            "whether nats-server syncs each write cannot be seen by a client",
            "pass --nats-monitor http://HOST:8222, and set `sync_interval: always` under jetstream",
        )];
    }
    let mut findings = Vec::new();
    for url in nats.monitors() {
        match monitor::varz(url).await {
            Ok(varz) => findings.extend([sync(&varz), storage(&varz)]),
            Err(reason) => findings.push(Finding::not_verifiable(CODE, reason, "check the --nats-monitor URL")),
        }
    }
    findings
}

fn sync(varz: &Varz) -> Finding {
    const CODE: &str = "nats_sync_always";
    const STEP: &str = "set `sync_interval: always` under jetstream in the nats-server configuration";
    let server = &varz.server_name;
    match &varz.jetstream.config {
        Some(config) if config.sync_always => Finding::verified(CODE, format!("{server} syncs each write")),
        Some(config) => {
            let seconds = config.sync_interval / 1_000_000_000;
            let message = format!("{server} syncs every {seconds} s: a power cut would lose what was acknowledged");
            Finding::wrong(CODE, message, STEP)
        }
        None => Finding::wrong(
            CODE,
            format!("{server} runs without JetStream"),
            "enable jetstream on it",
        ),
    }
}

fn storage(varz: &Varz) -> Finding {
    const CODE: &str = "nats_storage";
    let server = &varz.server_name;
    let limit = varz.jetstream.config.as_ref().map_or(0, |config| config.max_storage);
    let left = limit.saturating_sub(varz.jetstream.stats.storage);
    if left >= DISK_RESERVE_BYTES {
        return Finding::verified(
            CODE,
            format!("{server} has {} MiB of its storage limit left", left >> 20),
        );
    }
    let message = format!("{server} has {} MiB of its storage limit left", left >> 20);
    Finding::wrong(CODE, message, "free space on its disk or raise max_file_store")
}
