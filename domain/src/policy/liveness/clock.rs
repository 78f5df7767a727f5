//! Door clocks, and who was heard when on them.

use std::collections::BTreeMap;

use crate::time::{Span, Timestamp};

/// Time between two beats of a sender.
pub const BEAT: Span = Span::from_secs(1);
/// A door from which nothing came for longer than this was away: that time does not count. It beats once a second.
pub const DOOR_GAP: Span = Span::from_secs(3);
/// What a door's senders get to come back after the door was away, before their silence begins to count. Agents and
/// gateways wait at most 5 s between two tries to connect.
pub const RETURN_GRACE: Span = Span::from_secs(15);
/// A door that was not heard for this long on the detector's own clock is given up: its senders should have found
/// another one.
pub const DOOR_LOST: Span = Span::from_secs(15);

/// One door's clock.
#[derive(Debug, Clone)]
struct Door {
    /// Time in which it was heard.
    heard: Span,
    /// Its latest stamp.
    stamp: Timestamp,
    /// Number of its present stay, from its coming to its being away; never the number of another stay of any door.
    stay: u64,
    /// Where `heard` stood when it came last.
    returned: Span,
    /// Where `heard` stood when something between may have been missed last: an end in order and a return are not that.
    covered_from: Span,
    /// It said that it ends.
    stopping: bool,
    /// When its last observation was handed over, on the detector's clock.
    at: Span,
    /// Sequence of its last observation.
    sequence: u64,
}

/// The clocks of all doors.
#[derive(Debug, Clone, Default)]
pub struct Doors {
    doors: BTreeMap<String, Door>,
    stays: u64,
}

impl Doors {
    /// An observation stamped `stamp` by `door` was handed over at `at` on the detector's monotonic clock.
    pub fn heard(&mut self, door: &str, stamp: Timestamp, sequence: u64, at: Span) {
        let Some(entry) = self.doors.get_mut(door) else {
            self.stays += 1;
            let fresh = Door {
                heard: Span::ZERO,
                stamp,
                stay: self.stays,
                returned: Span::ZERO,
                covered_from: Span::ZERO,
                stopping: false,
                at,
                sequence,
            };
            self.doors.insert(door.to_owned(), fresh);
            return;
        };
        let step = stamp.since(entry.stamp);
        // A stamp far behind the last one is a clock set back, or another process under the same name.
        let set_back = entry.stamp.since(stamp) > DOOR_GAP;
        if step > DOOR_GAP || set_back || entry.stopping {
            self.stays += 1;
            entry.stay = self.stays;
            entry.returned = entry.heard;
            if !entry.stopping {
                entry.covered_from = entry.heard;
            }
            entry.stopping = false;
            entry.stamp = stamp;
        } else {
            entry.heard = add(entry.heard, step);
            entry.stamp = entry.stamp.max(stamp);
        }
        entry.at = at;
        entry.sequence = entry.sequence.max(sequence);
    }

    /// The door said that it ends: its clock stands until it is heard again, and then its senders get the grace anew.
    pub fn stopping(&mut self, door: &str) {
        if let Some(door) = self.doors.get_mut(door) {
            door.stopping = true;
        }
    }

    /// Observations are missing: nothing is known about the time in between.
    pub fn interrupted(&mut self) {
        for door in self.doors.values_mut() {
            self.stays += 1;
            door.stay = self.stays;
            door.returned = door.heard;
            door.covered_from = door.heard;
        }
    }

    /// A door that is heard now, the first by name.
    fn live(&self, now: Span) -> Option<&str> {
        let mut doors = self.doors.iter();
        doors.find(|(_, d)| d.is_live(now)).map(|(name, _)| name.as_str())
    }

    /// The longest time for which any door has been heard without being away: how far knowledge of senders reaches back.
    pub fn watched(&self) -> Span {
        let spans = self.doors.values().map(|d| minus(d.heard, d.returned));
        spans.max().unwrap_or(Span::ZERO)
    }

    /// The longest time for which all that was heard at any door is known, over ends in order and returns: a door that
    /// does not run hears nobody, and lets nobody in.
    pub fn covered(&self) -> Span {
        let spans = self.doors.values().map(|d| minus(d.heard, d.covered_from));
        spans.max().unwrap_or(Span::ZERO)
    }

    /// Forgets doors that have been gone for an hour. Their senders are moved to others as their silence is asked for.
    pub fn tidy(&mut self, now: Span) {
        const FORGOTTEN: Span = Span::from_secs(3600);
        self.doors.retain(|_, d| minus(now, d.at) < FORGOTTEN);
    }
}

impl Door {
    fn is_live(&self, now: Span) -> bool {
        !self.stopping && minus(now, self.at) <= DOOR_LOST
    }
}

