//! Who is connected, and who has been for too long without reason.
//!
//! Each connection has a [`Seat`] from its accept to the end of the last thing it was used for. A seat knows what the
//! connection is at: sending a request head, idle, or busy with requests. One sweep a second over all seats ends those
//! that take too long, so an idle connection costs no timer of its own.
//!
//! Invariants: at most so many seats are taken in all and by one address; a seat is free again exactly when its last
//! holder is gone; a busy connection is never ended for being slow, except one that takes nothing of its answer.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use http::HeaderValue;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::config::Limits;

/// All connections of clients.
#[derive(Debug)]
pub(crate) struct Roster {
    born: Instant,
    per_address: usize,
    per_loopback: usize,
    header: Duration,
    idle: Duration,
    stall: Duration,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    seats: HashMap<u64, Arc<Activity>>,
    by_address: HashMap<IpAddr, usize>,
}

/// A connection's place.
#[derive(Debug)]
pub(crate) struct Seat {
    roster: Arc<Roster>,
    id: u64,
    peer: SocketAddr,
    /// Made once it is needed.
    peer_text: OnceLock<Option<HeaderValue>>,
    secure: bool,
    pub(crate) activity: Arc<Activity>,
    _permit: OwnedSemaphorePermit,
}

/// Something in progress on a connection, until this is dropped.
#[derive(Debug)]
pub(crate) struct Busy {
    seat: Arc<Seat>,
}

/// Why a connection is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Verdict {
    HeadTooSlow = 1,
    Idle = 2,
    Stalled = 3,
}

const HEAD: u8 = 0;
const IDLE: u8 = 1;
const BUSY: u8 = 2;

/// What a connection is at.
#[derive(Debug)]
pub(crate) struct Activity {
    born: Instant,
    phase: AtomicU8,
    /// Since when, in milliseconds after `born`.
    since_ms: AtomicU64,
    busy: AtomicU32,
    /// Since when the client takes nothing although there is something for it; 0 = it takes.
    stalled_ms: AtomicU64,
    verdict: AtomicU8,
    early: AtomicBool,
    /// Requests share it, so bytes alone do not begin one.
    shared: AtomicBool,
    waker: AtomicWaker,
    /// A shared connection is asked to say goodbye.
    pub(crate) farewell: Notify,
}

impl Roster {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        let unlimited = |n: usize| if n == 0 { usize::MAX } else { n };
        Arc::new(Self {
            born: Instant::now(),
            per_address: unlimited(limits.connections_per_address),
            per_loopback: unlimited(limits.connections_per_loopback),
            header: limits.header_timeout,
            idle: limits.client_idle_timeout,
            stall: limits.client_stall_timeout,
            taken: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat for a connection. `None`: its address has too many already.
    pub(crate) fn seat(self: &Arc<Self>, peer: SocketAddr, secure: bool, permit: OwnedSemaphorePermit) -> Option<Seat> {
        let address = counted_as(peer.ip());
        let limit = if address.is_loopback() {
            self.per_loopback
        } else {
            self.per_address
        };
        let activity = Arc::new(Activity {
            born: self.born,
            phase: AtomicU8::new(HEAD),
            since_ms: AtomicU64::new(self.now_ms()),
            busy: AtomicU32::new(0),
            stalled_ms: AtomicU64::new(0),
            verdict: AtomicU8::new(0),
            early: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            farewell: Notify::new(),
        });
        let mut taken = self.lock();
        let count = taken.by_address.entry(address).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        let id = taken.next;
        taken.next += 1;
        taken.seats.insert(id, Arc::clone(&activity));
        Some(Seat {
            roster: Arc::clone(self),
            id,
            peer,
            peer_text: OnceLock::new(),
            secure,
            activity,
            _permit: permit,
        })
    }

    fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    /// Ends connections that take too long.
    pub(crate) fn sweep(&self) {
        let now = self.now_ms();
        let over = |since: u64, limit: Duration| u128::from(now.saturating_sub(since)) > limit.as_millis();
        for activity in self.lock().seats.values() {
            let since = activity.since_ms.load(Ordering::Acquire);
            let stalled = activity.stalled_ms.load(Ordering::Relaxed);
            match activity.phase.load(Ordering::Acquire) {
                HEAD if over(since, self.header) => activity.end(Verdict::HeadTooSlow),
                IDLE if over(since, self.idle) && activity.shared.load(Ordering::Relaxed) => {
                    activity.enter(HEAD);
                    activity.farewell.notify_one();
                }
                IDLE if over(since, self.idle) => activity.end(Verdict::Idle),
                _ if stalled != 0 && over(stalled, self.stall) => activity.end(Verdict::Stalled),
                _ => {}
            }
        }
    }
}

/// Whose connections are counted together: an IPv4 address, or the /64 that one IPv6 customer has to himself.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        other => other,
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let address = counted_as(self.peer.ip());
        let mut taken = self.roster.lock();
        taken.seats.remove(&self.id);
        if let Some(count) = taken.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&address);
            }
        }
    }
}

impl Seat {
    /// A request begins.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        let activity = &self.activity;
        activity.busy.fetch_add(1, Ordering::AcqRel);
        activity.enter(BUSY);
        Busy { seat: Arc::clone(self) }
    }
}

