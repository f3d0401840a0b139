//! Collectives that combine: all-reduce, reduce, scans, and where the smallest is.

use super::staged::{First, Show, overlap};
use super::{SMALL, fill};
use crate::dist::block_start;
use crate::element::{self, Element};
use crate::error::Result;
use crate::operator::{Combine, Number, Op, better};
use crate::world::engine::{self, By, Bytes};
use crate::world::messages::values_of;
use crate::world::stage::{Stage, Window};
use crate::world::{Call, Core, Signature, Team};
use std::ops::Range;

impl Team {
    /// The values of all ranks combined by `op`: an [`Op`], a [`BitOp`](crate::BitOp), or a
    /// function, which must be associative and is applied in rank order. The same bits on all ranks.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn all_reduce<T: Element>(&self, value: T, op: impl Combine<T>) -> Result<T> {
        let mut one = [value];
        self.all_reduce_slice(&mut one, op)?;
        Ok(one[0])
    }

    /// Element by element, the values of all ranks combined by `op`; the same bits on all ranks.
    /// Lengths must agree. As [`Team::all_reduce`].
    ///
    /// # Errors
    /// As [`Team::barrier`]. On error `values` is unchanged or partly combined, each element whole.
    #[track_caller]
    pub fn all_reduce_slice<T: Element>(
        &self,
        values: &mut [T],
        op: impl Combine<T>,
    ) -> Result<()> {
        self.reduce_as(Call::AllReduce, None, Vectors::InPlace(values), &op)
    }

    /// A reduction under some name, perhaps with a root that ranks must agree on: nobody else
    /// wants anything then.
    #[track_caller]
    pub(super) fn reduce_as<T: Element>(
        &self,
        call: Call,
        root: Option<usize>,
        mut vectors: Vectors<'_, T>,
        op: &impl Combine<T>,
    ) -> Result<()> {
        let core = &self.core;
        let values = vectors.values();
        let signature = signature::<T>(call, op, values.len()).root(root.unwrap_or(0));
        if !op.commutes() && !core.nodes.are_in_order() {
            let all = self.first_ranks::<T>(&signature, values, self.size(), op)?;
            return all.map_or(Ok(()), |all| vectors.take(0, bytemuck::cast_slice(&all)));
        }
        if size_of_val(values) <= SMALL && !op.is_function() {
            return reduce_small(vectors, op, |mine, combine, take| {
                core.meet_once(&signature, mine, combine, take)
            });
        }
        let _turn = core.turn()?;
        self.reduce_in_turn(&signature, root, vectors, op)
    }

    /// A reduction by an operator that commutes, or of nodes whose ranks follow each other. The
    /// caller has the [`turn`](Core::turn).
    fn reduce_in_turn<T: Element>(
        &self,
        signature: &Signature,
        root: Option<usize>,
        vectors: Vectors<'_, T>,
        op: &impl Combine<T>,
    ) -> Result<()> {
        let core = &self.core;
        let values = vectors.values();
        let bytes = size_of_val(values);
        if bytes <= SMALL {
            return reduce_small(vectors, op, |mine, combine, take| {
                core.engine.exchange(signature, mine, combine, take)
            });
        }
        // Of two ranks only one has something to do, while the other shows the next window.
        let pair = core.size == 2 && core.is_one_node();
        let mut show = Reducing {
            core,
            signature,
            part: core.next_part(),
            vectors,
            op,
            alone: root.filter(|_| pair),
        };
        core.staged(signature, First::Meet, (bytes, size_of::<T>()), &mut show)
    }

    /// The values of all ranks combined by `op`, on rank `root`; None on others. As
    /// [`Team::all_reduce`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if there is no such root; else as [`Team::barrier`].
    #[track_caller]
    pub fn reduce<T: Element>(
        &self,
        root: usize,
        value: T,
        op: impl Combine<T>,
    ) -> Result<Option<T>> {
        let mut one = [value];
        self.reduce_in_place(root, &mut one, op)?;
        Ok((self.rank() == root).then_some(one[0]))
    }

    /// Element by element, the values of all ranks combined by `op`, on rank `root`; None on others.
    /// Lengths must agree. As [`Team::reduce`].
    ///
    /// # Errors
    /// As [`Team::reduce`].
    #[track_caller]
    pub fn reduce_slice<T: Element>(
        &self,
        root: usize,
        values: &[T],
        op: impl Combine<T>,
    ) -> Result<Option<Vec<T>>> {
        self.core.check_root("reduce", root)?;
        if self.rank() != root {
            let apart = Vectors::Apart(values, 0..0, &mut []);
            self.reduce_as(Call::Reduce, Some(root), apart, &op)?;
            return Ok(None);
        }
        let mut all = values.to_vec();
        self.reduce_in_place(root, &mut all, op)?;
        Ok(Some(all))
    }

    /// Element by element, the values of all ranks combined by `op`, in the place of rank `root`'s
    /// `values`; those of other ranks stay as they are. As [`Team::reduce_slice`], with which
    /// other ranks may take part, without a copy.
    ///
    /// # Errors
    /// As [`Team::reduce`]. On error the root's `values` are unchanged or partly combined, each
    /// element whole.
    #[track_caller]
    pub fn reduce_in_place<T: Element>(
        &self,
        root: usize,
        values: &mut [T],
        op: impl Combine<T>,
    ) -> Result<()> {
        self.core.check_root("reduce", root)?;
        let vectors = match self.rank() == root {
            true => Vectors::InPlace(values),
            false => Vectors::Apart(values, 0..0, &mut []),
        };
        self.reduce_as(Call::Reduce, Some(root), vectors, &op)
    }

    /// The values of this rank and of all before it combined by `op`, in rank order.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn scan<T: Element>(&self, value: T, op: impl Combine<T>) -> Result<T> {
        let mut one = [value];
        self.scan_slice(&mut one, op)?;
        Ok(one[0])
    }

    /// Element by element, the values of this rank and of all before it combined by `op`, in rank
    /// order. Lengths must agree. As [`Team::scan`].
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn scan_slice<T: Element>(&self, values: &mut [T], op: impl Combine<T>) -> Result<()> {
        let signature = signature::<T>(Call::Scan, &op, values.len());
        self.scan_as(&signature, values, &op, true)
    }

    /// The values of all ranks before this one combined by `op`, in rank order; None on rank 0.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn exscan<T: Element>(&self, value: T, op: impl Combine<T>) -> Result<Option<T>> {
        let mut one = [value];
        self.exscan_slice(&mut one, op)?;
        Ok((self.rank() > 0).then_some(one[0]))
    }

    /// Element by element, the values of all ranks before this one combined by `op`, in rank order.
    /// On rank 0 `values` stay as they are. Lengths must agree. As [`Team::exscan`].
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn exscan_slice<T: Element>(&self, values: &mut [T], op: impl Combine<T>) -> Result<()> {
        let signature = signature::<T>(Call::Scan, &op, values.len()).exclusive();
        self.scan_as(&signature, values, &op, false)
    }

    #[track_caller]
    fn scan_as<T: Element>(
        &self,
        signature: &Signature,
        values: &mut [T],
        op: &impl Combine<T>,
        inclusive: bool,
    ) -> Result<()> {
        let core = &self.core;
        let bytes = size_of_val(values);
        if bytes <= SMALL / self.size() || !core.nodes.are_in_order() {
            let ranks = self.rank() + usize::from(inclusive);
            if let Some(before) = self.first_ranks::<T>(signature, values, ranks, op)? {
                values.copy_from_slice(&before);
            }
            return Ok(());
        }
        let _turn = core.turn()?;
        let mut show = Scanning {
            core,
            signature,
            part: core.next_part(),
            values,
            op,
            inclusive,
        };
        core.staged(signature, First::Meet, (bytes, size_of::<T>()), &mut show)
    }

    /// The values of the first `ranks` ranks combined in their order; None of none.
    fn first_ranks<T: Element>(
        &self,
        signature: &Signature,
        values: &[T],
        ranks: usize,
        op: &impl Combine<T>,
    ) -> Result<Option<Vec<T>>> {
        let all = self
            .core
            .gather_bytes(signature, bytemuck::cast_slice(values))?;
        let each = size_of_val(values);
        if ranks == 0 || each == 0 {
            return Ok(None);
        }
        let mut result = values.to_vec();
        for (rank, bytes) in all.chunks_exact(each).take(ranks).enumerate() {
            if rank == 0 {
                fill(&mut result, bytes)?;
            } else {
                combine_values(op, &mut result, bytes)?;
            }
        }
        Ok(Some(result))
    }

    /// The smallest value of all ranks, and the lowest rank that has it. As [`Op::Min`]: a NaN is
    /// smaller than anything.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn arg_min<T: Number>(&self, value: T) -> Result<(T, usize)> {
        self.arg(value, Op::Min)
    }

    /// The largest value of all ranks, and the lowest rank that has it. As [`Op::Max`]: a NaN is
    /// larger than anything.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn arg_max<T: Number>(&self, value: T) -> Result<(T, usize)> {
        self.arg(value, Op::Max)
    }

    /// Element by element, the smallest value of all ranks; returns the lowest rank that has it, for
    /// each element. Lengths must agree. As [`Team::arg_min`].
    ///
    /// # Errors
    /// As [`Team::barrier`]. On error `values` is unchanged or partly combined, each element whole.
    #[track_caller]
    #[doc(alias = "MPI_MINLOC")]
    pub fn arg_min_slice<T: Number>(&self, values: &mut [T]) -> Result<Vec<usize>> {
        self.arg_slice(values, Op::Min)
    }

    /// Element by element, the largest value of all ranks; returns the lowest rank that has it, for
    /// each element. Lengths must agree. As [`Team::arg_max`].
    ///
    /// # Errors
    /// As [`Team::barrier`]. On error `values` is unchanged or partly combined, each element whole.
    #[track_caller]
    #[doc(alias = "MPI_MAXLOC")]
    pub fn arg_max_slice<T: Number>(&self, values: &mut [T]) -> Result<Vec<usize>> {
        self.arg_slice(values, Op::Max)
    }

    /// Two reductions: of the values, then of the ranks that have the best ones.
    #[track_caller]
    fn arg_slice<T: Number>(&self, values: &mut [T], op: Op) -> Result<Vec<usize>> {
        let mine = values.to_vec();
        let of_values = signature::<T>(Call::ArgSlice, &op, mine.len());
        let of_ranks = signature::<u64>(Call::ArgSlice, &op, mine.len());
        let _turn = self.core.turn()?;
        self.reduce_in_turn(&of_values, None, Vectors::InPlace(values), &op)?;
        let rank = |(mine, best): (&T, &T)| match better(op, *best, *mine) {
            true => u64::MAX,
            false => self.rank() as u64,
        };
        let mut ranks: Vec<u64> = mine.iter().zip(&*values).map(rank).collect();
        self.reduce_in_turn(&of_ranks, None, Vectors::InPlace(&mut ranks), &Op::Min)?;
        let to_usize = |rank| usize::try_from(rank).unwrap_or(usize::MAX);
        Ok(ranks.into_iter().map(to_usize).collect())
    }

    #[track_caller]
    fn arg<T: Number>(&self, value: T, op: Op) -> Result<(T, usize)> {
        let signature = signature::<T>(Call::Arg, &op, 1);
        let all = self
            .core
            .gather_bytes(&signature, bytemuck::bytes_of(&value))?;
        let all = values_of::<T>(&all)?;
        let mut best = (all[0], 0);
        for (rank, &value) in all.iter().enumerate().skip(1) {
            // On a tie the one before.
            if better(op, value, best.0) {
                best = (value, rank);
            }
        }
        Ok(best)
    }
}

