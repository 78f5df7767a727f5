//! Growing pauses between tries.

use std::time::Duration;

/// First pause.
const FIRST: Duration = Duration::from_millis(50);

/// Longest pause: short enough that whoever waits for the store notices its return within a couple of seconds.
const LONGEST: Duration = Duration::from_secs(2);

/// Doubles from 50 ms to 2 s; starts over once something worked.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { next: FIRST }
    }

    pub(crate) fn reset(&mut self) {
        self.next = FIRST;
    }

    pub(crate) async fn pause(&mut self) {
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        tokio::time::sleep(pause).await;
    }
}
