//! The access modes: where slices exist, and why they are sound.
//!
//! A slice says that nobody writes (`&[T]`) or that nobody else looks (`&mut [T]`), in any
//! process. So slices are given out only in a mode that all ranks entered together, in a
//! collective that names the array and the mode and that has flushed all writes, and the mode
//! ends on no rank before all ranks have ended it.
//!
//! On this rank the borrow checker keeps other operations away: a view borrows the array
//! mutably. If a view is leaked, its borrow ends but the mode stays, and every operation is
//! [`ErrorKind::WrongMode`]: nothing rests on `Drop`.

#![expect(
    unsafe_code,
    reason = "slices of shared memory, in the modes that allow them"
)]

use super::{ArrayIndex, GlobalArray, Owned, slowly};
use crate::dist::Slice;
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::span::{self, Section};
use crate::window;
use crate::world::{Call, Signature};
use elsa::sync::FrozenMap;
use ndarray::{ArrayView, ArrayViewMut, Axis, Dim, Dimension, IntoDimension, Ix};
use std::collections::HashSet;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

/// What an array allows now, on this rank.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mode {
    /// Gets, puts and atomics; no slices.
    Open,
    /// Entered here: gets, and slices of shared memory that nobody writes.
    Read(&'static Location<'static>),
    /// Entered here: a mutable slice of the own shard, that nobody else looks at.
    Local(&'static Location<'static>),
    /// Entered here: atomic operations only.
    Atomics(&'static Location<'static>),
    /// Entered here: one operation, in batches.
    Update(&'static Location<'static>),
}

impl Mode {
    #[inline]
    pub(super) fn check_open(&self, call: &str) -> Result<()> {
        let (name, entered) = match self {
            Self::Open => return Ok(()),
            Self::Read(entered) => ("read()", entered),
            Self::Local(entered) => ("local()", entered),
            Self::Atomics(entered) => ("atomics()", entered),
            Self::Update(entered) => ("update()", entered),
        };
        Err(wrong_mode(call, name, entered))
    }
}

#[cold]
fn wrong_mode(call: &str, mode: &str, entered: &Location<'_>) -> Error {
    Error::new(
        ErrorKind::WrongMode,
        format!(
            "{call}: the array is in the mode that {mode} entered at {entered}, which never ended \
             (its view was leaked, or ending it failed)"
        ),
    )
}

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Reading, by slices too: until the view ends no rank writes.
    ///
    /// Collective, and a [barrier](crate::Team::barrier): all that was written before is seen.
    ///
    /// # Errors
    /// [`ErrorKind::WrongMode`] after a leaked view; [`ErrorKind::InvalidValue`] if this rank's
    /// shard holds bytes that are no `T`; else as [`Team::barrier`](crate::Team::barrier).
    #[track_caller]
    pub fn read(&mut self) -> Result<ReadView<'_, T, D>> {
        self.enter("read", Call::Read, 0, Mode::Read(Location::caller()))?;
        let view = ReadView {
            array: self,
            fetched: FrozenMap::new(),
            checked: Mutex::default(),
            ended: false,
        };
        view.array.check_values()?;
        Ok(view)
    }

    /// This rank's own shard as a mutable slice: until the view ends no rank looks at another's.
    ///
    /// Collective, and a [barrier](crate::Team::barrier): all that was written before is seen.
    ///
    /// # Errors
    /// As [`GlobalArray::read`].
    #[track_caller]
    pub fn local(&mut self) -> Result<LocalView<'_, T, D>> {
        self.enter("local", Call::Local, 0, Mode::Local(Location::caller()))?;
        let view = LocalView {
            array: self,
            ended: false,
        };
        view.array.check_values()?;
        Ok(view)
    }

    #[track_caller]
    pub(super) fn enter(
        &mut self,
        name: &str,
        call: Call,
        detail: usize,
        mode: Mode,
    ) -> Result<()> {
        // What is under way and was forgotten must not touch memory that is borrowed soon.
        let ready = self
            .mode
            .check_open(name)
            .and_then(|()| self.window.core().settle());
        if let Err(error) = ready {
            self.window.core().refuse();
            return Err(error);
        }
        // Before the barrier: if it fails on this rank only, others may have entered.
        self.mode = mode;
        self.open = 0;
        let signature = Signature::new(call)
            .detail(detail)
            .count(window::index(self.window.id));
        let entered = self.window.core().barrier(&signature);
        if let Err(error) = &entered
            && error.kind() == ErrorKind::Mismatch
        {
            // No rank entered anything.
            self.reopen();
        }
        entered
    }

    /// Ends the mode on all ranks. Collective.
    #[track_caller]
    pub(super) fn leave(&mut self) -> Result<()> {
        let signature = Signature::new(Call::EndMode).count(window::index(self.window.id));
        self.window.core().barrier(&signature)?;
        self.reopen();
        Ok(())
    }

    fn reopen(&mut self) {
        self.mode = Mode::Open;
        self.open = self.line();
    }

    /// A slice claims that its elements are values; peers write bytes. Checked where not all
    /// bytes are values.
    fn check_values(&self) -> Result<()> {
        let count = self.layout.memory_len(self.rank());
        if element::any_bits::<T>() || count == 0 {
            return Ok(());
        }
        // SAFETY: my shard, mapped, of that many elements; nobody writes in this mode.
        unsafe { element::load_vec::<T>(self.window.base(), count) }.map(drop)
    }

    /// This rank's memory, ghost cells included.
    ///
    /// # Safety
    /// In a mode in which no rank writes while the slice lives.
    unsafe fn shard(&self) -> &[T] {
        let count = self.layout.memory_len(self.rank());
        if count == 0 {
            return &[];
        }
        // SAFETY: mapped, aligned and of that many elements, all valid (`check_values`); nobody
        // writes, by the caller.
        unsafe { std::slice::from_raw_parts(self.window.base().cast::<T>(), count) }
    }
}