/// A reduction in one `exchange`.
fn reduce_small<T: Element>(
    mut vectors: Vectors<'_, T>,
    op: &impl Combine<T>,
    exchange: impl FnOnce(
        &[u8],
        &engine::Combine<'_>,
        &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<Result<()>>,
) -> Result<()> {
    let mine = Bytes::from_slice(bytemuck::cast_slice(vectors.values()));
    // Values that came from ranks are values.
    let combine = |a: &mut [u8], b: &[u8]| drop(combine_bytes::<T>(op, a, b));
    // Any rank may have another function.
    let by = match op.is_function() {
        true => By::Leader,
        false => By::All,
    };
    let combine = engine::Combine::Reduce(&combine, by);
    exchange(&mine, &combine, &mut |all| vectors.take(0, all))?
}

/// What a rank gives to a reduction, and where the result goes.
pub(super) enum Vectors<'a, T> {
    /// The values become the result.
    InPlace(&'a mut [T]),
    /// Of the result these elements go elsewhere.
    Apart(&'a [T], Range<usize>, &'a mut [T]),
}

impl<T: Element> Vectors<'_, T> {
    fn values(&self) -> &[T] {
        match self {
            Self::InPlace(values) => values,
            Self::Apart(values, ..) => values,
        }
    }

    /// Takes what is wanted of the result's bytes from element `first` on.
    fn take(&mut self, first: usize, bytes: &[u8]) -> Result<()> {
        let end = first + bytes.len() / size_of::<T>().max(1);
        let (wanted, result) = match self {
            Self::InPlace(values) => (0..values.len(), &mut **values),
            Self::Apart(_, wanted, result) => (wanted.clone(), &mut **result),
        };
        let (start, end) = (wanted.start.max(first), wanted.end.min(end));
        if start >= end {
            return Ok(());
        }
        let bytes = &bytes[bytes_at::<T>(start - first..end - first)];
        fill(&mut result[start - wanted.start..end - wanted.start], bytes)
    }

    /// Values in which something may be combined: in place, or a copy in `scratch`.
    fn combined_in<'a>(&'a mut self, range: Range<usize>, scratch: &'a mut Vec<T>) -> &'a mut [T] {
        match self {
            Self::InPlace(values) => &mut values[range],
            Self::Apart(values, ..) => {
                scratch.extend_from_slice(&values[range]);
                scratch
            }
        }
    }
}

