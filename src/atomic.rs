//! Atomic operations on elements of 1, 2, 4 and 8 bytes in shared memory, by the processor.
//!
//! Each is one instruction of exactly the element's width, or a loop of compare-and-exchange of
//! that width: a wider one would write to neighbours, which other ranks change by plain stores.

#![expect(unsafe_code, reason = "atomics through pointers to shared memory")]

use crate::element::Element;
use crate::operator::Op;
use crate::operator::sealed::Reduce as _;
use std::any::TypeId;
use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicU8, AtomicU16, AtomicU32,
    AtomicU64, AtomicUsize, Ordering::SeqCst,
};

/// Elements that can be changed atomically in any rank's memory: integers of 1 to 8 bytes, `bool`,
/// `f32` and `f64`.
///
/// Floats are compared by their bits: a NaN equals itself, and −0 is not +0.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic operations",
    note = "atomic operations exist for integers of 1 to 8 bytes, `bool`, `f32` and `f64`"
)]
pub trait AtomicElement: Element + sealed::Atomic {}

/// Elements to which others can be added atomically, and that have an order: integers of 1 to
/// 8 bytes, `f32` and `f64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic arithmetic",
    note = "atomic sums, minima and maxima exist for integers of 1 to 8 bytes, `f32` and `f64`"
)]
pub trait AtomicNumber: AtomicElement {}

/// Elements whose bits can be changed atomically: integers of 1 to 8 bytes, and `bool`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no atomic operations on its bits",
    note = "atomic and, or and xor exist for integers of 1 to 8 bytes and `bool`"
)]
pub trait AtomicBits: AtomicElement {}

/// Elements that UCX itself can change atomically: integers of 4 and 8 bytes. What a
/// [`RemoteKey`](crate::ucx::RemoteKey) takes.
#[diagnostic::on_unimplemented(
    message = "UCX has no atomic operations on `{Self}`",
    note = "UCX's atomics take `i32`, `u32`, `i64`, `u64`, `isize` and `usize`; a `GlobalArray`'s take more"
)]
pub trait NativeAtomic: AtomicElement + Eq {}

/// An atomic operation that returns the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicOp {
    Add,
    Sub,
    And,
    Or,
    Xor,
    Swap,
    Min,
    Max,
}

impl AtomicOp {
    pub(crate) const ALL: [Self; 8] = [
        Self::Add,
        Self::Sub,
        Self::And,
        Self::Or,
        Self::Xor,
        Self::Swap,
        Self::Min,
        Self::Max,
    ];

    /// The method that does it, for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "fetch_add",
            Self::Sub => "fetch_sub",
            Self::And => "fetch_and",
            Self::Or => "fetch_or",
            Self::Xor => "fetch_xor",
            Self::Swap => "swap",
            Self::Min => "fetch_min",
            Self::Max => "fetch_max",
        }
    }
}

/// The types that have atomics, by what the processor makes of them: `usize` is `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    Bool,
    F32,
    F64,
}

impl Class {
    /// That of `T`, if it has atomics.
    pub(crate) fn of<T: 'static>() -> Option<Self> {
        macro_rules! find {
            ($($type:ty)*) => {
                $(if TypeId::of::<T>() == TypeId::of::<$type>() {
                    return Some(<$type as sealed::Atomic>::CLASS);
                })*
            };
        }
        find!(i8 u8 i16 u16 i32 u32 i64 u64 isize usize bool f32 f64);
        None
    }

    /// Whether `op` makes sense for its values.
    pub(crate) fn has(self, op: AtomicOp) -> bool {
        use AtomicOp::{Add, And, Max, Min, Or, Sub, Swap, Xor};
        match self {
            Self::Bool => matches!(op, And | Or | Xor | Swap),
            Self::F32 | Self::F64 => matches!(op, Add | Sub | Min | Max | Swap),
            _ => true,
        }
    }

    /// Whether UCX has compare-and-exchange for it, and the operations of [`Class::has_natively`].
    pub(crate) const fn is_native(self) -> bool {
        matches!(self, Self::I32 | Self::U32 | Self::I64 | Self::U64)
    }

    /// Whether UCX has `op` for it: a difference is the sum with the negative.
    pub(crate) const fn has_natively(self, op: AtomicOp) -> bool {
        self.is_native() && !matches!(op, AtomicOp::Min | AtomicOp::Max)
    }
}

pub(crate) mod sealed {
    use super::{AtomicOp, Class};