/// An array in which no rank writes: made by [`GlobalArray::read`]. Dereferences to this rank's
/// own memory: its elements in row-major order of their local indices, among their ghost cells if
/// it has any.
///
/// Ends when dropped, which is collective: it waits until all ranks have ended theirs.
pub struct ReadView<'a, T: Element, const D: usize = 1> {
    pub(super) array: &'a mut GlobalArray<T, D>,
    /// What was fetched from other nodes, kept until the view ends.
    fetched: FrozenMap<Fetched<D>, Box<[T]>>,
    /// Mapped shards whose bytes were found to be values. They stay so: nobody writes.
    checked: Mutex<HashSet<usize>>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fetched<const D: usize> {
    Shard(usize),
    Section([Slice; D]),
}

impl<T: Element, const D: usize> ReadView<'_, T, D> {
    /// The element at `index`, of any rank. One-sided; waits for it.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn get(&self, index: impl ArrayIndex<D>) -> Result<T> {
        let index = index.into_array();
        // Reading is what this mode is for.
        match self.array.find(index, self.array.line()) {
            // SAFETY: `find` points to a mapped element of this array.
            Some(at) => unsafe { element::load(at) },
            // No access in the sense of races: the mode sees to those.
            None => slowly(|to| {
                let site = Location::caller();
                self.array.get_slowly(index, Mode::Open, site, to)
            }),
        }
    }

    /// The elements at these indices, in their order; repeats are allowed. One-sided; waits for
    /// them. See [`GlobalArray::gather`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    pub fn gather<I: ArrayIndex<D>>(&self, indices: &[I]) -> Result<Vec<T>> {
        self.array.gather_anyway(indices)
    }

    /// The memory of a rank: its elements in row-major order of their local indices, among their
    /// ghost cells if it has any. Without a copy on this node; from another node it is fetched
    /// once and kept until the view ends.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] if it holds bytes that are no `T`; else as [`GlobalArray::get`].
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn shard_of(&self, rank: usize) -> Result<&[T]> {
        let array = &*self.array;
        let count = array.owned(rank).layout.memory_len(rank);
        if count == 0 {
            return Ok(&[]);
        }
        let Some(base) = array.memory_of(rank)? else {
            let fetch = || array.window.get_range(rank, 0, count);
            return self.fetched(Fetched::Shard(rank), fetch);
        };
        if !element::any_bits::<T>() {
            let checked = || self.checked.lock().unwrap_or_else(PoisonError::into_inner);
            if !checked().contains(&rank) {
                // SAFETY: mapped, of that many elements; nobody writes in this mode.
                unsafe { element::load_vec::<T>(base, count) }?;
                checked().insert(rank);
            }
        }
        // SAFETY: mapped, aligned, of that many valid elements; in this mode nobody writes.
        Ok(unsafe { std::slice::from_raw_parts(base.cast::<T>(), count) })
    }

    fn fetched(&self, what: Fetched<D>, fetch: impl FnOnce() -> Result<Vec<T>>) -> Result<&[T]> {
        if let Some(values) = self.fetched.get(&what) {
            return Ok(values);
        }
        Ok(self.fetched.insert(what, fetch()?.into_boxed_slice()))
    }
}

