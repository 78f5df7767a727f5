//! The breaker's end: it closes by itself once the nodes for which it tripped are heard again.

use tidemill_domain::command::Command;
use tidemill_domain::commit::Cause;
use tidemill_domain::state::State;
use tidemill_kit::Wish;

/// The wish to close it, if too few nodes are doubted for it to be tripped.
pub(crate) fn reset(state: &State) -> Option<Wish> {
    if !state.breaker_tripped() || state.mass_loss(None).is_some() {
        return None;
    }
    let doubted = state.doubted_nodes().count();
    let reason = match doubted {
        0 => "the nodes are heard again".to_owned(),
        1 => "all but one of the nodes are heard again".to_owned(),
        _ => format!("all but {doubted} of the nodes are heard again"),
    };
    let changed = state.cell.breaker.changed;
    Some(Wish {
        command: Command::ResetBreaker { reason },
        target: "breaker".to_owned(),
        version: changed,
        cause: Cause::Event(changed),
        trace: None,
    })
}
