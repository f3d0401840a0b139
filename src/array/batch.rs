//! Many indices at once: `gather`, `scatter` and `scatter_with`.
//!
//! Indices are taken in blocks: first all addresses of a block are found and fetched into the
//! cache ahead of time, then all its elements are read or written. What is on other nodes is set
//! aside and goes there by owner, many elements to a message.

#![expect(
    unsafe_code,
    reason = "loads, stores and atomics through mapped pointers"
)]

use super::races::Access;
use super::remote::{Applies, Gathers, Place, Scatters};
use super::{ArrayIndex, GlobalArray};
use crate::atomic::{self, AtomicElement, AtomicOp};
use crate::dist::Layout;
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Operator;
use std::mem::MaybeUninit;
use std::panic::Location;
use std::sync::atomic::Ordering;

/// Indices of a block: their addresses fit the first-level cache beside their cache lines.
pub(super) const BLOCK: usize = 128;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// The elements at these indices, in their order; repeats are allowed. One-sided; waits for
    /// them.
    ///
    /// What is on another node comes in one message for some thousands of elements of an owner.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[track_caller]
    pub fn gather<I: ArrayIndex<D>>(&self, indices: &[I]) -> Result<Vec<T>> {
        self.mode.check_open("gather")?;
        self.gather_anyway(indices)
    }

    /// [`GlobalArray::gather`] in any mode.
    #[track_caller]
    pub(super) fn gather_anyway<I: ArrayIndex<D>>(&self, indices: &[I]) -> Result<Vec<T>> {
        let access = Access::read("gather", Location::caller());
        let (mut values, elsewhere) = self.gather_here(access, indices)?;
        if !elsewhere.is_empty() {
            let gathers = Gathers::new(&self.window, elsewhere);
            gathers.finish(|at, value| values.set(at, value))?;
        }
        values.finish()
    }

    /// The elements that are mapped, and where the others are.
    pub(super) fn gather_here<I: ArrayIndex<D>>(
        &self,
        access: Access,
        indices: &[I],
    ) -> Result<(Gathered<T>, Vec<Place>)> {
        self.check_indices(access.call, indices)?;
        self.note_all(access, indices.iter().copied())?;
        let mut values = Box::new_uninit_slice(indices.len()).into_vec();
        let mut elsewhere = Vec::new();
        self.blocks(indices, &mut elsewhere, |at, addresses| {
            let places = &mut values[at..at + addresses.len()];
            for (place, &address) in places.iter_mut().zip(addresses) {
                if !address.is_null() {
                    // SAFETY: a mapped element of this array.
                    *place = MaybeUninit::new(unsafe { element::load(address) }?);
                }
            }
            Ok(())
        })?;
        let missing = elsewhere.len();
        Ok((Gathered { values, missing }, elsewhere))
    }

    /// Writes `values[k]` to `indices[k]`. Of several values for one element the last is written.
    /// One-sided; see [order and completion](GlobalArray#order-and-completion).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if there are not as many values as indices; else as
    /// [`GlobalArray::put`]. Nothing is written if an index is out of bounds.
    #[track_caller]
    pub fn scatter<I: ArrayIndex<D>>(&self, indices: &[I], values: &[T]) -> Result<()> {
        self.mode.check_open("scatter")?;
        same_len("scatter", indices.len(), values.len())?;
        self.check_indices("scatter", indices)?;
        let access = Access::write("scatter", Location::caller());
        self.note_all(access, indices.iter().copied())?;
        let mut elsewhere = Vec::new();
        let stored = self.blocks(indices, &mut elsewhere, |at, addresses| {
            for (&address, &value) in addresses.iter().zip(&values[at..]) {
                if !address.is_null() {
                    // SAFETY: a mapped element of this array.
                    unsafe { element::store(address, value) };
                }
            }
            Ok(())
        });
        self.wrote_all(indices);
        stored?;
        Scatters::run(&self.window, elsewhere, values)
    }

    /// Calls `body` for one block of indices after another with the number of its first index and
    /// the address of each element; null for those that are not mapped, which are added to
    /// `elsewhere`. The indices have been checked.
    fn blocks<I: ArrayIndex<D>>(
        &self,
        indices: &[I],
        elsewhere: &mut Vec<Place>,
        mut body: impl FnMut(usize, &[*mut u8]) -> Result<()>,
    ) -> Result<()> {
        let mut addresses = [std::ptr::null_mut(); BLOCK];
        for (block, indices) in indices.chunks(BLOCK).enumerate() {
            let addresses = &mut addresses[..indices.len()];
            if !self.find_all(indices, addresses) {
                self.find_others(indices, addresses, block * BLOCK, elsewhere)?;
            }
            body(block * BLOCK, addresses)?;
        }
        Ok(())
    }

    /// The addresses that are null, of elements that turn out to be mapped; the others are added
    /// to `elsewhere`, numbered from `first` on.
    fn find_others<I: ArrayIndex<D>>(
        &self,
        indices: &[I],
        addresses: &mut [*mut u8],
        first: usize,
        elsewhere: &mut Vec<Place>,
    ) -> Result<()> {
        for (k, address) in addresses.iter_mut().enumerate() {
            if !address.is_null() {
                continue;
            }
            let (rank, offset) = self.layout.locate(indices[k].into_array());
            match self.element_of(rank, offset)? {
                Some(at) => *address = at,
                None => elsewhere.push(Place {
                    rank,
                    offset,
                    at: first + k,
                }),
            }
        }
        Ok(())
    }

    /// The addresses of elements as far as they are known, null elsewhere; whether all are known.
    /// The indices have been checked.
    #[inline]
    fn find_all<I: ArrayIndex<D>>(&self, indices: &[I], addresses: &mut [*mut u8]) -> bool {
        let mut all = true;
        let line = self.layout.line().0 > 0;
        let owner = |index| Layout::<D>::owner(index, self.multiplier, self.shift);
        if line {
            for (index, address) in indices.iter().zip(&mut *addresses) {
                let index = index.into_array()[0];
                let zeroth = self.rows[owner(index)].load(Ordering::Relaxed);
                all &= !zeroth.is_null();
                *address = zeroth.wrapping_add(index * size_of::<T>());
                prefetch(*address);
            }
            if all {
                return true;
            }
            // Looked at again: another thread may have found it meanwhile.
            all = true;
        }
        for (index, address) in indices.iter().zip(addresses) {
            let index = index.into_array();
            let (rank, offset) = match line {
                true => (owner(index[0]), index[0]),
                false => self.layout.locate(index),
            };
            let base = self.rows[rank].load(Ordering::Relaxed);
            all &= !base.is_null();
            *address = match base.is_null() {
                true => base,
                false => base.wrapping_add(offset * size_of::<T>()),
            };
            prefetch(*address);
        }
        all
    }

    fn check_indices<I: ArrayIndex<D>>(&self, call: &str, indices: &[I]) -> Result<()> {
        let shape = self.shape();
        // No branch in the loop, so that it is a fast one.
        let outside = |index: [usize; D]| (0..D).fold(false, |any, d| any | (index[d] >= shape[d]));
        let any = indices
            .iter()
            .fold(false, |any, index| any | outside(index.into_array()));
        if !any {
            return Ok(());
        }
        let mut numbered = indices.iter().enumerate();
        match numbered.find(|(_, index)| outside(index.into_array())) {
            Some((at, index)) => Err(self
                .out_of_bounds(call, index.into_array())
                .context(format!("number {at} of {}", indices.len()))),
            None => Ok(()),
        }
    }
}