impl Busy {
    /// The same connection, busy with one thing more.
    pub(crate) fn another(&self) -> Self {
        self.seat.busy()
    }

    /// The client's address as the value of a header field. `None` never occurs: addresses are visible ASCII.
    pub(crate) fn peer(&self) -> Option<HeaderValue> {
        let text = |ip: IpAddr| HeaderValue::from_str(&ip.to_string()).ok();
        self.seat.peer_text.get_or_init(|| text(self.seat.peer.ip())).clone()
    }

    /// Whether the client came by TLS.
    pub(crate) fn secure(&self) -> bool {
        self.seat.secure
    }

    /// The answer comes before the request has ended: at the close, what is still coming is to be read, or the system
    /// would reset the connection and the client might lose the answer.
    pub(crate) fn answers_early(&self) {
        self.seat.activity.early.store(true, Ordering::Relaxed);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let activity = &self.seat.activity;
        if activity.busy.fetch_sub(1, Ordering::AcqRel) == 1 {
            activity.enter(IDLE);
        }
    }
}

impl Activity {
    fn now_ms(&self) -> u64 {
        self.born.elapsed().as_millis() as u64
    }

    fn enter(&self, phase: u8) {
        self.since_ms.store(self.now_ms(), Ordering::Release);
        self.phase.store(phase, Ordering::Release);
    }

    /// Bytes came in.
    pub(crate) fn heard(&self) {
        if self.phase.load(Ordering::Relaxed) == IDLE && !self.shared.load(Ordering::Relaxed) {
            self.enter(HEAD);
        }
    }

    /// It speaks HTTP/2.
    pub(crate) fn is_shared(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// The client takes nothing.
    pub(crate) fn stalls(&self) {
        if self.stalled_ms.load(Ordering::Relaxed) == 0 {
            self.stalled_ms.store(self.now_ms().max(1), Ordering::Relaxed);
        }
    }

    /// The client took something.
    pub(crate) fn takes(&self) {
        if self.stalled_ms.load(Ordering::Relaxed) != 0 {
            self.stalled_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Whether bytes may still come that nobody reads: of a body, or of a head that was refused.
    pub(crate) fn leaves_unread(&self) -> bool {
        self.early.load(Ordering::Relaxed) || self.phase.load(Ordering::Relaxed) == HEAD
    }

    fn end(&self, verdict: Verdict) {
        self.verdict.store(verdict as u8, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the connection is to end, now or, if not yet, with a wake-up when it is.
    pub(crate) fn verdict(&self, waker: &Waker) -> Option<Verdict> {
        self.waker.register(waker);
        match self.verdict.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Verdict::HeadTooSlow),
            2 => Some(Verdict::Idle),
            _ => Some(Verdict::Stalled),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::sync::Semaphore;

    fn permit() -> OwnedSemaphorePermit {
        Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap()
    }

    #[test]
    fn an_address_has_so_many_seats_and_a_freed_one_again() {
        let roster = Roster::new(&Limits {
            connections_per_address: 2,
            ..Limits::default()
        });
        let seat = |peer: &str| roster.seat(peer.parse().unwrap(), false, permit());
        let (a, b) = (seat("192.0.2.1:1").unwrap(), seat("192.0.2.1:2").unwrap());
        assert!(seat("192.0.2.1:3").is_none());
        assert!(seat("[::ffff:192.0.2.1]:3").is_none(), "the same address");
        let other = seat("192.0.2.2:1").unwrap();
        drop(a);
        let again = seat("192.0.2.1:3").unwrap();
        // One customer's /64.
        let six = [seat("[2001:db8::1]:1").unwrap(), seat("[2001:db8::2]:1").unwrap()];
        assert!(seat("[2001:db8::3]:1").is_none());
        // A connection that is over lives on in what it changed to.
        let b = Arc::new(b);
        let busy = b.busy();
        drop(b);
        assert!(seat("192.0.2.1:4").is_none());
        drop((busy, again, other, six));
        let taken = roster.lock();
        assert!(taken.seats.is_empty() && taken.by_address.is_empty());
    }

    #[test]
    fn only_what_takes_too_long_is_ended() {
        let roster = Roster::new(&Limits {
            header_timeout: Duration::ZERO,
            ..Limits::default()
        });
        let waker = futures::task::noop_waker();
        let seat = Arc::new(roster.seat("192.0.2.1:1".parse().unwrap(), false, permit()).unwrap());
        let busy = seat.busy();
        let passed = |ms: u64| {
            let before = roster.now_ms();
            while roster.now_ms() < before + ms {
                std::thread::yield_now();
            }
        };
        passed(2);
        roster.sweep();
        assert_eq!(seat.activity.verdict(&waker), None, "a slow answer is no slow head");
        drop(busy);
        passed(2);
        roster.sweep();
        assert_eq!(seat.activity.verdict(&waker), None, "idle is not slow");
        seat.activity.heard();
        passed(2);
        roster.sweep();
        assert_eq!(seat.activity.verdict(&waker), Some(Verdict::HeadTooSlow));
    }
}
