//! From a change of the state to the connections it concerns.

use std::sync::Arc;
use std::time::Duration;

use tidemill_domain::commit::Address;
use tidemill_domain::state::State;
use tidemill_protocol::gateway::DoorToGateway;
use tokio::time::MissedTickBehavior;

use super::{socket, translate_gateway};
use crate::auth;
use crate::shared::Shared;

/// How often the tokens of open connections are looked at: a token that is revoked, or runs out, ends them within it.
const RECHECK: Duration = Duration::from_secs(1);

/// What routes depend on: services, by number and last change. A deleted service changes the number, a new one both.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct RoutesKey {
    services: usize,
    changed: Address,
    epoch: u64,
}

fn key(state: &State) -> RoutesKey {
    RoutesKey {
        services: state.services.len(),
        changed: state.services.values().map(|s| s.changed).max().unwrap_or_default(),
        epoch: state.cell.epoch,
    }
}

/// Runs until the door closes.
pub(crate) async fn fan_out(shared: Arc<Shared>) {
    let mut progress = shared.deps.view.progress();
    let mut again = tokio::time::interval(shared.config.limits.resend);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut recheck = tokio::time::interval(RECHECK);
    recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut sent = None;
    loop {
        let unasked = tokio::select! {
            biased;
            () = shared.closing.cancelled() => return,
            // Before the changes, which may come without a pause.
            _ = recheck.tick() => {
                let now = shared.clock.now();
                shared.deps.view.read(|state| {
                    shared
                        .registry
                        .end_unwelcome(|credential| auth::still_good(state, credential, now).is_ok());
                });
                continue;
            }
            changed = progress.changed() => match changed {
                Ok(()) => false,
                // The view ends with the process only.
                Err(_) => return,
            },
            _ = again.tick() => true,
        };
        let routes = shared.deps.view.read(|state| {
            shared.registry.wake_changed(state);
            let key = key(state);
            (unasked || sent != Some(key)).then(|| {
                sent = Some(key);
                translate_gateway::routes(state)
            })
        });
        if let Some(routes) = routes {
            // Before the first record there is no cell yet, and nothing to route.
            if routes.stamp.sequence > 0 {
                let message = DoorToGateway::Routes(routes);
                shared.registry.routes.send_replace(socket::encode(&message));
            }
        }
    }
}
