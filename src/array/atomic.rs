//! Atomic operations on an array's elements.
//!
//! Mapped: one instruction of the processor, or a loop of compare-and-exchange for floats.
//! Elsewhere UCX's own where it has one, else a request to the owner, whose processor does it. All
//! of them are atomic with each other: UCX is told to have its atomics done by processors too.

use super::{GlobalArray, Slot, during, slowly};
use crate::atomic::{self, AtomicBits, AtomicElement, AtomicNumber, AtomicOp};
use crate::element::Element;
use crate::error::{Error, Result};

impl<T: Element> GlobalArray<T> {
    /// Adds `value` to the element at `index`; returns the value before. Integers wrap around.
    /// Atomic with all other atomic operations, whoever does them. One-sided; waits.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    #[doc(alias = "ucp_atomic_op_nbx")]
    pub fn fetch_add(&self, index: usize, value: T) -> Result<T>
    where
        T: AtomicNumber,
    {
        self.fetch_op(AtomicOp::Add, index, value)
    }

    /// Subtracts `value`. As [`GlobalArray::fetch_add`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn fetch_sub(&self, index: usize, value: T) -> Result<T>
    where
        T: AtomicNumber,
    {
        self.fetch_op(AtomicOp::Sub, index, value)
    }

    /// Leaves the smaller of the element and `value`, as [`Op::Min`](crate::Op::Min) does.
    /// As [`GlobalArray::fetch_add`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn fetch_min(&self, index: usize, value: T) -> Result<T>
    where
        T: AtomicNumber,
    {
        self.fetch_op(AtomicOp::Min, index, value)
    }

    /// Leaves the larger of the element and `value`, as [`Op::Max`](crate::Op::Max) does.
    /// As [`GlobalArray::fetch_add`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn fetch_max(&self, index: usize, value: T) -> Result<T>
    where
        T: AtomicNumber,
    {
        self.fetch_op(AtomicOp::Max, index, value)
    }

    /// Bitwise and. As [`GlobalArray::fetch_add`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn fetch_and(&self, index: usize, value: T) -> Result<T>
    where
        T: AtomicBits,
    {
        self.fetch_op(AtomicOp::And, index, value)
    }

    /// Bitwise or. As [`GlobalArray::fetch_add`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn fetch_or(&self, index: usize, value: T) -> Result<T>
    where
        T: AtomicBits,
    {
        self.fetch_op(AtomicOp::Or, index, value)
    }

    /// Bitwise exclusive or. As [`GlobalArray::fetch_add`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn fetch_xor(&self, index: usize, value: T) -> Result<T>
    where
        T: AtomicBits,
    {
        self.fetch_op(AtomicOp::Xor, index, value)
    }

    /// Stores `value` at `index`; returns the value before. As [`GlobalArray::fetch_add`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn swap(&self, index: usize, value: T) -> Result<T>
    where
        T: AtomicElement,
    {
        self.fetch_op(AtomicOp::Swap, index, value)
    }

    /// Stores `new` at `index` if the element is `current`, by its bits; returns the value
    /// before: it was stored if that is `current`. As [`GlobalArray::fetch_add`].
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[inline]
    pub fn compare_exchange(&self, index: usize, current: T, new: T) -> Result<T>
    where
        T: AtomicElement,
    {
        match self.find(index, self.open) {
            // SAFETY: `find` points to a mapped element; T's granule is its size.
            Some(at) => Ok(unsafe { atomic::compare_exchange_at(at, current, new) }),
            None => self.compare_exchange_slowly(index, current, new),
        }
    }

    #[inline]
    fn fetch_op(&self, op: AtomicOp, index: usize, value: T) -> Result<T>
    where
        T: AtomicElement,
    {
        match self.find(index, self.open) {
            // SAFETY: `find` points to a mapped element; T's granule is its size.
            Some(at) => Ok(unsafe { atomic::fetch_op_at(op, at, value) }),
            None => slowly(|to| self.fetch_op_slowly(op, index, value, to)),
        }
    }

    #[cold]
    #[inline(never)]
    fn fetch_op_slowly(
        &self,
        op: AtomicOp,
        index: usize,
        value: T,
        to: &mut Slot<T>,
    ) -> Option<Error>
    where
        T: AtomicElement,
    {
        to.fill(|| {
            let (rank, offset) = self.locate_slowly("atomic operation", index)?;
            if let Some(at) = self.element_of(rank, offset)? {
                // SAFETY: a mapped element; T's granule is its size.
                return Ok(unsafe { atomic::fetch_op_at(op, at, value) });
            }
            self.window
                .fetch_op(op, rank, offset, value)
                .map_err(|error| during("atomic operation", index, rank, error))
        })
    }

    #[cold]
    #[inline(never)]
    fn compare_exchange_slowly(&self, index: usize, current: T, new: T) -> Result<T>
    where
        T: AtomicElement,
    {
        let (rank, offset) = self.locate_slowly("compare_exchange", index)?;
        if let Some(at) = self.element_of(rank, offset)? {
            // SAFETY: a mapped element; T's granule is its size.
            return Ok(unsafe { atomic::compare_exchange_at(at, current, new) });
        }
        self.window
            .compare_exchange(rank, offset, current, new)
            .map_err(|error| during("compare_exchange", index, rank, error))
    }
}
