//! One dimension: runs of neighbouring indices.

#![expect(unsafe_code, reason = "copies through mapped pointers")]

use super::GlobalArray;
use super::races::Access;
use crate::dist::{Layout, Slice};
use crate::element::{self, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::world::{Call, Signature, Team};
use std::ops::Range;
use std::panic::Location;

impl<T: Element> GlobalArray<T> {
    /// An array made of all ranks' `local` elements, one rank after another. Lengths may differ;
    /// the elements are then moved to where the block distribution wants them.
    ///
    /// Collective.
    ///
    /// # Errors
    /// As [`GlobalArray::new`].
    #[track_caller]
    pub fn from_local(world: &Team, local: &[T]) -> Result<Self> {
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
        let array = Self::builder(world, to_usize(sum(lens))?).allocate()?;
        let put = array.put_range(start, local);
        // Met in any case: the other ranks come here.
        world.barrier()?;
        put?;
        Ok(array)
    }

    /// The indices that this rank holds; may be empty. No communication.
    ///
    /// # Panics
    /// In a cyclic distribution, where they are not one range: see [`GlobalArray::owned`].
    #[must_use]
    pub fn local_range(&self) -> Range<usize> {
        self.range_of(self.rank())
    }

    /// The indices that `rank` holds; may be empty. No communication.
    ///
    /// # Panics
    /// If there is no such rank; and as [`GlobalArray::local_range`].
    #[must_use]
    pub fn range_of(&self, rank: usize) -> Range<usize> {
        match self.owned(rank).ranges() {
            Some([range]) => range,
            None => panic!("in a cyclic distribution a rank's indices are not one range"),
        }
    }

    /// The elements of `range`, across any number of shards. One-sided; waits for them.
    ///
    /// A range that is written meanwhile may come as any mix of old and new bytes.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[track_caller]
    pub fn get_range(&self, range: Range<usize>) -> Result<Vec<T>> {
        if let Some(from) = self.find_range(range.start, range.len()) {
            // SAFETY: so many mapped elements of one shard.
            return unsafe { element::load_vec(from, range.len()) };
        }
        self.mode.check_open("get_range")?;
        let slice = self.slice("get_range", range.start, range.len())?;
        self.note_section(Access::read("get_range", Location::caller()), [slice])?;
        self.read_range(range)
    }

    /// [`GlobalArray::get_range`] in any mode.
    pub(super) fn read_range(&self, range: Range<usize>) -> Result<Vec<T>> {
        let slice = self.slice("get_range", range.start, range.len())?;
        self.load_section([slice])
    }

    /// Fills `to` with the elements from index `start` on, across any number of shards.
    /// One-sided; waits for them. On error `to` may hold some of them, each whole.
    ///
    /// # Errors
    /// As [`GlobalArray::get`].
    #[track_caller]
    pub fn get_into(&self, start: usize, to: &mut [T]) -> Result<()> {
        if let Some(from) = self.find_range(start, to.len()) {
            // SAFETY: so many mapped elements of one shard.
            return unsafe { element::load_slice(to, from) };
        }
        self.mode.check_open("get_into")?;
        let slice = self.slice("get_into", start, to.len())?;
        self.note_section(Access::read("get_into", Location::caller()), [slice])?;
        self.read_into(start, to)
    }

    /// [`GlobalArray::get_into`] in any mode.
    pub(super) fn read_into(&self, start: usize, to: &mut [T]) -> Result<()> {
        let slice = self.slice("get_into", start, to.len())?;
        self.load_section_into([slice], to)
    }

    /// Writes `from` to the elements from index `start` on, across any number of shards.
    /// One-sided. See [order and completion](GlobalArray#order-and-completion).
    ///
    /// # Errors
    /// As [`GlobalArray::put`].
    #[track_caller]
    pub fn put_range(&self, start: usize, from: &[T]) -> Result<()> {
        if let Some(to) = self.find_range(start, from.len()) {
            // SAFETY: so many mapped elements of one shard.
            unsafe { element::copy(to, from.as_ptr().cast(), size_of_val(from)) };
            self.wrote_section([Slice {
                start,
                step: 1,
                count: from.len(),
            }]);
            return Ok(());
        }
        self.mode.check_open("put_range")?;
        let slice = self.slice("put_range", start, from.len())?;
        self.note_section(Access::write("put_range", Location::caller()), [slice])?;
        self.store_section([slice], from)
    }

    /// Pointer to the first of `count` elements, if they are of one shard in blocks, mapped, and
    /// the array is open.
    #[inline]
    fn find_range(&self, start: usize, count: usize) -> Option<*mut u8> {
        let last = start.checked_add(count.checked_sub(1)?)?;
        let owner = |index| Layout::<1>::owner(index, self.multiplier, self.shift);
        if last >= self.open || owner(start) != owner(last) {
            return None;
        }
        self.find([start], self.open)
    }

    pub(super) fn slice(&self, call: &str, start: usize, count: usize) -> Result<Slice> {
        match start.checked_add(count) {
            Some(end) if end <= self.len() => Ok(Slice {
                start,
                step: 1,
                count,
            }),
            _ => Err(self.range_out_of_bounds(call, start, count)),
        }
    }

    #[cold]
    fn range_out_of_bounds(&self, call: &str, start: usize, count: usize) -> Error {
        let len = self.len();
        Error::new(
            ErrorKind::OutOfBounds,
            format!("{call} of {count} elements from index {start}: the array has {len} elements"),
        )
    }
}