impl<T: Element> ReadView<'_, T> {
    /// The elements of `range`, of any ranks. One-sided; waits for them.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    pub fn get_range(&self, range: Range<usize>) -> Result<Vec<T>> {
        self.array.read_range(range)
    }

    /// Fills `to` with the elements from index `start` on, of any ranks. One-sided; waits for them.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    pub fn get_into(&self, start: usize, to: &mut [T]) -> Result<()> {
        self.array.read_into(start, to)
    }
}

impl<T: Element, const D: usize> ReadView<'_, T, D>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    /// A section of the array, of any ranks. Without a copy where it is one rank's on this node;
    /// else it is fetched once and kept until the view ends.
    ///
    /// # Errors
    /// As [`GlobalArray::get_section`].
    pub fn section(&self, section: impl Section<D>) -> Result<ArrayView<'_, T, Dim<[Ix; D]>>> {
        let slices = span::resolve("section", section.spans(), self.array.shape())?;
        let shape = slices.map(|slice| slice.count);
        if let Some(view) = self.mapped_section(slices)? {
            return Ok(view);
        }
        let fetch = || self.array.load_section(slices);
        let values = self.fetched(Fetched::Section(slices), fetch)?;
        ArrayView::from_shape(shape, values)
            .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))
    }

    /// The section where it lies, if it is all one rank's and mapped.
    fn mapped_section(&self, slices: [Slice; D]) -> Result<Option<ArrayView<'_, T, Dim<[Ix; D]>>>> {
        let array = &*self.array;
        let shape = slices.map(|slice| slice.count);
        let Some(patch) = array.layout.patches(slices).next() else {
            return Ok(None);
        };
        if patch.counts != shape || array.memory_of(patch.rank)?.is_none() {
            return Ok(None);
        }
        let memory = self.shard_of(patch.rank)?;
        let memory_shape = array.layout.memory_shape(patch.rank);
        let Ok(mut view) = ArrayView::from_shape(memory_shape, memory) else {
            return Ok(None);
        };
        // What of the memory, by axis: from the lower end on, then turned round.
        for (d, slice) in slices.into_iter().enumerate() {
            let last = slice
                .start
                .wrapping_add_signed(slice.step * (slice.count.cast_signed() - 1));
            let lower = slice.start.min(last);
            let (_, place) = array.layout.axis(d).locate(lower);
            let start = array.layout.axis(d).halo() + place;
            // A patch that is the whole section steps as the section does, but in a cyclic
            // dimension.
            let strides = array.layout.strides(patch.rank);
            let step = patch.steps[d] / strides[d].cast_signed();
            let step = if slice.count == 1 { 1 } else { step.abs() };
            let end = start + (slice.count - 1) * step.unsigned_abs() + 1;
            let part = ndarray::Slice::from(start..end).step_by(step);
            view.slice_axis_inplace(Axis(d), part);
            if slice.step < 0 {
                view.invert_axis(Axis(d));
            }
        }
        Ok(Some(view))
    }
}

impl<T: Element, const D: usize> Deref for ReadView<'_, T, D> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: in the read mode no rank writes, and the mode cannot end while `self` is
        // borrowed.
        unsafe { self.array.shard() }
    }
}

/// This rank's own shard, writable: made by [`GlobalArray::local`]. Dereferences to a mutable
/// slice of this rank's memory: its elements in row-major order of their local indices, among
/// their ghost cells if it has any.
///
/// The slice is an ordinary one: give it to rayon's `par_iter_mut`, or split it among threads.
///
/// Ends when dropped, which is collective: it waits until all ranks have ended theirs.
pub struct LocalView<'a, T: Element, const D: usize = 1> {
    pub(super) array: &'a mut GlobalArray<T, D>,
    ended: bool,
}

impl<T: Element, const D: usize> Deref for LocalView<'_, T, D> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: in the local mode only this rank touches its memory, and only through `self`.
        unsafe { self.array.shard() }
    }
}

