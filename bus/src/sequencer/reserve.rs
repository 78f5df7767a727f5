//! Refusing commands before the disk does: the reserve.
//!
//! A ledger that fails for want of space fails in the middle of something. So the leader looks at the free space of its
//! data disk and at the room under the ledger's size limit, and stops taking commands while either is below its reserve.
//! It goes on by itself when there is room again, and nothing of its state is lost meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::trouble::Trouble;
use crate::disk;
use crate::ledger::Ledger;

/// Pause between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// Share of the ledger's size limit that is kept free, and its largest size.
const LEDGER_RESERVE_SHARE: u64 = 50;
const LEDGER_RESERVE_MOST: u64 = 64 << 20;

/// Free space that must remain on the data disk.
#[derive(Clone)]
pub struct DiskReserve {
    available: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
    bytes: u64,
}

impl DiskReserve {
    /// Keeps [`disk::DISK_RESERVE_BYTES`] free on the file system that holds `path`.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let path = path.to_owned();
        let available = move || disk::space(&path).ok().map(|space| space.available_bytes);
        Self::probing(available, disk::DISK_RESERVE_BYTES)
    }

    /// Keeps `bytes` free of what `available` says; `None` from it means unknown, and nothing is refused.
    pub fn probing(available: impl Fn() -> Option<u64> + Send + Sync + 'static, bytes: u64) -> Self {
        Self {
            available: Arc::new(available),
            bytes,
        }
    }
}

impl std::fmt::Debug for DiskReserve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskReserve")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Looks once a second.
pub(super) struct Watch {
    disk: Option<DiskReserve>,
    next: Instant,
    low: Option<Trouble>,
}

impl Watch {
    pub(super) fn new(disk: Option<DiskReserve>) -> Self {
        Self {
            disk,
            next: Instant::now(),
            low: None,
        }
    }

    /// What is too low, as of a look not older than a second.
    pub(super) async fn low(&mut self, ledger: &dyn Ledger) -> Option<&Trouble> {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + EVERY;
            self.low = self.look(ledger).await;
        }
        self.low.as_ref()
    }

    /// When the next look is due.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    async fn look(&self, ledger: &dyn Ledger) -> Option<Trouble> {
        if let Some(disk) = &self.disk
            && let Some(available) = (disk.available)()
            && available < disk.bytes
        {
            return Some(Trouble::disk_reserve(available, disk.bytes));
        }
        // An unreachable store is met, and named, by the append.
        let tail = ledger.tail().await.ok()?;
        let capacity = tail.capacity?;
        let reserve = (capacity / LEDGER_RESERVE_SHARE).min(LEDGER_RESERVE_MOST);
        (tail.bytes_used + reserve >= capacity).then(|| Trouble::ledger_nearly_full(tail.bytes_used, capacity))
    }
}