/// Where and when a sender was last heard.
#[derive(Debug, Clone)]
struct Mark {
    door: String,
    stay: u64,
    /// The door's clock then, or later where a grace was given.
    heard: Span,
    /// It was not heard there: this is when its grace ends.
    presumed: bool,
    /// Sequence of the observation.
    sequence: u64,
    rhythm: Rhythm,
}

/// How evenly a sender is heard at one door.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rhythm {
    /// How far the time between two beats is off the beat, on the average of the last dozen or so.
    pub off_beat: Span,
    /// Beats that went into it.
    pub beats: u32,
}

/// Weight of the newest in the average: one in eight, as TCP weighs round trips (RFC 6298).
const NEWEST: u64 = 8;

impl Rhythm {
    fn take(&mut self, gap: Span, beat: Span) {
        let off = gap.micros().abs_diff(beat.micros());
        let mean = self.off_beat.micros();
        self.off_beat = Span::from_micros((mean * (NEWEST - 1) + off) / NEWEST);
        self.beats = self.beats.saturating_add(1);
    }
}

/// How long a sender has been silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// On its door's clock; zero within a grace.
    pub span: Span,
    /// It has not been heard since its door came back, or not at all yet: a short silence is no sign of life.
    pub presumed: bool,
    /// The observations that say so: its last, and its door's last.
    pub observations: (u64, u64),
}

/// When each of many senders was last heard, on its door's clock.
#[derive(Debug, Clone)]
pub struct Presence<K> {
    marks: BTreeMap<K, Mark>,
}

impl<K> Default for Presence<K> {
    fn default() -> Self {
        Self { marks: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Presence<K> {
    /// `who` was heard at `door`, whose clock has been moved to that time before.
    pub fn heard(&mut self, doors: &Doors, who: K, door: &str, sequence: u64) {
        let Some(clock) = doors.doors.get(door) else {
            return;
        };
        if let Some(mark) = self.marks.get_mut(&who)
            && mark.door == door
        {
            if mark.stay == clock.stay && !mark.presumed {
                mark.rhythm.take(minus(clock.heard, mark.heard), BEAT);
            }
            mark.stay = clock.stay;
            mark.heard = clock.heard;
            mark.presumed = false;
            mark.sequence = sequence;
            return;
        }
        let mark = Mark {
            door: door.to_owned(),
            stay: clock.stay,
            heard: clock.heard,
            presumed: false,
            sequence,
            rhythm: Rhythm::default(),
        };
        self.marks.insert(who, mark);
    }

    /// How long `who` has been silent; `None` while no door is heard that could tell. `who` need not ever have been
    /// heard: then the first door that is should hear it.
    pub fn silence(&mut self, doors: &Doors, who: &K, now: Span) -> Option<Silence> {
        let stale = match self.marks.get(who).map(|mark| doors.doors.get(&mark.door)) {
            Some(Some(door)) => !door.is_live(now),
            Some(None) | None => true,
        };
        if stale {
            // Its door is gone, or it was never heard here: from now on another door should hear it.
            let name = doors.live(now)?;
            let door = doors.doors.get(name)?;
            let mark = Mark {
                door: name.to_owned(),
                stay: door.stay,
                heard: add(door.heard, RETURN_GRACE),
                presumed: true,
                sequence: door.sequence,
                rhythm: Rhythm::default(),
            };
            self.marks.insert(who.clone(), mark);
        }
        let mark = self.marks.get(who)?;
        let door = doors.doors.get(&mark.door)?;
        let same_stay = mark.stay == door.stay;
        let since = if same_stay {
            mark.heard
        } else {
            add(door.returned, RETURN_GRACE)
        };
        Some(Silence {
            span: minus(door.heard, since),
            presumed: mark.presumed || !same_stay,
            observations: (mark.sequence, door.sequence.max(mark.sequence)),
        })
    }

    /// How evenly `who` is heard.
    pub fn rhythm(&self, who: &K) -> Rhythm {
        self.marks.get(who).map(|mark| mark.rhythm).unwrap_or_default()
    }

    /// Everyone that was heard and not forgotten.
    pub fn known(&self) -> impl Iterator<Item = &K> {
        self.marks.keys()
    }

    /// Forgets all but those for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&K) -> bool) {
        self.marks.retain(|who, _| keep(who));
    }

    /// Forgets one.
    pub fn forget(&mut self, who: &K) {
        self.marks.remove(who);
    }
}

fn add(a: Span, b: Span) -> Span {
    Span::from_micros(a.micros().saturating_add(b.micros()))
}

fn minus(a: Span, b: Span) -> Span {
    Span::from_micros(a.micros().saturating_sub(b.micros()))
}
