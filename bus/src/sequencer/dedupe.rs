//! The command ids of the last day: what makes asking twice asking once.
//!
//! For each commit the ledger holds the command's id and a hash of its body, so this table is a fold of the ledger like
//! the state is, and a retry after a leader change or a restart meets the same memory. It is kept as a queue in ledger
//! order, which is the order of forgetting, with an index into it by id; the queue is also what a snapshot stores.
//!
//! Invariants: bounded by age and by count, whichever comes first, and both as a function of the ledger alone. At the
//! full count it takes about 120 MB. Rejected: asking the store to deduplicate (JetStream's message ids), which forgets
//! after minutes and cannot tell another body under the same id.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidemill_domain::commit::{Actor, Commit};
use tidemill_domain::id::CommandId;
use tidemill_domain::time::{Span, Timestamp};

/// How long a command's id is remembered.
pub const KEEP: Span = Span::from_secs(24 * 60 * 60);

/// Most ids remembered: at this many within [`KEEP`] the oldest are forgotten sooner.
pub const MOST: usize = 1_000_000;

/// What is known of a command that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Its id.
    pub id: CommandId,
    /// First 16 bytes of the hash of its body.
    pub body_hash: [u8; 16],
    /// Record that holds its commit.
    pub sequence: u64,
    /// Number of the commit in the record, from 0.
    pub commit: u32,
    recorded_at: Timestamp,
}

/// The table.
#[derive(Debug, Clone, Default)]
pub struct Dedupe {
    queue: VecDeque<Known>,
    /// How many have been forgotten: the number of the queue's first entry.
    forgotten: u64,
    index: HashMap<CommandId, u64>,
}

impl Dedupe {
    /// Commands remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if nothing is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// What is known of a command.
    #[must_use]
    pub fn get(&self, id: &CommandId) -> Option<&Known> {
        let number = self.index.get(id)? - self.forgotten;
        self.queue.get(usize::try_from(number).ok()?)
    }

    /// Remembers a command that was carried out.
    pub fn insert(&mut self, id: CommandId, body_hash: [u8; 16], sequence: u64, commit: u32, recorded_at: Timestamp) {
        self.index.insert(id, self.forgotten + self.queue.len() as u64);
        self.queue.push_back(Known {
            id,
            body_hash,
            sequence,
            commit,
            recorded_at,
        });
        self.forget(recorded_at);
    }

    /// Remembers a record's commits, those of the sequencer itself excepted.
    pub fn fold(&mut self, sequence: u64, commits: &[Commit]) {
        for (number, commit) in (0..).zip(commits) {
            let header = &commit.header;
            if header.actor != Actor::Sequencer {
                self.insert(header.command, header.body_hash, sequence, number, header.recorded_at);
            }
        }
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some(oldest) = self.queue.front() {
            if self.queue.len() <= MOST && now.since(oldest.recorded_at) <= KEEP {
                break;
            }
            // An id that came again after it was forgotten points to the later entry; the index keeps that one.
            if self.index.get(&oldest.id) == Some(&self.forgotten) {
                self.index.remove(&oldest.id);
            }
            self.queue.pop_front();
            self.forgotten += 1;
        }
    }

    /// Appends the table's encoding for a snapshot.
    pub(crate) fn encode(&self, out: Vec<u8>) -> Vec<u8> {
        postcard::to_extend(&self.queue, out).expect("a Vec takes any number of bytes")
    }

    /// Reads what [`Dedupe::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, postcard::Error> {
        let queue: VecDeque<Known> = postcard::from_bytes(bytes)?;
        let index = queue
            .iter()
            .zip(0..)
            .map(|(known, number)| (known.id, number))
            .collect();
        Ok(Self {
            queue,
            forgotten: 0,
            index,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn id(n: u64) -> CommandId {
        CommandId::derived(&[&n.to_le_bytes()])
    }

    #[test]
    fn it_forgets_by_age_and_survives_a_snapshot() {
        let mut table = Dedupe::default();
        let start = Timestamp(1_000_000);
        for n in 0..10 {
            table.insert(id(n), [n as u8; 16], n, 0, start + Span::from_secs(n));
        }
        table.insert(id(10), [10; 16], 10, 3, start + KEEP + Span::from_secs(4));
        assert!(table.get(&id(3)).is_none() && table.get(&id(4)).is_some());
        let again = Dedupe::decode(&table.encode(Vec::new())).unwrap();
        assert_eq!(again.len(), table.len());
        assert_eq!(again.get(&id(10)), table.get(&id(10)));
        assert_eq!(again.get(&id(10)).unwrap().commit, 3);
    }

    #[test]
    fn an_id_used_again_after_its_time_is_the_later_one() {
        let mut table = Dedupe::default();
        table.insert(id(1), [1; 16], 1, 0, Timestamp(0));
        table.insert(id(2), [2; 16], 2, 0, Timestamp(0) + KEEP + Span::from_secs(1));
        table.insert(id(1), [9; 16], 3, 0, Timestamp(0) + KEEP + Span::from_secs(2));
        assert_eq!(table.get(&id(1)).unwrap().sequence, 3);
        assert_eq!(table.len(), 2);
    }
}
