//! Which rank holds an index, and where: integers only, imports nothing.
//!
//! An [`Axis`] is one dimension: its indices dealt out to *parts*. A [`Layout`] is all of them:
//! part numbers along the axes are a rank's coordinates in the process grid, and what a rank holds
//! lies in its memory in row-major order, each axis with its ghost cells on both sides.

mod boxes;
mod grid;
mod segments;
#[cfg(test)]
mod tests;

pub(crate) use segments::{Patch, Row, Slice};

use std::ops::Range;

/// How the indices of one dimension are dealt out to the parts of the process grid along it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dist {
    /// Part `c` of `p` holds `ceil(c·n/p) .. ceil((c+1)·n/p)`: in order, lengths differ by at
    /// most one.
    #[default]
    Block,
    /// Index `i` is held by part `i mod p`.
    Cyclic,
    /// Blocks of so many indices in turn: index `i` is held by part `(i / b) mod p`.
    BlockCyclic(usize),
    /// Part `c` holds so many indices, in order; zero is allowed. The lengths must add up to the
    /// dimension's.
    Irregular(Vec<usize>),
    /// The dimension is not divided.
    Whole,
}

/// Division by a number that is known when an array is made: a multiplication and a shift.
///
/// With `m = ceil(2^s/d)`, `i·m/2^s` is larger than `i/d` by `i·e/(d·2^s)`, `e = m·d − 2^s < d`.
/// The quotient is right if that is less than `1/d`: if `i·e < 2^s`. `s` is the largest number
/// with `2^(s−64) < d`, so `m` fits 64 bits and `2^s >= 2^63·d`: right for all `i <= 2^63`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reciprocal {
    multiplier: u64,
    shift: u32,
}

impl Reciprocal {
    /// Of a divisor of 2 or more.
    fn new(divisor: usize) -> Self {
        debug_assert!(divisor >= 2);
        let shift = (divisor - 1).ilog2();
        let multiplier = (1_u128 << (64 + shift)).div_ceil(divisor as u128);
        Self {
            // Below 2^64, as 2^shift < divisor.
            multiplier: u64::try_from(multiplier).unwrap_or(u64::MAX),
            shift,
        }
    }

    /// `index / divisor`.
    #[inline]
    fn quotient(&self, index: usize) -> usize {
        upper_half(index, self.multiplier) >> (self.shift & 63)
    }
}

#[inline]
fn upper_half(index: usize, multiplier: u64) -> usize {
    let product = index as u128 * u128::from(multiplier);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "64 bits, as a usize has where UCX runs"
    )]
    let upper = (product >> 64) as usize;
    upper
}

/// How an axis finds an index's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One part.
    Whole,
    /// The owner of `i` is `floor(i·p/n)`, without a division: with `m = ceil(p·2^s/n)`, `i·m/2^s`
    /// is larger than `i·p/n` by less than `i/2^s`. The fraction of `i·p/n` is at most `1 − 1/n`,
    /// so the quotient is right if `i·n <= 2^s`. `s` is the largest number for which `m` fits 64
    /// bits: that holds for all `i` while `n·p < 2^63` and `n > p`.
    Block { multiplier: u64, shift: u32 },
    /// Looked for among the first indices of all parts: irregular lengths, and blocks where the
    /// reciprocal does not serve (fewer indices than parts).
    Search,
    /// Blocks in turn. The reciprocals are unused for 1.
    Cyclic {
        block: usize,
        by_block: Reciprocal,
        by_parts: Reciprocal,
    },
}

/// What one part of an axis holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// First index, where the part's indices are one range.
    start: usize,
    /// Length in memory: indices and ghost cells.
    padded: usize,
}

/// One dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    len: usize,
    kind: Kind,
    halo: usize,
    parts: Box<[Part]>,
}

