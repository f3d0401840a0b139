//! `GlobalArray`: one array spread over all ranks.
//!
//! The way of an index, top to bottom:
//! [`GlobalArray::get`] finds the shard's row and loads through its pointer; elsewhere
//! [`Window::get`] (window.rs) takes the rank's key, [`RemoteKey::get`](crate::ucx::RemoteKey::get)
//! (ucx/rkey.rs) posts `ucp_get_nbx` (ucx-sys).

#![expect(unsafe_code, reason = "loads and stores through mapped pointers")]

mod algorithm;
mod atomic;
mod batch;
mod build;
mod count;
mod halo;
mod index;
mod io;
mod modes;
mod races;
mod range;
mod remote;
mod request;
mod rows;
mod section;
mod update;
mod wake;

pub use algorithm::{Iter, Real};
pub use atomic::AtomicsView;
pub use build::{Boundary, Builder};
pub use halo::Exchange;
pub use index::{ArrayIndex, Owned};
#[cfg(feature = "zarr")]
pub use io::Zarr;
pub use io::{Numpy, Order, Transfer};
pub use modes::{LocalView, ReadView};
pub use request::Scope;
pub use update::Updates;

use crate::dist::{Layout, successor};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::window::Window;
use crate::world::{Asleep, Call, Checks, Core, Memory, Team};
use halo::{Geometry, Halo};
use index::index_at;
use modes::Mode;
use races::{Access, Shadow};
use std::fmt;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An array of elements spread over all ranks, any of which reads and writes any element. It has
/// `D` dimensions, from 1 to 6.
///
/// Along each dimension the indices are dealt out in blocks: of `n` indices on `p` parts, part `c`
/// holds `ceil(c·n/p) .. ceil((c+1)·n/p)`. In one dimension the parts are the ranks; in more they
/// form a grid of ranks. [`GlobalArray::builder`] gives other [distributions](crate::Dist) and grids.
///
/// Access is one-sided: nobody is asked at the other side. On the same node an element is a load
/// or a store through a mapped pointer; on another node it is one `ucp_get_nbx` or `ucp_put_nbx`.
/// What concerns many scattered elements ([`gather`](GlobalArray::gather), strided
/// [sections](GlobalArray::get_section)) goes to another node as one message to a thread of the
/// library that serves the owner's memory, whatever the owner itself is doing.
///
/// An index is a `usize` in one dimension and a `[usize; D]` in any number: see [`ArrayIndex`].
///
/// # Order and completion
/// A `get` waits for its value. When a `put` returns, its source may be reused; others see the
/// value after this rank's [`flush`](GlobalArray::flush) *and* some synchronisation, such as a
/// [barrier](Team::barrier), which flushes by itself. A rank's own operations on one element
/// happen in program order; a [`Request`](crate::Request) is ordered with nothing until it is done.
/// Without synchronisation another rank may see old or new values.
///
/// # Modes
/// Normally the array is *open*: any rank may get and put at any time, also from many threads,
/// and nobody may have a slice. [`read`](GlobalArray::read), [`local`](GlobalArray::local) and
/// [`atomics`](GlobalArray::atomics) take all ranks together into a mode with slices, or with
/// atomic operations only. What a mode forbids does not compile on this rank, and is
/// [`ErrorKind::WrongMode`] where a view was leaked.
///
/// # Drop
/// Dropping is not collective, and each rank may drop in its own order. The memory is unmapped
/// when all ranks have dropped the array and meet at the next creation of an array; or at once
/// with [`close`](GlobalArray::close).
pub struct GlobalArray<T: Element, const D: usize = 1> {
    /// By rank.
    rows: Box<[Row]>,
    /// In one dimension in blocks: indices below this are looked up in `rows`, all or none. While
    /// the array is not open it is 0, so that the slow path looks at `mode`: one comparison for
    /// bounds and mode. In more dimensions it is 1 while the array is open. In a job that looks
    /// for races or counts what it does it is always 0.
    open: usize,
    /// Whether the slow path looks an element up before all else: one dimension that is not in
    /// blocks, in a job that neither looks for races nor counts what it does.
    off_line: bool,
    /// The two numbers that give the owner of such an index.
    multiplier: u64,
    shift: u32,
    layout: Layout<D>,
    mode: Mode,
    boundary: [Boundary<T>; D],
    halo: Option<Halo<D>>,
    shadow: Option<Box<Shadow>>,
    /// Whether all goes the slow path: the job looks for races, or counts what it does.
    slow: bool,
    /// What each write looks at. Used as long as `window`, which holds the bells it is of.
    asleep: Asleep,
    window: Window,
    element: PhantomData<T>,
}

