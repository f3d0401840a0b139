//! `update`: all ranks push values to any elements, in batches, and end together.

#![expect(unsafe_code, reason = "atomics through mapped pointers")]

use super::batch::{BLOCK, apply_block, prefetch};
use super::modes::Mode;
use super::remote::Applies;
use super::{ArrayIndex, GlobalArray};
use crate::atomic::AtomicElement;
use crate::error::Result;
use crate::operator::Operator;
use crate::world::Call;
use std::fmt;
use std::panic::Location;

impl<T: AtomicElement, const D: usize> GlobalArray<T, D> {
    /// Runs `body`, in which this rank may push any number of values to elements of any rank:
    /// each is combined into its element as `element = element op value`, atomically. When
    /// `update` returns, all values that any rank has pushed are in their elements.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at its beginning and its end; pushes are
    /// one-sided. Memory for pushed values is bounded: a push may wait until earlier ones have
    /// arrived, never for what another rank's program does.
    ///
    /// ```no_run
    /// # fn f(histogram: &mut pgas::GlobalArray<u64>, samples: &[usize]) -> pgas::Result<()> {
    /// use pgas::Op;
    /// histogram.update(Op::Sum, |bins| {
    ///     for &sample in samples {
    ///         bins.push(sample, 1)?;
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// What `body` returns, after the other ranks were met, with what was pushed before in place;
    /// [`ErrorKind::WrongMode`](crate::ErrorKind::WrongMode); else as
    /// [`Team::barrier`](crate::Team::barrier).
    #[track_caller]
    pub fn update<O: Operator<T>>(
        &mut self,
        op: O,
        body: impl FnOnce(&mut Updates<'_, T, D, O>) -> Result<()>,
    ) -> Result<()> {
        let operator = op.atomic_op() as usize;
        self.enter(
            "update",
            Call::Update,
            operator,
            Mode::Update(Location::caller()),
        )?;
        let mut updates = Updates {
            array: self,
            op,
            line: self.line(),
            addresses: [std::ptr::null_mut(); BLOCK],
            values: Vec::with_capacity(BLOCK),
            elsewhere: Applies::new(&self.window, op.atomic_op()),
        };
        let pushed = body(&mut updates);
        updates.apply();
        let applied = updates.elsewhere.finish();
        // Met in any case: the other ranks come here.
        let left = self.leave();
        pushed.and(applied).and(left)
    }
}

/// Takes values for elements of any rank: see [`GlobalArray::update`].
pub struct Updates<'a, T: AtomicElement, const D: usize, O: Operator<T>> {
    array: &'a GlobalArray<T, D>,
    op: O,
    /// As in [`GlobalArray::get`].
    line: usize,
    /// Of mapped elements: where the values belong, as many as there are.
    addresses: [*mut u8; BLOCK],
    values: Vec<T>,
    elsewhere: Applies<'a, T>,
}

impl<T: AtomicElement, const D: usize, O: Operator<T>> Updates<'_, T, D, O> {
    /// Combines `value` into the element at `index`, some time before the end of the update.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfBounds`](crate::ErrorKind::OutOfBounds): nothing is pushed; else the
    /// failure of an earlier push.
    #[inline]
    pub fn push(&mut self, index: impl ArrayIndex<D>, value: T) -> Result<()> {
        let index = index.into_array();
        match self.array.find(index, self.line) {
            Some(at) => {
                self.push_at(at, value);
                Ok(())
            }
            None => self.push_slowly(index, value),
        }
    }

    #[inline]
    fn push_at(&mut self, at: *mut u8, value: T) {
        // The cache line comes while other values are pushed.
        prefetch(at);
        self.addresses[self.values.len()] = at;
        self.values.push(value);
        if self.values.len() == BLOCK {
            self.apply();
        }
    }

    #[inline(never)]
    fn push_slowly(&mut self, index: [usize; D], value: T) -> Result<()> {
        if !self.array.layout.contains(index) {
            return Err(self.array.out_of_bounds("push", index));
        }
        let (rank, offset) = self.array.layout.locate(index);
        self.array.core_of().count(rank, 1, size_of::<T>());
        match self.array.element_of(rank, offset)? {
            Some(at) => {
                self.push_at(at, value);
                Ok(())
            }
            None => self.elsewhere.push(rank, offset, value),
        }
    }

    #[inline(never)]
    fn apply(&mut self) {
        // SAFETY: mapped elements of the array.
        unsafe { apply_block(self.op.atomic_op(), &self.addresses, &self.values) };
        self.values.clear();
    }
}

impl<T: AtomicElement, const D: usize, O: Operator<T>> fmt::Debug for Updates<'_, T, D, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updates")
            .field("array", self.array)
            .finish_non_exhaustive()
    }
}