/// Values that are gathered. Those that are not here yet are set one by one, each once.
pub(super) struct Gathered<T> {
    values: Vec<MaybeUninit<T>>,
    /// How many are not set.
    missing: usize,
}

impl<T> Gathered<T> {
    pub(super) fn set(&mut self, at: usize, value: T) {
        self.values[at] = MaybeUninit::new(value);
        self.missing -= 1;
    }

    pub(super) fn finish(self) -> Result<Vec<T>> {
        if self.missing > 0 {
            return Err(Error::new(ErrorKind::Ucx, "an answer is missing"));
        }
        let mut values = std::mem::ManuallyDrop::new(self.values);
        let (pointer, len, capacity) = (values.as_mut_ptr(), values.len(), values.capacity());
        // SAFETY: the same allocation, of the same layout. All values are set: those that were
        // mapped when they were found, and as many others as were missing, each place once.
        Ok(unsafe { Vec::from_raw_parts(pointer.cast::<T>(), len, capacity) })
    }
}

impl<T: AtomicElement, const D: usize> GlobalArray<T, D> {
    /// Combines `values[k]` into the element at `indices[k]`, for all k:
    /// `element = element op value`, atomically for each element; repeats are allowed. One-sided;
    /// complete when it returns.
    ///
    /// What is on another node goes there in one message for some thousands of elements of an
    /// owner.
    ///
    /// # Errors
    /// As [`GlobalArray::scatter`]. Nothing is done if an index is out of bounds.
    #[track_caller]
    pub fn scatter_with<I: ArrayIndex<D>, O: Operator<T>>(
        &self,
        indices: &[I],
        values: &[T],
        op: O,
    ) -> Result<()> {
        self.mode.check_open("scatter_with")?;
        same_len("scatter_with", indices.len(), values.len())?;
        self.check_indices("scatter_with", indices)?;
        let access = Access::atomic("scatter_with", Location::caller());
        self.count_all(access, indices.iter().copied())?;
        let spots = || {
            indices
                .iter()
                .map(|index| self.layout.locate(index.into_array()))
        };
        self.all_in_order(access, spots, || {
            let mut applies = Applies::new(&self.window, op.atomic_op());
            self.apply_all(indices, values, op, &mut applies)?;
            applies.finish()
        })
    }

