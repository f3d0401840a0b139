//! Operations of arrays that go on while the program does something else; and `Scope`, for those
//! on borrowed buffers.
//!
//! A request borrows its array, so no mode is entered while it lives; for requests that were
//! forgotten the next entry waits, see [`Core::settle`](crate::world::Core::settle).

#![expect(unsafe_code, reason = "loads and stores through mapped pointers")]

use super::races::Access;
use super::remote::{Gathers, Reads};
use super::{ArrayIndex, GlobalArray};
use crate::dist::Slice;
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::span::{self, Section};
use crate::ucx::{self, PutTicket};
use crate::world::{Core, Pending, Request, Team};
use ndarray::{Array, ArrayView, ArrayViewMut, Dim, Dimension, IntoDimension, Ix};
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// Starts [`GlobalArray::get`]. One-sided; does not wait.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[track_caller]
    pub fn get_async(&self, index: impl ArrayIndex<D>) -> Result<Request<'_, T>> {
        let index = index.into_array();
        self.mode.check_open("get_async")?;
        self.note(Access::read("get_async", Location::caller()), index)?;
        self.reach(
            "get_async",
            index,
            // SAFETY: a mapped element of this array.
            |at| Ok(Request::done(self.core_of(), unsafe { element::load(at) }?)),
            |rank, offset| {
                let get = self.window.get_nb(rank, offset, 1)?;
                get.may_be_forgotten()?;
                Ok(Request::waiting(self.core_of(), get))
            },
        )
    }

    /// Starts [`GlobalArray::put`]: the request is done when the value is in its place. Does not
    /// wait, unless very much is under way.
    ///
    /// # Errors
    /// As [`GlobalArray::put`].
    #[track_caller]
    pub fn put_async(&self, index: impl ArrayIndex<D>, value: T) -> Result<Request<'_, ()>> {
        let index = index.into_array();
        self.mode.check_open("put_async")?;
        self.note(Access::write("put_async", Location::caller()), index)?;
        self.reach(
            "put_async",
            index,
            |at| {
                // SAFETY: a mapped element of this array.
                unsafe { element::store(at, value) };
                self.wrote(index);
                Ok(Request::done(self.core_of(), ()))
            },
            |rank, offset| {
                let put = self.window.put_nb(rank, offset, value)?;
                Ok(Request::waiting(self.core_of(), put))
            },
        )
    }

    /// Starts [`GlobalArray::gather`]. One-sided; does not wait.
    ///
    /// # Errors
    /// As [`GlobalArray::gather`].
    #[track_caller]
    pub fn gather_async<I: ArrayIndex<D>>(&self, indices: &[I]) -> Result<Request<'_, Vec<T>>> {
        self.mode.check_open("gather_async")?;
        let access = Access::read("gather_async", Location::caller());
        let (values, elsewhere) = self.gather_here(access, indices)?;
        let mut gather = Gather {
            gathers: Gathers::new(&self.window, elsewhere).forgettable(),
            values,
        };
        gather.is_done()?;
        Ok(Request::waiting(self.core_of(), gather))
    }

    #[track_caller]
    fn section_async(&self, call: &'static str, slices: [Slice; D]) -> Result<Request<'_, Vec<T>>> {
        self.note_section(Access::read(call, Location::caller()), slices)?;
        let len = slices.iter().map(|slice| slice.count).product();
        let mut section = ReadSection {
            reads: Reads::new(&self.window).forgettable(),
            bits: bytemuck::allocation::zeroed_vec(len),
        };
        self.load_mapped(slices, &mut section.bits, &mut section.reads)?;
        section.reads.flush(&mut section.bits)?;
        Ok(Request::waiting(self.core_of(), section))
    }
}

impl<T: Element> GlobalArray<T> {
    /// Starts [`GlobalArray::get_range`]. One-sided; does not wait, unless very much is under way.
    ///
    /// # Errors
    /// As [`GlobalArray::get_range`].
    #[track_caller]
    pub fn get_range_async(&self, range: Range<usize>) -> Result<Request<'_, Vec<T>>> {
        self.mode.check_open("get_range_async")?;
        let call = "get_range_async";
        self.section_async(call, [self.slice(call, range.start, range.len())?])
    }
}

impl<T: Element> Pending<T> for ucx::Request<T> {
    fn is_done(&mut self) -> Result<bool> {
        ucx::Request::is_done(self)
    }

    fn wait(self: Box<Self>) -> Result<T> {
        let values = ucx::Request::wait(*self)?;
        let missing = || Error::new(ErrorKind::Ucx, "no element arrived");
        values.first().copied().ok_or_else(missing)
    }
}

impl Pending<()> for PutTicket {
    fn is_done(&mut self) -> Result<bool> {
        PutTicket::is_done(self)
    }

    fn wait(self: Box<Self>) -> Result<()> {
        PutTicket::wait(*self)
    }
}

/// A gather under way.
struct Gather<'a, T: Element> {
    gathers: Gathers<'a>,
    values: super::batch::Gathered<T>,
}

impl<T: Element> Pending<Vec<T>> for Gather<'_, T> {
    fn is_done(&mut self) -> Result<bool> {
        let values = &mut self.values;
        self.gathers.go_on(|at, value| values.set(at, value))
    }

    fn wait(self: Box<Self>) -> Result<Vec<T>> {
        let mut this = *self;
        let values = &mut this.values;
        this.gathers.finish(|at, value| values.set(at, value))?;
        this.values.finish()
    }
}

/// Reads of a section under way.
struct ReadSection<'a, T: Element> {
    reads: Reads<'a, T>,
    bits: Vec<T::Bits>,
}

// SAFETY: the bits are plain bytes that it owns; all else may be sent.
unsafe impl<T: Element> Send for ReadSection<'_, T> {}

