//! Which nodes and gateways are silent, and for how long.
//!
//! Silence is measured on the clock of the door that should have heard, and that clock runs only while the door itself
//! is heard: each observation a door publishes moves its clock to the time it stamped on it. So a stalled detector, a
//! slow log or a door that is down adds nothing to anybody's silence; clocks of nodes play no part, and two doors' clocks
//! are never compared. When a door was not heard for a while, everything behind it starts with a [`RETURN_GRACE`] in
//! which to come back: the control plane's absence is not the nodes' death. Timers per node on the detector's own clock
//! were rejected for that reason.
//!
//! The core is sans-I/O: it takes what was heard and when it was handed over on the detector's monotonic clock, and
//! answers with verdicts. Invariants: a node that beats is never suspected, whatever anybody's wall clock says; a node is
//! suspected before it is given up; a verdict names the observations that it rests on.

mod clock;
mod detector;

pub use clock::{DOOR_GAP, DOOR_LOST, Doors, Presence, RETURN_GRACE, Silence};
pub use detector::{CLOSED_DIVISOR, Detector, Heard, LOST_AFTER, RESTART_LOST_AFTER, SUSPECT_AFTER, Verdict};
