//! Memory of dropped arrays, kept until every rank has dropped its side.
//!
//! Dropping an array is not collective: a peer may still use its key. So the memory stays mapped,
//! each rank tells the others at the next creation of an array what it has dropped, and what all
//! have dropped is unmapped then, by all in the same meeting.

#![expect(unsafe_code, reason = "asserts that no rank uses a key any more")]

use super::ask::Served;
use super::numbers::Numbers;
use super::pool::{Part, Pool};
use crate::ucx::MemoryHandle;
use serde::{Deserialize, Serialize};
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
    /// Those of teams that nothing is left of may be used again.
    numbers: Arc<Numbers>,
}

/// What an array leaves behind.
#[derive(Debug)]
pub(crate) enum Grave {
    /// Memory of its own.
    Memory(MemoryHandle),
    /// A part of the pool.
    Part(Part),
    /// What a team leaves.
    Team(Remains),
}

/// What a team leaves, and teams that were made of it.
#[derive(Debug, Default)]
pub(crate) struct Remains {
    pub(super) memory: Vec<MemoryHandle>,
    /// The numbers under which some of it is served.
    pub(super) served: Vec<u64>,
    /// The teams' own numbers.
    pub(super) teams: Vec<u32>,
    /// Messages that this rank has sent as one of them, less those it has received.
    pub(super) open: i64,
}

/// What a rank tells that it has dropped.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Dropped {
    id: u64,
    /// How many ranks have to tell it before nobody can use it any more.
    ranks: u32,
    /// As in [`Remains`]; 0 for an array.
    open: i64,
}

pub(crate) type News = Vec<Dropped>;

#[derive(Debug, Default)]
struct State {
    /// Dropped here, not yet told.
    untold: News,
    memory: HashMap<u64, Grave>,
    /// How many ranks have told that they dropped it, and how many messages are open.
    told: HashMap<u64, (u32, i64)>,
}

impl Graves {
    pub(super) fn new(served: Option<Arc<Served>>, pool: Arc<Pool>, numbers: Arc<Numbers>) -> Self {
        Self {
            state: Mutex::default(),
            served,
            pool,
            numbers,
        }
    }

    /// Keeps the memory of `id`, which this rank has dropped, until so many ranks have.
    pub(crate) fn bury(&self, id: u64, ranks: usize, memory: Grave) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match &memory {
            Grave::Team(remains) => remains.open,
            Grave::Memory(_) | Grave::Part(_) => 0,
        };
        // No job has more ranks.
        let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
        state.untold.push(Dropped { id, ranks, open });
        state.memory.insert(id, memory);
    }

    /// What to tell the other ranks.
    pub(crate) fn news(&self) -> News {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = state.untold.len().min(MOST);
        state.untold.drain(..count).collect()
    }

    /// Takes back what [`Graves::news`] gave and the others did not hear.
    pub(crate) fn not_told(&self, mut news: News) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.untold.append(&mut news);
    }

    /// What one rank has told, maybe this one.
    pub(crate) fn hear(&self, news: &[Dropped]) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for &Dropped { id, ranks, open } in news {
            let (told, all_open) = state.told.entry(id).or_default();
            *told += 1;
            *all_open += open;
            if *told < ranks {
                continue;
            }
            let all_received = *all_open == 0;
            state.told.remove(&id);
            let Some(memory) = state.memory.remove(&id) else {
                continue;
            };
            if let Grave::Team(remains) = &memory
                && all_received
            {
                self.numbers.free(&remains.teams);
            }
            self.unmap(id, memory);
        }
    }

    /// What is left of a team that goes: its arrays that not all ranks had dropped, and what its
    /// pool had.
    pub(super) fn of_team(&self) -> Remains {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut remains = Remains {
            memory: self.pool.take_all(),
            ..Remains::default()
        };
        for (id, grave) in state.memory.drain() {
            remains.served.push(id);
            match grave {
                Grave::Memory(memory) => remains.memory.push(memory),
                Grave::Part(_) => {}
                Grave::Team(more) => {
                    remains.memory.extend(more.memory);
                    remains.served.extend(more.served);
                    remains.teams.extend(more.teams);
                    remains.open += more.open;
                }
            }
        }
        remains
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
            Grave::Team(remains) => {
                if let Some(served) = &self.served {
                    remains.served.into_iter().for_each(|id| served.remove(id));
                }
                remains.memory.into_iter().for_each(unmap);
            }
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