/// Where a rank's memory can be reached by load and store, null until it is known to be mapped,
/// for ever on other nodes. In one dimension in blocks: the address that index 0 would have if
/// the shard began there, so that an element's address is one multiplication away.
type Row = AtomicPtr<u8>;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// An array of this shape whose bytes are all zero. Any shape, also with dimensions of 0 and
    /// fewer elements than ranks.
    ///
    /// Collective.
    ///
    /// # Errors
    /// [`ErrorKind::NoRoom`] on all ranks when a node has too little memory, naming what is
    /// wanted and what is free; [`ErrorKind::InvalidValue`] if zero bytes are no `T`;
    /// [`ErrorKind::Mismatch`] if ranks disagree on shape, distribution or `T`; else as
    /// [`Team::barrier`].
    #[track_caller]
    pub fn new(world: &Team, shape: impl ArrayIndex<D>) -> Result<Self> {
        Self::builder(world, shape).build()
    }

    /// An array whose element at each `index` is `value(index)`; each rank computes its own.
    ///
    /// Collective.
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World) -> pgas::Result<()> {
    /// use pgas::GlobalArray;
    /// let squares = GlobalArray::<u64>::from_fn(world, 100, |i| (i * i) as u64)?;
    /// let table = GlobalArray::<u64, 2>::from_fn(world, [10, 10], |[i, j]| (i * j) as u64)?;
    /// assert_eq!(squares.get(9)?, table.get([9, 9])?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    #[track_caller]
    pub fn from_fn<I: ArrayIndex<D>>(
        world: &Team,
        shape: I,
        value: impl FnMut(I) -> T,
    ) -> Result<Self> {
        Self::builder(world, shape).from_fn(value)
    }

    /// An array with a distribution, process grid or ghost cells of its own, to be made by
    /// [`Builder::build`] or [`Builder::from_fn`].
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World) -> pgas::Result<()> {
    /// use pgas::{Boundary, Dist, GlobalArray};
    /// let rows_in_turn = GlobalArray::<f64, 2>::builder(world, [100, 100])
    ///     .dist([Dist::Cyclic, Dist::Whole])
    ///     .build()?;
    /// let with_ghosts = GlobalArray::<f64, 2>::builder(world, [100, 100])
    ///     .halo([1, 1])
    ///     .boundary([Boundary::Periodic, Boundary::Fixed(1.0)])
    ///     .build()?;
    /// # let _ = (rows_in_turn, with_ghosts); Ok(())
    /// # }
    /// ```
    pub fn builder<I: ArrayIndex<D>>(world: &Team, shape: I) -> Builder<'_, T, D, I> {
        Builder::new(world, shape.into_array())
    }

    /// The array before its first values, all bytes zero.
    #[track_caller]
    fn allocate(
        core: &Arc<Core>,
        layout: Layout<D>,
        boundary: [Boundary<T>; D],
        faces_only: bool,
        checks: Option<Checks>,
    ) -> Result<Self> {
        let mut array = Self::allocate_alone(core, layout, boundary, faces_only)?;
        array.shadow = Self::shadow(core, &array.layout, checks)?;
        array.slow = array.shadow.is_some() || core.counts();
        array.open = array.line();
        array.off_line = D == 1 && array.layout.line().0 == 0 && !array.slow;
        Ok(array)
    }

    /// An array that has no shadow.
    #[track_caller]
    fn allocate_alone(
        core: &Arc<Core>,
        layout: Layout<D>,
        boundary: [Boundary<T>; D],
        faces_only: bool,
    ) -> Result<Self> {
        const { assert!(size_of::<T>() > 0, "elements must have a size") };
        const HUGE: usize = 1 << 42;
        let geometry = Geometry::new(&layout, &boundary, faces_only);
        let (edges, stages): (u64, &dyn Fn(usize) -> usize) = match &geometry {
            Some(geometry) => (geometry.fingerprint(&boundary), &|rank| {
                geometry.stages_len(rank)
            }),
            None => (0, &|_| 0),
        };
        let what = Memory {
            call: Call::NewArray,
            len: layout.len(),
            layout: layout.fingerprint() ^ edges,
            counts: &|rank| match layout.memory_len(rank) {
                // There is no such room, and it would take long to find out where ghosts come from.
                len @ HUGE.. => len,
                len => len.saturating_add(stages(rank)),
            },
        };
        let largest = geometry.is_none().then(|| layout.largest());
        let window = Window::allocate::<T>(core, &what, largest)?;
        let halo = geometry.map(|geometry| geometry.of_rank(core.rank));
        let rows = (0..core.size).map(|_| Row::default()).collect();
        let (_, multiplier, shift) = layout.line();
        // SAFETY: the bells stay as long as the window's core.
        let asleep = unsafe { core.bells().asleep(window.id) };
        let mut array = Self {
            rows,
            open: 0,
            off_line: false,
            multiplier,
            shift,
            layout,
            mode: Mode::Open,
            boundary,
            halo,
            shadow: None,
            slow: false,
            asleep,
            window,
            element: PhantomData,
        };
        array.open = array.line();
        array.memory_of(core.rank)?;
        Ok(array)
    }

    /// Gives the elements of this rank their first values, before any peer looks at them.
    fn fill_own(&self, mut value: impl FnMut([usize; D]) -> T) {
        let owned = self.owned(self.rank());
        let strides = self.layout.strides(self.rank());
        let base = self.window.base();
        let at = |offset: usize| base.wrapping_add(offset * size_of::<T>());
        // Of the first element, for which `value` is called once only.
        let mut filler = None;
        if self.layout.has_halo() && element::zeroed::<T>().is_err() {
            // Ghost cells are elements of slices, too.
            if let Some(first) = owned.iter().next() {
                let value = value(first);
                for offset in 0..self.layout.memory_len(self.rank()) {
                    // SAFETY: an element of this rank's memory.
                    unsafe { element::store(at(offset), value) };
                }
                filler = Some(value);
            }
        }
        let (first, shape) = (self.layout.first(self.rank()), owned.shape());
        let mut next = (!owned.is_empty()).then_some([0; D]);
        while let Some(place) = next {
            let offset = first + (0..D).map(|d| place[d] * strides[d]).sum::<usize>();
            let value = filler
                .take()
                .unwrap_or_else(|| value(self.layout.global(self.rank(), place)));
            // SAFETY: an element of this rank's memory. Peers may look at it already, as shared
            // memory.
            unsafe { element::store(at(offset), value) };
            next = successor(place, shape);
        }
    }

    /// Indices of each dimension.
    #[must_use]
    pub fn shape(&self) -> [usize; D] {
        self.layout.shape()
    }

    /// Elements in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Parts of each dimension in the process grid. Rank `r` is at the coordinates of `r` in
    /// row-major order.
    #[must_use]
    pub fn grid(&self) -> [usize; D] {
        self.layout.grid()
    }

    /// Ghost cells on each side of each dimension of a rank's elements.
    #[must_use]
    pub fn halo(&self) -> [usize; D] {
        self.layout.halo()
    }

    /// The rank that holds `index`. No communication.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`].
    pub fn owner(&self, index: impl ArrayIndex<D>) -> Result<usize> {
        Ok(self.locate("owner", index.into_array())?.0)
    }

    /// What `rank` holds: shape, indices, and how they lie in its memory. No communication.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn owned(&self, rank: usize) -> Owned<'_, D> {
        assert!(rank < self.layout.ranks(), "no rank {rank}");
        Owned {
            layout: &self.layout,
            rank,
        }
    }

    /// The rank that holds `index`, and the element's local index there: see [`Owned`]. No
    /// communication.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`].
    pub fn local_index<I: ArrayIndex<D>>(&self, index: I) -> Result<(usize, I)> {
        let index = index.into_array();
        let (rank, _) = self.locate("local_index", index)?;
        let place = std::array::from_fn(|d| self.layout.axis(d).locate(index[d]).1);
        Ok((rank, I::from_array(place)))
    }

    /// The index of the element that `rank` has at this local index. No communication.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`].
    pub fn global_index<I: ArrayIndex<D>>(&self, rank: usize, local: I) -> Result<I> {
        let local = local.into_array();
        let shape = match rank < self.layout.ranks() {
            true => self.layout.owned_shape(rank),
            false => [0; D],
        };
        if (0..D).any(|d| local[d] >= shape[d]) {
            return Err(Error::new(
                ErrorKind::OutOfBounds,
                format!("global_index of local index {local:?}: rank {rank} holds {shape:?}"),
            ));
        }
        Ok(I::from_array(self.layout.global(rank, local)))
    }

    /// The element at `index`. One-sided; waits for it.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`]; [`ErrorKind::WrongMode`]; [`ErrorKind::InvalidValue`] if the
    /// bytes are no `T`; from another node also [`ErrorKind::Ucx`], [`ErrorKind::PeerFailed`]
    /// and [`ErrorKind::Timeout`].
    #[inline]
    #[track_caller]
    #[doc(alias = "ucp_get_nbx")]
    pub fn get(&self, index: impl ArrayIndex<D>) -> Result<T> {
        let index = index.into_array();
        let site = Location::caller();
        match self.find(index, self.open) {
            // SAFETY: `find` points to a mapped element of this array.
            Some(at) => unsafe { element::load(at) },
            None => slowly(|to| self.get_slowly(index, self.mode, site, to)),
        }
    }

    /// Writes `value` to `index`. One-sided. See [order and completion](GlobalArray#order-and-completion).
    ///
    /// # Errors
    /// As [`GlobalArray::get`]. A failure on the way to another node may show at a later operation.
    #[inline]
    #[track_caller]
    #[doc(alias = "ucp_put_nbx")]
    pub fn put(&self, index: impl ArrayIndex<D>, value: T) -> Result<()> {
        let index = index.into_array();
        match self.find(index, self.open) {
            Some(at) => {
                // SAFETY: `find` points to a mapped element of this array.
                unsafe { element::store(at, value) };
                self.wrote(index);
                Ok(())
            }
            None => self.put_slowly(index, value, Location::caller()),
        }
    }

    /// Waits until everything this rank has written is in its place. One-sided. Others see it
    /// once they have synchronised with this rank.
    ///
    /// # Errors
    /// As [`Team::flush`].
    #[doc(alias = "ucp_ep_flush_nbx")]
    pub fn flush(&self) -> Result<()> {
        self.window.core().flush()
    }

    /// Frees the memory on all ranks.
    ///
    /// Collective. Everything written before is complete first.
    ///
    /// # Errors
    /// As [`Team::barrier`]; the memory then stays until the program ends.
    #[track_caller]
    pub fn close(self) -> Result<()> {
        self.window.close()
    }

    /// The address of the element at `index`, if it is mapped.
    pub(crate) fn mapped(&self, index: [usize; D]) -> Result<Option<*mut u8>> {
        let (rank, offset) = self.locate("signal", index)?;
        self.element_of(rank, offset)
    }

    pub(crate) fn core_of(&self) -> &Core {
        self.window.core()
    }

    fn rank(&self) -> usize {
        self.window.core().rank
    }

    /// What `open` is while the array is open.
    #[inline]
    fn line(&self) -> usize {
        match D {
            _ if self.slow => 0,
            1 => self.layout.line().0,
            _ => 1,
        }
    }

    /// Pointer to the element at `index`, if that exists, is mapped, and can be looked up without
    /// a call. `line` is what may be: in one dimension the indices below it, in more all or none.
    ///
    /// One way to a pointer, so that nothing but it has to be tested afterwards.
    #[inline]
    fn find(&self, index: [usize; D], line: usize) -> Option<*mut u8> {
        if D > 1 {
            return match line {
                0 => None,
                _ => self.find_anywhere(index),
            };
        }
        if index[0] >= line {
            return None;
        }
        let rank = Layout::<D>::owner(index[0], self.multiplier, self.shift);
        debug_assert!(rank < self.rows.len());
        // SAFETY: the owner of an index of the array is a rank, and there is a row for each.
        let row = unsafe { self.rows.get_unchecked(rank) };
        let zeroth = row.load(Ordering::Relaxed);
        if zeroth.is_null() {
            return None;
        }
        Some(zeroth.wrapping_add(index[0] * size_of::<T>()))
    }

    /// [`GlobalArray::find`] for one dimension that is not in blocks, after a call.
    fn find_off_line(&self, index: [usize; D], mode: &Mode) -> Option<*mut u8> {
        if D > 1 || !self.off_line || !matches!(mode, Mode::Open) {
            return None;
        }
        self.find_anywhere(index)
    }

    /// [`GlobalArray::find`] for any layout but one dimension in blocks.
    #[inline]
    fn find_anywhere(&self, index: [usize; D]) -> Option<*mut u8> {
        if !self.layout.contains(index) {
            return None;
        }
        let (rank, offset) = self.layout.locate(index);
        debug_assert!(rank < self.rows.len());
        // SAFETY: the owner of an index of the array is a rank, and there is a row for each.
        let row = unsafe { self.rows.get_unchecked(rank) };
        let base = row.load(Ordering::Relaxed);
        if base.is_null() {
            return None;
        }
        Some(base.wrapping_add(offset * size_of::<T>()))
    }

    /// `rank`'s memory, if it is mapped; looks it up the first time.
    fn memory_of(&self, rank: usize) -> Result<Option<*mut u8>> {
        if self.layout.memory_len(rank) == 0 {
            return Ok(None);
        }
        let before = self.before(rank);
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

    /// Bytes from a row's address to the memory.
    fn before(&self, rank: usize) -> usize {
        if self.layout.line().0 == 0 {
            return 0;
        }
        let axis = self.layout.axis(0);
        let start = axis.range(rank).map_or(0, |range| range.start);
        start.wrapping_sub(axis.halo()).wrapping_mul(size_of::<T>())
    }

    #[cold]
    #[inline(never)]
    fn get_slowly(
        &self,
        index: [usize; D],
        mode: Mode,
        site: &'static Location<'static>,
        to: &mut Slot<T>,
    ) -> Option<Error> {
        to.fill(|| {
            if let Some(at) = self.find_off_line(index, &mode) {
                // SAFETY: a mapped element of this array.
                return unsafe { element::load(at) };
            }
            mode.check_open("get")?;
            self.note(Access::read("get", site), index)?;
            self.get_anyway("get", index)
        })
    }

    /// [`GlobalArray::get`] in any mode.
    fn get_anyway(&self, call: &str, index: [usize; D]) -> Result<T> {
        self.reach(
            call,
            index,
            // SAFETY: a mapped element of this array.
            |at| unsafe { element::load(at) },
            |rank, offset| self.window.get(rank, offset),
        )
    }

    #[cold]
    #[inline(never)]
    fn put_slowly(
        &self,
        index: [usize; D],
        value: T,
        site: &'static Location<'static>,
    ) -> Result<()> {
        if let Some(at) = self.find_off_line(index, &self.mode) {
            // SAFETY: a mapped element of this array.
            unsafe { element::store(at, value) };
            self.wrote(index);
            return Ok(());
        }
        self.mode.check_open("put")?;
        self.note(Access::write("put", site), index)?;
        self.reach(
            "put",
            index,
            |at| {
                // SAFETY: a mapped element of this array.
                unsafe { element::store(at, value) };
                self.wrote(index);
                Ok(())
            },
            |rank, offset| self.window.put(rank, offset, value),
        )
    }

    /// What `here` does with the element at `index` if that is mapped; else what `there` does with
    /// it by its rank and its place in the rank's memory. In any mode.
    fn reach<R>(
        &self,
        call: &str,
        index: [usize; D],
        here: impl FnOnce(*mut u8) -> Result<R>,
        there: impl FnOnce(usize, usize) -> Result<R>,
    ) -> Result<R> {
        let (rank, offset) = self.locate(call, index)?;
        match self.element_of(rank, offset)? {
            Some(at) => here(at),
            None => there(rank, offset).map_err(|error| during(call, index, rank, error)),
        }
    }

    /// The rank that holds `index`, and the element's place in its memory.
    #[inline]
    fn locate(&self, call: &str, index: [usize; D]) -> Result<(usize, usize)> {
        if self.layout.contains(index) {
            Ok(self.layout.locate(index))
        } else {
            Err(self.out_of_bounds(call, index))
        }
    }

    /// Pointer to the element at `offset` of `rank`'s memory, if that is mapped.
    fn element_of(&self, rank: usize, offset: usize) -> Result<Option<*mut u8>> {
        debug_assert!(offset < self.layout.memory_len(rank));
        // SAFETY: the offset comes from the layout: inside the memory.
        let at = |base: *mut u8| unsafe { base.add(offset * size_of::<T>()) };
        Ok(self.memory_of(rank)?.map(at))
    }

    #[cold]
    fn out_of_bounds(&self, call: &str, index: [usize; D]) -> Error {
        let text = match D {
            1 => format!(
                "{call} of index {}: the array has {} elements",
                index[0],
                self.len()
            ),
            _ => format!(
                "{call} of index {index:?}: the array's shape is {:?}",
                self.shape()
            ),
        };
        Error::new(ErrorKind::OutOfBounds, text)
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
fn during<const D: usize>(call: &str, index: [usize; D], rank: usize, error: Error) -> Error {
    let index = match D {
        1 => format!("{}", index[0]),
        _ => format!("{index:?}"),
    };
    error
        .context(format!("{call} of index {index} at rank {rank}"))
        .with_peer(rank)
}

impl<T: Element, const D: usize> fmt::Debug for GlobalArray<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalArray")
            .field("element", &std::any::type_name::<T>())
            .field("shape", &self.shape())
            .field("grid", &self.grid())
            .field("owned", &self.owned(self.rank()).shape())
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
