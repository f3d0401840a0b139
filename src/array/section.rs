//! Sections: regular parts of an array, across any number of shards.
//!
//! The layout says which patches of which ranks' memory a section is; a patch is rows; a row that
//! is mapped is copied, one elsewhere goes with others of its rank in one request.

#![expect(unsafe_code, reason = "copies through mapped pointers")]

use super::GlobalArray;
use super::batch::{BLOCK, apply_block};
use super::races::Access;
use super::remote::{Applies, Reads, Writes};
use crate::atomic::AtomicElement;
use crate::dist::{Patch, Row, Slice};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::operator::Operator;
use crate::span::{self, Section};
use ndarray::{Array, ArrayView, ArrayViewMut, Dim, Dimension, IntoDimension, Ix};
use std::panic::Location;

impl<T: Element, const D: usize> GlobalArray<T, D>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    /// The elements of a section, as an array of the section's shape. One-sided; waits for them.
    ///
    /// What is contiguous at its owner is one transfer; other elements of an owner on another
    /// node come in few messages. A section that is written meanwhile may come as any mix of old
    /// and new bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a step of 0; else as [`GlobalArray::get`].
    #[track_caller]
    pub fn get_section(&self, section: impl Section<D>) -> Result<Array<T, Dim<[Ix; D]>>> {
        self.mode.check_open("get_section")?;
        let slices = span::resolve("get_section", section.spans(), self.shape())?;
        self.note_section(Access::read("get_section", Location::caller()), slices)?;
        let values = self.load_section(slices)?;
        shaped(slices, values)
    }

    /// Fills `to`, of the section's shape, with its elements. One-sided; waits for them. On error
    /// `to` may hold some of them, each whole.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if the shapes differ; else as [`GlobalArray::get_section`].
    #[track_caller]
    pub fn get_section_into(
        &self,
        section: impl Section<D>,
        mut to: ArrayViewMut<'_, T, Dim<[Ix; D]>>,
    ) -> Result<()> {
        self.mode.check_open("get_section_into")?;
        let slices = span::resolve("get_section_into", section.spans(), self.shape())?;
        same_shape("get_section_into", slices, to.shape())?;
        self.note_section(Access::read("get_section_into", Location::caller()), slices)?;
        if let Some(to) = to.as_slice_mut() {
            return self.load_section_into(slices, to);
        }
        to.assign(&shaped(slices, self.load_section(slices)?)?);
        Ok(())
    }

    /// Writes `from`, of the section's shape, to its elements. One-sided. See
    /// [order and completion](GlobalArray#order-and-completion).
    ///
    /// # Errors
    /// As [`GlobalArray::get_section_into`].
    #[track_caller]
    pub fn put_section<'a>(
        &self,
        section: impl Section<D>,
        from: impl Into<ArrayView<'a, T, Dim<[Ix; D]>>>,
    ) -> Result<()> {
        self.mode.check_open("put_section")?;
        let (slices, from) = (
            span::resolve("put_section", section.spans(), self.shape())?,
            from.into(),
        );
        same_shape("put_section", slices, from.shape())?;
        self.note_section(Access::write("put_section", Location::caller()), slices)?;
        let from = from.as_standard_layout();
        self.store_section(slices, from.as_slice().unwrap_or(&[]))
    }

    /// Combines each element of a section with that of `values`, of the section's shape:
    /// `element = element op value`, atomically for each element. One-sided; complete when it
    /// returns.
    ///
    /// # Errors
    /// As [`GlobalArray::get_section_into`].
    #[doc(alias = "accumulate")]
    #[track_caller]
    pub fn acc<'a, O: Operator<T>>(
        &self,
        section: impl Section<D>,
        values: impl Into<ArrayView<'a, T, Dim<[Ix; D]>>>,
        op: O,
    ) -> Result<()>
    where
        T: AtomicElement,
    {
        self.mode.check_open("acc")?;
        let (slices, values) = (
            span::resolve("acc", section.spans(), self.shape())?,
            values.into(),
        );
        same_shape("acc", slices, values.shape())?;
        let values = values.as_standard_layout();
        let access = Access::atomic("acc", Location::caller());
        self.count_section(slices);
        self.all_in_order(
            access,
            || self.spots(slices),
            || self.combine_section(slices, values.as_slice().unwrap_or(&[]), op),
        )
    }
}

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// A section's elements in its row-major order.
    pub(super) fn load_section(&self, slices: [Slice; D]) -> Result<Vec<T>> {
        let len = slices.iter().map(|slice| slice.count).product();
        if let Some((rank, row)) = self.one_row(slices, len)
            && row.is_dense()
        {
            return match self.element_of(rank, row.offset)? {
                // SAFETY: so many mapped elements of one rank's memory.
                Some(from) => unsafe { element::load_vec(from, len) },
                None => self.window.get_range(rank, row.offset, len),
            };
        }
        let mut bits = bytemuck::allocation::zeroed_vec(len);
        self.load_bits(slices, &mut bits)?;
        element::vec_from_bits(bits)
    }

    /// The row that a section is, if it is one rank's and one row.
    fn one_row(&self, slices: [Slice; D], len: usize) -> Option<(usize, Row)> {
        let patch = self.layout.patches(slices).next()?;
        if patch.len() < len {
            return None;
        }
        let row = patch.rows().next().filter(|row| row.count == len)?;
        Some((patch.rank, row))
    }

    /// Fills `to` with a section's elements, in its row-major order.
    pub(super) fn load_section_into(&self, slices: [Slice; D], to: &mut [T]) -> Result<()> {
        match element::bits_mut(to) {
            Some(bits) => self.load_bits(slices, bits),
            None => {
                to.copy_from_slice(&self.load_section(slices)?);
                Ok(())
            }
        }
    }

    /// Fills `to` with a section's elements, in its row-major order, whether they are values or not.
    fn load_bits(&self, slices: [Slice; D], to: &mut [T::Bits]) -> Result<()> {
        let mut elsewhere = Reads::new(&self.window);
        self.load_mapped(slices, to, &mut elsewhere)?;
        elsewhere.finish(to)
    }

    /// Fills `to` with those of a section's elements that are mapped; the others are left to
    /// `elsewhere`.
    pub(super) fn load_mapped(
        &self,
        slices: [Slice; D],
        to: &mut [T::Bits],
        elsewhere: &mut Reads<'_, T>,
    ) -> Result<()> {
        for patch in self.layout.patches(slices) {
            match self.memory_of(patch.rank)? {
                Some(base) => {
                    for row in patch.rows() {
                        // SAFETY: the row lies in that rank's mapped memory.
                        unsafe { load_row::<T>(to, base, row) };
                    }
                }
                None => elsewhere.patch(&patch, to)?,
            }
        }
        Ok(())
    }

    /// Writes a section's elements, given in its row-major order.
    pub(super) fn store_section(&self, slices: [Slice; D], from: &[T]) -> Result<()> {
        let mut elsewhere = Writes::new(&self.window, from);
        let stored = self.layout.patches(slices).try_for_each(|patch| {
            let Some(base) = self.memory_of(patch.rank)? else {
                return elsewhere.patch(&patch);
            };
            for row in patch.rows() {
                // SAFETY: the row lies in that rank's mapped memory.
                unsafe { store_row(from, base, row) };
            }
            Ok(())
        });
        self.wrote_section(slices);
        stored?;
        elsewhere.finish()
    }
}

