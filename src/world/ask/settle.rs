//! Requests that may go on after whoever posted them has forgotten them.
//!
//! A mode in which slices exist must not begin before they are carried out: their owners would
//! touch memory that is borrowed. An owner carries out a rank's requests in order, so one more
//! that asks for nothing says when the others are done.

use super::Asks;
use super::wire::{self, EncodedPlaces, Kind, MemoryName};
use crate::error::Result;
use crate::world::Core;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The owners of such requests.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    any: AtomicBool,
    owners: Mutex<BTreeSet<usize>>,
    /// Held by the thread that settles: another has to wait for it.
    settling: Mutex<()>,
}

impl Core {
    /// A request to `owner`, which has been posted, may be forgotten while it is under way.
    pub(crate) fn may_forget(&self, owner: usize) {
        let mut owners = self.forgotten();
        owners.insert(owner);
        self.unsettled.any.store(true, Ordering::Release);
    }

    fn forgotten(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        let owners = self.unsettled.owners.lock();
        owners.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all requests of this rank that may have been forgotten are carried out.
    ///
    /// # Errors
    /// What ended the wait: then they are still to be settled.
    pub(crate) fn settle(self: &Arc<Self>) -> Result<()> {
        if !self.unsettled.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let settling = self.unsettled.settling.lock();
        let _one_at_a_time = settling.unwrap_or_else(PoisonError::into_inner);
        let owners = std::mem::take(&mut *self.forgotten());
        let settled = self.ask_for_nothing(&owners);
        let mut left = self.forgotten();
        if settled.is_err() {
            left.extend(owners);
        }
        self.unsettled
            .any
            .store(!left.is_empty(), Ordering::Release);
        settled
    }

    fn ask_for_nothing(self: &Arc<Self>, owners: &BTreeSet<usize>) -> Result<()> {
        let mut asks = Asks::new(self);
        for &owner in owners {
            let nothing = MemoryName {
                id: 0,
                type_hash: 0,
                size: 1,
            };
            let places = EncodedPlaces::default();
            asks.send(owner, 0, |ticket| {
                wire::encode(ticket, &nothing, Kind::Nothing, &places, &[])
            })?;
        }
        asks.finish()
    }
}
