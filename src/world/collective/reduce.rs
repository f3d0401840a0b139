//! Collectives that combine: all-reduce, reduce, scans, and where the smallest is.

use super::{fill, pieces};
use crate::element::{self, Element};
use crate::error::Result;
use crate::operator::{Combine, Number, Op};
use crate::world::engine;
use crate::world::messages::values_of;
use crate::world::node::SLOT;
use crate::world::{Call, Signature, Team};

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
        self.all_reduce_as(Call::AllReduce, 0, values, op)
    }

    /// [`Team::all_reduce_slice`] under another name, and with a root that ranks must agree on.
    #[track_caller]
    pub(super) fn all_reduce_as<T: Element>(
        &self,
        call: Call,
        root: usize,
        values: &mut [T],
        op: impl Combine<T>,
    ) -> Result<()> {
        let mut signature = signature::<T>(call, &op, values.len());
        // Operators are below 2^12, so is the rest the root's.
        signature.detail |= u32::try_from(root).unwrap_or(0) << 12;
        if !op.commutes() {
            let all = self.first_ranks::<T>(&signature, values, self.size(), &op)?;
            if let Some(all) = all {
                values.copy_from_slice(&all);
            }
            return Ok(());
        }
        let reduce = |a: &mut [u8], b: &[u8]| combine_bytes::<T>(&op, a, b);
        let each = (SLOT / size_of::<T>()).max(1);
        let _turn = self.core.turn()?;
        for (from, to) in pieces(values.len(), each) {
            let part = &mut values[from..to];
            let mine = bytemuck::cast_slice::<T, u8>(part).to_vec();
            self.core.engine.exchange(
                &signature,
                &mine,
                &engine::Combine::Reduce(&reduce),
                |bytes| fill(part, bytes),
            )??;
        }
        Ok(())
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
        self.all_reduce_as(Call::Reduce, root, &mut one, op)?;
        Ok((self.rank() == root).then_some(one[0]))
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
        let before = self.first_ranks::<T>(&signature, values, self.rank() + 1, &op)?;
        if let Some(before) = before {
            values.copy_from_slice(&before);
        }
        Ok(())
    }

    /// The values of all ranks before this one combined by `op`, in rank order; None on rank 0.
    ///
    /// Collective, and a [barrier](Team::barrier).
    ///
    /// # Errors
    /// As [`Team::barrier`].
    #[track_caller]
    pub fn exscan<T: Element>(&self, value: T, op: impl Combine<T>) -> Result<Option<T>> {
        let signature = signature::<T>(Call::Scan, &op, usize::MAX);
        let before = self.first_ranks::<T>(&signature, &[value], self.rank(), &op)?;
        Ok(before.and_then(|before| before.first().copied()))
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
            let winner = T::reduce(op, best.0, value);
            // On a tie the one before.
            let wins = value.is_nan() || bytemuck::bytes_of(&winner) != bytemuck::bytes_of(&best.0);
            if wins && !best.0.is_nan() {
                best = (value, rank);
            }
        }
        Ok(best)
    }
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
    for (a, b) in a.iter_mut().zip(b.chunks_exact(size_of::<T>())) {
        *a = op.combine(*a, element::from_bits(bytemuck::pod_read_unaligned(b))?);
    }
    Ok(())
}

/// `a[k] = a[k] op b[k]` on the bytes of two runs of elements, however they are aligned.
fn combine_bytes<T: Element>(op: &impl Combine<T>, a: &mut [u8], b: &[u8]) {
    let size = size_of::<T>();
    for (a, b) in a.chunks_exact_mut(size).zip(b.chunks_exact(size)) {
        let left: T::Bits = bytemuck::pod_read_unaligned(a);
        let right: T::Bits = bytemuck::pod_read_unaligned(b);
        // They come from ranks that have elements.
        if let (Ok(left), Ok(right)) = (
            element::from_bits::<T>(left),
            element::from_bits::<T>(right),
        ) {
            a.copy_from_slice(bytemuck::bytes_of(&op.combine(left, right)));
        }
    }
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
        combine_bytes::<u64>(&Op::Sum, &mut memory[1..], &other[3..]);
        assert_eq!(memory[1..], *bytemuck::bytes_of(&[11_u64, 1]));
    }
}