impl<T: Element, const D: usize> DerefMut for LocalView<'_, T, D> {
    fn deref_mut(&mut self) -> &mut [T] {
        let count = self.array.layout.memory_len(self.array.rank());
        if count == 0 {
            return &mut [];
        }
        let base = self.array.window.base().cast::<T>();
        // SAFETY: mapped, aligned, of that many valid elements; in the local mode only this rank
        // touches them, and only through `self`, which is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(base, count) }
    }
}

impl<'a, T: Element, const D: usize> LocalView<'a, T, D>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    /// This rank's elements, writable, without their ghost cells.
    pub fn array_mut(&mut self) -> ArrayViewMut<'_, T, Dim<[Ix; D]>> {
        let own: [_; D] = std::array::from_fn(|d| own(self.array, d));
        let mut view = self.with_halo_mut();
        for (d, own) in own.into_iter().enumerate() {
            view.slice_axis_inplace(Axis(d), own);
        }
        view
    }

    /// This rank's elements and their ghost cells, writable.
    pub fn with_halo_mut(&mut self) -> ArrayViewMut<'_, T, Dim<[Ix; D]>> {
        let shape = self.array.layout.memory_shape(self.array.rank());
        match ArrayViewMut::from_shape(shape, self) {
            Ok(view) => view,
            Err(_) => unreachable!("the memory has its own shape"),
        }
    }
}

/// What the views have in common.
macro_rules! view {
    ($view:ident: $element:ident) => {
        impl<T: $element, const D: usize> $view<'_, T, D> {
            /// The number of elements of the whole array.
            #[must_use]
            pub fn global_len(&self) -> usize {
                self.array.len()
            }

            /// The shape of the whole array.
            #[must_use]
            pub fn global_shape(&self) -> [usize; D] {
                self.array.shape()
            }

            /// What this rank holds.
            #[must_use]
            pub fn owned(&self) -> Owned<'_, D> {
                self.array.owned(self.array.rank())
            }

            /// Ends the view. Collective: waits until all ranks have ended theirs.
            ///
            /// # Errors
            /// As [`Team::barrier`](crate::Team::barrier); the array then stays in this mode.
            #[track_caller]
            pub fn close(mut self) -> Result<()> {
                self.ended = true;
                self.array.leave()
            }
        }

        impl<T: $element> $view<'_, T> {
            /// The indices of this rank's own shard.
            ///
            /// # Panics
            /// As [`GlobalArray::local_range`].
            #[must_use]
            pub fn local_range(&self) -> Range<usize> {
                self.array.local_range()
            }
        }

        impl<T: $element, const D: usize> Drop for $view<'_, T, D> {
            fn drop(&mut self) {
                // While a panic unwinds the job is ending: others will not come.
                if !self.ended && !std::thread::panicking() {
                    // The mode then stays, and the next operation says why.
                    let _ = self.array.leave();
                }
            }
        }

        impl<T: $element, const D: usize> fmt::Debug for $view<'_, T, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($view))
                    .field("array", &self.array)
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(super) use view;
view!(ReadView: Element);
view!(LocalView: Element);

/// What the views with slices have in common.
macro_rules! slices {
    ($view:ident) => {
        impl<T: Element, const D: usize> $view<'_, T, D>
        where
            Dim<[Ix; D]>: Dimension,
            [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
        {
            /// This rank's elements, without their ghost cells.
            #[must_use]
            pub fn array(&self) -> ArrayView<'_, T, Dim<[Ix; D]>> {
                let mut view = self.with_halo();
                for d in 0..D {
                    view.slice_axis_inplace(Axis(d), own(self.array, d));
                }
                view
            }

            /// This rank's elements and their ghost cells.
            #[must_use]
            pub fn with_halo(&self) -> ArrayView<'_, T, Dim<[Ix; D]>> {
                let shape = self.array.layout.memory_shape(self.array.rank());
                match ArrayView::from_shape(shape, &**self) {
                    Ok(view) => view,
                    Err(_) => unreachable!("the memory has its own shape"),
                }
            }
        }
    };
}
slices!(ReadView);
slices!(LocalView);

/// Where in this rank's memory its own elements are, along dimension `d`.
fn own<T: Element, const D: usize>(array: &GlobalArray<T, D>, d: usize) -> ndarray::Slice {
    let owned = array.layout.owned_shape(array.rank());
    // A rank that holds nothing has no ghost cells.
    let halo = if owned.contains(&0) {
        0
    } else {
        array.layout.axis(d).halo()
    };
    ndarray::Slice::from(halo..halo + owned[d])
}