    /// The processor's atomics on one type. All operations are defined for all types; which make
    /// sense is a matter of the public traits.
    ///
    /// The unsafe functions are called by those of the module above, and want what they want.
    pub trait Atomic: Copy {
        const CLASS: Class;
        /// What `op` leaves of `a` when it is given `b`.
        fn combine(op: AtomicOp, a: Self, b: Self) -> Self;
        /// What to add in order to subtract it.
        fn negated(self) -> Self;
        unsafe fn fetch_op(op: AtomicOp, at: *mut u8, value: Self) -> Self;
        unsafe fn compare_exchange(at: *mut u8, current: Self, new: Self) -> Self;
        unsafe fn load(at: *mut u8) -> Self;
        unsafe fn store(at: *mut u8, value: Self);
    }
}

macro_rules! integers {
    ($($int:ty: $atomic:ty, $class:expr;)*) => {$(
        impl AtomicElement for $int {}
        impl AtomicNumber for $int {}
        impl AtomicBits for $int {}
        impl sealed::Atomic for $int {
            const CLASS: Class = $class;

            #[inline]
            fn combine(op: AtomicOp, a: Self, b: Self) -> Self {
                match op {
                    AtomicOp::Add => Self::reduce(Op::Sum, a, b),
                    AtomicOp::Sub => a.wrapping_sub(b),
                    AtomicOp::And => a & b,
                    AtomicOp::Or => a | b,
                    AtomicOp::Xor => a ^ b,
                    AtomicOp::Swap => b,
                    AtomicOp::Min => Self::reduce(Op::Min, a, b),
                    AtomicOp::Max => Self::reduce(Op::Max, a, b),
                }
            }

            #[inline]
            fn negated(self) -> Self {
                self.wrapping_neg()
            }

            #[inline]
            unsafe fn fetch_op(op: AtomicOp, at: *mut u8, value: Self) -> Self {
                // SAFETY: by the caller.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                match op {
                    AtomicOp::Add => word.fetch_add(value, SeqCst),
                    AtomicOp::Sub => word.fetch_sub(value, SeqCst),
                    AtomicOp::And => word.fetch_and(value, SeqCst),
                    AtomicOp::Or => word.fetch_or(value, SeqCst),
                    AtomicOp::Xor => word.fetch_xor(value, SeqCst),
                    AtomicOp::Swap => word.swap(value, SeqCst),
                    AtomicOp::Min => word.fetch_min(value, SeqCst),
                    AtomicOp::Max => word.fetch_max(value, SeqCst),
                }
            }

            #[inline]
            unsafe fn compare_exchange(at: *mut u8, current: Self, new: Self) -> Self {
                // SAFETY: by the caller.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                let (Ok(before) | Err(before)) = word.compare_exchange(current, new, SeqCst, SeqCst);
                before
            }

            #[inline]
            unsafe fn load(at: *mut u8) -> Self {
                // SAFETY: by the caller.
                unsafe { <$atomic>::from_ptr(at.cast()) }.load(SeqCst)
            }

            #[inline]
            unsafe fn store(at: *mut u8, value: Self) {
                // SAFETY: by the caller.
                unsafe { <$atomic>::from_ptr(at.cast()) }.store(value, SeqCst);
            }
        }
    )*};
}
const WIDE: bool = size_of::<usize>() == 8;
integers! {
    i8: AtomicI8, Class::I8;
    u8: AtomicU8, Class::U8;
    i16: AtomicI16, Class::I16;
    u16: AtomicU16, Class::U16;
    i32: AtomicI32, Class::I32;
    u32: AtomicU32, Class::U32;
    i64: AtomicI64, Class::I64;
    u64: AtomicU64, Class::U64;
    isize: AtomicIsize, if WIDE { Class::I64 } else { Class::I32 };
    usize: AtomicUsize, if WIDE { Class::U64 } else { Class::U32 };
}

macro_rules! native {
    ($($int:ty)*) => {$( impl NativeAtomic for $int {} )*};
}
native!(i32 u32 i64 u64 isize usize);

impl AtomicElement for bool {}
impl AtomicBits for bool {}

/// Bytes that are 0 or 1 stay so. Arithmetic is that of one bit.
impl sealed::Atomic for bool {
    const CLASS: Class = Class::Bool;

