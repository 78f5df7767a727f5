//! Verdicts on nodes.

use std::collections::BTreeMap;

use crate::command::Command;
use crate::events::node::Supply;
use crate::id::NodeId;
use crate::state::State;
use crate::state::node::NodeState;
use crate::time::{Span, Timestamp};

use super::clock::{BEAT, Doors, Presence, Rhythm, Silence};

/// Silence after which a node is suspected whose rhythm is not known yet: three beats of a second each.
pub const SUSPECT_AFTER: Span = Span::from_secs(3);
/// Beats after which a node's rhythm is known.
const RHYTHM_KNOWN: u32 = 8;
/// A node whose rhythm is known is given two beats, and four times as much as it usually is off the beat (as TCP gives
/// round trips, RFC 6298)…
const BEATS: u64 = 2;
const OFF_BEATS: u64 = 4;
/// … but no less than this …
const LEAST: Span = Span::from_millis(2_200);
/// … and no more than this; machines at the edge of a network get more.
const MOST: Span = Span::from_secs(4);
const MOST_AT_THE_EDGE: Span = Span::from_secs(6);
/// Silence after which a node is given up and its instances are replaced.
pub const LOST_AFTER: Span = Span::from_secs(10);
/// The same for a node whose agent said that it only restarts: its instances run on meanwhile.
pub const RESTART_LOST_AFTER: Span = Span::from_secs(60);
/// A connection that was closed and not opened again is evidence of its own: both waits are divided by this.
pub const CLOSED_DIVISOR: u64 = 2;

/// What a door said about a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// Nothing about a node: the door itself is there.
    Door,
    /// The door ends on purpose.
    DoorStopping,
    /// The node beat.
    Beat(NodeId),
    /// Its agent connected.
    Connected(NodeId, u64),
    /// That connection of its agent ended.
    Disconnected(NodeId, u64),
    /// Its agent ends on purpose. With `leaving` the machine leaves the pool.
    Goodbye {
        /// Which node.
        node: NodeId,
        /// The machine leaves the pool.
        leaving: bool,
        /// Why, as its owner said.
        reason: String,
    },
}

/// What should be recorded about a node, and the observations it rests on, first and last.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Which node.
    pub node: NodeId,
    /// The command that records it.
    pub command: Command,
    /// First and last observation.
    pub observations: (u64, u64),
}

/// What is known of a node's connection.
#[derive(Debug, Clone, Default)]
struct Link {
    /// The latest connection and the door that has it.
    connection: Option<(String, u64)>,
    /// That connection was closed, and nothing was heard since.
    closed: bool,
    /// Its agent said that it restarts.
    restarting: bool,
    /// Its owner takes it out of the pool: why, and the observation.
    leaving: Option<(String, u64)>,
}

/// The failure detector's core.
#[derive(Debug, Clone, Default)]
pub struct Detector {
    doors: Doors,
    nodes: Presence<NodeId>,
    links: BTreeMap<NodeId, Link>,
}

impl Detector {
    /// Takes one observation in: what `door` heard and stamped with its receive time, handed over at `at` on the
    /// detector's own monotonic clock.
    pub fn hear(&mut self, door: &str, received_at: Timestamp, sequence: u64, at: Span, heard: &Heard) {
        if *heard == Heard::DoorStopping {
            self.doors.stopping(door);
            return;
        }
        self.doors.heard(door, received_at, sequence, at);
        match heard {
            Heard::Door | Heard::DoorStopping => {}
            Heard::Beat(node) => {
                self.nodes.heard(&self.doors, *node, door, sequence);
                if let Some(link) = self.links.get_mut(node) {
                    link.closed = false;
                    link.restarting = false;
                }
            }
            Heard::Connected(node, connection) => {
                self.nodes.heard(&self.doors, *node, door, sequence);
                let link = Link {
                    connection: Some((door.to_owned(), *connection)),
                    ..Link::default()
                };
                self.links.insert(*node, link);
            }
            Heard::Disconnected(node, connection) => {
                // The end of a connection that has been followed by another one says nothing.
                if let Some(link) = self.links.get_mut(node)
                    && link.connection == Some((door.to_owned(), *connection))
                {
                    link.closed = true;
                }
            }
            Heard::Goodbye { node, leaving, reason } => {
                self.nodes.heard(&self.doors, *node, door, sequence);
                let link = self.links.entry(*node).or_default();
                if *leaving {
                    link.leaving = Some((reason.clone(), sequence));
                } else {
                    link.restarting = true;
                }
            }
        }
    }