/// A reduction over the stage. In each window each member combines its share of the elements, in
/// rank order, and all take the shares; between nodes the leaders combine what their nodes have.
struct Reducing<'a, T, O> {
    core: &'a Core,
    signature: &'a Signature,
    part: u32,
    vectors: Vectors<'a, T>,
    op: &'a O,
    /// This member combines all, and keeps it.
    alone: Option<usize>,
}

impl<T: Element, O: Combine<T>> Reducing<'_, T, O> {
    /// Which of `count` elements of a window `member` combines.
    fn share(&self, count: usize, member: usize) -> Range<usize> {
        match self.alone {
            None => share(count, self.core.nodes.mine().len(), member),
            Some(alone) if alone == member => 0..count,
            Some(_) => 0..0,
        }
    }
}

impl<T: Element, O: Combine<T>> Show for Reducing<'_, T, O> {
    fn fill(&mut self, range: Range<usize>, window: Window<'_>) -> Result<()> {
        // All but what this rank will combine itself.
        let bytes = overlap(bytemuck::cast_slice(self.vectors.values()), &range);
        let mine = self.share(bytes.len() / size_of::<T>(), self.core.nodes.my_place());
        let mine = bytes_at::<T>(mine);
        window.show(0, &bytes[..mine.start]);
        window.show(mine.end, &bytes[mine.end..]);
        Ok(())
    }

    fn take(&mut self, range: Range<usize>, window: Window<'_>, stage: &Stage) -> Result<()> {
        let (core, me, members) = (self.core, self.core.nodes.my_place(), window.members());
        let first = range.start / size_of::<T>();
        let count = range.len() / size_of::<T>();
        let mine = self.share(count, me);
        let at = bytes_at::<T>(mine.clone()).start;
        let mut scratch = Vec::new();
        let values = first + mine.start..first + mine.end;
        let values = self.vectors.combined_in(values, &mut scratch);
        combine_share(self.op, me, values, at, window)?;
        if self.alone.is_some() {
            return Ok(());
        }
        window.show(at, bytemuck::cast_slice(values));
        core.meet_on(stage, self.signature)?;
        if core.nodes.count() > 1 {
            if me == 0 {
                let mut all = Vec::with_capacity(range.len());
                for member in 0..members {
                    all.extend_from_slice(
                        window.of(member, bytes_at::<T>(self.share(count, member))),
                    );
                }
                let combine = |a: &mut [u8], b: &[u8]| combine_bytes::<T>(self.op, a, b);
                core.leaders_all_reduce(self.part, &mut all, size_of::<T>(), &combine)?;
                window.show(0, &all);
            }
            core.meet_on(stage, self.signature)?;
            return self.vectors.take(first, window.of(0, 0..range.len()));
        }
        for member in 0..members {
            // In place this rank has its own share.
            if member != me || matches!(self.vectors, Vectors::Apart(..)) {
                let share = self.share(count, member);
                let bytes = window.of(member, bytes_at::<T>(share.clone()));
                self.vectors.take(first + share.start, bytes)?;
            }
        }
        Ok(())
    }
}

