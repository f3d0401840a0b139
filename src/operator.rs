//! Operators on elements: what all-reduces, atomics and aggregated updates do with two values.
//! Always the same bits, whoever computes them.

use crate::atomic::{AtomicBits, AtomicNumber, AtomicOp};
use crate::element::{Element, type_hash};

/// An operator on numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Sum. Integers wrap around. An all-reduce adds floats in a fixed order: rank by rank within
    /// a node, then node by node.
    Sum,
    /// Product. As sums.
    Product,
    /// Smallest. For floats: NaN if any value is NaN, and −0 is smaller than +0.
    Min,
    /// Largest. For floats: NaN if any value is NaN, and −0 is smaller than +0.
    Max,
}

/// An operator on the bits of integers, or on `bool`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BitOp {
    /// Set where both are.
    And,
    /// Set where either is.
    Or,
    /// Set where exactly one is.
    Xor,
}

/// An operator that can be applied to elements in another rank's memory: [`Op`] to numbers of at
/// most 8 bytes, [`BitOp`] to integers and `bool`. Whatever the order in which ranks apply one,
/// the result is the same (sums of floats up to rounding).
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be applied to `{T}` in another rank's memory",
    note = "`Op` applies to integers of 1 to 8 bytes, `f32` and `f64`; `BitOp` to those integers and `bool`"
)]
pub trait Operator<T>: Copy + Send + Sync + sealed::Operation<T> {}

impl<T: AtomicNumber> Operator<T> for Op {}
impl<T: AtomicBits> Operator<T> for BitOp {}

/// An operator of a reduction: [`Op`] on [numbers](Number), [`BitOp`] on integers and `bool`, or a
/// function of two elements, which must be associative. It need not commute: functions are applied
/// in rank order.
///
/// # Functions that differ
/// All ranks must give the same function. If some give another it is a
/// [`Mismatch`](crate::ErrorKind::Mismatch) on all ranks, as far as the functions' types differ in
/// their names ([`type_name`](std::any::type_name)) or sizes. So what is not noticed is: two closures
/// of one function's body whose captures are as large, one closure that has captured different values,
/// two function pointers (`fn(T, T) -> T`), and one of some 15,000 pairs whose names have the same
/// number. Ranks that run different programs have to give a function of a crate that both use.
pub trait Combine<T>: sealed::Combining<T> {}

impl<T: Number> Combine<T> for Op {}
impl<T: AtomicBits> Combine<T> for BitOp {}
impl<T, F: Fn(T, T) -> T> Combine<T> for F {}

/// Integers and floats, [`half::f16`] and [`half::bf16`] among them: what [`Op`] reduces.
pub trait Number: Element + sealed::Reduce {}

pub(crate) mod sealed {
    use crate::atomic::AtomicOp;

    pub trait Reduce: Copy {
        fn reduce(op: super::Op, a: Self, b: Self) -> Self;
        /// `a[k] = a[k] op b[k]`.
        fn reduce_slices(op: super::Op, a: &mut [Self], b: &[Self]) {
            use super::Op::{Max, Min, Product, Sum};
            // One loop for each, which the compiler can make a vector's.
            macro_rules! each {
                ($($op:ident)*) => {
                    match op {
                        $($op => a
                            .iter_mut()
                            .zip(b)
                            .for_each(|(a, &b)| *a = Self::reduce($op, *a, b)),)*
                    }
                };
            }
            each!(Sum Product Min Max);
        }
        fn is_nan(self) -> bool {
            false
        }
    }

    /// What is done with a [`Combine`](super::Combine).
    pub trait Combining<T> {
        fn combine(&self, a: T, b: T) -> T;
        /// `a[k] = a[k] op b[k]`.
        fn combine_slices(&self, a: &mut [T], b: &[T])
        where
            T: Copy,
        {
            a.iter_mut()
                .zip(b)
                .for_each(|(a, &b)| *a = self.combine(*a, b));
        }
        /// Whether the order of ranks does not matter to whoever asks for it.
        fn commutes(&self) -> bool;
        /// Tells operators apart, for ranks that must have the same. Below [`NUMBERS`](super::NUMBERS).
        fn number(&self) -> usize;
        /// Whether it is the user's, so that it may do something else on another rank.
        fn is_function(&self) -> bool {
            self.number() >= super::FUNCTIONS
        }
    }

    /// What is done with an [`Operator`](super::Operator).
    pub trait Operation<T> {
        /// The atomic operation of that name.
        fn atomic_op(self) -> AtomicOp;
        /// What that operation leaves of `a` when it is given `b`.
        fn combine(self, a: T, b: T) -> T;
    }
}
use sealed::{Combining, Operation, Reduce};

