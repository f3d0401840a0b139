//! Boxes: sections that together are a rank's elements, or a range of elements in row-major order.

use super::{Axis, Kind, Layout, Slice, successor};
use std::ops::Range;

impl Axis {
    /// What `part` holds, in slices of indices that are regularly spaced in its memory, too: as few
    /// as there can be.
    fn held(&self, part: usize) -> Vec<Slice> {
        let count = self.count(part);
        let Kind::Cyclic { block, .. } = self.kind else {
            let whole = Slice {
                start: self.parts[part].start,
                step: 1,
                count,
            };
            return vec![whole];
        };
        let rounds = count.div_ceil(block);
        let start = |place| self.global(part, place);
        if rounds <= block {
            // Block by block.
            let blocks = (0..rounds).map(|round| Slice {
                start: start(round * block),
                step: 1,
                count: block.min(count - round * block),
            });
            return blocks.collect();
        }
        // The first index of each block, then the second of each.
        let step = (block * self.parts.len()).cast_signed();
        let indices = (0..block).map(|place| Slice {
            start: start(place),
            step,
            count: (count - place).div_ceil(block),
        });
        indices.collect()
    }
}

impl Slice {
    /// In pieces of at most so many indices.
    fn pieces(self, most: usize) -> impl Iterator<Item = Self> {
        (0..self.count).step_by(most).map(move |k| Self {
            start: self.index(k),
            count: most.min(self.count - k),
            ..self
        })
    }
}

impl<const D: usize> Layout<D> {
    /// The elements of `rank` as boxes of at most `most` elements, each one patch.
    pub(crate) fn boxes(&self, rank: usize, most: usize) -> impl Iterator<Item = [Slice; D]> {
        let parts = self.coordinates(rank);
        let mut lists: [Vec<Slice>; D] = std::array::from_fn(|_| Vec::new());
        // So many elements does a box have in the dimensions after this one.
        let mut inner = 1;
        for d in (0..D).rev() {
            let Some(parts) = parts else {
                continue;
            };
            let slices = self.axes[d].held(parts[d]);
            let longest = slices.iter().map(|slice| slice.count).max().unwrap_or(0);
            let length = (most / inner).clamp(1, longest.max(1));
            // Those before it have one index where it is cut.
            inner = match length < longest {
                true => most.max(inner),
                false => inner * length,
            };
            let slices = slices.into_iter().filter(|slice| slice.count > 0);
            lists[d] = slices.flat_map(|slice| slice.pieces(length)).collect();
        }
        let counts = lists.each_ref().map(Vec::len);
        let mut next = (!counts.contains(&0)).then_some([0; D]);
        std::iter::from_fn(move || {
            let place = next?;
            next = successor(place, counts);
            Some(std::array::from_fn(|d| lists[d][place[d]]))
        })
    }

    /// The elements of a range in row-major order, as boxes in this order.
    pub(crate) fn boxes_of_range(&self, range: Range<usize>) -> impl Iterator<Item = [Slice; D]> {
        let shape = self.shape();
        // Elements from one index of a dimension to the next.
        let mut strides = [1; D];
        for d in (1..D).rev() {
            strides[d - 1] = strides[d] * shape[d];
        }
        let mut at = range.start;
        std::iter::from_fn(move || {
            let left = range.end.checked_sub(at).filter(|&left| left > 0)?;
            let index: [usize; D] = std::array::from_fn(|d| at / strides[d] % shape[d]);
            // The first dimension that has whole indices here.
            let fits = |&d: &usize| at.is_multiple_of(strides[d]) && strides[d] <= left;
            let cut = (0..D).find(fits).unwrap_or(D - 1);
            let count = (left / strides[cut]).min(shape[cut] - index[cut]);
            at += count * strides[cut];
            Some(std::array::from_fn(|d| {
                let (start, count) = match d {
                    _ if d < cut => (index[d], 1),
                    _ if d == cut => (index[d], count),
                    _ => (0, shape[d]),
                };
                Slice {
                    start,
                    step: 1,
                    count,
                }
            }))
        })
    }
}