impl Axis {
    /// # Errors
    /// What is wrong with `dist`.
    fn new(len: usize, parts: usize, dist: &Dist, halo: usize) -> Result<Self, String> {
        let block = match dist {
            Dist::BlockCyclic(0) => return Err("blocks of 0 indices".into()),
            Dist::BlockCyclic(block) => *block.min(&len.max(1)),
            _ => 1,
        };
        if halo
            .checked_mul(2)
            .and_then(|both| both.checked_add(len))
            .is_none()
        {
            return Err(format!("{halo} ghost cells are more than can be counted"));
        }
        let mut this = Self {
            len,
            kind: Kind::Whole,
            halo,
            parts: Box::default(),
        };
        let mut counts: Vec<usize> = Vec::with_capacity(parts);
        match dist {
            Dist::Whole => counts.push(len),
            Dist::Irregular(lens) => {
                counts.clone_from(lens);
                let sum = lens
                    .iter()
                    .try_fold(0_usize, |sum, &len| sum.checked_add(len));
                if sum != Some(len) {
                    return Err(format!("lengths {lens:?} do not add up to {len}"));
                }
                this.kind = Kind::Search;
            }
            Dist::Block => {
                let start = |part| block_start(len, parts, part);
                counts.extend((0..parts).map(|part| start(part + 1) - start(part)));
                this.kind = block_kind(len, parts);
            }
            Dist::Cyclic | Dist::BlockCyclic(_) => {
                let round = block.saturating_mul(parts);
                let (rounds, rest) = (len / round, len % round);
                counts.extend((0..parts).map(|part| {
                    rounds * block + rest.saturating_sub(part.saturating_mul(block)).min(block)
                }));
                this.kind = Kind::Cyclic {
                    block,
                    by_block: Reciprocal::new(block.max(2)),
                    by_parts: Reciprocal::new(parts.max(2)),
                };
            }
        }
        if counts.len() == 1 {
            this.kind = Kind::Whole;
        }
        if halo > 0 && matches!(this.kind, Kind::Cyclic { .. }) {
            return Err("ghost cells in a cyclic dimension".into());
        }
        let mut start = 0;
        this.parts = counts
            .iter()
            .map(|&count| {
                let part = Part {
                    start,
                    padded: count + 2 * halo,
                };
                start += count;
                part
            })
            .collect();
        Ok(this)
    }

    /// Indices of the axis.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn halo(&self) -> usize {
        self.halo
    }

    /// Indices that `part` holds.
    pub(crate) fn count(&self, part: usize) -> usize {
        self.parts[part].padded - 2 * self.halo
    }

    /// The indices that `part` holds, if they are one range for every part.
    pub(crate) fn range(&self, part: usize) -> Option<Range<usize>> {
        let start = self.parts[part].start;
        (!matches!(self.kind, Kind::Cyclic { .. })).then(|| start..start + self.count(part))
    }

    /// The part that holds `index`, and the index's place there. `index` must be below `len`.
    #[inline]
    pub(crate) fn locate(&self, index: usize) -> (usize, usize) {
        debug_assert!(index < self.len);
        match self.kind {
            Kind::Whole => (0, index),
            Kind::Block { multiplier, shift } => {
                let part = upper_half(index, multiplier) >> (shift & 63);
                (part, index - self.parts[part].start)
            }
            Kind::Search => {
                // The last that starts at or before it: empty ones start where the next does.
                let part = self.parts.partition_point(|part| part.start <= index) - 1;
                (part, index - self.parts[part].start)
            }
            Kind::Cyclic {
                block,
                by_block,
                by_parts,
            } => {
                let number = if block == 1 {
                    index
                } else {
                    by_block.quotient(index)
                };
                let round = by_parts.quotient(number);
                let part = number - round * self.parts.len();
                (part, index - (number - round) * block)
            }
        }
    }

    /// The index at `place` of `part`.
    pub(crate) fn global(&self, part: usize, place: usize) -> usize {
        match self.kind {
            Kind::Cyclic { block, .. } => {
                (place / block * self.parts.len() + part) * block + place % block
            }
            _ => self.parts[part].start + place,
        }
    }
}

/// The first index of `part`, of `parts` blocks of `len` indices.
pub(crate) fn block_start(len: usize, parts: usize, part: usize) -> usize {
    // At most `len`.
    let start = (part as u128 * len as u128).div_ceil(parts as u128);
    usize::try_from(start).unwrap_or(len)
}

/// Where each of several runs of these lengths begins.
pub(crate) fn starts(lens: &[usize]) -> Vec<usize> {
    let next = |at: &mut usize, len: &usize| {
        let start = *at;
        *at += len;
        Some(start)
    };
    lens.iter().scan(0, next).collect()
}

fn block_kind(len: usize, parts: usize) -> Kind {
    let (n, p) = (len as u128, parts as u128);
    // p·2^s must fit 128 bits, and so must 2^s.
    let largest = 127_u32.saturating_sub(usize::BITS - parts.leading_zeros());
    for s in (64..=largest).rev() {
        let m = (p << s).div_ceil(n.max(1));
        if let Ok(multiplier) = u64::try_from(m) {
            let right = n.checked_mul(n).is_some_and(|square| square <= 1 << s);
            if right {
                return Kind::Block {
                    multiplier,
                    shift: s - 64,
                };
            }
            break;
        }
    }
    Kind::Search
}