    /// [`GlobalArray::scatter_with`] of indices that have been checked; what is on other nodes is
    /// left to `elsewhere`.
    pub(super) fn apply_all<I: ArrayIndex<D>, O: Operator<T>>(
        &self,
        indices: &[I],
        values: &[T],
        op: O,
        elsewhere: &mut Applies<'_, T>,
    ) -> Result<()> {
        let mut places = Vec::new();
        let applied = self.blocks(indices, &mut places, |at, addresses| {
            // SAFETY: null, or mapped elements of this array.
            unsafe { apply_block(op.atomic_op(), addresses, &values[at..]) };
            Ok(())
        });
        self.wrote_all(indices);
        applied?;
        for place in places {
            elsewhere.push(place.rank, place.offset, values[place.at])?;
        }
        Ok(())
    }
}

/// Applies `op` to the elements at these addresses that are not null.
///
/// # Safety
/// Addresses that are not null are those of mapped elements.
#[inline]
pub(super) unsafe fn apply_block<T: AtomicElement>(
    op: AtomicOp,
    addresses: &[*mut u8],
    values: &[T],
) {
    // One loop for each operation, so that it is one instruction in each.
    macro_rules! apply {
        ($($op:ident)*) => {
            match op {
                $(AtomicOp::$op => {
                    for (&address, &value) in addresses.iter().zip(values) {
                        if !address.is_null() {
                            // SAFETY: by the caller.
                            unsafe { atomic::fetch_op_at(AtomicOp::$op, address, value) };
                        }
                    }
                })*
            }
        };
    }
    apply!(Add Sub Mul And Or Xor Swap Min Max);
}

/// Brings a cache line nearer; does nothing with an address that is not mapped.
#[inline(always)]
pub(super) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch does not access memory as far as the program can see.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

pub(super) fn same_len(call: &str, indices: usize, values: usize) -> Result<()> {
    if indices == values {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("{call}: {indices} indices and {values} values"),
    ))
}