    #[inline]
    fn combine(op: AtomicOp, a: Self, b: Self) -> Self {
        match op {
            AtomicOp::And | AtomicOp::Min => a & b,
            AtomicOp::Or | AtomicOp::Max => a | b,
            AtomicOp::Xor | AtomicOp::Add | AtomicOp::Sub => a ^ b,
            AtomicOp::Swap => b,
        }
    }

    #[inline]
    fn negated(self) -> Self {
        self
    }

    #[inline]
    unsafe fn fetch_op(op: AtomicOp, at: *mut u8, value: Self) -> Self {
        // SAFETY: by the caller.
        let byte = unsafe { AtomicU8::from_ptr(at) };
        let value = u8::from(value);
        let before = match op {
            AtomicOp::And | AtomicOp::Min => byte.fetch_and(value, SeqCst),
            AtomicOp::Or | AtomicOp::Max => byte.fetch_or(value, SeqCst),
            AtomicOp::Xor | AtomicOp::Add | AtomicOp::Sub => byte.fetch_xor(value, SeqCst),
            AtomicOp::Swap => byte.swap(value, SeqCst),
        };
        before != 0
    }

    #[inline]
    unsafe fn compare_exchange(at: *mut u8, current: Self, new: Self) -> Self {
        // SAFETY: by the caller.
        unsafe { u8::compare_exchange(at, current.into(), new.into()) != 0 }
    }

    #[inline]
    unsafe fn load(at: *mut u8) -> Self {
        // SAFETY: by the caller.
        unsafe { <u8 as sealed::Atomic>::load(at) != 0 }
    }

    #[inline]
    unsafe fn store(at: *mut u8, value: Self) {
        // SAFETY: by the caller.
        unsafe { <u8 as sealed::Atomic>::store(at, value.into()) };
    }
}

macro_rules! floats {
    ($($float:ty: $bits:ty, $atomic:ty, $class:expr;)*) => {$(
        impl AtomicElement for $float {}
        impl AtomicNumber for $float {}
        impl sealed::Atomic for $float {
            const CLASS: Class = $class;

            #[inline]
            fn combine(op: AtomicOp, a: Self, b: Self) -> Self {
                match op {
                    AtomicOp::Add => Self::reduce(Op::Sum, a, b),
                    AtomicOp::Sub => Self::reduce(Op::Sum, a, -b),
                    AtomicOp::Min => Self::reduce(Op::Min, a, b),
                    AtomicOp::Max => Self::reduce(Op::Max, a, b),
                    AtomicOp::And => Self::from_bits(a.to_bits() & b.to_bits()),
                    AtomicOp::Or => Self::from_bits(a.to_bits() | b.to_bits()),
                    AtomicOp::Xor => Self::from_bits(a.to_bits() ^ b.to_bits()),
                    AtomicOp::Swap => b,
                }
            }

            #[inline]
            fn negated(self) -> Self {
                -self
            }

            #[inline]
            unsafe fn fetch_op(op: AtomicOp, at: *mut u8, value: Self) -> Self {
                // SAFETY: by the caller.
                let word = unsafe { <$atomic>::from_ptr(at.cast()) };
                if op == AtomicOp::Swap {
                    return Self::from_bits(word.swap(value.to_bits(), SeqCst));
                }
                let mut before = word.load(SeqCst);
                loop {
                    let after = Self::combine(op, Self::from_bits(before), value).to_bits();
                    match word.compare_exchange_weak(before, after, SeqCst, SeqCst) {
                        Ok(before) => return Self::from_bits(before),
                        Err(now) => before = now,
                    }
                }
            }

            #[inline]
            unsafe fn compare_exchange(at: *mut u8, current: Self, new: Self) -> Self {
                let (current, new) = (current.to_bits(), new.to_bits());
                // SAFETY: by the caller.
                Self::from_bits(unsafe { <$bits>::compare_exchange(at, current, new) })
            }

            #[inline]
            unsafe fn load(at: *mut u8) -> Self {
                // SAFETY: by the caller.
                Self::from_bits(unsafe { <$bits as sealed::Atomic>::load(at) })
            }

            #[inline]
            unsafe fn store(at: *mut u8, value: Self) {
                // SAFETY: by the caller.
                unsafe { <$bits as sealed::Atomic>::store(at, value.to_bits()) };
            }
        }
    )*};
}
floats! {
    f32: u32, AtomicU32, Class::F32;
    f64: u64, AtomicU64, Class::F64;
}