/// What is asked of a layout.
#[derive(Clone, Debug)]
pub(crate) struct Plan<const D: usize> {
    pub(crate) shape: [usize; D],
    pub(crate) dists: [Dist; D],
    /// Parts along each dimension; chosen if None.
    pub(crate) grid: Option<[usize; D]>,
    pub(crate) halo: [usize; D],
}

impl<const D: usize> Plan<D> {
    pub(crate) fn of_shape(shape: [usize; D]) -> Self {
        Self {
            shape,
            dists: std::array::from_fn(|_| Dist::Block),
            grid: None,
            halo: [0; D],
        }
    }
}

/// All dimensions of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout<const D: usize> {
    axes: [Axis; D],
    len: usize,
    /// Ranks in all. Those outside the grid hold nothing.
    ranks: usize,
}

impl<const D: usize> Layout<D> {
    /// # Errors
    /// What is wrong with the plan.
    pub(crate) fn new(plan: &Plan<D>, ranks: usize) -> Result<Self, String> {
        const { assert!(D >= 1 && D <= 6, "arrays have 1 to 6 dimensions") };
        // Also where one of the lengths is 0: strides are products, too.
        let countable = plan
            .shape
            .iter()
            .try_fold(1_usize, |len, &n| len.checked_mul(n.max(1)));
        if countable.is_none() {
            let shape = plan.shape;
            return Err(format!("{shape:?} elements are more than can be counted"));
        }
        let len = plan.shape.iter().product();
        let grid = grid::choose(plan, ranks)?;
        let mut axes = Vec::with_capacity(D);
        for (d, parts) in grid.into_iter().enumerate() {
            let axis = Axis::new(plan.shape[d], parts, &plan.dists[d], plan.halo[d])
                .map_err(|error| format!("dimension {d}: {error}"))?;
            axes.push(axis);
        }
        let axes = <[Axis; D]>::try_from(axes).map_err(|_| "dimensions".to_string())?;
        Ok(Self { axes, len, ranks })
    }