impl<T: AtomicElement, const D: usize> GlobalArray<T, D> {
    /// Combines values, given in a section's row-major order, into its elements.
    fn combine_section<O: Operator<T>>(
        &self,
        slices: [Slice; D],
        values: &[T],
        op: O,
    ) -> Result<()> {
        let mut elsewhere = Applies::new(&self.window, op.atomic_op());
        let mut addresses = [std::ptr::null_mut(); BLOCK];
        let mut block = Vec::with_capacity(BLOCK);
        let applied = self.layout.patches(slices).try_for_each(|patch| {
            let Some(base) = self.memory_of(patch.rank)? else {
                return patch
                    .rows()
                    .try_for_each(|row| elsewhere.row(patch.rank, row, values));
            };
            for row in patch.rows() {
                let mut k = 0;
                while k < row.count {
                    block.clear();
                    for address in addresses.iter_mut().take(row.count - k) {
                        *address = base.wrapping_add(row.offset_of(k) * size_of::<T>());
                        block.push(values[row.at_of(k)]);
                        k += 1;
                    }
                    // SAFETY: elements of the row, which lies in that rank's mapped memory.
                    unsafe { apply_block(op.atomic_op(), &addresses[..block.len()], &block) };
                }
            }
            Ok(())
        });
        self.wrote_section(slices);
        applied?;
        elsewhere.finish()
    }
}

