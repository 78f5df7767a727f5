//! `pool`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidemill_domain::state::State;
use tidemill_domain::state::device::Classes;

/// The pool as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRow {
    /// Devices by their one word of state.
    pub devices: Counts,
    /// The same capacity in thousandths of devices, each thousandth in its class: shares show here.
    pub devices_milli: Counts,
    /// Devices by model.
    pub by_model: BTreeMap<String, Counts>,
    /// Devices by supply kind.
    pub by_supply: BTreeMap<String, Counts>,
}

/// A total and its parts; the parts sum to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// All.
    pub total: u64,
    /// Can be placed on.
    pub free: u64,
    /// In use.
    pub held: u64,
    /// Being left.
    pub draining: u64,
    /// Not confirmed clean.
    pub dirty: u64,
    /// Masked for a fault.
    pub quarantined: u64,
    /// Out of reach.
    pub lost: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, word: &str, number: u64) {
        self.total += number;
        match word {
            "free" => self.free += number,
            "held" => self.held += number,
            "draining" => self.draining += number,
            "dirty" => self.dirty += number,
            "quarantined" => self.quarantined += number,
            _ => self.lost += number,
        }
    }

    fn add_classes(&mut self, classes: &Classes) {
        self.add("free", classes.free.0.into());
        self.add("held", classes.held.0.into());
        self.add("draining", classes.draining.0.into());
        self.add("dirty", classes.dirty.0.into());
        self.add("quarantined", classes.quarantined.0.into());
        self.add("lost", classes.lost.0.into());
    }
}

impl PoolRow {
    pub(crate) fn add(&mut self, word: &str, model: &str, supply: &str, number: u64) {
        self.devices.add(word, number);
        self.by_model.entry(model.to_owned()).or_default().add(word, number);
        self.by_supply.entry(supply.to_owned()).or_default().add(word, number);
    }
}

/// The pool's row.
pub fn pool_row(state: &State) -> PoolRow {
    let mut row = PoolRow::default();
    for device in state.devices.values() {
        let Some(node) = state.nodes.get(&device.node) else {
            continue;
        };
        row.add(device.state_name(), &device.model, super::supply_word(&node.supply), 1);
        row.devices_milli.add_classes(&device.classes());
    }
    row
}
