//! Seals: one hash that stands for a whole state.
//!
//! Each entity's encoding is hashed under its name, and a seal is the hash over those hashes in order of entity. The
//! entity hashes are kept, and only touched entities are hashed again, so a seal costs 32 bytes of hashing per entity
//! plus the touched ones. A slice exported for one tenant carries the others' entity hashes in place of their contents
//! and still reproduces the seal. A multiset hash (adding the entity hashes up) would be cheaper still, but sums can be
//! made to collide.

use std::collections::{BTreeMap, HashSet};

use super::{Entity, State};

/// The entity hashes of a state, kept in step with it.
#[derive(Debug, Clone, Default)]
pub struct Sealer {
    hashes: BTreeMap<Entity, [u8; 32]>,
    stale: HashSet<Entity>,
    scratch: Vec<u8>,
}

impl Sealer {
    /// A sealer in step with `state`.
    pub fn of(state: &State) -> Self {
        let mut sealer = Self::default();
        sealer.touch(&state.entities().collect::<Vec<_>>());
        sealer.refresh(state);
        sealer
    }

    /// Marks entities that changed.
    pub fn touch(&mut self, touched: &[Entity]) {
        for entity in touched {
            if !self.stale.contains(entity) {
                self.stale.insert(entity.clone());
            }
        }
    }

    /// Number of entities of the last seal.
    pub fn entities(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// The seal of `state`, all of whose changes have been marked.
    pub fn seal(&mut self, state: &State) -> [u8; 32] {
        self.refresh(state);
        combine(self.hashes.iter())
    }

    /// The entity hashes after the last [`Sealer::seal`].
    pub fn hashes(&self) -> &BTreeMap<Entity, [u8; 32]> {
        &self.hashes
    }

    fn refresh(&mut self, state: &State) {
        for entity in self.stale.drain() {
            self.scratch.clear();
            match state.entity_bytes(&entity, std::mem::take(&mut self.scratch)) {
                Some(bytes) => {
                    self.hashes.insert(entity, *blake3::hash(&bytes).as_bytes());
                    self.scratch = bytes;
                }
                None => {
                    self.hashes.remove(&entity);
                }
            }
        }
    }
}

/// The hash over entity hashes, in their order.
pub fn combine<'a>(hashes: impl Iterator<Item = (&'a Entity, &'a [u8; 32])>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let mut name = Vec::new();
    for (entity, hash) in hashes {
        name.clear();
        name = postcard::to_extend(entity, std::mem::take(&mut name)).expect("a Vec takes any number of bytes");
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(&name);
        hasher.update(hash);
    }
    *hasher.finalize().as_bytes()
}