/// Reads a row of the memory at `base` to its places in `to`.
///
/// # Safety
/// The memory is mapped and holds the row.
unsafe fn load_row<T: Element>(to: &mut [T::Bits], base: *const u8, row: Row) {
    let from = base.wrapping_add(row.offset * size_of::<T>());
    if row.step == 1 && row.at_step == 1 {
        // SAFETY: by the caller.
        return unsafe { element::load_bits_slice::<T>(&mut to[row.at..row.at + row.count], from) };
    }
    let step = row.step.wrapping_mul(size_of::<T>().cast_signed());
    let places = to[row.at..].iter_mut().step_by(row.at_step.max(1));
    for (k, place) in places.take(row.count).enumerate() {
        let from = from.wrapping_offset(step.wrapping_mul(k.cast_signed()));
        // SAFETY: the k-th element of the row, by the caller.
        *place = unsafe { element::load_bits::<T>(from) };
    }
}

/// The elements of these patches of the memory at `base`, packed in their order.
///
/// # Safety
/// The memory is mapped and holds the patches.
pub(super) unsafe fn load_rows<T: Element, const D: usize>(
    base: *const u8,
    patches: &[Patch<D>],
    len: usize,
) -> Result<Vec<T>> {
    let mut bits = bytemuck::allocation::zeroed_vec(len);
    for row in patches.iter().flat_map(Patch::rows) {
        // SAFETY: by the caller.
        unsafe { load_row::<T>(&mut bits, base, row) };
    }
    element::vec_from_bits(bits)
}

/// Writes a row of the memory at `base` from its places in `from`.
///
/// # Safety
/// As for [`load_row`].
pub(super) unsafe fn store_row<T: Element>(from: &[T], base: *mut u8, row: Row) {
    let to = base.wrapping_add(row.offset * size_of::<T>());
    if row.step == 1 && row.at_step == 1 {
        let from = &from[row.at..row.at + row.count];
        // SAFETY: by the caller; `from` is private memory.
        return unsafe { element::copy(to, from.as_ptr().cast(), size_of_val(from)) };
    }
    let step = row.step.wrapping_mul(size_of::<T>().cast_signed());
    let places = from[row.at..].iter().step_by(row.at_step.max(1));
    for (k, place) in places.take(row.count).enumerate() {
        let to = to.wrapping_offset(step.wrapping_mul(k.cast_signed()));
        // SAFETY: the k-th element of the row, by the caller.
        unsafe { element::store(to, *place) };
    }
}

fn shaped<T, const D: usize>(slices: [Slice; D], values: Vec<T>) -> Result<Array<T, Dim<[Ix; D]>>>
where
    Dim<[Ix; D]>: Dimension,
    [Ix; D]: IntoDimension<Dim = Dim<[Ix; D]>>,
{
    let shape = slices.map(|slice| slice.count);
    Array::from_shape_vec(shape, values)
        .map_err(|error| Error::new(ErrorKind::InvalidArgument, error.to_string()))
}

pub(super) fn same_shape<const D: usize>(
    call: &str,
    slices: [Slice; D],
    shape: &[usize],
) -> Result<()> {
    let wanted = slices.map(|slice| slice.count);
    if shape == wanted {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!("{call}: the section has the shape {wanted:?}, the values {shape:?}"),
    ))
}