/// Combines `mine`, a share of this rank's that begins in windows at byte `at`, with the others' in
/// the order of ranks.
fn combine_share<T: Element>(
    op: &impl Combine<T>,
    me: usize,
    mine: &mut [T],
    at: usize,
    window: Window<'_>,
) -> Result<()> {
    let bytes = at..at + size_of_val(mine);
    let of = |member| window.of(member, bytes.clone());
    let members = window.members();
    if members == 2 && op.commutes() {
        return combine_values(op, mine, of(1 - me));
    }
    let own = match me {
        0 => Vec::new(),
        _ => {
            let own = mine.to_vec();
            fill(mine, of(0))?;
            own
        }
    };
    (1..members).try_for_each(|member| match member == me {
        true => {
            op.combine_slices(mine, &own);
            Ok(())
        }
        false => combine_values(op, mine, of(member)),
    })
}

/// A scan over the stage. In each window each member scans its share of the elements, and writes
/// what comes out for each member to that member's half; between nodes the leaders find what the
/// nodes before theirs have.
struct Scanning<'a, T, O> {
    core: &'a Core,
    signature: &'a Signature,
    part: u32,
    values: &'a mut [T],
    op: &'a O,
    inclusive: bool,
}

impl<T: Element, O: Combine<T>> Show for Scanning<'_, T, O> {
    fn fill(&mut self, range: Range<usize>, window: Window<'_>) -> Result<()> {
        window.show(0, overlap(bytemuck::cast_slice(self.values), &range));
        Ok(())
    }

    fn take(&mut self, range: Range<usize>, window: Window<'_>, stage: &Stage) -> Result<()> {
        let (core, me, members) = (self.core, self.core.nodes.my_place(), window.members());
        let first = range.start / size_of::<T>();
        let count = range.len() / size_of::<T>();
        let mine = share(count, members, me);
        let at = bytes_at::<T>(mine.clone());
        let mut before: Vec<T> = values_of(window.of(0, at.clone()))?;
        for member in 1..members {
            combine_values(self.op, &mut before, window.of(member, at.clone()))?;
            window.write(member, at.start, bytemuck::cast_slice(&before));
        }
        core.meet_on(stage, self.signature)?;
        // What the nodes before this one have goes into the other half, which is free.
        let several = core.nodes.count() > 1;
        if several && me == 0 {
            let total = window.of(members - 1, 0..range.len());
            let combine = |a: &mut [u8], b: &[u8]| combine_bytes::<T>(self.op, a, b);
            if let Some(before) = core.leaders_exscan(self.part, total, &combine)? {
                window.other().show(0, &before);
            }
        }
        if several {
            core.meet_on(stage, self.signature)?;
        }
        let values = &mut self.values[first..first + count];
        let here = match (self.inclusive, me) {
            (true, _) => Some(me),
            (false, 0) => None,
            (false, _) => Some(me - 1),
        };
        if core.nodes.my_node() > 0 {
            fill(values, window.other().of(0, 0..range.len()))?;
            if let Some(member) = here {
                combine_values(self.op, values, window.of(member, 0..range.len()))?;
            }
        } else if let Some(member) = here {
            fill(values, window.of(member, 0..range.len()))?;
        }
        if several {
            core.meet_on(stage, self.signature)?; // The other half is next.
        }
        Ok(())
    }
}

