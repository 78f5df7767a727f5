//! From wishes to envelopes: deterministic ids, and patience with what was refused.
//!
//! A command's id is a hash of (role, command, target, the target's version, number among its like in the step, attempt).
//! A crash between asking and hearing, a redelivery, another holder of the role looking at the same state: all come to
//! the same id, and the sequencer carries it out once. The attempt moves on when an answer shows that nothing changed
//! (refused, already true, or an old answer repeated), and with it grows the wait until the same wish is asked again.
//!
//! Pure: time comes in, envelopes go out. Bounded: what was not wished for a while is forgotten, which costs at most an
//! early retry.

use std::collections::HashMap;

use tidemill_domain::command::Envelope;
use tidemill_domain::commit::{Actor, Address, TraceContext};
use tidemill_domain::id::CommandId;
use tidemill_domain::time::Span;

use crate::worker::{Wish, earliest};

/// First wait before a wish that changed nothing is asked again; doubles with each further time.
const FIRST_WAIT: Span = Span::from_millis(100);
/// Longest such wait.
const LONGEST_WAIT: Span = Span::from_secs(30);
/// Memory of wishes that have not come again for this long is dropped.
const REMEMBERED: Span = Span::from_secs(600);

/// What a wish is recognised by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    name: &'static str,
    target: String,
    part: u32,
}

#[derive(Debug)]
struct Memory {
    version: Address,
    attempt: u32,
    not_before: Span,
    last: Span,
}

/// Turns a worker's wishes into envelopes.
#[derive(Debug)]
pub struct Asker {
    role: &'static str,
    memory: HashMap<Key, Memory>,
}

/// One wish on its way.
#[derive(Debug)]
pub struct Asked {
    /// What to submit.
    pub envelope: Envelope,
    /// The version of its target that it is about.
    pub version: Address,
    pub(crate) key: Key,
}

/// What came of a wish, as far as patience goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Something changed.
    Done,
    /// Refused, already true, or an old answer: asking at once again would bring the same.
    NoChange,
    /// It did not get to a decision: the same id is asked again.
    NotAsked,
}

impl Asker {
    /// For a worker's role.
    pub fn new(role: &'static str) -> Self {
        Self {
            role,
            memory: HashMap::new(),
        }
    }