    /// Observations were dropped before they could be read.
    pub fn interrupted(&mut self) {
        self.doors.interrupted();
    }

    /// What is to be recorded now.
    pub fn verdicts(&mut self, state: &State, now: Span) -> Vec<Verdict> {
        self.doors.tidy(now);
        self.links.retain(|node, _| state.nodes.contains_key(node));
        self.nodes.retain(|node| state.nodes.contains_key(node));
        let mut verdicts = Vec::new();
        for (id, node) in &state.nodes {
            if matches!(node.state, NodeState::Left | NodeState::Joining) {
                // Its goodbye has been acted on; another stay begins without it.
                if let Some(link) = self.links.get_mut(id) {
                    link.leaving = None;
                }
                continue;
            }
            let link = self.links.get(id);
            if let Some((reason, sequence)) = link.and_then(|l| l.leaving.as_ref()) {
                let reason = if reason.is_empty() {
                    "its owner took it out of the pool".to_owned()
                } else {
                    format!("its owner took it out of the pool: {reason}")
                };
                verdicts.push(Verdict {
                    node: *id,
                    command: Command::LeaveNode { node: *id, reason },
                    observations: (*sequence, *sequence),
                });
                continue;
            }
            let signs = Signs {
                closed: link.is_some_and(|l| l.closed),
                restarting: link.is_some_and(|l| l.restarting),
                patience: patience(self.nodes.rhythm(id), node.supply),
            };
            let Some(silence) = self.nodes.silence(&self.doors, id, now) else {
                continue;
            };
            verdicts.extend(judge(*id, node.state, silence, signs).map(|command| Verdict {
                node: *id,
                command,
                observations: silence.observations,
            }));
        }
        verdicts
    }
}

/// What is known of a node's connection besides its silence.
#[derive(Debug, Clone, Copy)]
struct Signs {
    closed: bool,
    restarting: bool,
    /// Silence after which it is suspected.
    patience: Span,
}

/// The silence after which a node is suspected, by its own rhythm and by where it stands.
fn patience(rhythm: Rhythm, supply: Supply) -> Span {
    if rhythm.beats < RHYTHM_KNOWN {
        return SUSPECT_AFTER;
    }
    let most = match supply {
        Supply::Idc | Supply::Cloud | Supply::Enterprise | Supply::Partner => MOST,
        Supply::Cafe | Supply::Pc => MOST_AT_THE_EDGE,
    };
    let usual = BEATS * BEAT.micros() + OFF_BEATS * rhythm.off_beat.micros();
    Span::from_micros(usual).clamp(LEAST, most)
}

fn judge(node: NodeId, state: NodeState, silence: Silence, signs: Signs) -> Option<Command> {
    let silent = silence.span;
    let halved = |span: Span| {
        if signs.closed && !signs.restarting {
            Span::from_micros(span.micros() / CLOSED_DIVISOR)
        } else {
            span
        }
    };
    let suspect_after = halved(signs.patience);
    let lost_after = if signs.restarting {
        RESTART_LOST_AFTER
    } else {
        halved(LOST_AFTER)
    };
    let reason = || {
        if signs.restarting {
            format!("its agent restarts and was not heard for {silent}")
        } else if signs.closed {
            format!("its connection closed and nothing was heard for {silent}")
        } else {
            format!("no heartbeat for {silent}")
        }
    };
    match state {
        NodeState::Ready if silent >= suspect_after => Some(Command::SuspectNode {
            node,
            silent,
            closed: signs.closed && !signs.restarting,
            reason: reason(),
        }),
        NodeState::Suspect if silent >= lost_after => Some(Command::LoseNode {
            node,
            silent,
            reason: reason(),
        }),
        NodeState::Suspect | NodeState::Lost if !silence.presumed && !signs.closed && silent < suspect_after => {
            Some(Command::RecoverNode {
                node,
                reason: "its heartbeats are back".to_owned(),
            })
        }
        _ => None,
    }
}
