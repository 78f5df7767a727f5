//! Given what doors heard, when time passes on their clocks, then these verdicts.

use tidemill_domain::command::Command;
use tidemill_domain::events::node::Supply;
use tidemill_domain::id::NodeId;
use tidemill_domain::policy::liveness::{
    Detector, Heard, LOST_AFTER, RESTART_LOST_AFTER, RETURN_GRACE, SUSPECT_AFTER, Verdict,
};
use tidemill_domain::state::node::NodeState;
use tidemill_domain::time::{Span, Timestamp};
use tidemill_tests::cell::Cell;
use tidemill_tests::make::{join, recover, suspect};

use crate::drive::node;

const BEAT: Span = Span::from_secs(1);

/// A cell of nodes, doors that beat, and a detector on virtual time.
struct World {
    cell: Cell,
    detector: Detector,
    /// The detector's monotonic clock.
    mono: Span,
    sequence: u64,
    doors: Vec<Door>,
}

struct Door {
    name: &'static str,
    /// What its clock is off by, in microseconds.
    skew: i64,
    up: bool,
    beating: Vec<NodeId>,
}

impl World {
    fn new(nodes: usize) -> Self {
        let mut cell = Cell::new();
        for n in 0..nodes {
            cell.given(Command::JoinNode(join(&format!("n{n}"), 1)));
        }
        let beating = cell.state.nodes.keys().copied().collect();
        let door = Door {
            name: "a",
            skew: 0,
            up: true,
            beating,
        };
        let mut world = Self {
            cell,
            detector: Detector::default(),
            mono: Span::ZERO,
            sequence: 0,
            doors: vec![door],
        };
        world.pass(30);
        world
    }

    fn hear(&mut self, door: usize, heard: Heard) {
        self.sequence += 1;
        let stamp = Timestamp(self.cell.now.0 + self.doors[door].skew);
        self.detector
            .hear(self.doors[door].name, stamp, self.sequence, self.mono, &heard);
    }

    /// One second passes; verdicts are carried out and returned.
    fn second(&mut self) -> Vec<Verdict> {
        self.cell.wait(BEAT);
        self.mono = Span::from_micros(self.mono.micros() + BEAT.micros());
        for door in 0..self.doors.len() {
            if !self.doors[door].up {
                continue;
            }
            self.hear(door, Heard::Door);
            for node in self.doors[door].beating.clone() {
                self.hear(door, Heard::Beat(node));
            }
        }
        let verdicts = self.detector.verdicts(&self.cell.state, self.mono);
        for verdict in &verdicts {
            self.cell.given(verdict.command.clone());
        }
        verdicts
    }

    /// Some seconds pass; the names of the verdicts with the second in which they came.
    fn pass(&mut self, seconds: u64) -> Vec<(u64, &'static str)> {
        let mut all = Vec::new();
        for second in 1..=seconds {
            all.extend(self.second().iter().map(|v| (second, v.command.name())));
        }
        all
    }

    fn silence(&mut self, node: NodeId) {
        for door in &mut self.doors {
            door.beating.retain(|n| *n != node);
        }
    }

    fn state_of(&self, node: NodeId) -> NodeState {
        self.cell.state.nodes[&node].state
    }
}

#[test]
fn nodes_that_beat_are_left_alone() {
    let mut world = World::new(3);
    assert_eq!(world.pass(300), []);
}

#[test]
fn a_silent_node_is_suspected_then_given_up_and_trusted_again_when_it_beats() {
    let mut world = World::new(2);
    let gone = node(&world.cell, "n0");
    world.silence(gone);
    assert_eq!(world.pass(20), [(3, "SuspectNode"), (10, "LoseNode")]);
    assert_eq!(world.state_of(gone), NodeState::Lost);
    world.doors[0].beating.push(gone);
    assert_eq!(world.pass(20), [(1, "RecoverNode")]);
    assert_eq!((SUSPECT_AFTER, LOST_AFTER), (Span::from_secs(3), Span::from_secs(10)));
}