    /// The envelopes of those wishes whose time has come, in order, and when the first of the others has.
    pub fn prepare(&mut self, wishes: Vec<Wish>, term: u64, mono: Span) -> (Vec<Asked>, Option<Span>) {
        let mut counts: HashMap<(&'static str, String), u32> = HashMap::new();
        let mut asked = Vec::with_capacity(wishes.len());
        let mut wake = None;
        for wish in wishes {
            let name = wish.command.name();
            let number = counts.entry((name, wish.target.clone())).or_default();
            let key = Key {
                name,
                target: wish.target.clone(),
                part: *number,
            };
            *number += 1;
            let mut attempt = 0;
            if let Some(memory) = self.memory.get_mut(&key) {
                if memory.version == wish.version {
                    memory.last = mono;
                    attempt = memory.attempt;
                    if mono < memory.not_before {
                        wake = earliest(wake, Some(memory.not_before));
                        continue;
                    }
                } else {
                    self.memory.remove(&key);
                }
            }
            asked.push(Asked {
                version: wish.version,
                envelope: self.envelope(&key, wish, term, attempt),
                key,
            });
        }
        self.memory
            .retain(|_, m| mono.micros().saturating_sub(m.last.micros()) < REMEMBERED.micros());
        (asked, wake)
    }

    fn envelope(&self, key: &Key, wish: Wish, term: u64, attempt: u32) -> Envelope {
        let id = CommandId::derived(&[
            b"worker",
            self.role.as_bytes(),
            key.name.as_bytes(),
            key.target.as_bytes(),
            &wish.version.sequence.to_le_bytes(),
            &wish.version.index.to_le_bytes(),
            &key.part.to_le_bytes(),
            &attempt.to_le_bytes(),
        ]);
        Envelope {
            id,
            actor: Actor::Worker {
                role: self.role.to_owned(),
                term,
            },
            cause: wish.cause,
            trace: wish.trace.map(|trace| own_span(trace, id)),
            command: wish.command,
        }
    }

    /// Notes what came of a wish. Answers when it may be asked again, if that is not at once.
    pub fn answered(&mut self, asked: Asked, outcome: Outcome, mono: Span) -> Option<Span> {
        let Asked { key, version, .. } = asked;
        match outcome {
            Outcome::Done => {
                self.memory.remove(&key);
                None
            }
            Outcome::NotAsked => None,
            Outcome::NoChange => {
                let memory = self.memory.entry(key).or_insert(Memory {
                    version,
                    attempt: 0,
                    not_before: mono,
                    last: mono,
                });
                let wait = FIRST_WAIT.micros() << memory.attempt.min(20);
                memory.version = version;
                memory.attempt = memory.attempt.saturating_add(1);
                memory.not_before = Span::from_micros(mono.micros() + wait.min(LONGEST_WAIT.micros()));
                memory.last = mono;
                Some(memory.not_before)
            }
        }
    }
}

/// The same trace, with the command as the span.
fn own_span(trace: TraceContext, id: CommandId) -> TraceContext {
    let mut span_id = [0; 8];
    span_id.copy_from_slice(&id.0[..8]);
    // All zeroes would not be a span id.
    span_id[7] |= u8::from(span_id == [0; 8]);
    TraceContext { span_id, ..trace }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidemill_domain::command::Command;
    use tidemill_domain::commit::Cause;
    use tidemill_domain::id::ServiceId;

    fn wish(sequence: u64) -> Wish {
        let version = Address { sequence, index: 0 };
        Wish {
            command: Command::SettleService {
                service: ServiceId::from_bits(1),
            },
            target: "svc".into(),
            version,
            cause: Cause::Event(version),
            trace: None,
        }
    }

    #[test]
    fn the_same_wish_is_the_same_command_and_a_new_version_another() {
        let mut first = Asker::new("scheduler");
        let mut second = Asker::new("scheduler");
        let (a, _) = first.prepare(vec![wish(1), wish(1)], 1, Span::ZERO);
        let (b, _) = second.prepare(vec![wish(1), wish(1)], 2, Span::from_secs(9));
        assert_eq!(a[0].envelope.id, b[0].envelope.id, "another holder, the same command");
        assert_ne!(
            a[0].envelope.id, a[1].envelope.id,
            "two of a kind in one step are two commands"
        );
        let (c, _) = first.prepare(vec![wish(2)], 1, Span::ZERO);
        assert_ne!(a[0].envelope.id, c[0].envelope.id);
    }

    #[test]
    fn what_changed_nothing_is_asked_again_later_and_later_under_another_id() {
        let mut asker = Asker::new("scheduler");
        let mut mono = Span::ZERO;
        let mut ids = std::collections::HashSet::new();
        let mut waits = Vec::new();
        for _ in 0..12 {
            let (mut asked, _) = asker.prepare(vec![wish(1)], 1, mono);
            let one = asked.remove(0);
            assert!(ids.insert(one.envelope.id));
            asker.answered(one, Outcome::NoChange, mono);
            let (asked, wake) = asker.prepare(vec![wish(1)], 1, mono);
            assert!(asked.is_empty());
            let wake = wake.unwrap_or_default();
            waits.push(wake.millis() - mono.millis());
            mono = wake;
        }
        assert_eq!(waits[..4], [100, 200, 400, 800]);
        assert_eq!(waits[11], 30_000);
        let (asked, _) = asker.prepare(vec![wish(2)], 1, mono);
        assert_eq!(asked.len(), 1, "a changed target is a new wish");
    }

    #[test]
    fn what_did_not_get_to_a_decision_keeps_its_id() {
        let mut asker = Asker::new("scheduler");
        let (mut a, _) = asker.prepare(vec![wish(1)], 1, Span::ZERO);
        let a = a.remove(0);
        let id = a.envelope.id;
        asker.answered(a, Outcome::NotAsked, Span::ZERO);
        let (b, _) = asker.prepare(vec![wish(1)], 1, Span::ZERO);
        assert_eq!(b[0].envelope.id, id);
    }
}
