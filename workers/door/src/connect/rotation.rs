//! Telling the ledger that a gateway sends requests to instances that became ready.
//!
//! Level-triggered: whenever a gateway says what it follows, everything ready by then and not yet known to be in rotation
//! is reported, so a report that was lost is made by the next word, of this gateway or another.

use std::sync::Arc;
use std::time::Duration;

use tidemill_domain::command::{CHUNK, Command, Envelope};
use tidemill_domain::commit::{Actor, Cause, TraceContext};
use tidemill_domain::id::{CommandId, InstanceId};
use tidemill_domain::state::State;
use tidemill_domain::state::instance::Instance;
use tokio::sync::watch;

use crate::shared::Shared;

/// Pause after a failure; the next beat tries again in any case.
const PAUSE: Duration = Duration::from_millis(500);
/// Time for this server to see its own report.
const SEE: Duration = Duration::from_secs(5);

/// Reports until the connection's end drops the sender.
pub(super) async fn report(shared: Arc<Shared>, gateway: String, mut applied: watch::Receiver<u64>) {
    while applied.changed().await.is_ok() {
        let through = *applied.borrow_and_update();
        loop {
            let covered = shared.deps.view.read(|state| covered(state, through));
            let Some(envelope) = envelope(&gateway, &covered) else {
                break;
            };
            match shared.submit_once(envelope).await {
                Ok(answer) if shared.deps.view.wait_for(answer.sequence, SEE).await => {}
                Ok(_) => break,
                Err(error) => {
                    tracing::debug!(gateway, code = error.code(), %error, "instances in rotation could not be reported");
                    tokio::time::sleep(PAUSE).await;
                    break;
                }
            }
        }
    }
}

struct Covered {
    id: InstanceId,
    since: (u64, u32),
    trace: Option<TraceContext>,
}

/// Instances that were ready at record `through` and are not known to be in rotation.
fn covered(state: &State, through: u64) -> Vec<Covered> {
    let new = |instance: &&Instance| {
        instance.serves()
            && instance.timings.in_rotation.is_none()
            && instance.endpoint.is_some()
            && instance.changed.sequence <= through
    };
    let covered = state
        .instances
        .values()
        .filter(new)
        .take(CHUNK)
        .map(|instance| Covered {
            id: instance.id,
            since: (instance.changed.sequence, instance.changed.index),
            trace: instance.trace,
        });
    covered.collect()
}

fn envelope(gateway: &str, covered: &[Covered]) -> Option<Envelope> {
    let first = covered.first()?;
    let mut parts = Vec::with_capacity(covered.len() * 20);
    for instance in covered {
        parts.extend(instance.id.bits().to_le_bytes());
        parts.extend(instance.since.0.to_le_bytes());
        parts.extend(instance.since.1.to_le_bytes());
    }
    Some(Envelope {
        id: CommandId::derived(&[b"in_rotation", gateway.as_bytes(), &parts]),
        actor: Actor::Gateway(gateway.to_owned()),
        cause: Cause::Request,
        trace: first.trace,
        command: Command::ReportInRotation {
            gateway: gateway.to_owned(),
            instances: covered.iter().map(|instance| instance.id).collect(),
        },
    })
}