#[test]
fn a_verdict_names_its_observations_and_the_silence() {
    let mut world = World::new(1);
    let gone = node(&world.cell, "n0");
    let last_beat = world.sequence;
    world.silence(gone);
    world.pass(2);
    let verdict = world.second().remove(0);
    assert_eq!(verdict.observations, (last_beat, world.sequence));
    let Command::SuspectNode { silent, reason, .. } = verdict.command else {
        panic!("{verdict:?}");
    };
    assert_eq!(
        (silent, reason.as_str()),
        (Span::from_secs(3), "no heartbeat for 3.0 s")
    );
}

#[test]
fn a_blip_is_doubt_at_most() {
    let mut world = World::new(1);
    let blip = node(&world.cell, "n0");
    world.silence(blip);
    assert_eq!(world.pass(5), [(3, "SuspectNode")]);
    world.doors[0].beating.push(blip);
    assert_eq!(world.pass(30), [(1, "RecoverNode")]);
}

#[test]
fn while_the_door_is_silent_nothing_happens_and_then_grace_begins_anew() {
    let mut world = World::new(5);
    world.doors[0].up = false;
    assert_eq!(world.pass(3600), []);
    world.doors[0].up = true;
    // One node did not survive, but nobody can know before the others could have come back.
    let dead = node(&world.cell, "n0");
    world.silence(dead);
    let grace = RETURN_GRACE.millis() / 1000;
    assert_eq!(
        world.pass(120),
        [(grace + 4, "SuspectNode"), (grace + 11, "LoseNode")],
        "its first second back counts for nothing"
    );
}

#[test]
fn nodes_that_need_a_while_to_reconnect_survive_an_outage() {
    let mut world = World::new(5);
    let all = std::mem::take(&mut world.doors[0].beating);
    world.doors[0].up = false;
    assert_eq!(world.pass(60), []);
    world.doors[0].up = true;
    assert_eq!(world.pass(14), []);
    world.doors[0].beating = all;
    assert_eq!(world.pass(60), []);
}

#[test]
fn a_door_that_ends_on_purpose_takes_nobody_with_it() {
    let mut world = World::new(5);
    world.hear(0, Heard::DoorStopping);
    world.doors[0].up = false;
    assert_eq!(world.pass(60), []);
    world.doors[0].up = true;
    assert_eq!(world.pass(60), []);
}

#[test]
fn wall_clocks_change_nothing() {
    let mut world = World::new(2);
    // The door's clock jumps ten minutes ahead, then twenty back: an absence each time, never a death.
    for skew in [600_000_000, -600_000_000, 0] {
        world.doors[0].skew = skew;
        assert_eq!(world.pass(60), []);
    }
    // Two doors with clocks an hour apart hear the same nodes by turns.
    let beating = world.doors[0].beating.clone();
    world.doors.push(Door {
        name: "b",
        skew: 3_600_000_000,
        up: true,
        beating: vec![],
    });
    for turn in 0..10 {
        let (there, here) = if turn % 2 == 0 { (1, 0) } else { (0, 1) };
        world.doors[there].beating = beating.clone();
        world.doors[here].beating.clear();
        assert_eq!(world.pass(20), []);
    }
}

#[test]
fn when_a_door_dies_with_a_node_another_door_finds_out() {
    let mut world = World::new(3);
    world.doors.push(Door {
        name: "b",
        skew: 0,
        up: true,
        beating: vec![],
    });
    world.pass(20);
    let dead = node(&world.cell, "n0");
    world.doors[0].up = false;
    world.doors[1].beating = world.doors[0].beating.iter().copied().filter(|n| *n != dead).collect();
    let verdicts = world.pass(60);
    let names: Vec<_> = verdicts.iter().map(|(_, name)| *name).collect();
    assert_eq!(names, ["SuspectNode", "LoseNode"]);
    // Door lost after 15 s, grace of 15 s, then the usual waits.
    assert!(verdicts[1].0 <= 15 + 15 + 12, "{verdicts:?}");
    assert_eq!(world.state_of(dead), NodeState::Lost);
}

