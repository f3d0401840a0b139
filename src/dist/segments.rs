//! Sections: which pieces of which ranks' memory a regular selection of indices is.

use super::{Axis, Kind, Layout, successor};

/// Regularly spaced indices of one dimension: `count` of them from `start` on, `step` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slice {
    pub(crate) start: usize,
    pub(crate) step: isize,
    pub(crate) count: usize,
}

impl Slice {
    /// A whole dimension.
    pub(crate) fn whole(len: usize) -> Self {
        Self {
            start: 0,
            step: 1,
            count: len,
        }
    }

    /// The `k`-th index.
    pub(super) fn index(&self, k: usize) -> usize {
        // Below the axis's length, by construction.
        self.start
            .wrapping_add_signed(self.step.wrapping_mul(k.cast_signed()))
    }
}

/// Indices of a slice that one part holds, regularly spaced there and in the slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) part: usize,
    /// Place of the first in the part, and how far apart they are there.
    pub(super) place: usize,
    pub(super) step: isize,
    pub(super) count: usize,
    /// Number of the first in the slice, and how far apart they are there.
    pub(super) at: usize,
    pub(super) at_step: usize,
}

impl Axis {
    /// The slice by parts: segments that hold each of its indices once.
    pub(super) fn segments(&self, slice: Slice) -> Segments<'_> {
        let mut together = 0;
        if let Kind::Cyclic { block, .. } = self.kind
            && slice.step.unsigned_abs() >= block
        {
            // After so many indices the slice is at the same place of a block of the same part:
            // all those are one segment.
            let round = block * self.parts.len();
            together = round / gcd(round, slice.step.unsigned_abs());
        }
        Segments {
            axis: self,
            slice,
            next: 0,
            together,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Segments<'a> {
    axis: &'a Axis,
    slice: Slice,
    next: usize,
    /// 0: segments are neighbours in the slice; else how far apart their indices are there.
    together: usize,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let Slice { step, count, .. } = self.slice;
        let at = self.next;
        if at >= count {
            return None;
        }
        let index = self.slice.index(at);
        let (part, place) = self.axis.locate(index);
        if self.together > 0 {
            if at >= self.together {
                return None;
            }
            self.next += 1;
            // A whole number of rounds further on each time.
            let Kind::Cyclic { block, .. } = self.axis.kind else {
                return None;
            };
            let rounds =
                step * self.together.cast_signed() / (block * self.axis.parts.len()).cast_signed();
            return Some(Segment {
                part,
                place,
                step: rounds * block.cast_signed(),
                count: (count - at).div_ceil(self.together),
                at,
                at_step: self.together,
            });
        }
        // Those up to the end of the part, or of its block.
        let (before, after) = match self.axis.kind {
            Kind::Cyclic { block, .. } => {
                let inside = place % block;
                (inside, (block - inside).min(self.axis.count(part) - place))
            }
            _ => (place, self.axis.count(part) - place),
        };
        let here = if step > 0 {
            after.div_ceil(step.unsigned_abs())
        } else {
            before / step.unsigned_abs() + 1
        };
        let here = here.min(count - at);
        self.next += here;
        Some(Segment {
            part,
            place,
            step,
            count: here,
            at,
            at_step: 1,
        })
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Elements of a section that one rank holds, regularly spaced along each dimension, in its
/// memory and in the section's own row-major order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patch<const D: usize> {
    pub(crate) rank: usize,
    /// Place in the rank's memory of the first, and how far apart they are there.
    pub(crate) offset: usize,
    pub(crate) steps: [isize; D],
    pub(crate) counts: [usize; D],
    /// Place in the section of the first, and how far apart they are there.
    pub(crate) at: usize,
    pub(crate) at_steps: [usize; D],
}

impl<const D: usize> Layout<D> {
    /// The section of the array that consists of these indices of each dimension, by ranks.
    pub(crate) fn patches(&self, slices: [Slice; D]) -> impl Iterator<Item = Patch<D>> {
        let mut sizes = [1; D];
        for d in (1..D).rev() {
            sizes[d - 1] = sizes[d] * slices[d].count;
        }
        let empty = slices.iter().any(|slice| slice.count == 0);
        // An odometer over the segments of all dimensions, the last one fastest.
        let all: [Segments<'_>; D] = std::array::from_fn(|d| self.axes[d].segments(slices[d]));
        let mut wheels = all.clone();
        let mut current: [Option<Segment>; D] =
            std::array::from_fn(|d| if d + 1 < D { wheels[d].next() } else { None });
        let mut done = empty;
        std::iter::from_fn(move || {
            let mut d = D - 1;
            while !done {
                current[d] = wheels[d].next();
                if current[d].is_some() {
                    // Those after it start again.
                    for d in d + 1..D {
                        wheels[d] = all[d].clone();
                        current[d] = wheels[d].next();
                    }
                    let segments: [Segment; D] =
                        std::array::from_fn(|d| current[d].unwrap_or(NOTHING));
                    return Some(self.patch(&segments, &sizes));
                }
                match d {
                    0 => done = true,
                    _ => d -= 1,
                }
            }
            None
        })
    }

    fn patch(&self, segments: &[Segment; D], sizes: &[usize; D]) -> Patch<D> {
        let rank = self.rank_at(segments.map(|segment| segment.part));
        let strides = self.strides(rank);
        let sum = |term: &dyn Fn(usize) -> usize| (0..D).map(term).sum();
        Patch {
            rank,
            offset: sum(&|d| (self.axes[d].halo + segments[d].place) * strides[d]),
            steps: std::array::from_fn(|d| segments[d].step * strides[d].cast_signed()),
            counts: segments.map(|segment| segment.count),
            at: sum(&|d| segments[d].at * sizes[d]),
            at_steps: std::array::from_fn(|d| segments[d].at_step * sizes[d]),
        }
    }
}

/// Stands for a segment that is always there: no slice is empty.
const NOTHING: Segment = Segment {
    part: 0,
    place: 0,
    step: 0,
    count: 0,
    at: 0,
    at_step: 0,
};

impl<const D: usize> Patch<D> {
    /// Elements in all.
    pub(crate) fn len(&self) -> usize {
        self.counts.iter().product()
    }

