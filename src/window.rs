//! `Window`: this rank's shard, and for each rank the key to its.
//!
//! One level below the array: offsets in a rank's memory, no global indices. A window is a segment
//! of its own, or, if it is small, a part of one that many share.

use crate::atomic::{AtomicElement, AtomicOp};
use crate::element::{Element, from_bits};
use crate::error::{Error, ErrorKind, Result};
use crate::ucx::{PutTicket, RemoteKey, Request};
use crate::world::{
    Asks, Call, Core, Grave, Memory, MemoryName, Part, Places, SLAB, SMALL, Segment, Signature,
    Work, meet,
};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

/// Memory of all ranks for one array.
///
/// It is named by a number that is the same on all ranks. When a window is dropped its own memory
/// goes to the world's graves, where it stays mapped until all ranks have dropped it.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) id: u64,
    /// Own memory's address; null for an empty shard.
    base: *mut u8,
    /// By rank, made at first use. Before `core`: keys go before their endpoints.
    ///
    /// In a box: with a cell of its own an array could change behind a shared reference, for all
    /// that the compiler knows, and each get would load the array's fields again.
    keys: Box<OnceLock<Box<[OnceLock<RemoteKey>]>>>,
    segment: Arc<Segment>,
    /// What of the segment, if not all.
    part: Option<Part>,
    /// Whether the memory has been given up.
    closed: bool,
    core: Arc<Core>,
}

// SAFETY: `base` points to memory that `segment` holds and that is accessed as shared memory.
#[expect(unsafe_code, reason = "a raw pointer to shared memory")]
unsafe impl Send for Window {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a raw pointer to shared memory")]
unsafe impl Sync for Window {}

impl Window {
    /// Allocates elements of zero bytes on each rank; `largest` is the most that a rank has, if
    /// that is easily known. Collective.
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] on all ranks if one has too little room, naming what is wanted and
    /// what is free; else as a barrier.
    #[track_caller]
    pub(crate) fn allocate<T: Element>(
        core: &Arc<Core>,
        what: &Memory<'_>,
        largest: Option<usize>,
    ) -> Result<Self> {
        let _turn = core.turn()?;
        let bytes = largest.and_then(|count| count.checked_mul(size_of::<T>()));
        let small = bytes.filter(|bytes| (1..=SMALL).contains(bytes) && align_of::<T>() <= 64);
        meet::<T>(core, what, small.is_none())?;
        let id = core.next_array();
        if let Some(bytes) = small {
            if let Some((part, segment)) = take_part(core, bytes)? {
                let base = segment.memory().as_ptr().wrapping_add(part.offset);
                #[expect(unsafe_code, reason = "clears memory that no rank uses yet")]
                // SAFETY: inside the segment, and nobody's but this window's, which no rank has
                // returned from making.
                unsafe {
                    std::ptr::write_bytes(base, 0, part.len);
                };
                // Parts are equally long everywhere, whatever the array has there.
                serve::<T>(core, id, base, part.len / size_of::<T>());
                core.barrier_in_turn(&what.signature::<T>(2))
                    .inspect_err(|_| core.stop_serving(id))?;
                return Ok(Self::new(core, id, segment, Some(part), base));
            }
            meet::<T>(core, what, true)?;
        }
        let before = |memory: &crate::ucx::MemoryHandle| {
            serve::<T>(core, id, memory.as_ptr(), (what.counts)(core.rank));
        };
        let refused = || core.stop_serving(id);
        let segment = Segment::allocate::<T>(core, what, before, refused)?;
        let base = segment.memory().as_ptr();
        Ok(Self::new(core, id, Arc::new(segment), None, base))
    }

