//! What a rank counts for `ucxrun --stats`, and what it is doing, for `ucxrun --timeout`.

use super::Core;
use crate::wait;
use std::sync::atomic::{AtomicU64, Ordering};
use ucxrun::wire::{self, RankStats, Traffic};

/// Operations of this rank, and bytes that they moved either way, for each rank of the world.
#[derive(Debug)]
pub(crate) struct Stats {
    to: Box<[[AtomicU64; 2]]>,
}

impl Stats {
    /// If the launcher wants it.
    pub(super) fn from_env(ranks: usize) -> Option<Self> {
        std::env::var_os(wire::env::STATS)?;
        wait::count_waits();
        Some(Self {
            to: (0..ranks).map(|_| Default::default()).collect(),
        })
    }

    pub(crate) fn count(&self, world_rank: usize, operations: usize, bytes: usize) {
        let [all, moved] = &self.to[world_rank];
        all.fetch_add(operations as u64, Ordering::Relaxed);
        moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> RankStats {
        let traffic = self.to.iter().zip(0..).map(|([all, moved], rank)| Traffic {
            rank,
            operations: all.load(Ordering::Relaxed),
            bytes: moved.load(Ordering::Relaxed),
        });
        RankStats {
            traffic: traffic.filter(|one| one.operations > 0).collect(),
            waited: wait::waited(),
        }
    }
}

impl Core {
    /// Notes operations on a rank's memory, or messages to it, if anybody wants to know.
    #[inline]
    pub(crate) fn count(&self, rank: usize, operations: usize, bytes: usize) {
        if let Some(stats) = &self.job.stats {
            stats.count(self.peers.world_rank(rank), operations, bytes);
        }
    }

    /// Whether operations are counted.
    pub(crate) fn counts(&self) -> bool {
        self.job.stats.is_some()
    }
}
