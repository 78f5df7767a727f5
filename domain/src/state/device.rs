//! A device and who holds what of it.
//!
//! Only holds and a condition are kept; the classes of invariant 1 are computed from them, so that they sum to the
//! whole by construction as long as the holds do not exceed it. A counter per class would have to be kept in step.

use serde::{Deserialize, Serialize};

use crate::events::node::DeviceKind;
use crate::id::{DeviceId, InstanceId, NodeId};
use crate::unit::Milli;

/// A device of the pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// Its id.
    pub id: DeviceId,
    /// Vendor UUID.
    pub uuid: String,
    /// Where it is.
    pub node: NodeId,
    /// Kind.
    pub kind: DeviceKind,
    /// Model.
    pub model: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Measured over nominal speed in thousandths.
    pub speed_milli: u32,
    /// No hardware behind it.
    pub simulated: bool,
    /// Whether it can be used at all.
    pub condition: DeviceCondition,
    /// Who holds what, in order of placement.
    pub holds: Vec<DeviceHold>,
}

/// Whether a device can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceCondition {
    /// It can.
    Usable,
    /// Its node is lost, or does not list it any more.
    Lost,
}

/// A share held by an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHold {
    /// By whom.
    pub instance: InstanceId,
    /// How much.
    pub share: Milli,
    /// In what stage.
    pub phase: HoldPhase,
}

/// Stage of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldPhase {
    /// In use.
    Held,
    /// Its instance is leaving.
    Draining,
    /// Its instance is over for the control plane, but the node has not confirmed that nothing of it is left.
    Dirty,
}

/// A device's thousandths by class; they sum to [`Milli::WHOLE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Classes {
    /// Can be placed on.
    pub free: Milli,
    /// In use.
    pub held: Milli,
    /// Being left.
    pub draining: Milli,
    /// Not confirmed clean.
    pub dirty: Milli,
    /// Masked for a fault.
    pub quarantined: Milli,
    /// Out of reach.
    pub lost: Milli,
}

impl Classes {
    /// All classes together.
    pub fn total(&self) -> Milli {
        self.free + self.held + self.draining + self.dirty + self.quarantined + self.lost
    }
}

impl Device {
    /// Its thousandths by class.
    pub fn classes(&self) -> Classes {
        if self.condition == DeviceCondition::Lost {
            return Classes {
                lost: Milli::WHOLE,
                ..Classes::default()
            };
        }
        let mut classes = Classes::default();
        for hold in &self.holds {
            let class = match hold.phase {
                HoldPhase::Held => &mut classes.held,
                HoldPhase::Draining => &mut classes.draining,
                HoldPhase::Dirty => &mut classes.dirty,
            };
            *class = *class + hold.share;
        }
        classes.free = Milli::WHOLE.minus(classes.held + classes.draining + classes.dirty);
        classes
    }

    /// Thousandths that can be placed on.
    pub fn free(&self) -> Milli {
        match self.condition {
            DeviceCondition::Lost => Milli::ZERO,
            DeviceCondition::Usable => Milli::WHOLE.minus(self.holds.iter().map(|h| h.share).sum()),
        }
    }

    /// The one word for its state: the worst class that is not empty.
    pub fn state_name(&self) -> &'static str {
        let classes = self.classes();
        if classes.lost > Milli::ZERO {
            "lost"
        } else if classes.quarantined > Milli::ZERO {
            "quarantined"
        } else if classes.dirty > Milli::ZERO {
            "dirty"
        } else if classes.draining > Milli::ZERO {
            "draining"
        } else if classes.held > Milli::ZERO {
            "held"
        } else {
            "free"
        }
    }
}
