//! `Window`: my registered shard, and for each rank the key to its.
//!
//! One level below the array: offsets in a rank's shard, no global indices.

use crate::atomic::{AtomicElement, AtomicOp};
use crate::element::{Element, from_bits};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{MemoryHandle, RemoteKey, Request, SerializedRemoteKey};
use crate::world::{Asks, Call, Core, MemoryName, Places, Signature, Work, decode, encode};
use serde::{Deserialize, Serialize};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Memory of all ranks that was allocated together.
///
/// Memory is named by a number that is the same on all ranks. When a window is dropped its own
/// memory goes to the world's graves, where it stays mapped until all ranks have dropped it.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) id: u64,
    /// Taken when dropped or closed.
    memory: Option<MemoryHandle>,
    /// Own memory's address; null for an empty shard.
    base: *mut u8,
    /// By rank, unpacked at first use. Before `core`: keys go before their endpoints.
    keys: Vec<OnceLock<RemoteKey>>,
    packed: Vec<SerializedRemoteKey>,
    core: Arc<Core>,
}

// SAFETY: `base` points to memory that `memory` holds and that is accessed as shared memory.
#[expect(unsafe_code, reason = "a raw pointer to shared memory")]
unsafe impl Send for Window {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a raw pointer to shared memory")]
unsafe impl Sync for Window {}

/// What is to be allocated: the same on all ranks.
pub(crate) struct Memory<'a> {
    /// Elements of the array, and a number that tells its layout, for ranks that disagree.
    pub(crate) len: usize,
    pub(crate) layout: u64,
    /// Elements of each rank's memory.
    pub(crate) counts: &'a dyn Fn(usize) -> usize,
}

/// What a rank says before memory is mapped.
#[derive(Serialize, Deserialize)]
struct Proposal {
    room: Result<(), String>,
    /// Arrays it has dropped.
    news: Vec<u64>,
}