impl<T: Element> Pending<Vec<T>> for ReadSection<'_, T> {
    fn is_done(&mut self) -> Result<bool> {
        self.reads.is_done()
    }

    fn wait(self: Box<Self>) -> Result<Vec<T>> {
        let mut this = *self;
        this.reads.finish(&mut this.bits)?;
        element::vec_from_bits(this.bits)
    }
}

/// Operations on borrowed buffers that all end with the scope: see [`Team::scope`].
pub struct Scope<'env> {
    core: &'env Core,
    ends: Mutex<Vec<End<'env>>>,
}

/// What is left to do at the end of a scope.
type End<'env> = Box<dyn FnOnce() -> Result<()> + Send + 'env>;

impl Team {
    /// Runs `body`, which may start any number of operations on buffers that it borrows from
    /// outside; returns when all of them are complete, reads filled in and writes in their place.
    ///
    /// One-sided.
    ///
    /// ```no_run
    /// # fn f(world: &pgas::World, array: &pgas::GlobalArray<f64>) -> pgas::Result<()> {
    /// let (mut head, mut tail) = ([0.0; 8], [0.0; 8]);
    /// world.scope(|scope| {
    ///     scope.get_into(array, 0, &mut head)?;
    ///     scope.get_into(array, array.len() - 8, &mut tail)
    /// })?;
    /// println!("{head:?} … {tail:?}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// That of `body`, or of the first operation that failed; the others are waited for all the
    /// same.
    pub fn scope<'env, R>(&'env self, body: impl FnOnce(&Scope<'env>) -> Result<R>) -> Result<R> {
        let scope = Scope {
            core: self.core(),
            ends: Mutex::default(),
        };
        let result = body(&scope);
        let ends = std::mem::take(&mut *scope.lock());
        let mut ended = Ok(());
        for end in ends {
            // All are waited for, also after the first failure.
            let end = end();
            ended = ended.and(end);
        }
        let flushed = scope.core.flush();
        let value = result?;
        ended.and(flushed)?;
        Ok(value)
    }
}

impl<'env> Scope<'env> {
    fn lock(&self) -> MutexGuard<'_, Vec<End<'env>>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// At the end of the scope, gives the request's result to `fill`.
    fn at_end<R: Send + 'env>(
        &self,
        request: Request<'env, R>,
        fill: impl FnOnce(R) + Send + 'env,
    ) {
        self.lock().push(Box::new(move || request.wait().map(fill)));
    }

    /// Starts to fill `to` with the elements from index `start` on.
    ///
    /// # Errors
    /// As [`GlobalArray::get_range`].
    #[track_caller]
    pub fn get_into<T: Element>(
        &self,
        array: &'env GlobalArray<T>,
        start: usize,
        to: &'env mut [T],
    ) -> Result<()> {
        array.mode.check_open("get_into")?;
        let slice = array.slice("get_into", start, to.len())?;
        let request = array.section_async("get_into", [slice])?;
        self.at_end(request, |values| to.copy_from_slice(&values));
        Ok(())
    }

    /// Starts to fill `to` with the elements at `indices`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there are not as many; else as [`GlobalArray::gather`].
    #[track_caller]
    pub fn gather_into<T: Element, I: ArrayIndex<D>, const D: usize>(
        &self,
        array: &'env GlobalArray<T, D>,
        indices: &[I],
        to: &'env mut [T],
    ) -> Result<()> {
        super::batch::same_len("gather_into", indices.len(), to.len())?;
        let request = array.gather_async(indices)?;
        self.at_end(request, |values| to.copy_from_slice(&values));
        Ok(())
    }

    /// Starts to fill `to`, of the section's shape, with the section's elements.
    ///
    /// # Errors
    /// As [`GlobalArray::get_section_into`].
    #[track_caller]
    pub fn get_section_into<T: Element, const D: usize>(
        &self,
        array: &'env GlobalArray<T, D>,
        section: impl Section<D>,
        mut to: ArrayViewMut<'env, T, Dim<[Ix; D]>>,
    ) -> Result<()>
    where
        Dim<[Ix; D]>: Dimension,
        [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
    {
        array.mode.check_open("get_section_into")?;
        let slices = span::resolve("get_section_into", section.spans(), array.shape())?;
        super::section::same_shape("get_section_into", slices, to.shape())?;
        let request = array.section_async("get_section_into", slices)?;
        let shape = slices.map(|slice| slice.count);
        self.at_end(request, move |values| {
            if let Ok(values) = Array::from_shape_vec(shape, values) {
                to.assign(&values);
            }
        });
        Ok(())
    }

    /// Starts to write `from` to the elements from index `start` on.
    ///
    /// # Errors
    /// As [`GlobalArray::put_range`].
    #[track_caller]
    pub fn put_range<T: Element>(
        &self,
        array: &'env GlobalArray<T>,
        start: usize,
        from: &[T],
    ) -> Result<()> {
        array.put_range(start, from)
    }

    /// Writes `from`, of the section's shape, to the section's elements; what is strided on another
    /// node waits for its owner's answer.
    ///
    /// # Errors
    /// As [`GlobalArray::put_section`].
    #[track_caller]
    pub fn put_section<'a, T: Element, const D: usize>(
        &self,
        array: &'env GlobalArray<T, D>,
        section: impl Section<D>,
        from: impl Into<ArrayView<'a, T, Dim<[Ix; D]>>>,
    ) -> Result<()>
    where
        Dim<[Ix; D]>: Dimension,
        [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
    {
        array.put_section(section, from)
    }
}

impl fmt::Debug for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope")
            .field("under_way", &self.lock().len())
            .finish_non_exhaustive()
    }
}