/// An atomic operation by the processor; returns the value before.
///
/// # Safety
/// `at` points to a `T` in mapped shared memory, aligned, accessed by atomics of its size only.
#[inline]
pub(crate) unsafe fn fetch_op_at<T: AtomicElement>(op: AtomicOp, at: *mut u8, value: T) -> T {
    // SAFETY: passed on.
    unsafe { T::fetch_op(op, at, value) }
}

/// Compare and exchange by the processor, by bits; returns the value before.
///
/// # Safety
/// As for [`fetch_op_at`].
#[inline]
pub(crate) unsafe fn compare_exchange_at<T: AtomicElement>(at: *mut u8, current: T, new: T) -> T {
    // SAFETY: passed on.
    unsafe { T::compare_exchange(at, current, new) }
}

/// The value, in one order with all other atomic operations.
///
/// # Safety
/// As for [`fetch_op_at`].
#[inline]
pub(crate) unsafe fn load_at<T: AtomicElement>(at: *mut u8) -> T {
    // SAFETY: passed on.
    unsafe { T::load(at) }
}

/// Stores a value, in one order with all other atomic operations.
///
/// # Safety
/// As for [`fetch_op_at`].
#[inline]
pub(crate) unsafe fn store_at<T: AtomicElement>(at: *mut u8, value: T) {
    // SAFETY: passed on.
    unsafe { T::store(at, value) };
}

#[cfg(test)]
mod tests {
    use super::sealed::Atomic as _;
    use super::*;
    use std::fmt::Debug;

    /// All operations on the element in the middle of three: as `combine` says, and no further.
    fn exercise<T: AtomicElement + Debug>(values: [T; 4]) {
        let bytes = |value: &T| bytemuck::bytes_of(value).to_vec();
        for op in AtomicOp::ALL {
            if !T::CLASS.has(op) {
                continue;
            }
            for (a, b) in values.iter().flat_map(|a| values.map(|b| (*a, b))) {
                let mut memory = [values[1], a, values[2]];
                let at = (&raw mut memory[1]).cast::<u8>();
                // SAFETY: an element of the array, which is used by nobody else.
                let before = unsafe { fetch_op_at(op, at, b) };
                assert_eq!(bytes(&before), bytes(&a), "{op:?} {a:?} {b:?}");
                let after = T::combine(op, a, b);
                assert_eq!(bytes(&memory[1]), bytes(&after), "{op:?} {a:?} {b:?}");
                assert_eq!(bytes(&memory[0]), bytes(&values[1]), "the one before");
                assert_eq!(bytes(&memory[2]), bytes(&values[2]), "the one after");
                let at = (&raw mut memory[1]).cast::<u8>();
                // SAFETY: as above.
                let before = unsafe { compare_exchange_at(at, b, a) };
                assert_eq!(bytes(&before), bytes(&after));
                let stored = if bytes(&after) == bytes(&b) { a } else { after };
                assert_eq!(bytes(&memory[1]), bytes(&stored), "{after:?} {b:?} {a:?}");
            }
        }
        assert_eq!(Class::of::<T>(), Some(T::CLASS));
    }

    #[test]
    fn every_type_and_operation() {
        exercise([0_i8, 1, -1, i8::MIN]);
        exercise([0_u8, 1, 200, u8::MAX]);
        exercise([0_i16, 1, -1, i16::MIN]);
        exercise([0_u16, 1, 40_000, u16::MAX]);
        exercise([0_i32, 1, -1, i32::MIN]);
        exercise([0_u32, 1, 3_000_000_000, u32::MAX]);
        exercise([0_i64, 1, -1, i64::MIN]);
        exercise([0_u64, 1, 1 << 63, u64::MAX]);
        exercise([0_isize, 1, -1, isize::MIN]);
        exercise([0_usize, 1, 1 << 31, usize::MAX]);
        exercise([false, true, false, true]);
        exercise([0.0_f32, -0.0, 1.5, f32::NAN]);
        exercise([0.0_f64, -0.0, f64::NEG_INFINITY, f64::NAN]);
        assert_eq!(Class::of::<char>(), None);
        assert_eq!(Class::of::<[u8; 4]>(), None);
    }

    #[test]
    fn a_negative_subtracts() {
        assert_eq!(
            5_u32.wrapping_add(sealed::Atomic::negated(7_u32)),
            u32::MAX - 1
        );
        let min = i64::MIN;
        assert_eq!(0_i64.wrapping_add(min.negated()), 0_i64.wrapping_sub(min));
    }
}