impl Window {
    /// Allocates elements of zero bytes on each rank. Collective.
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] on all ranks if one has too little room, naming what is wanted and
    /// what is free; else as a barrier.
    #[expect(unsafe_code, reason = "says that the memory is what peers are told")]
    pub(crate) fn allocate<T: Element>(core: &Arc<Core>, what: &Memory<'_>) -> Result<Self> {
        let (len, count_of) = (what.len, what.counts);
        let signature = |step: u32| {
            let mut signature = Signature::new(Call::NewArray).count(len).element::<T>();
            // The step of two, and as much of the layout as there is place for.
            signature.detail = (what.layout as u32) << 1 | step;
            signature
        };
        let _turn = core.turn()?;
        // Before anything is mapped: is there room on every node? And what can be unmapped?
        let mut room = room_for::<T>(core, count_of);
        let mut news = core.graves().news();
        loop {
            let mine = Proposal { room, news };
            let proposals: Vec<Proposal> = core
                .gather(&signature(0), &mine)
                .inspect_err(|_| core.graves().not_told(mine.news))?;
            for proposal in &proposals {
                core.graves().hear(&proposal.news, core.size);
            }
            match first_refusal(proposals.iter().map(|proposal| &proposal.room)) {
                None => break,
                Some((rank, reason)) => {
                    // What was just unmapped may have made room: once more, if there was any.
                    if proposals.iter().all(|proposal| proposal.news.is_empty()) {
                        return Err(no_room(len, rank, &reason));
                    }
                    room = room_for::<T>(core, count_of);
                    news = core.graves().news();
                }
            }
        }

        let id = core.next_array();
        let made = map::<T>(core, count_of(core.rank));
        if let Ok((memory, _)) = &made {
            // Before any peer knows of it.
            // SAFETY: registered, of that many elements, and shared memory; whoever unmaps it
            // stops serving it first.
            unsafe { core.serve_memory::<T>(id, memory.as_ptr(), count_of(core.rank)) };
        }
        let answer = match &made {
            Ok((_, key)) => Ok(key.clone()),
            Err(error) => Err(error.to_string()),
        };
        let answers: Vec<Result<SerializedRemoteKey, String>> =
            core.gather(&signature(1), &answer)?;
        let mut packed = Vec::with_capacity(core.size);
        for (rank, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(key) => packed.push(key),
                Err(reason) => {
                    if let Ok((memory, _)) = made {
                        // Refused by all ranks alike: nobody will use its key.
                        core.stop_serving(id);
                        crate::world::unmap(memory);
                    }
                    return Err(no_room(len, rank, &reason));
                }
            }
        }
        let (memory, _) = made?;
        Ok(Self {
            id,
            base: memory.as_ptr(),
            memory: Some(memory),
            keys: packed.iter().map(|_| OnceLock::new()).collect(),
            packed,
            core: core.clone(),
        })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Own shard's address; null if it is empty.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Where `rank`'s shard is mapped in this process, if it is: own and same-node shards.
    pub(crate) fn mapped(&self, rank: usize) -> Result<Option<NonNull<u8>>> {
        if rank == self.core.rank {
            return Ok(NonNull::new(self.base));
        }
        Ok(self.key(rank)?.as_ptr())
    }

    /// The key to `rank`'s shard.
    fn key(&self, rank: usize) -> Result<&RemoteKey> {
        if let Some(key) = self.keys[rank].get() {
            return Ok(key);
        }
        // A dead rank's memory may be gone, and UCX 1.13 crashes when it cannot map it.
        self.core.check()?;
        let key = self
            .core
            .peers()
            .for_memory(rank)?
            .unpack(&self.packed[rank])?;
        // Another thread may have been faster; its key is as good.
        Ok(self.keys[rank].get_or_init(|| key))
    }

    pub(crate) fn get<T: Element>(&self, rank: usize, offset: usize) -> Result<T> {
        self.core.check()?;
        self.key(rank)?.get(offset)
    }

    pub(crate) fn get_range<T: Element>(
        &self,
        rank: usize,
        offset: usize,
        count: usize,
    ) -> Result<Vec<T>> {
        self.core.check()?;
        self.key(rank)?.get_range(offset, count)
    }

    pub(crate) fn get_nb<T: Element>(
        &self,
        rank: usize,
        offset: usize,
        count: usize,
    ) -> Result<Request<T>> {
        self.core.check()?;
        self.key(rank)?.get_nb(offset, count)
    }

    pub(crate) fn put<T: Element>(&self, rank: usize, offset: usize, value: T) -> Result<()> {
        self.core.check()?;
        self.key(rank)?.put(offset, value)
    }

    pub(crate) fn put_range<T: Element>(
        &self,
        rank: usize,
        offset: usize,
        from: &[T],
    ) -> Result<()> {
        self.core.check()?;
        self.key(rank)?.put_range(offset, from)
    }

    /// An atomic operation on memory that is not mapped: UCX's, or a request where it has none.
    pub(crate) fn fetch_op<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        offset: usize,
        value: T,
    ) -> Result<T> {
        self.core.check()?;
        if T::CLASS.has_natively(op) {
            return self.key(rank)?.fetch_op(op, offset, value);
        }
        self.ask_for_one(rank, offset, Work::Fetch(op, bytemuck::bytes_of(&value)))
    }

    /// The element at `offset`, atomically.
    pub(crate) fn load<T: AtomicElement>(&self, rank: usize, offset: usize) -> Result<T> {
        self.core.check()?;
        self.ask_for_one(rank, offset, Work::Load)
    }

    /// As [`Window::fetch_op`].
    pub(crate) fn compare_exchange<T: AtomicElement>(
        &self,
        rank: usize,
        offset: usize,
        current: T,
        new: T,
    ) -> Result<T> {
        self.core.check()?;
        if T::CLASS.is_native() {
            return self.key(rank)?.exchange(offset, current, new);
        }
        let values = [current, new];
        let work = Work::CompareExchange(bytemuck::cast_slice(&values));
        self.ask_for_one(rank, offset, work)
    }

    /// What `rank` answers to `work` on the element at `offset`.
    fn ask_for_one<T: Element>(&self, rank: usize, offset: usize, work: Work<'_>) -> Result<T> {
        let mut asks = Asks::new(&self.core);
        let places = [offset as u64];
        asks.post(rank, &self.name::<T>(), Places::Offsets(&places), work, 0)?;
        let answer = asks.next()?;
        let bits = answer
            .and_then(|answer| bytemuck::try_pod_read_unaligned::<T::Bits>(&answer.values).ok());
        from_bits(bits.ok_or_else(|| Error::new(ErrorKind::Ucx, "an empty answer"))?)
    }

    /// How requests name this memory.
    pub(crate) fn name<T: Element>(&self) -> MemoryName {
        MemoryName::new::<T>(self.id)
    }

    /// Unmaps on all ranks. Collective.
    pub(crate) fn close(mut self) -> Result<()> {
        let signature = Signature::new(Call::CloseArray).count(index(self.id));
        self.core.barrier(&signature)?;
        // All ranks have come here, and the barrier has flushed: no key is used any more.
        self.keys.clear();
        if let Some(memory) = self.memory.take() {
            self.core.stop_serving(self.id);
            crate::world::unmap(memory);
        }
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.core.graves().bury(self.id, memory);
        }
    }
}