/// Operators' numbers are below this.
pub(crate) const NUMBERS: usize = 1 << 14;
/// Those of functions are not below this.
const FUNCTIONS: usize = 1000;

/// The number of functions of this type, from its name and its size: the same in all processes of
/// one program.
pub(crate) fn number_of_function<F>() -> usize {
    let numbers = (NUMBERS - FUNCTIONS) as u64;
    // Fits: it is below `NUMBERS`.
    FUNCTIONS + usize::try_from(type_hash::<F>() % numbers).unwrap_or(0)
}

/// Whether `value` is smaller ([`Op::Min`]) or larger ([`Op::Max`]) than `best`, not as good. A NaN
/// is better than anything but another.
pub(crate) fn better<T: Number>(op: Op, value: T, best: T) -> bool {
    if value.is_nan() || best.is_nan() {
        return value.is_nan() && !best.is_nan();
    }
    let winner = T::reduce(op, best, value);
    bytemuck::bytes_of(&winner) != bytemuck::bytes_of(&best)
}

impl<T: Number> Combining<T> for Op {
    fn combine(&self, a: T, b: T) -> T {
        T::reduce(*self, a, b)
    }

    fn combine_slices(&self, a: &mut [T], b: &[T]) {
        T::reduce_slices(*self, a, b);
    }

    fn commutes(&self) -> bool {
        true
    }

    fn number(&self) -> usize {
        *self as usize
    }
}

impl<T: AtomicBits> Combining<T> for BitOp {
    fn combine(&self, a: T, b: T) -> T {
        Operation::<T>::combine(*self, a, b)
    }

    fn commutes(&self) -> bool {
        true
    }

    fn number(&self) -> usize {
        100 + *self as usize
    }
}

impl<T, F: Fn(T, T) -> T> Combining<T> for F {
    fn combine(&self, a: T, b: T) -> T {
        self(a, b)
    }

    fn commutes(&self) -> bool {
        false
    }

    fn number(&self) -> usize {
        number_of_function::<F>()
    }
}

impl<T: AtomicNumber> Operation<T> for Op {
    #[inline]
    fn atomic_op(self) -> AtomicOp {
        match self {
            Self::Sum => AtomicOp::Add,
            Self::Product => AtomicOp::Mul,
            Self::Min => AtomicOp::Min,
            Self::Max => AtomicOp::Max,
        }
    }

    #[inline]
    fn combine(self, a: T, b: T) -> T {
        T::combine(Operation::<T>::atomic_op(self), a, b)
    }
}

impl<T: AtomicBits> Operation<T> for BitOp {
    #[inline]
    fn atomic_op(self) -> AtomicOp {
        match self {
            Self::And => AtomicOp::And,
            Self::Or => AtomicOp::Or,
            Self::Xor => AtomicOp::Xor,
        }
    }

    #[inline]
    fn combine(self, a: T, b: T) -> T {
        T::combine(Operation::<T>::atomic_op(self), a, b)
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Number for $int {}
        impl Reduce for $int {
            #[inline]
            fn reduce(op: Op, a: Self, b: Self) -> Self {
                match op {
                    Op::Sum => a.wrapping_add(b),
                    Op::Product => a.wrapping_mul(b),
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
            fn is_nan(self) -> bool {
                self.is_nan()
            }

            #[inline(always)]
            fn reduce(op: Op, a: Self, b: Self) -> Self {
                let result = match op {
                    Op::Sum => a + b,
                    Op::Product => a * b,
                    Op::Min => if b.total_cmp(&a).is_lt() { b } else { a },
                    Op::Max => if b.total_cmp(&a).is_gt() { b } else { a },
                };
                // Always the same NaN: which rank held it must not show. Infinities of both signs
                // make one too. No branches, so that loops become vectors.
                if result.is_nan() | a.is_nan() | b.is_nan() {
                    Self::NAN
                } else {
                    result
                }
            }
        }
    )*};
}
floats!(f32, f64, half::f16, half::bf16);

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
    fn operators_combine_as_their_atomics_do() {
        assert_eq!(Operation::combine(Op::Sum, 200_u8, 100), 44);
        assert_eq!(Operation::combine(Op::Min, -3_i16, 2), -3);
        assert_eq!(Operation::combine(Op::Product, 20_u8, 30), 88);
        assert!(!Operation::combine(BitOp::Xor, true, true));
        assert_eq!(Operation::combine(BitOp::And, 0b110_u32, 0b011), 0b010);
    }
}
