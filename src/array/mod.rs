//! `GlobalArray`: one array spread over all ranks.
//!
//! The way of an index, top to bottom:
//! [`GlobalArray::get`] finds the shard's row and loads through its pointer; elsewhere
//! [`Window::get`] (window.rs) takes the rank's key, [`RemoteKey::get`](crate::ucx::RemoteKey::get)
//! (ucx/rkey.rs) posts `ucp_get_nbx` (ucx-sys).

#![expect(unsafe_code, reason = "loads and stores through mapped pointers")]

mod atomic;
mod modes;

pub use modes::{LocalView, ReadView};

use crate::dist::Block;
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::window::Window;
use crate::world::{Call, Core, Signature, World};
use modes::Mode;
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An array of `len` elements spread over all ranks, any of which reads and writes any element.
///
/// Rank `r` of `p` holds the block of indices `ceil(r·len/p) .. ceil((r+1)·len/p)`: blocks in
/// rank order that differ in length by at most one.
///
/// Access is one-sided: nobody is asked at the other side. On the same node an element is a load
/// or a store through a mapped pointer; on another node it is one `ucp_get_nbx` or `ucp_put_nbx`.
///
/// # Order and completion
/// A `get` waits for its value. When a `put` returns, its source may be reused; others see the
/// value after this rank's [`flush`](GlobalArray::flush) *and* some synchronisation, such as a
/// [barrier](World::barrier), which flushes by itself. A rank's own operations on one element
/// happen in program order. Without synchronisation another rank may see old or new values.
///
/// # Modes
/// Normally the array is *open*: any rank may get and put at any time, also from many threads,
/// and nobody may have a slice. [`read`](GlobalArray::read) and [`local`](GlobalArray::local)
/// take all ranks together into a mode with slices. What a mode forbids does not compile on
/// this rank, and is [`ErrorKind::WrongMode`] where a view was leaked.
///
/// # Drop
/// Dropping is not collective, and each rank may drop in its own order. The memory is unmapped
/// when all ranks have dropped the array and meet at the next creation of an array; or at once
/// with [`close`](GlobalArray::close).
pub struct GlobalArray<T: Element> {
    /// By rank.
    rows: Box<[Row]>,
    /// Indices below this are looked up in `rows`: all, or none. While the array is not open it
    /// is 0, so that the slow path looks at `mode`: one comparison for bounds and mode.
    open: usize,
    dist: Block,
    mode: Mode,
    window: Window,
    element: PhantomData<T>,
}

/// Where a rank's shard can be reached by load and store: the address that index 0 would have if
/// the shard began there, so that an element's address is one multiplication away. Null until the
/// shard is known to be mapped, for ever on other nodes.
type Row = AtomicPtr<u8>;