#[test]
fn a_closed_connection_halves_the_wait_unless_another_follows() {
    let mut world = World::new(2);
    let (gone, moved) = (node(&world.cell, "n0"), node(&world.cell, "n1"));
    for (id, connection) in [(gone, 1), (moved, 2)] {
        world.hear(0, Heard::Connected(id, connection));
    }
    world.silence(gone);
    world.hear(0, Heard::Disconnected(gone, 1));
    // The other one reconnected before its old connection was noticed to be gone.
    world.hear(0, Heard::Connected(moved, 3));
    world.hear(0, Heard::Disconnected(moved, 2));
    assert_eq!(world.pass(20), [(2, "SuspectNode"), (5, "LoseNode")]);
    assert_eq!(world.state_of(moved), NodeState::Ready);
}

#[test]
fn goodbyes_are_believed() {
    let mut world = World::new(2);
    let (leaves, restarts) = (node(&world.cell, "n0"), node(&world.cell, "n1"));
    world.hear(
        0,
        Heard::Goodbye {
            node: leaves,
            leaving: true,
            reason: "sold".into(),
        },
    );
    world.hear(
        0,
        Heard::Goodbye {
            node: restarts,
            leaving: false,
            reason: String::new(),
        },
    );
    world.silence(leaves);
    world.silence(restarts);
    assert_eq!(world.pass(59), [(1, "LeaveNode"), (3, "SuspectNode")]);
    assert_eq!(world.state_of(leaves), NodeState::Left);
    assert_eq!(world.pass(3), [(1, "LoseNode")]);
    assert_eq!(RESTART_LOST_AFTER, Span::from_secs(60));
}

#[test]
fn a_detector_that_starts_late_gives_everyone_a_grace_and_finds_the_dead() {
    let mut world = World::new(3);
    let dead = node(&world.cell, "n0");
    world.silence(dead);
    world.detector = Detector::default();
    let grace = RETURN_GRACE.millis() / 1000;
    assert_eq!(world.pass(120), [(grace + 4, "SuspectNode"), (grace + 11, "LoseNode")]);
}

#[test]
fn a_detector_that_stalls_or_misses_observations_condemns_nobody() {
    let mut world = World::new(3);
    // It stands still for a minute, then reads what came meanwhile in one go.
    for _ in 0..60 {
        world.cell.wait(BEAT);
        world.hear(0, Heard::Door);
        for node in world.doors[0].beating.clone() {
            world.hear(0, Heard::Beat(node));
        }
    }
    world.mono = Span::from_micros(world.mono.micros() + 60_000_000);
    assert_eq!(world.pass(30), []);
    // What came meanwhile was dropped before it could be read.
    world.cell.wait(Span::from_secs(60));
    world.detector.interrupted();
    assert_eq!(world.pass(30), []);
}

/// Beats come so far apart, in milliseconds, until one stays away; the silence that was suspected.
fn suspected_after(apart: impl Fn(u64) -> u64, supply: Supply) -> Span {
    let mut cell = Cell::new();
    let mut joining = join("n0", 1);
    joining.supply = supply;
    cell.given(Command::JoinNode(joining));
    let node = node(&cell, "n0");
    let mut detector = Detector::default();
    let (mut mono, mut sequence, mut next) = (0, 0, 0);
    let mut beats = 0;
    loop {
        sequence += 1;
        let at = Span::from_millis(mono);
        let stamp = Timestamp(1_000_000_000 + i64::try_from(at.micros()).unwrap());
        let heard = match mono >= next && beats < 60 {
            true => {
                beats += 1;
                next += apart(beats);
                Heard::Beat(node)
            }
            false => Heard::Door,
        };
        detector.hear("a", stamp, sequence, at, &heard);
        let verdicts = detector.verdicts(&cell.state, at);
        if let Some(Command::SuspectNode { silent, .. }) = verdicts.into_iter().map(|v| v.command).next() {
            assert_eq!(beats, 60, "it is doubted while it beats");
            return silent;
        }
        mono += 50;
    }
}

