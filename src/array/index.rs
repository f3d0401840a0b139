//! Indices of arrays, and which of them a rank holds.

use crate::dist::{Layout, successor};
use std::ops::Range;

/// An index or a shape of an array of `D` dimensions: `[usize; D]`, in one dimension also `usize`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no index of an array of {D} dimensions",
    note = "an index is a `[usize; {D}]`; in one dimension a `usize` serves, too"
)]
pub trait ArrayIndex<const D: usize>: Copy + Send + Sync + sealed::Sealed {
    /// As an array.
    fn into_array(self) -> [usize; D];
    /// From an array.
    fn from_array(index: [usize; D]) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for usize {}
    impl<const D: usize> Sealed for [usize; D] {}
}

impl ArrayIndex<1> for usize {
    #[inline]
    fn into_array(self) -> [usize; 1] {
        [self]
    }

    #[inline]
    fn from_array([index]: [usize; 1]) -> Self {
        index
    }
}

impl<const D: usize> ArrayIndex<D> for [usize; D] {
    #[inline]
    fn into_array(self) -> Self {
        self
    }

    #[inline]
    fn from_array(index: Self) -> Self {
        index
    }
}

/// The index at place `flat` in row-major order.
pub(super) fn index_at<const D: usize>(mut flat: usize, shape: [usize; D]) -> [usize; D] {
    let mut index = [0; D];
    for d in (0..D).rev() {
        index[d] = flat % shape[d];
        flat /= shape[d];
    }
    index
}

/// The elements that a rank holds: see [`GlobalArray::owned`](crate::GlobalArray::owned).
///
/// They lie in the rank's memory in row-major order of their *local* indices, which start at 0
/// in each dimension and go in the order of the global ones.
#[derive(Clone, Copy, Debug)]
pub struct Owned<'a, const D: usize> {
    pub(super) layout: &'a Layout<D>,
    pub(super) rank: usize,
}

impl<'a, const D: usize> Owned<'a, D> {
    /// How many indices of each dimension. All 0 for a rank outside the process grid.
    #[must_use]
    pub fn shape(&self) -> [usize; D] {
        self.layout.owned_shape(self.rank)
    }

    /// Elements in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layout.owned_len(self.rank)
    }

    /// Whether the rank holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The global indices as one range for each dimension; None in a cyclic distribution. Empty
    /// ranges for a rank that holds nothing.
    #[must_use]
    pub fn ranges(&self) -> Option<[Range<usize>; D]> {
        let parts = self.layout.coordinates(self.rank);
        let mut ranges = [const { 0..0 }; D];
        for (d, range) in ranges.iter_mut().enumerate() {
            let axis = self.layout.axis(d);
            *range = match parts {
                Some(parts) => axis.range(parts[d])?,
                None => axis.len()..axis.len(),
            };
        }
        Some(ranges)
    }

    /// The global index of the element with this local index.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn global<I: ArrayIndex<D>>(&self, local: I) -> I {
        let (local, shape) = (local.into_array(), self.shape());
        assert!(
            local.iter().zip(shape).all(|(&place, len)| place < len),
            "local index {local:?} of {shape:?}"
        );
        I::from_array(self.layout.global(self.rank, local))
    }

    /// The global indices, in the order in which the elements lie in memory.
    pub fn iter(&self) -> impl Iterator<Item = [usize; D]> + use<'a, D> {
        let this = *self;
        let shape = self.shape();
        let mut next = (!self.is_empty()).then_some([0; D]);
        std::iter::from_fn(move || {
            let place = next?;
            next = successor(place, shape);
            Some(this.layout.global(this.rank, place))
        })
    }
}
