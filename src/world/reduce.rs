//! Numbers that can be reduced, and how: the same bits on every rank.

use crate::element::Element;

/// The operator of [`World::all_reduce`](crate::World::all_reduce).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Sum. Integers wrap around. Floats are added in a fixed order: rank by rank within a
    /// node, then node by node.
    Sum,
    /// Smallest. For floats: NaN if any value is NaN, and −0 is smaller than +0.
    Min,
    /// Largest. For floats: NaN if any value is NaN, and −0 is smaller than +0.
    Max,
}

/// Numbers that [`World::all_reduce`](crate::World::all_reduce) takes: all integers and floats.
pub trait Number: Element + sealed::Reduce {}

pub(crate) mod sealed {
    pub trait Reduce: Copy {
        fn reduce(op: super::Op, a: Self, b: Self) -> Self;
    }
}
use sealed::Reduce;

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Number for $int {}
        impl Reduce for $int {
            fn reduce(op: Op, a: Self, b: Self) -> Self {
                match op {
                    Op::Sum => a.wrapping_add(b),
                    Op::Min => a.min(b),
                    Op::Max => a.max(b),
                }
            }
        }
    )*};
}
integers!(
    i8, u8, i16, u16, i32, u32, i64, u64, i128, u128, isize, usize
);

macro_rules! floats {
    ($($float:ty),*) => {$(
        impl Number for $float {}
        impl Reduce for $float {
            fn reduce(op: Op, a: Self, b: Self) -> Self {
                // Always the same NaN: which rank held it must not show.
                if a.is_nan() || b.is_nan() {
                    return Self::NAN;
                }
                match op {
                    // Infinities of both signs make a NaN too.
                    Op::Sum if (a + b).is_nan() => Self::NAN,
                    Op::Sum => a + b,
                    Op::Min => if b.total_cmp(&a).is_lt() { b } else { a },
                    Op::Max => if b.total_cmp(&a).is_gt() { b } else { a },
                }
            }
        }
    )*};
}
floats!(f32, f64);

/// `a[k] = a[k] op b[k]` on the bytes of two runs of numbers, however they are aligned.
pub(super) fn reduce_bytes<T: Number>(op: Op, a: &mut [u8], b: &[u8]) {
    let size = size_of::<T>();
    for (a, b) in a.chunks_exact_mut(size).zip(b.chunks_exact(size)) {
        let left: T::Bits = bytemuck::pod_read_unaligned(a);
        let right: T::Bits = bytemuck::pod_read_unaligned(b);
        // Numbers accept all bits.
        if let (Ok(left), Ok(right)) = (
            crate::element::from_bits::<T>(left),
            crate::element::from_bits::<T>(right),
        ) {
            a.copy_from_slice(bytemuck::bytes_of(&T::reduce(op, left, right)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_propagates_from_either_side_with_the_same_bits() {
        let odd_nan = f64::from_bits(0x7ff8_0000_0000_1234);
        for op in [Op::Sum, Op::Min, Op::Max] {
            for (a, b) in [(odd_nan, 1.0), (1.0, odd_nan), (odd_nan, odd_nan)] {
                assert_eq!(f64::reduce(op, a, b).to_bits(), f64::NAN.to_bits());
            }
        }
        let sum = f64::reduce(Op::Sum, f64::INFINITY, f64::NEG_INFINITY);
        assert_eq!(sum.to_bits(), f64::NAN.to_bits());
    }

    #[test]
    fn zeros_have_an_order() {
        for (a, b) in [(0.0_f64, -0.0), (-0.0, 0.0)] {
            assert!(f64::reduce(Op::Min, a, b).is_sign_negative());
            assert!(f64::reduce(Op::Max, a, b).is_sign_positive());
        }
    }

    #[test]
    fn unaligned_bytes() {
        let mut memory = [0_u8; 17];
        memory[1..].copy_from_slice(bytemuck::bytes_of(&[1_u64, 2]));
        let mut other = [0_u8; 19];
        other[3..].copy_from_slice(bytemuck::bytes_of(&[10_u64, u64::MAX]));
        reduce_bytes::<u64>(Op::Sum, &mut memory[1..], &other[3..]);
        assert_eq!(memory[1..], *bytemuck::bytes_of(&[11_u64, 1]));
    }
}
