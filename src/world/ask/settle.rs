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
use std::sync::{Arc, Mutex, PoisonError};

/// The owners of such requests.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    any: AtomicBool,
    owners: Mutex<BTreeSet<usize>>,
}

impl Core {
    /// A request to `owner` may be forgotten while it is under way.
    pub(crate) fn may_forget(&self, owner: usize) {
        let owners = self.unsettled.owners.lock();
        owners.unwrap_or_else(PoisonError::into_inner).insert(owner);
        self.unsettled.any.store(true, Ordering::Release);
    }

    /// Waits until all requests of this rank that may have been forgotten are carried out.
    pub(crate) fn settle(self: &Arc<Self>) -> Result<()> {
        if !self.unsettled.any.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let owners = self.unsettled.owners.lock();
        let owners = std::mem::take(&mut *owners.unwrap_or_else(PoisonError::into_inner));
        let mut asks = Asks::new(self);
        for owner in owners {
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
        while asks.next()?.is_some() {}
        Ok(())
    }
}
