//! What all elements of an array make together.

use crate::array::rows::rows;
use crate::array::{GlobalArray, ReadView, index_at};
use crate::element::Element;
use crate::error::Result;
use crate::operator::{Combine, Number, Op, better};
use crate::threads;
use std::ops::Range;

/// Elements of a block of [`GlobalArray::reduce_in_order`].
const BLOCK: usize = 4096;

impl<T: Element, const D: usize> GlobalArray<T, D> {
    /// All elements combined by `op`: an [`Op`], a [`BitOp`](crate::BitOp) or a function, which must
    /// be associative; None of an array without elements. The same bits on all ranks.
    ///
    /// Elements are combined rank by rank, and within a rank in the order of its memory. In one
    /// dimension in blocks that is the order of indices. On another number of ranks sums of floats
    /// may differ in their last bits: see [`GlobalArray::reduce_in_order`].
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::read`].
    #[track_caller]
    pub fn reduce(&mut self, op: impl Combine<T> + Sync) -> Result<Option<T>> {
        let threads = threads::of_this_rank()?;
        let (team, layout) = (self.team(), self.layout.clone());
        let view = self.read()?;
        let mine = rows(&layout, team.rank(), &view, false);
        let pieces = threads.pieces(&mine, |piece| fold(&op, piece));
        let mine = fold(&op, &pieces.into_iter().flatten().collect::<Vec<_>>());
        let all = team.all_gather_ragged(mine.as_slice())?;
        view.close()?;
        Ok(fold(&op, all.values()))
    }

    /// All elements combined by `op` in an order that depends on nothing but their number: the same
    /// bits on any number of ranks and in any distribution. Else as [`GlobalArray::reduce`].
    ///
    /// In row-major order of indices, blocks of 4,096 elements are combined one element after
    /// another, and the blocks in a binary tree.
    ///
    /// # Errors
    /// As [`GlobalArray::reduce`].
    #[track_caller]
    pub fn reduce_in_order(&mut self, op: impl Combine<T> + Sync) -> Result<Option<T>> {
        let threads = threads::of_this_rank()?;
        let team = self.team();
        let len = self.len();
        let blocks = len.div_ceil(BLOCK);
        // Those that begin in this rank's part of the elements, as blocks divide them.
        let start = |rank| crate::dist::block_start(len, team.size(), rank).div_ceil(BLOCK);
        let mine = start(team.rank())..start(team.rank() + 1);
        let view = self.read()?;
        let elements = view.flat_range(mine.start * BLOCK..len.min(mine.end * BLOCK));
        let elements = elements?;
        let parts: Vec<&[T]> = elements.chunks(BLOCK).collect();
        let values = threads.pieces(&parts, |block| fold(&op, block));
        let values: Vec<T> = values.into_iter().flatten().collect();
        let tree = Tree { op: &op, blocks };
        let nodes = tree.nodes(mine.clone());
        let of_node =
            |&(level, number): &(u32, usize)| tree.value(&values, mine.start, level, number);
        let made: Vec<T> = nodes.iter().map(of_node).collect();
        let all = team.all_gather_ragged(&made)?;
        view.close()?;
        // Which nodes the others have is no secret.
        let all_nodes = (0..team.size()).flat_map(|rank| tree.nodes(start(rank)..start(rank + 1)));
        let made: Vec<_> = all_nodes.zip(all.values().iter().copied()).collect();
        Ok(tree.root(&made))
    }
}

/// Values one after another.
fn fold<T: Copy>(op: &impl Combine<T>, values: &[T]) -> Option<T> {
    let (first, rest) = values.split_first()?;
    Some(
        rest.iter()
            .fold(*first, |all, &value| op.combine(all, value)),
    )
}

/// A binary tree over blocks: node `number` of `level` is made of nodes `2·number` and
/// `2·number + 1` of the level below, or of the first alone where there is no second.
struct Tree<'a, O> {
    op: &'a O,
    blocks: usize,
}

impl<O> Tree<'_, O> {
    fn levels(&self) -> u32 {
        self.blocks.next_power_of_two().trailing_zeros()
    }

    /// The fewest nodes that cover these blocks and no others, in order.
    fn nodes(&self, blocks: Range<usize>) -> Vec<(u32, usize)> {
        let mut nodes = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let mut level = 0;
            // A node one level up begins here, and ends inside or where all blocks end.
            while level < self.levels()
                && at.is_multiple_of(2 << level)
                && (at + (2 << level)).min(self.blocks) <= blocks.end
            {
                level += 1;
            }
            nodes.push((level, at >> level));
            at += 1 << level;
        }
        nodes
    }

    /// A node's value, from those of blocks from `first` on.
    fn value<T: Copy>(&self, values: &[T], first: usize, level: u32, number: usize) -> T
    where
        O: Combine<T>,
    {
        if level == 0 {
            return values[number - first];
        }
        let left = self.value(values, first, level - 1, 2 * number);
        if (2 * number + 1) << (level - 1) >= self.blocks {
            return left;
        }
        let right = self.value(values, first, level - 1, 2 * number + 1);
        self.op.combine(left, right)
    }

    /// The value of all, from nodes that cover all blocks.
    fn root<T: Copy>(&self, made: &[((u32, usize), T)]) -> Option<T>
    where
        O: Combine<T>,
    {
        (self.blocks > 0).then(|| self.of_made(made, self.levels(), 0))
    }

    fn of_made<T: Copy>(&self, made: &[((u32, usize), T)], level: u32, number: usize) -> T
    where
        O: Combine<T>,
    {
        // In the order of their first blocks.
        let first = |&((level, number), _): &((u32, usize), T)| number << level;
        let at = made.partition_point(|node| first(node) < number << level);
        if made[at].0 == (level, number) {
            return made[at].1;
        }
        let left = self.of_made(made, level - 1, 2 * number);
        if (2 * number + 1) << (level - 1) >= self.blocks {
            return left;
        }
        let right = self.of_made(made, level - 1, 2 * number + 1);
        self.op.combine(left, right)
    }
}

impl<T: Element, const D: usize> ReadView<'_, T, D> {
    /// Elements by their place in row-major order. One-sided.
    pub(in crate::array) fn flat_range(&self, range: Range<usize>) -> Result<Vec<T>> {
        let len = range.len();
        let mut boxes = self.array.layout.boxes_of_range(range);
        let Some(first) = boxes.next() else {
            return Ok(Vec::new());
        };
        let mut all = self.array.load_section(first)?;
        all.reserve_exact(len - all.len());
        for slices in boxes {
            all.extend(self.array.load_section(slices)?);
        }
        Ok(all)
    }
}

impl<T: Number, const D: usize> GlobalArray<T, D> {
    /// The sum of all elements; zero of none. As [`GlobalArray::reduce`].
    ///
    /// # Errors
    /// As [`GlobalArray::reduce`].
    #[track_caller]
    pub fn sum(&mut self) -> Result<T> {
        let sum = self.reduce(Op::Sum)?;
        sum.map_or_else(crate::element::zeroed, Ok)
    }

    /// The smallest element, as [`Op::Min`] sees it; None of none. As [`GlobalArray::reduce`].
    ///
    /// # Errors
    /// As [`GlobalArray::reduce`].
    #[track_caller]
    pub fn min(&mut self) -> Result<Option<T>> {
        self.reduce(Op::Min)
    }

    /// The largest element, as [`Op::Max`] sees it; None of none. As [`GlobalArray::reduce`].
    ///
    /// # Errors
    /// As [`GlobalArray::reduce`].
    #[track_caller]
    pub fn max(&mut self) -> Result<Option<T>> {
        self.reduce(Op::Max)
    }

    /// The smallest element and the first index, in row-major order, that has it; None of an array
    /// without elements. A NaN is smaller than anything.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::reduce`].
    #[track_caller]
    pub fn arg_min(&mut self) -> Result<Option<([usize; D], T)>> {
        self.arg(Op::Min)
    }

    /// The largest element and the first index, in row-major order, that has it; None of an array
    /// without elements. A NaN is larger than anything.
    ///
    /// Collective, and a [barrier](crate::Team::barrier) at the beginning and the end.
    ///
    /// # Errors
    /// As [`GlobalArray::reduce`].
    #[track_caller]
    pub fn arg_max(&mut self) -> Result<Option<([usize; D], T)>> {
        self.arg(Op::Max)
    }

    #[track_caller]
    fn arg(&mut self, op: Op) -> Result<Option<([usize; D], T)>> {
        let threads = threads::of_this_rank()?;
        let (team, layout) = (self.team(), self.layout.clone());
        let view = self.read()?;
        // Memory is in row-major order of the indices that this rank holds.
        let mine = rows(&layout, team.rank(), &view, false);
        let pieces = threads.pieces(&mine, |piece| (best_of(op, piece), piece.len()));
        let mut best: Option<(T, usize)> = None;
        let mut passed = 0;
        for (found, len) in pieces {
            if let Some((value, place)) = found
                && best.is_none_or(|(best, _)| better(op, value, best))
            {
                best = Some((value, passed + place));
            }
            passed += len;
        }
        let index = |(_, place): (T, usize)| {
            layout.global(
                team.rank(),
                index_at(place, layout.owned_shape(team.rank())),
            )
        };
        let index: Option<[usize; D]> = best.map(index);
        let value = best.map(|(value, _)| value);
        let values = team.all_gather_ragged(value.as_slice())?;
        let indices = team.all_gather_ragged(index.as_ref().map_or(&[][..], |index| &index[..]))?;
        view.close()?;
        let indices = indices.values().chunks_exact(D);
        let mut best: Option<([usize; D], T)> = None;
        for (&value, index) in values.values().iter().zip(indices) {
            let index: [usize; D] = index.try_into().unwrap_or([0; D]);
            let wins = best.is_none_or(|(best_index, best)| {
                better(op, value, best) || !better(op, best, value) && index < best_index
            });
            if wins {
                best = Some((index, value));
            }
        }
        Ok(best)
    }
}

