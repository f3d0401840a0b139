//! Memory of dropped arrays, kept until every rank has dropped its side.
//!
//! Dropping an array is not collective: a peer may still use its key. So the memory stays mapped,
//! each rank tells the others at the next creation of an array what it has dropped, and what all
//! have dropped is unmapped then, by all in the same meeting.

#![expect(unsafe_code, reason = "asserts that no rank uses a key any more")]

use super::ask::Served;
use super::pool::{Part, Pool};
use crate::ucx::MemoryHandle;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Most numbers told in one meeting; the rest waits for the next.
const MOST: usize = 1024;

#[derive(Debug)]
pub(crate) struct Graves {
    state: Mutex<State>,
    /// Where peers' requests find the memory, as long as it is mapped.
    served: Option<Arc<Served>>,
    pool: Arc<Pool>,
}

/// What an array leaves behind.
#[derive(Debug)]
pub(crate) enum Grave {
    /// Memory of its own.
    Memory(MemoryHandle),
    /// A part of the pool.
    Part(Part),
}

#[derive(Debug, Default)]
struct State {
    /// Dropped here, not yet told.
    untold: Vec<u64>,
    memory: HashMap<u64, Grave>,
    /// How many ranks have told that they dropped it.
    told: HashMap<u64, usize>,
}

impl Graves {
    pub(super) fn new(served: Option<Arc<Served>>, pool: Arc<Pool>) -> Self {
        Self {
            state: Mutex::default(),
            served,
            pool,
        }
    }

    /// Keeps the memory of array `id`, which this rank has dropped.
    pub(crate) fn bury(&self, id: u64, memory: Grave) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.untold.push(id);
        state.memory.insert(id, memory);
    }

    /// What to tell the other ranks.
    pub(crate) fn news(&self) -> Vec<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = state.untold.len().min(MOST);
        state.untold.drain(..count).collect()
    }

    /// Takes back what [`Graves::news`] gave and the others did not hear.
    pub(crate) fn not_told(&self, mut news: Vec<u64>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.untold.append(&mut news);
    }

    /// What one of `ranks` ranks has told, this one included.
    pub(crate) fn hear(&self, news: &[u64], ranks: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for &id in news {
            let told = state.told.entry(id).or_default();
            *told += 1;
            if *told == ranks {
                state.told.remove(&id);
                if let Some(memory) = state.memory.remove(&id) {
                    self.unmap(id, memory);
                }
            }
        }
    }
}

impl Graves {
    /// Gives up the memory of array `id`, which every rank has closed or dropped. In the same
    /// order on all ranks.
    pub(crate) fn unmap(&self, id: u64, grave: Grave) {
        if let Some(served) = &self.served {
            served.remove(id);
        }
        match grave {
            Grave::Memory(memory) => unmap(memory),
            Grave::Part(part) => self.pool.give_back(part),
        }
    }
}

/// Unmaps the memory of an array that every rank has closed or dropped, and with it its keys,
/// after a flush of what it had written through them.
pub(crate) fn unmap(memory: MemoryHandle) {
    // SAFETY: every rank has said so in a collective, which flushes first; a key that was dropped
    // cannot be used, and serialized keys of arrays are given to no user.
    unsafe { memory.forget_packed_keys() };
    drop(memory);
}