impl<T: Element> GlobalArray<T> {
    /// An array of `len` elements whose bytes are all zero. Any length, also 0 and fewer
    /// elements than ranks.
    ///
    /// Collective.
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] on all ranks when a node has too little memory, naming what is
    /// wanted and what is free; [`ErrorKind::InvalidValue`] if zero bytes are no `T`;
    /// [`ErrorKind::Mismatch`] if ranks disagree on `len` or `T`; else as [`World::barrier`].
    pub fn new(world: &World, len: usize) -> Result<Self> {
        element::zeroed::<T>()?;
        Self::allocate(world.core(), len)
    }

    /// An array whose element `i` is `value(i)`; each rank computes its own block.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    pub fn from_fn(world: &World, len: usize, mut value: impl FnMut(usize) -> T) -> Result<Self> {
        let array = Self::allocate(world.core(), len)?;
        for (offset, index) in array.local_range().enumerate() {
            // SAFETY: `offset` is below the length of my shard.
            let at = unsafe { array.window.base().add(offset * size_of::<T>()) };
            // SAFETY: as above; peers may look at it already, as shared memory.
            unsafe { element::store(at, value(index)) };
        }
        world.barrier()?;
        Ok(array)
    }

    /// An array made of all ranks' `local` elements, one rank after another. Lengths may differ;
    /// the elements are then moved to where the block distribution wants them.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    pub fn from_local(world: &World, local: &[T]) -> Result<Self> {
        let core = world.core();
        let signature = Signature::new(Call::FromLocal).element::<T>();
        let lens = core.gather_bytes(&signature, &(local.len() as u64).to_le_bytes())?;
        let lens = lens.as_chunks::<8>().0;
        let sum = |lens: &[[u8; 8]]| lens.iter().copied().map(u64::from_le_bytes).sum::<u64>();
        let to_usize = |len: u64| {
            usize::try_from(len)
                .map_err(|_| Error::new(ErrorKind::NoRoom, format!("{len} elements in all")))
        };
        let start = to_usize(sum(&lens[..core.rank]))?;
        let array = Self::allocate(core, to_usize(sum(lens))?)?;
        let put = array.put_range(start, local);
        // Met in any case: the other ranks come here.
        world.barrier()?;
        put?;
        Ok(array)
    }

    /// The array before its first values, all bytes zero.
    fn allocate(core: &Arc<Core>, len: usize) -> Result<Self> {
        const { assert!(size_of::<T>() > 0, "elements must have a size") };
        let dist = Block::new(len, core.size);
        let window = Window::allocate::<T>(core, len, |rank| dist.range_of(rank).len())?;
        let rows = (0..core.size).map(|_| Row::default()).collect();
        let array = Self {
            open: dist.fast_len(),
            rows,
            dist,
            mode: Mode::Open,
            window,
            element: PhantomData,
        };
        array.row(core.rank)?;
        Ok(array)
    }

    /// Elements in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.dist.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The rank that holds `index`. No communication.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`].
    pub fn owner(&self, index: usize) -> Result<usize> {
        if index >= self.len() {
            return Err(self.out_of_bounds("owner", index, 1));
        }
        Ok(self.dist.locate(index).0)
    }

    /// The indices that this rank holds; may be empty. No communication.
    #[must_use]
    pub fn local_range(&self) -> Range<usize> {
        self.dist.range_of(self.window.core().rank)
    }

    /// The indices that `rank` holds; may be empty. No communication.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn range_of(&self, rank: usize) -> Range<usize> {
        assert!(rank < self.dist.ranks(), "no rank {rank}");
        self.dist.range_of(rank)
    }

    /// The element at `index`. One-sided; waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`]; [`ErrorKind::WrongMode`]; [`ErrorKind::InvalidValue`] if the
    /// bytes are no `T`; from another node also [`ErrorKind::Ucx`], [`ErrorKind::PeerFailed`]
    /// and [`ErrorKind::Timeout`].
    #[inline]
    #[doc(alias = "ucp_get_nbx")]
    pub fn get(&self, index: usize) -> Result<T> {
        match self.find(index, self.open) {
            // SAFETY: `find` points to a mapped element of this array.
            Some(at) => unsafe { element::load(at) },
            None => slowly(|to| self.get_slowly(index, self.mode, to)),
        }
    }

    /// Writes `value` to `index`. One-sided. See [order and completion](GlobalArray#order-and-completion).
    ///
    /// # Errors
    /// As [`GlobalArray::get`]. A failure on the way to another node may show at a later operation.
    #[inline]
    #[doc(alias = "ucp_put_nbx")]
    pub fn put(&self, index: usize, value: T) -> Result<()> {
        match self.find(index, self.open) {
            Some(at) => {
                // SAFETY: `find` points to a mapped element of this array.
                unsafe { element::store(at, value) };
                Ok(())
            }
            None => self.put_slowly(index, value),
        }
    }

    /// The elements of `range`, across any number of shards. One-sided; waits for them.
    ///
    /// A range that is written meanwhile may come as any mix of old and new bytes.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    pub fn get_range(&self, range: Range<usize>) -> Result<Vec<T>> {
        if let Some(from) = self.find_range(range.start, range.len(), self.open) {
            // SAFETY: so many mapped elements of one shard.
            return unsafe { element::load_vec(from, range.len()) };
        }
        self.mode.check_open("get_range")?;
        self.read_range(range)
    }

    /// [`GlobalArray::get_range`] in any mode.
    fn read_range(&self, range: Range<usize>) -> Result<Vec<T>> {
        self.check_bounds("get_range", range.start, range.len())?;
        let (rank, offset) = match range.len() {
            0 => return Ok(Vec::new()),
            _ => self.dist.locate(range.start),
        };
        if range.end <= self.dist.range_of(rank).end {
            // One shard: straight into the new vector.
            return match self.element_of(rank, offset)? {
                // SAFETY: mapped, and all of the range inside the shard, as just checked.
                Some(from) => unsafe { element::load_vec(from, range.len()) },
                None => self
                    .window
                    .get_range(rank, offset, range.len())
                    .map_err(|error| during("get_range", range.start, rank, error)),
            };
        }
        let mut values = Vec::with_capacity(range.len());
        for (_, part) in self.dist.parts(range) {
            values.extend(self.read_range(part)?);
        }
        Ok(values)
    }

    /// Fills `to` with the elements from index `start` on, across any number of shards.
    /// One-sided; waits for them. On error `to` may hold some of them, each whole.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    pub fn get_into(&self, start: usize, to: &mut [T]) -> Result<()> {
        if let Some(from) = self.find_range(start, to.len(), self.open) {
            // SAFETY: so many mapped elements of one shard.
            return unsafe { element::load_slice(to, from) };
        }
        self.mode.check_open("get_into")?;
        self.read_into(start, to)
    }

    /// [`GlobalArray::get_into`] in any mode.
    fn read_into(&self, start: usize, to: &mut [T]) -> Result<()> {
        self.check_bounds("get_into", start, to.len())?;
        let mut rest = to;
        let end = start + rest.len();
        for (rank, part) in self.dist.parts(start..end) {
            let (piece, after) = rest.split_at_mut(part.len());
            let offset = part.start - self.dist.range_of(rank).start;
            match self.element_of(rank, offset)? {
                // SAFETY: mapped, and all of `part` inside the shard.
                Some(from) => unsafe { element::load_slice(piece, from) }?,
                None => {
                    let values = self
                        .window
                        .get_range(rank, offset, piece.len())
                        .map_err(|error| during("get_into", part.start, rank, error))?;
                    piece.copy_from_slice(&values);
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// Writes `from` to the elements from index `start` on, across any number of shards.
    /// One-sided. See [order and completion](GlobalArray#order-and-completion).
    ///
    /// # Errors
    /// As [`GlobalArray::put`].
    pub fn put_range(&self, start: usize, from: &[T]) -> Result<()> {
        if let Some(to) = self.find_range(start, from.len(), self.open) {
            // SAFETY: so many mapped elements of one shard.
            unsafe { element::copy(to, from.as_ptr().cast(), size_of_val(from)) };
            return Ok(());
        }
        self.mode.check_open("put_range")?;
        self.check_bounds("put_range", start, from.len())?;
        let mut rest = from;
        for (rank, part) in self.dist.parts(start..start + from.len()) {
            let (piece, after) = rest.split_at(part.len());
            let offset = part.start - self.dist.range_of(rank).start;
            match self.element_of(rank, offset)? {
                // SAFETY: mapped, and all of `part` inside the shard.
                Some(to) => unsafe {
                    element::copy(to, piece.as_ptr().cast(), size_of_val(piece));
                },
                None => self
                    .window
                    .put_range(rank, offset, piece)
                    .map_err(|error| during("put_range", part.start, rank, error))?,
            }
            rest = after;
        }
        Ok(())
    }

    /// Waits until everything this rank has written is in its place. One-sided. Others see it
    /// once they have synchronised with this rank.
    ///
    /// # Errors
    /// As [`World::flush`].
    #[doc(alias = "ucp_ep_flush_nbx")]
    pub fn flush(&self) -> Result<()> {
        self.window.core().flush()
    }

    /// Frees the memory on all ranks.
    ///
    /// Collective. Everything written before is complete first.
    ///
    /// # Errors
    /// As [`World::barrier`]; the memory then stays until the program ends.
    pub fn close(self) -> Result<()> {
        self.window.close()
    }

    /// Pointer to element `index`, if it is below `end` and mapped.
    #[inline]
    fn find(&self, index: usize, end: usize) -> Option<*mut u8> {
        debug_assert!(end <= self.dist.fast_len());
        if index >= end {
            return None;
        }
        let rank = self.dist.owner(index);
        debug_assert!(rank < self.rows.len());
        // SAFETY: the owner of an index of the array is a rank, and there is a row for each.
        let row = unsafe { self.rows.get_unchecked(rank) };
        let zeroth = row.load(Ordering::Relaxed);
        if zeroth.is_null() {
            return None;
        }
        Some(zeroth.wrapping_add(index * size_of::<T>()))
    }

    /// Pointer to the first of `count` elements, if they are of one shard, below `end`, and mapped.
    #[inline]
    fn find_range(&self, start: usize, count: usize, end: usize) -> Option<*mut u8> {
        let last = start.checked_add(count.checked_sub(1)?)?;
        if last >= end || self.dist.owner(start) != self.dist.owner(last) {
            return None;
        }
        self.find(start, end)
    }

    /// Base of `rank`'s shard, if it is mapped; looks it up the first time.
    fn row(&self, rank: usize) -> Result<Option<*mut u8>> {
        let range = self.dist.range_of(rank);
        if range.is_empty() {
            return Ok(None);
        }
        let before = range.start * size_of::<T>();
        let row = &self.rows[rank];
        let zeroth = row.load(Ordering::Relaxed);
        if !zeroth.is_null() {
            return Ok(Some(zeroth.wrapping_add(before)));
        }
        let Some(base) = self.window.mapped(rank)? else {
            return Ok(None);
        };
        // The mapping was made by this process before: the pointer is all there is to pass on.
        row.store(base.as_ptr().wrapping_sub(before), Ordering::Relaxed);
        Ok(Some(base.as_ptr()))
    }

    #[cold]
    #[inline(never)]
    fn get_slowly(&self, index: usize, mode: Mode, to: &mut Slot<T>) -> Option<Error> {
        to.fill(|| {
            mode.check_open("get")?;
            self.check_bounds("get", index, 1)?;
            let (rank, offset) = self.dist.locate(index);
            if let Some(at) = self.element_of(rank, offset)? {
                // SAFETY: a mapped element of this array.
                return unsafe { element::load(at) };
            }
            self.window
                .get(rank, offset)
                .map_err(|error| during("get", index, rank, error))
        })
    }

    #[cold]
    #[inline(never)]
    fn put_slowly(&self, index: usize, value: T) -> Result<()> {
        let (rank, offset) = self.locate_slowly("put", index)?;
        if let Some(at) = self.element_of(rank, offset)? {
            // SAFETY: a mapped element of this array.
            unsafe { element::store(at, value) };
            return Ok(());
        }
        self.window
            .put(rank, offset, value)
            .map_err(|error| during("put", index, rank, error))
    }

    fn locate_slowly(&self, call: &str, index: usize) -> Result<(usize, usize)> {
        self.mode.check_open(call)?;
        self.check_bounds(call, index, 1)?;
        Ok(self.dist.locate(index))
    }

    /// Pointer to the element at `offset` of `rank`'s shard, if that is mapped.
    fn element_of(&self, rank: usize, offset: usize) -> Result<Option<*mut u8>> {
        debug_assert!(offset < self.dist.range_of(rank).len());
        // SAFETY: the offset comes from the distribution: inside the shard.
        let at = |base: *mut u8| unsafe { base.add(offset * size_of::<T>()) };
        Ok(self.row(rank)?.map(at))
    }

    fn check_bounds(&self, call: &str, start: usize, count: usize) -> Result<()> {
        match start.checked_add(count) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(self.out_of_bounds(call, start, count)),
        }
    }

    #[cold]
    fn out_of_bounds(&self, call: &str, start: usize, count: usize) -> Error {
        let what = if count == 1 {
            format!("index {start}")
        } else {
            format!("{count} elements from index {start}")
        };
        Error::new(
            ErrorKind::OutOfBounds,
            format!("{call} of {what}: the array has {} elements", self.len()),
        )
    }
}

/// Where a slow path leaves its value. Were it to return a `Result<T>`, the fast path would build
/// one too and test it again: three instructions for each element.
struct Slot<T>(MaybeUninit<T>);

impl<T> Slot<T> {
    /// Keeps the value that `body` gives, or returns its error.
    fn fill(&mut self, body: impl FnOnce() -> Result<T>) -> Option<Error> {
        match body() {
            Ok(value) => {
                self.0.write(value);
                None
            }
            Err(error) => Some(error),
        }
    }
}

/// What the slow path `body` left in the slot it was given, or its error. Always inlined, or the
/// `Result` is one again.
#[inline(always)]
fn slowly<T>(body: impl FnOnce(&mut Slot<T>) -> Option<Error>) -> Result<T> {
    let mut slot = Slot(MaybeUninit::uninit());
    match body(&mut slot) {
        // SAFETY: `body` passes on what `Slot::fill` returned: none if it has filled the slot.
        None => Ok(unsafe { slot.0.assume_init() }),
        Some(error) => Err(error),
    }
}

#[cold]
fn during(call: &str, index: usize, rank: usize, error: Error) -> Error {
    error
        .context(format!("{call} of index {index} at rank {rank}"))
        .with_peer(rank)
}

impl<T: Element> fmt::Debug for GlobalArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalArray")
            .field("element", &std::any::type_name::<T>())
            .field("len", &self.len())
            .field("local_range", &self.local_range())
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