/// Which of `count` elements of a window `member` computes.
fn share(count: usize, members: usize, member: usize) -> Range<usize> {
    block_start(count, members, member)..block_start(count, members, member + 1)
}

fn bytes_at<T>(elements: Range<usize>) -> Range<usize> {
    elements.start * size_of::<T>()..elements.end * size_of::<T>()
}

/// What ranks must agree on.
#[track_caller]
fn signature<T: Element>(call: Call, op: &impl Combine<T>, count: usize) -> Signature {
    Signature::new(call)
        .detail(op.number())
        .count(count)
        .element::<T>()
}

/// `a[k] = a[k] op b[k]`, where `b` is elements' bytes.
fn combine_values<T: Element>(op: &impl Combine<T>, a: &mut [T], b: &[u8]) -> Result<()> {
    match element::view(b) {
        Some(b) => op.combine_slices(a, b),
        None => op.combine_slices(a, &values_of(b)?),
    }
    Ok(())
}

/// `a[k] = a[k] op b[k]` on the bytes of two runs of elements, however they are aligned.
fn combine_bytes<T: Element>(op: &impl Combine<T>, a: &mut [u8], b: &[u8]) -> Result<()> {
    if let Some(a) = element::view_mut(a) {
        return combine_values(op, a, b);
    }
    let mut values = values_of(a)?;
    combine_values(op, &mut values, b)?;
    a.copy_from_slice(bytemuck::cast_slice(&values));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_bytes() {
        let mut memory = [0_u8; 17];
        memory[1..].copy_from_slice(bytemuck::bytes_of(&[1_u64, 2]));
        let mut other = [0_u8; 19];
        other[3..].copy_from_slice(bytemuck::bytes_of(&[10_u64, u64::MAX]));
        combine_bytes::<u64>(&Op::Sum, &mut memory[1..], &other[3..]).expect("any bytes are u64s");
        assert_eq!(memory[1..], *bytemuck::bytes_of(&[11_u64, 1]));
    }
}
