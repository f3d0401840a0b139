//! Collectives that combine: all-reduce, reduce, scans, and where the smallest is.

use super::staged::{First, Show, overlap};
use super::{SMALL, fill};
use crate::dist::block_start;
use crate::element::{self, Element};
use crate::error::Result;
use crate::operator::{Combine, Number, Op, better};
use crate::world::engine;
use crate::world::messages::values_of;
use crate::world::signature::EXCLUSIVE;
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
        let all = 0..values.len();
        self.all_reduce_as(Call::AllReduce, 0, values, op, all)
    }

    /// [`Team::all_reduce_slice`] under another name, with a root that ranks must agree on, and
    /// only for the `wanted` elements: what becomes of the others is not said.
    #[track_caller]
    pub(super) fn all_reduce_as<T: Element>(
        &self,
        call: Call,
        root: usize,
        values: &mut [T],
        op: impl Combine<T>,
        wanted: Range<usize>,
    ) -> Result<()> {
        let core = &self.core;
        let mut signature = signature::<T>(call, &op, values.len());
        // Operators are below 2^12, so is the rest the root's.
        signature.detail |= u32::try_from(root).unwrap_or(0) << 12;
        if !op.commutes() && !core.nodes.are_in_order() {
            let all = self.first_ranks::<T>(&signature, values, self.size(), &op)?;
            if let Some(all) = all {
                values.copy_from_slice(&all);
            }
            return Ok(());
        }
        let combine = |a: &mut [u8], b: &[u8]| combine_bytes::<T>(&op, a, b);
        let _turn = core.turn()?;
        let bytes = size_of_val(values);
        if bytes <= SMALL {
            let mine = bytemuck::cast_slice::<T, u8>(values).to_vec();
            // Values that came from ranks are values.
            let combine = |a: &mut [u8], b: &[u8]| drop(combine(a, b));
            let combine = engine::Combine::Reduce(&combine);
            return core
                .engine
                .exchange(&signature, &mine, &combine, |bytes| fill(values, bytes))?;
        }
        let mut show = Reducing {
            core,
            signature: &signature,
            part: core.next_part(),
            values,
            op: &op,
            wanted,
        };
        core.staged(&signature, First::Meet, (bytes, size_of::<T>()), &mut show)
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
        self.core.check_root("reduce", root)?;
        let mut one = [value];
        self.all_reduce_as(Call::Reduce, root, &mut one, op, 0..1)?;
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
        let mut all = values.to_vec();
        let wanted = match self.rank() == root {
            true => 0..values.len(),
            false => 0..0,
        };
        self.all_reduce_as(Call::Reduce, root, &mut all, op, wanted)?;
        Ok((self.rank() == root).then_some(all))
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
        let mut signature = signature::<T>(Call::Scan, &op, values.len());
        signature.detail |= EXCLUSIVE;
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

/// A reduction over the stage. In each window each member combines its share of the elements, in
/// rank order, and all take the shares; between nodes the leaders combine what their nodes have.
struct Reducing<'a, T, O> {
    core: &'a Core,
    signature: &'a Signature,
    part: u32,
    values: &'a mut [T],
    op: &'a O,
    wanted: Range<usize>,
}

impl<T: Element, O: Combine<T>> Reducing<'_, T, O> {
    /// Takes elements of a window that begins at element `first`, if they are wanted.
    fn take(
        &mut self,
        window: Window<'_>,
        member: usize,
        first: usize,
        part: Range<usize>,
    ) -> Result<()> {
        let start = self.wanted.start.max(first + part.start);
        let end = self.wanted.end.min(first + part.end);
        if start >= end {
            return Ok(());
        }
        let bytes = window.of(member, bytes_at::<T>(start - first..end - first));
        fill(&mut self.values[start..end], bytes)
    }
}

impl<T: Element, O: Combine<T>> Show for Reducing<'_, T, O> {
    fn fill(&mut self, range: Range<usize>, window: Window<'_>) -> Result<()> {
        window.show(0, overlap(bytemuck::cast_slice(self.values), &range));
        Ok(())
    }

    fn take(&mut self, range: Range<usize>, window: Window<'_>, stage: &Stage) -> Result<()> {
        let (core, me, members) = (self.core, self.core.nodes.my_place(), window.members());
        let first = range.start / size_of::<T>();
        let count = range.len() / size_of::<T>();
        if members > 1 {
            let mine = share(count, members, me);
            let at = bytes_at::<T>(mine.clone());
            let values = &mut self.values[first + mine.start..first + mine.end];
            if me > 0 {
                fill(values, window.of(0, at.clone()))?;
            }
            for member in 1..members {
                combine_values(self.op, values, window.of(member, at.clone()))?;
            }
            window.show(at.start, bytemuck::cast_slice(values));
            core.meet_on(stage, self.signature)?;
        }
        if core.nodes.count() == 1 {
            // This rank has its own share.
            let others = (0..members).filter(|&member| member != me);
            return others.into_iter().try_for_each(|member| {
                self.take(window, member, first, share(count, members, member))
            });
        }
        if me == 0 {
            let mut all = Vec::with_capacity(range.len());
            for member in 0..members {
                all.extend_from_slice(
                    window.of(member, bytes_at::<T>(share(count, members, member))),
                );
            }
            let combine = |a: &mut [u8], b: &[u8]| combine_bytes::<T>(self.op, a, b);
            core.leaders_all_reduce(self.part, &mut all, size_of::<T>(), &combine)?;
            window.show(0, &all);
        }
        core.meet_on(stage, self.signature)?;
        self.take(window, 0, first, 0..count)
    }
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