    /// The same elements as rows along the last dimension, with dimensions merged where one goes
    /// on where the other ends, in memory and in the section.
    pub(crate) fn rows(&self) -> Rows<D> {
        let mut this = *self;
        // Dimensions of one element have no steps.
        let (mut row, mut step, mut at_step) = (1, 1, 1);
        for d in (0..D).rev() {
            let count = this.counts[d];
            if count == 1 {
                continue;
            }
            let merges = row == 1
                || (this.steps[d] == step * isize::try_from(row).unwrap_or(isize::MAX)
                    && this.at_steps[d] == at_step * row);
            if !merges {
                break;
            }
            if row == 1 {
                (step, at_step) = (this.steps[d], this.at_steps[d]);
            }
            row *= count;
            this.counts[d] = 1;
        }
        Rows {
            patch: this,
            row: Row {
                offset: 0,
                step,
                count: row,
                at: 0,
                at_step,
            },
            next: Some([0; D]),
        }
    }
}

/// Regularly spaced elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) offset: usize,
    pub(crate) step: isize,
    pub(crate) count: usize,
    pub(crate) at: usize,
    pub(crate) at_step: usize,
}

impl Row {
    /// The `k`-th element's place in memory.
    pub(crate) fn offset_of(&self, k: usize) -> usize {
        self.offset
            .wrapping_add_signed(self.step.wrapping_mul(k.cast_signed()))
    }

    /// And in the section.
    pub(crate) fn at_of(&self, k: usize) -> usize {
        self.at + k * self.at_step
    }

    /// Whether its elements are neighbours in memory.
    pub(crate) fn is_dense(&self) -> bool {
        self.step == 1 || self.count == 1
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Rows<const D: usize> {
    /// Counts of dimensions that are within rows are 1.
    patch: Patch<D>,
    row: Row,
    next: Option<[usize; D]>,
}

impl<const D: usize> Iterator for Rows<D> {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        let index = self.next?;
        let (mut offset, mut at) = (self.patch.offset, self.patch.at);
        for (d, k) in index.into_iter().enumerate() {
            offset = offset.wrapping_add_signed(self.patch.steps[d] * k.cast_signed());
            at += self.patch.at_steps[d] * k;
        }
        self.next = successor(index, self.patch.counts);
        Some(Row {
            offset,
            at,
            ..self.row
        })
    }
}