/// The first of the best values, and its place.
fn best_of<T: Number>(op: Op, values: &[T]) -> Option<(T, usize)> {
    let mut best: Option<(T, usize)> = None;
    for (place, &value) in values.iter().enumerate() {
        if best.is_none_or(|(best, _)| better(op, value, best)) {
            best = Some((value, place));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the ranks, the nodes they make are all that is needed, and the shape is the same.
    #[test]
    fn any_division_gives_the_same_tree() {
        let join = |a: u64, b: u64| a.wrapping_mul(31).wrapping_add(b ^ a >> 7);
        for blocks in [0, 1, 2, 3, 7, 8, 9, 100, 1023, 1025] {
            let tree = Tree { op: &join, blocks };
            let values: Vec<u64> = (0..blocks as u64).map(|k| k * k + 1).collect();
            let mut results = Vec::new();
            for ranks in [1, 2, 3, 5, 64] {
                let start = |rank: usize| rank * blocks / ranks;
                let mut made = Vec::new();
                for rank in 0..ranks {
                    for (level, number) in tree.nodes(start(rank)..start(rank + 1)) {
                        let mine = &values[start(rank)..start(rank + 1)];
                        let value = tree.value(mine, start(rank), level, number);
                        made.push(((level, number), value));
                    }
                }
                results.push(tree.root(&made));
            }
            assert!(
                results.iter().all(|result| *result == results[0]),
                "{blocks}"
            );
            assert_eq!(results[0].is_some(), blocks > 0);
        }
    }
}