impl Core {
    /// All ranks' `item`, by rank. Collective.
    fn gather<T: Serialize + serde::de::DeserializeOwned>(
        &self,
        signature: &Signature,
        item: &T,
    ) -> Result<Vec<T>> {
        self.gather_blobs(signature, &encode(item)?)?
            .iter()
            .map(|blob| decode(blob))
            .collect()
    }
}

/// An array's number as a signature's count.
pub(crate) fn index(id: u64) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

fn room_for<T: Element>(core: &Core, count_of: &dyn Fn(usize) -> usize) -> Result<(), String> {
    let bytes_of = |rank| (count_of(rank) as u64).saturating_mul(size_of::<T>() as u64);
    let here = core.neighbours().iter().map(|&rank| bytes_of(rank));
    let largest = here.clone().max().unwrap_or(0);
    let machine = here.fold(0, u64::saturating_add);
    core.check_room(machine, largest, bytes_of(core.rank))
}

/// Maps this rank's shard and checks that peers on this node can map it too.
fn map<T: Element>(core: &Core, count: usize) -> Result<(MemoryHandle, SerializedRemoteKey)> {
    let memory = MemoryHandle::allocate::<T>(core.context(), count)?;
    let key = memory.pack()?;
    if core.shares_memory() && count > 0 {
        // UCX falls back to private memory in silence when shared memory is short.
        let seen_by_peers = core.peers().for_memory(core.rank)?.unpack(&key)?;
        if seen_by_peers.as_ptr().is_none() {
            let error = Error::new(
                ErrorKind::NoRoom,
                format!(
                    "UCX gave {} bytes of private memory instead of shared memory: {}",
                    memory.len(),
                    core.shm_text()
                ),
            );
            drop(seen_by_peers);
            crate::world::unmap(memory); // No key has left this rank.
            return Err(error);
        }
    }
    Ok((memory, key))
}

fn first_refusal<'a>(
    answers: impl Iterator<Item = &'a Result<(), String>>,
) -> Option<(usize, String)> {
    answers
        .enumerate()
        .find_map(|(rank, answer)| Some((rank, answer.as_ref().err()?.clone())))
}

#[cold]
fn no_room(len: usize, rank: usize, reason: &str) -> Error {
    Error::new(
        ErrorKind::NoRoom,
        format!("an array of {len} elements: rank {rank}: {reason}"),
    )
    .with_peer(rank)
}