    fn new(
        core: &Arc<Core>,
        id: u64,
        segment: Arc<Segment>,
        part: Option<Part>,
        base: *mut u8,
    ) -> Self {
        Self {
            id,
            base,
            keys: Box::default(),
            segment,
            part,
            closed: false,
            core: core.clone(),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Own shard's address; null if it is empty.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Where `rank`'s memory is mapped in this process, if it is: own and same-node ones.
    pub(crate) fn mapped(&self, rank: usize) -> Result<Option<NonNull<u8>>> {
        if rank == self.core.rank {
            return Ok(NonNull::new(self.base));
        }
        let start = self.segment.key(&self.core, rank)?.as_ptr();
        let offset = self.part.map_or(0, |part| part.offset);
        Ok(start.and_then(|start| NonNull::new(start.as_ptr().wrapping_add(offset))))
    }

    /// The key to `rank`'s memory, of elements of type `T`.
    fn key<T: Element>(&self, rank: usize) -> Result<&RemoteKey> {
        let ranks = self.core.size;
        let keys = self
            .keys
            .get_or_init(|| (0..ranks).map(|_| OnceLock::new()).collect());
        if let Some(key) = keys[rank].get() {
            return Ok(key);
        }
        let whole = self.segment.key(&self.core, rank)?;
        let (offset, len) = match self.part {
            Some(part) => (part.offset, part.len),
            None => (0, whole.len()),
        };
        let key = whole.part::<T>(offset, len / size_of::<T>())?;
        // Another thread may have been faster; its key is as good.
        Ok(keys[rank].get_or_init(|| key))
    }

    pub(crate) fn get<T: Element>(&self, rank: usize, offset: usize) -> Result<T> {
        let _concerned = self.core.check_for(rank)?;
        self.key::<T>(rank)?.get(offset)
    }

    pub(crate) fn get_range<T: Element>(
        &self,
        rank: usize,
        offset: usize,
        count: usize,
    ) -> Result<Vec<T>> {
        let _concerned = self.core.check_for(rank)?;
        self.key::<T>(rank)?.get_range(offset, count)
    }

    pub(crate) fn get_nb<T: Element>(
        &self,
        rank: usize,
        offset: usize,
        count: usize,
    ) -> Result<Request<T>> {
        let _concerned = self.core.check_for(rank)?;
        self.key::<T>(rank)?.get_nb(offset, count)
    }

    pub(crate) fn put<T: Element>(&self, rank: usize, offset: usize, value: T) -> Result<()> {
        let _concerned = self.core.check_for(rank)?;
        self.key::<T>(rank)?.put(offset, value)
    }

    pub(crate) fn put_nb<T: Element>(
        &self,
        rank: usize,
        offset: usize,
        value: T,
    ) -> Result<PutTicket> {
        let _concerned = self.core.check_for(rank)?;
        self.key::<T>(rank)?.put_nb(offset, &[value])
    }

    pub(crate) fn put_range<T: Element>(
        &self,
        rank: usize,
        offset: usize,
        from: &[T],
    ) -> Result<()> {
        let _concerned = self.core.check_for(rank)?;
        self.key::<T>(rank)?.put_range(offset, from)
    }

    /// An atomic operation on memory that is not mapped: UCX's, or a request where it has none.
    pub(crate) fn fetch_op<T: AtomicElement>(
        &self,
        op: AtomicOp,
        rank: usize,
        offset: usize,
        value: T,
    ) -> Result<T> {
        let _concerned = self.core.check_for(rank)?;
        if T::CLASS.has_natively(op) {
            return self.key::<T>(rank)?.fetch_op(op, offset, value);
        }
        self.ask_for_one(rank, offset, Work::Fetch(op, bytemuck::bytes_of(&value)))
    }

    /// The element at `offset`, atomically.
    pub(crate) fn load<T: AtomicElement>(&self, rank: usize, offset: usize) -> Result<T> {
        let _concerned = self.core.check_for(rank)?;
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
        let _concerned = self.core.check_for(rank)?;
        if T::CLASS.is_native() {
            return self.key::<T>(rank)?.exchange(offset, current, new);
        }
        let values = [current, new];
        let work = Work::CompareExchange(bytemuck::cast_slice(&values));
        self.ask_for_one(rank, offset, work)
    }

    /// What `rank` answers to `work` on the element at `offset`.
    fn ask_for_one<T: Element>(&self, rank: usize, offset: usize, work: Work<'_>) -> Result<T> {
        let mut asks = Asks::new(&self.core);
        let places = [offset as u64];
        asks.post(rank, &self.name::<T>(), Places::Offsets(&places), work)?;
        let answer = asks.next()?;
        let bits =
            answer.and_then(|bytes| bytemuck::try_pod_read_unaligned::<T::Bits>(&bytes).ok());
        from_bits(bits.ok_or_else(|| Error::new(ErrorKind::Ucx, "an empty answer"))?)
    }

    /// How requests name this memory.
    pub(crate) fn name<T: Element>(&self) -> MemoryName {
        MemoryName::new::<T>(self.id)
    }

    /// Unmaps on all ranks. Collective.
    #[track_caller]
    pub(crate) fn close(mut self) -> Result<()> {
        let signature = Signature::new(Call::CloseArray).count(index(self.id));
        // Until the memory is given back: what another thread makes must come after it, as it does
        // on the other ranks.
        let core = self.core.clone();
        let _turn = core.turn()?;
        core.barrier_in_turn(&signature)?;
        // All ranks have come here, and the barrier has flushed: no key is used any more.
        self.closed = true;
        self.keys.take();
        core.graves().unmap(self.id, self.grave());
        Ok(())
    }

    fn grave(&self) -> Grave {
        match self.part {
            Some(part) => Grave::Part(part),
            None => Grave::Memory(self.segment.memory().clone()),
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.closed {
            let ranks = self.core.size;
            self.core.graves().bury(self.id, ranks, self.grave());
        }
    }
}

/// A part of the pool for so many bytes on each rank. Collective; None where there is no room for
/// another shared segment.
#[track_caller]
fn take_part(core: &Core, bytes: usize) -> Result<Option<(Part, Arc<Segment>)>> {
    if let Some(found) = core.pool().take(bytes) {
        return Ok(Some(found));
    }
    let what = Memory {
        call: Call::NewArray,
        len: SLAB,
        layout: 0,
        counts: &|_| SLAB / size_of::<u64>(),
    };
    let made = meet::<u64>(core, &what, true)
        .and_then(|()| Segment::allocate::<u64>(core, &what, |_| (), || ()));
    match made {
        Ok(segment) => core.pool().add(segment),
        // On all ranks alike: the array may still fit by itself.
        Err(error) if error.kind() == ErrorKind::NoRoom => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok(core.pool().take(bytes))
}

#[expect(unsafe_code, reason = "says that the memory is what peers are told")]
fn serve<T: Element>(core: &Core, id: u64, base: *mut u8, count: usize) {
    // SAFETY: registered, of that many elements, and shared memory; whoever unmaps it or gives it
    // back stops serving it first.
    unsafe { core.serve_memory::<T>(id, base, count) };
}

/// An array's number as a signature's count.
pub(crate) fn index(id: u64) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}