    /// Elements in all.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(crate) fn axis(&self, d: usize) -> &Axis {
        &self.axes[d]
    }

    pub(crate) fn shape(&self) -> [usize; D] {
        self.axes.each_ref().map(Axis::len)
    }

    pub(crate) fn grid(&self) -> [usize; D] {
        self.axes.each_ref().map(Axis::parts)
    }

    pub(crate) fn halo(&self) -> [usize; D] {
        self.axes.each_ref().map(Axis::halo)
    }

    pub(crate) fn has_halo(&self) -> bool {
        self.axes.iter().any(|axis| axis.halo > 0)
    }

    /// One dimension in blocks: the multiplier and shift by which [`Layout::owner`] finds owners,
    /// and the number of indices for which it does, which is 0 or the length.
    pub(crate) fn line(&self) -> (usize, u64, u32) {
        match self.axes[0].kind {
            Kind::Block { multiplier, shift } if D == 1 => (self.len, multiplier, shift),
            // Everything at rank 0, from any index.
            Kind::Whole if D == 1 => (self.len, 0, 0),
            _ => (0, 0, 0),
        }
    }

    /// The owner of `index` by the numbers of [`Layout::line`].
    #[inline]
    pub(crate) fn owner(index: usize, multiplier: u64, shift: u32) -> usize {
        upper_half(index, multiplier) >> (shift & 63)
    }

    /// The rank that holds `index`, and the place of the element in its memory. `index` must be
    /// inside the shape.
    #[inline]
    pub(crate) fn locate(&self, index: [usize; D]) -> (usize, usize) {
        let (mut rank, mut offset) = (0, 0);
        for (axis, index) in self.axes.iter().zip(index) {
            let (part, place) = axis.locate(index);
            rank = rank * axis.parts.len() + part;
            offset = offset * axis.parts[part].padded + axis.halo + place;
        }
        (rank, offset)
    }

    /// Whether `index` is inside the shape.
    #[inline]
    pub(crate) fn contains(&self, index: [usize; D]) -> bool {
        self.axes
            .iter()
            .zip(index)
            .all(|(axis, index)| index < axis.len)
    }

    /// The rank at grid coordinates `parts`.
    pub(crate) fn rank_at(&self, parts: [usize; D]) -> usize {
        let axes = self.axes.iter().zip(parts);
        axes.fold(0, |rank, (axis, part)| rank * axis.parts.len() + part)
    }

    /// A rank's coordinates in the grid; None outside it.
    pub(crate) fn coordinates(&self, rank: usize) -> Option<[usize; D]> {
        let mut rest = rank;
        let mut parts = [0; D];
        for (part, axis) in parts.iter_mut().zip(&self.axes).rev() {
            *part = rest % axis.parts.len();
            rest /= axis.parts.len();
        }
        (rest == 0).then_some(parts)
    }

    /// Elements that `rank` holds along each dimension.
    pub(crate) fn owned_shape(&self, rank: usize) -> [usize; D] {
        match self.coordinates(rank) {
            Some(parts) => std::array::from_fn(|d| self.axes[d].count(parts[d])),
            None => [0; D],
        }
    }

    /// As [`Layout::owned_shape`], with ghost cells; a rank that holds nothing has none.
    pub(crate) fn memory_shape(&self, rank: usize) -> [usize; D] {
        let owned = self.owned_shape(rank);
        if owned.contains(&0) {
            return owned;
        }
        std::array::from_fn(|d| owned[d] + 2 * self.axes[d].halo)
    }

    /// Elements in `rank`'s memory, ghost cells included; `usize::MAX` if they cannot be counted.
    pub(crate) fn memory_len(&self, rank: usize) -> usize {
        let shape = self.memory_shape(rank);
        shape.iter().fold(1, |len, &n| len.saturating_mul(n))
    }

    /// Elements in the memory of the rank that has most; `usize::MAX` if they cannot be counted.
    pub(crate) fn largest(&self) -> usize {
        let most = |axis: &Axis| axis.parts.iter().map(|part| part.padded).max().unwrap_or(0);
        let axes = self.axes.iter();
        axes.fold(1, |len, axis| len.saturating_mul(most(axis)))
    }

    /// Elements that `rank` holds.
    pub(crate) fn owned_len(&self, rank: usize) -> usize {
        self.owned_shape(rank).iter().product()
    }

    /// The index of the element at `place` of what `rank` holds. The rank must be in the grid.
    pub(crate) fn global(&self, rank: usize, place: [usize; D]) -> [usize; D] {
        let parts = self.coordinates(rank).unwrap_or([0; D]);
        std::array::from_fn(|d| self.axes[d].global(parts[d], place[d]))
    }

    /// How far apart in memory two neighbours along each dimension are, for `rank`.
    pub(crate) fn strides(&self, rank: usize) -> [usize; D] {
        let shape = self.memory_shape(rank);
        let mut strides = [1; D];
        for d in (1..D).rev() {
            strides[d - 1] = strides[d] * shape[d];
        }
        strides
    }

    /// Place in memory of the first element that a rank holds.
    pub(crate) fn first(&self, rank: usize) -> usize {
        let strides = self.strides(rank);
        (0..D).map(|d| self.axes[d].halo * strides[d]).sum()
    }

    /// Whether each rank holds the same indices as in `other`, at the same places among them.
    pub(crate) fn has_parts_of(&self, other: &Self) -> bool {
        let same = |a: &Axis, b: &Axis| {
            let starts = a.parts.iter().map(|part| part.start);
            let other_starts = b.parts.iter().map(|part| part.start);
            a.len == b.len && a.kind == b.kind && starts.eq(other_starts)
        };
        self.grid() == other.grid() && (0..D).all(|d| same(self.axis(d), other.axis(d)))
    }

    /// A number that tells layouts apart, for ranks that must have the same.
    pub(crate) fn fingerprint(&self) -> u64 {
        use std::hash::{Hash, Hasher};
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        for axis in &self.axes {
            axis.len.hash(&mut hasher);
            axis.halo.hash(&mut hasher);
            if let Kind::Cyclic { block, .. } = axis.kind {
                block.hash(&mut hasher);
            }
            for part in &axis.parts {
                part.padded.hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// The index after `index` in row-major order; None after the last.
pub(crate) fn successor<const D: usize>(
    mut index: [usize; D],
    shape: [usize; D],
) -> Option<[usize; D]> {
    for d in (0..D).rev() {
        index[d] += 1;
        if index[d] < shape[d] {
            return Some(index);
        }
        index[d] = 0;
    }
    None
}

/// FNV-1a: the same on all ranks, which the standard library does not promise of its own.
struct Fnv(u64);

impl std::hash::Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