#[test]
fn patience_follows_a_nodes_own_rhythm_and_where_it_stands() {
    let even = suspected_after(|_| 1_000, Supply::Idc);
    assert!(
        even >= Span::from_millis(2_200) && even < Span::from_millis(2_300),
        "{even}"
    );
    // 400 ms early or late, by turns.
    let uneven = |n: u64| if n.is_multiple_of(2) { 600 } else { 1_400 };
    let ragged = suspected_after(uneven, Supply::Idc);
    assert!(
        ragged > Span::from_millis(3_400) && ragged <= Span::from_millis(4_050),
        "{ragged}"
    );
    let wild = |n: u64| if n.is_multiple_of(2) { 100 } else { 1_900 };
    let (cloud, cafe) = (
        suspected_after(wild, Supply::Cloud),
        suspected_after(wild, Supply::Cafe),
    );
    assert!(cloud < Span::from_millis(4_100), "{cloud}");
    assert!(cafe > Span::from_secs(5) && cafe < Span::from_millis(6_100), "{cafe}");
}

/// Doubts and recoveries a node went through, with what came of each.
fn flap(cell: &mut Cell, name: &str, times: usize) {
    let id = node(cell, name);
    for _ in 0..times {
        cell.wait(Span::from_secs(20));
        cell.given(suspect(id));
        cell.wait(Span::from_secs(1));
        cell.given(recover(id));
    }
}

#[test]
fn a_node_that_flaps_gets_no_new_work_for_longer_each_time_and_keeps_what_it_has() {
    use crate::drive::{all_ready, deferral, live, schedule};
    use tidemill_domain::events::placement::Filter;
    use tidemill_tests::make::{apply, spec};

    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 2)));
    cell.given(apply("old", spec(1, 4)));
    schedule(&mut cell);
    all_ready(&mut cell, "old");
    let kept = live(&cell, "old")[0].id;

    flap(&mut cell, "n1", 2);
    let id = node(&cell, "n1");
    assert_eq!(cell.state.nodes[&id].steady_at(), None, "twice is chance");
    let mut waits = vec![];
    for _ in 0..6 {
        flap(&mut cell, "n1", 1);
        let node = &cell.state.nodes[&id];
        waits.push(node.steady_at().unwrap().since(*node.doubts.back().unwrap()));
    }
    let seconds = |s: &[u64]| s.iter().map(|s| Span::from_secs(*s)).collect::<Vec<_>>();
    assert_eq!(waits, seconds(&[30, 60, 120, 240, 480, 600]));

    cell.given(apply("new", spec(1, 4)));
    schedule(&mut cell);
    assert!(live(&cell, "new")[0].node.is_none(), "no new work");
    assert_eq!(live(&cell, "old")[0].id, kept, "what runs there stays");
    let why = deferral(&cell, "new");
    assert!(
        why.filtered.iter().any(|f| f.filter == Filter::NodeUnsteady),
        "{:?}",
        why.filtered
    );
    cell.wait(Span::from_secs(601));
    schedule(&mut cell);
    assert!(live(&cell, "new")[0].node.is_some(), "steady again");
}

#[test]
fn an_operator_may_trust_a_node_that_flapped_at_once() {
    let mut cell = Cell::new();
    cell.given(Command::JoinNode(join("n1", 2)));
    flap(&mut cell, "n1", 4);
    let id = node(&cell, "n1");
    assert!(cell.state.nodes[&id].steady_at().is_some());
    cell.given(Command::UncordonNode {
        node: id,
        reason: "new cable".into(),
    });
    assert_eq!(cell.state.nodes[&id].steady_at(), None);
}
